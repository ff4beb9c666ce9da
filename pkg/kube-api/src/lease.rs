//! Leader election among the replicas of a controller by a Lease, as in client-go.
//!
//! A replica never compares the times in a Lease with its own clock: it measures with its own clock for how long the Lease has not
//! changed. Writes are updates (PUT) with the version that was read, so that of two replicas one succeeds, and so that a role with
//! `get`, `create` and `update` suffices.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::{ApiErrorKind, Error, KubeClient, client::ObjectChange};

/// Lease and identity of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this replica, unique among all candidates for the Lease.
    pub identity: String,
    /// Time for which the other replicas wait when the holder does not renew the Lease. Written in whole seconds.
    pub duration: Duration,
}

/// Result of an attempt to acquire or renew a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStanding {
    /// This replica holds the Lease, for its duration from the start of the attempt.
    Held,
    /// Another replica holds it; its identity.
    HeldByOther(String),
}

/// Timeout of each request: an attempt has two, and must end well before the Lease expires.
const LIMIT: Duration = Duration::from_secs(5);
/// Bounds, with `LONGEST`, that a duration written by another program is clamped to.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3600);

/// Content of the Lease whose change shows that its holder is alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseRecord {
    holder: String,
    duration: Duration,
    renewed: Value,
    acquired: Value,
    transitions: i64,
}

impl LeaseRecord {
    fn from_lease(lease: &Value) -> LeaseRecord {
        let member = |name: &str| lease.get("spec").and_then(|spec| spec.get(name)).unwrap_or(&Value::Null);
        let seconds = member("leaseDurationSeconds").as_u64().unwrap_or_default();
        LeaseRecord {
            holder: member("holderIdentity").as_str().unwrap_or_default().to_owned(),
            duration: Duration::from_secs(seconds).clamp(SHORTEST, LONGEST),
            renewed: member("renewTime").clone(),
            acquired: member("acquireTime").clone(),
            transitions: member("leaseTransitions").as_i64().unwrap_or_default(),
        }
    }
}

/// The last record, and since when it has been observed unchanged, by our clock.
#[derive(Debug, Default)]
struct LeaseView(Option<(LeaseRecord, Instant)>);

impl LeaseView {
    /// Records an observation. Returns whether `identity` may acquire or renew the Lease.
    fn observe_record(&mut self, record: &LeaseRecord, identity: &str, now: Instant) -> bool {
        let since = match &self.0 {
            Some((last, since)) if last == record => *since,
            _ => now,
        };
        self.0 = Some((record.clone(), since));
        let is_expired = now.saturating_duration_since(since) >= record.duration;
        record.holder.is_empty() || record.holder == identity || is_expired
    }
}

/// A replica's participation in the election.
pub struct LeaseElector {
    client: KubeClient,
    options: LeaseOptions,
    view: LeaseView,
}

impl LeaseElector {
    /// Returns an elector that has sent no request yet.
    pub fn new(client: KubeClient, options: LeaseOptions) -> LeaseElector {
        LeaseElector { client, options, view: LeaseView::default() }
    }

    /// Acquires the Lease if it is free, or renews it. To be called repeatedly, while it is held and while it is not.
    ///
    /// # Errors
    /// The API server did not respond, with five seconds for each of two requests, or refused, or the Lease was changed meanwhile. If
    /// it was held, it still is, unless the next attempt shows another holder.
    pub async fn attempt(&mut self) -> Result<LeaseStanding, Error> {
        let lease = match self.read_lease().await {
            Err(error) if error.kind() == ApiErrorKind::NotFound => None,
            answer => Some(answer?),
        };
        let record = lease.as_ref().map(LeaseRecord::from_lease).unwrap_or_default();
        if lease.is_some() && !self.view.observe_record(&record, &self.options.identity, Instant::now()) {
            return Ok(LeaseStanding::HeldByOther(record.holder));
        }
        let now = SystemTime::now();
        let change = match &lease {
            None => ObjectChange::Create(held_lease(&new(&self.options), &self.options, now)),
            Some(lease) => ObjectChange::Replace(held_lease(lease, &self.options, now)),
        };
        self.write_lease(change).await.map(|()| LeaseStanding::Held)
    }

    /// Releases the Lease, if this replica holds it, so that another can acquire it without waiting.
    ///
    /// # Errors
    /// As [`LeaseElector::attempt`]; the others then wait until the Lease expires.
    pub async fn release(&self) -> Result<(), Error> {
        let lease = self.read_lease().await?;
        if LeaseRecord::from_lease(&lease).holder != self.options.identity {
            return Ok(());
        }
        self.write_lease(ObjectChange::Replace(released_lease(&lease, SystemTime::now()))).await
    }

    async fn read_lease(&self) -> Result<Value, Error> {
        let LeaseOptions { namespace, name, .. } = &self.options;
        let path = format!("{}/{name}", self.collection_path());
        self.client.get(&format!("Lease {namespace}/{name}"), &path, LIMIT).await
    }

    async fn write_lease(&self, change: ObjectChange) -> Result<(), Error> {
        let LeaseOptions { namespace, name, .. } = &self.options;
        let path = match change {
            ObjectChange::Create(_) => self.collection_path(),
            _ => format!("{}/{name}", self.collection_path()),
        };
        self.client.change_object(format!("update Lease {namespace}/{name}"), &path, change, LIMIT).await
    }

    fn collection_path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.options.namespace)
    }
}

fn new(options: &LeaseOptions) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": options.namespace, "name": options.name},
    })
}

/// Returns the Lease as its holder writes it. All other members are kept, among them the version.
fn held_lease(lease: &Value, options: &LeaseOptions, now: SystemTime) -> Value {
    let record = LeaseRecord::from_lease(lease);
    let is_new = record.holder != options.identity;
    let was_ever_held = record.renewed.is_string();
    let now = micro_time(now);
    let acquired = if is_new { Value::from(now.clone()) } else { record.acquired };
    let transitions = record.transitions.saturating_add(i64::from(is_new && was_ever_held));
    with_spec(
        lease,
        [
            ("holderIdentity", options.identity.as_str().into()),
            ("leaseDurationSeconds", options.duration.as_secs().max(1).into()),
            ("acquireTime", acquired),
            ("renewTime", now.into()),
            ("leaseTransitions", transitions.into()),
        ],
    )
}

/// Returns the Lease as client-go releases it.
fn released_lease(lease: &Value, now: SystemTime) -> Value {
    with_spec(
        lease,
        [
            ("holderIdentity", "".into()),
            ("leaseDurationSeconds", 1.into()),
            ("renewTime", micro_time(now).into()),
        ],
    )
}

fn with_spec<const N: usize>(lease: &Value, members: [(&str, Value); N]) -> Value {
    let mut lease = lease.clone();
    let mut spec: Map<String, Value> =
        lease.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    spec.extend(members.map(|(key, value)| (key.to_owned(), value)));
    if let Some(lease) = lease.as_object_mut() {
        lease.insert("spec".to_owned(), Value::Object(spec));
    }
    lease
}

/// Formats a time as a Lease does: RFC 3339 with microseconds.
fn micro_time(time: SystemTime) -> String {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let time = k8s_openapi::jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or_default());
    time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use model::ApiServerTrust;

    use super::*;
    use crate::ApiConnection;

    fn options(identity: &str) -> LeaseOptions {
        LeaseOptions {
            namespace: "kube-system".to_owned(),
            name: "lock".to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(60),
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    fn taken(identity: &str, seconds: u64) -> LeaseRecord {
        LeaseRecord::from_lease(&held_lease(&new(&options(identity)), &options(identity), at(seconds)))
    }

    #[test]
    fn a_lease_is_taken_only_when_it_has_not_changed_for_its_duration_by_our_clock() {
        let (mut view, start) = (LeaseView::default(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        // However old its times are: the other's clock may be wrong.
        let (first, renewed) = (taken("other", 0), taken("other", 1));
        for (record, seconds, expected) in [
            (&first, 0, false),
            (&first, 59, false),
            (&renewed, 59, false),
            (&renewed, 118, false),
            (&renewed, 119, true),
            (&first, 119, false),
        ] {
            assert_eq!(view.observe_record(record, "we", after(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn our_own_lease_and_a_released_one_are_free() {
        let now = Instant::now();
        assert!(LeaseView::default().observe_record(&taken("we", 0), "we", now));
        let lease = held_lease(&new(&options("other")), &options("other"), at(0));
        assert!(LeaseView::default().observe_record(
            &LeaseRecord::from_lease(&released_lease(&lease, at(1))),
            "we",
            now
        ));
        assert!(LeaseView::default().observe_record(&LeaseRecord::from_lease(&json!({})), "we", now));
    }

    #[test]
    fn a_renewal_keeps_the_time_of_acquisition_and_a_change_of_holder_counts() {
        let first = held_lease(&new(&options("a")), &options("a"), at(0));
        assert_eq!(
            first["spec"],
            json!({
                "holderIdentity": "a",
                "leaseDurationSeconds": 60,
                "acquireTime": "2023-11-14T22:13:20.000000Z",
                "renewTime": "2023-11-14T22:13:20.000000Z",
                "leaseTransitions": 0,
            })
        );
        let renewed = held_lease(&first, &options("a"), at(5));
        assert_eq!(renewed["spec"]["acquireTime"], first["spec"]["acquireTime"]);
        assert_eq!(renewed["spec"]["renewTime"], "2023-11-14T22:13:25.000000Z");
        assert_eq!(renewed["spec"]["leaseTransitions"], 0);
        let other = held_lease(&renewed, &options("b"), at(70));
        assert_eq!(other["spec"]["acquireTime"], other["spec"]["renewTime"]);
        assert_eq!(
            (&other["spec"]["holderIdentity"], &other["spec"]["leaseTransitions"]),
            (&json!("b"), &json!(1))
        );
        let again = held_lease(&released_lease(&other, at(71)), &options("a"), at(72));
        assert_eq!(again["spec"]["leaseTransitions"], 2);
    }

    /// As by a person who annotates it.
    #[test]
    fn a_lease_that_is_changed_meanwhile_is_not_lost() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "secret").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let lease = held_lease(&new(&options("we")), &options("we"), at(0)).to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
                let length = stream.read(&mut request).unwrap();
                let (status, body) = match request[..length].starts_with(b"GET ") {
                    true => ("200 OK", lease.as_str()),
                    false => ("409 Conflict", r#"{"code": 409}"#),
                };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}", body.len());
                stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
            }
        });
        let trust = ApiServerTrust::Anybody;
        let connection = ApiConnection { server, trust, token, user_agent: "test".to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let client = KubeClient::new(&connection).unwrap();
            LeaseElector::new(client, options("we")).attempt().await.unwrap_err()
        });
        assert_eq!(error.kind(), ApiErrorKind::Conflict);
    }

    #[test]
    fn what_others_have_added_to_a_lease_stays() {
        let lease = json!({
            "metadata": {"name": "lock", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"holderIdentity": "other", "strategy": "OldestEmulationVersion"},
        });
        for written in [held_lease(&lease, &options("we"), at(0)), released_lease(&lease, at(0))] {
            assert_eq!(written["metadata"], lease["metadata"]);
            assert_eq!(written["spec"]["strategy"], "OldestEmulationVersion");
        }
    }

    #[test]
    fn a_foreign_duration_counts_within_bounds() {
        for (seconds, expected) in [(json!(-1), 1), (json!(0), 1), (json!(15), 15), (json!(u64::MAX), 3600)] {
            let record = LeaseRecord::from_lease(&json!({"spec": {"leaseDurationSeconds": seconds}}));
            assert_eq!(record.duration.as_secs(), expected);
        }
    }
}
