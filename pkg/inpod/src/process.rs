//! What `/proc` tells of a process: whose pod it belongs to, and when it began.

use model::PodUid;

/// Digits of a UID, without what separates them.
const DIGITS: usize = 32;
/// How many of them stand together in a UID that has separators.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// A UID as far as it can be compared: its 32 hexadecimal digits, in lower case. The runtime writes a pod's UID with
/// dashes or underscores, and that of a static pod, the hash of its manifest, without any.
#[must_use]
pub(crate) fn digits(uid: &PodUid) -> Option<String> {
    let digits: String = uid.as_str().chars().filter(|c| *c != '-').collect();
    let is_uid = digits.len() == DIGITS && digits.chars().all(|c| c.is_ascii_hexdigit());
    is_uid.then(|| digits.to_ascii_lowercase())
}

/// The pod that a process belongs to, from its `/proc/PID/cgroup` (version 1 or 2): the digits of its UID. None if
/// it belongs to no pod, or its lines name several.
pub(crate) fn pod_of(cgroup: &str) -> Option<String> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut found = None;
    for uid in paths.filter_map(pod_in_path) {
        if found.as_ref().is_some_and(|found| *found != uid) {
            return None;
        }
        found = Some(uid);
    }
    found
}

/// The last `pod<uid>` of a path, of which `kubepods-burstable-pod<uid>.slice` has one, too.
fn pod_in_path(path: &str) -> Option<String> {
    let starts = path.match_indices("pod").map(|(at, word)| (at, at + word.len()));
    let begins = |at: usize| {
        path.get(..at)
            .and_then(|before| before.chars().next_back())
            .is_none_or(|c| !c.is_ascii_alphanumeric())
    };
    starts.filter(|(at, _)| begins(*at)).filter_map(|(_, end)| leading_uid(path.get(end..)?)).last()
}

/// The UID that a text begins with, if nothing that could belong to it follows.
fn leading_uid(text: &str) -> Option<String> {
    let (mut rest, mut digits) = (text, String::new());
    for (place, length) in GROUPS.into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix(['-', '_']).unwrap_or(rest);
        }
        let group = rest.get(..length).filter(|group| group.chars().all(|c| c.is_ascii_hexdigit()))?;
        digits.push_str(group);
        rest = rest.get(length..)?;
    }
    let ends = rest.chars().next().is_none_or(|c| !c.is_ascii_alphanumeric());
    ends.then(|| digits.to_ascii_lowercase())
}

/// When a process began, in clock ticks since boot, from its `/proc/PID/stat`: the 22nd field. The second is its name,
/// which may hold anything.
pub(crate) fn started(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";
    const DIGITS_OF_UID: &str = "2a1b3c4d5e6f708192a3b4c5d6e7f809";

    #[test]
    fn pods_are_known_by_every_runtimes_paths() {
        let under = UID.replace('-', "_");
        let paths = [
            format!("0::/kubepods/burstable/pod{UID}/0123456789abcdef"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-0123.scope"
            ),
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under}.slice/crio-0123.scope"
            ),
            format!("0::/../../pod{UID}/0123"),
            format!(
                "0::/system.slice/containerd.service/kubepods-besteffort-pod{under}.slice:cri-containerd:0123"
            ),
            format!("0::/kubepods/pod{UID}"),
            format!("0::/kubepods/besteffort/pod{DIGITS_OF_UID}/0123"),
            format!(
                "12:cpuset:/kubepods/pod{UID}/01\n11:memory:/kubepods/pod{UID}/01\n1:name=systemd:/\n0::/"
            ),
            format!("0::/kind/kubelet.slice/pod{}/0123", UID.to_ascii_uppercase()),
        ];
        for path in &paths {
            assert_eq!(pod_of(path).as_deref(), Some(DIGITS_OF_UID), "{path}");
        }
    }

    #[test]
    fn other_processes_belong_to_no_pod() {
        let other = UID.replace('2', "3");
        let paths = [
            "0::/".to_owned(),
            String::new(),
            "0::/system.slice/kubelet.service".to_owned(),
            "no colons".to_owned(),
            format!("0::/user.slice/tripod{UID}/x"),
            format!("0::/kubepods/pod{UID}0/x"),
            format!("0::/kubepods/pod{}/x", &UID[1..]),
            format!("0::/machine.slice/libpod-{DIGITS_OF_UID}.scope"),
            format!("2:cpu:/kubepods/pod{UID}/1\n1:memory:/kubepods/pod{other}/1"),
        ];
        for path in &paths {
            assert_eq!(pod_of(path), None, "{path}");
        }
    }

    #[test]
    fn a_nested_pod_is_the_inner_one() {
        let other = "00000000-0000-4000-8000-000000000000";
        let path = format!("0::/kubepods/pod{other}/1/kubepods/pod{UID}/2");
        assert_eq!(pod_of(&path).as_deref(), Some(DIGITS_OF_UID));
    }

    #[test]
    fn uids_compare_by_their_digits() {
        assert_eq!(digits(&UID.into()).as_deref(), Some(DIGITS_OF_UID));
        assert_eq!(digits(&DIGITS_OF_UID.into()).as_deref(), Some(DIGITS_OF_UID));
        for none in ["", "u1", &UID[1..], "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f80g"] {
            assert_eq!(digits(&none.into()), None);
        }
    }

    #[test]
    fn a_start_is_found_whatever_the_name() {
        let rest = (4..=21).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(started(&format!("7 (a) b) 2 (c) S {rest} 4711 23")), Some(4711));
        for none in ["", "7 (a S 1 2", "7 (a) S 1 2 3"] {
            assert_eq!(started(none), None);
        }
    }
}
