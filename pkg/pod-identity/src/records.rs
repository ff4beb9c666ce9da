//! Attribution of ADD records to pods.

use std::{collections::BTreeMap, sync::Arc};

use agent_protocol::PodRecord;
use model::PodUid;

use crate::PodIds;

/// Returns whether the record of an ADD is about this pod: namespace and name match, and so does the UID that the agent
/// or the API server decided on, or without one the UID that the runtime passed.
pub fn belongs_to(record: &PodRecord, pod: &PodIds) -> bool {
    if (&record.namespace, &record.name) != (&pod.name.namespace, &pod.name.name) {
        return false;
    }
    let decided = Some(&record.pod_uid).filter(|uid| !uid.is_empty());
    match decided {
        Some(uid) => *uid == pod.uid,
        None => {
            !record.uid.is_empty()
                && (record.uid == pod.uid || pod.manifest_hash.as_ref() == Some(&record.uid))
        }
    }
}

/// Returns the record of each pod's last successful ADD; pods without one are absent.
pub fn newest_by_pod(
    records: &[Arc<PodRecord>],
    pods: impl IntoIterator<Item = PodIds>,
) -> BTreeMap<PodUid, &PodRecord> {
    let mut by_name: BTreeMap<(&str, &str), Vec<&PodRecord>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.error.is_none()) {
        by_name.entry((&record.namespace, &record.name)).or_default().push(record.as_ref());
    }
    let newest = pods.into_iter().filter_map(|pod| {
        let all = by_name.get(&(pod.name.namespace.as_str(), pod.name.name.as_str()))?.iter().copied();
        let newest = all.filter(|record| belongs_to(record, &pod)).max_by(|a, b| a.at.cmp(&b.at))?;
        Some((pod.uid, newest))
    });
    newest.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::PodName;

    const UID: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";
    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn record(name: &str, runtime: &str, decided: Option<&str>, at: &str) -> PodRecord {
        PodRecord {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: runtime.into(),
            pod_uid: decided.unwrap_or_default().into(),
            at: at.to_owned(),
            ..PodRecord::default()
        }
    }

    fn ids(name: &str, uid: &str, hash: Option<&str>) -> PodIds {
        let name = PodName { namespace: "shop".to_owned(), name: name.to_owned() };
        PodIds { name, uid: uid.into(), manifest_hash: hash.map(Into::into) }
    }

    #[test]
    fn a_record_is_about_the_pod_that_was_decided_on_and_no_other() {
        let table = [
            (record("a", UID, Some(UID), "1"), ids("a", UID, None), true),
            (record("a", UID, None, "1"), ids("a", UID, None), true),
            // A static pod, which the runtime identifies by its hash.
            (record("a", HASH, Some(UID), "1"), ids("a", UID, Some(HASH)), true),
            (record("a", HASH, None, "1"), ids("a", UID, Some(HASH)), true),
            // Another pod claims the hash or the UID.
            (record("a", HASH, Some(UID), "1"), ids("b", "other", Some(HASH)), false),
            (record("a", UID, Some(UID), "1"), ids("b", UID, None), false),
            (record("a", UID, Some(UID), "1"), ids("a", "other", Some(UID)), false),
            // A predecessor of the same name.
            (record("a", "before", Some("before"), "1"), ids("a", UID, None), false),
            // The runtime passed no UID, and no decision determined one.
            (record("a", "", None, "1"), ids("a", UID, None), false),
            (record("a", "", None, "1"), ids("a", "", None), false),
        ];
        for (record, pod, expected) in table {
            assert_eq!(belongs_to(&record, &pod), expected, "{record:?} {pod:?}");
        }
    }

    #[test]
    fn of_several_adds_the_last_successful_one_counts() {
        let mut failed = record("a", UID, Some(UID), "2026-01-03T00:00:00Z");
        failed.error = Some("no".to_owned());
        let records = [
            record("a", UID, Some(UID), "2026-01-02T00:00:00Z"),
            record("a", UID, Some(UID), "2026-01-01T00:00:00Z"),
            failed,
        ]
        .map(Arc::new);
        let found = newest_by_pod(&records, [ids("a", UID, None), ids("b", "other", None)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&PodUid::from(UID)].at, "2026-01-02T00:00:00Z");
    }
}
