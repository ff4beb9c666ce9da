//! Pods in the names of a process's control groups.

/// Hexadecimal digits of a UID.
const DIGITS: usize = 32;
/// Groups of digits in a UID with separators.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// A UID in comparable form: the number of its 32 hexadecimal digits. Runtimes write a pod's UID with dashes or
/// underscores, and that of a static pod, the hash of its manifest, without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UidNumber(u128);

impl UidNumber {
    /// Parses a UID as the API shows it, or the hash of a manifest. `None`: it has another form.
    pub(crate) fn parse(uid: &str) -> Option<UidNumber> {
        let (number, rest) = leading_uid(uid)?;
        rest.is_empty().then_some(number)
    }

    /// Parses the hash of a manifest: 32 hexadecimal digits without separators, a form that no UID of the API has.
    pub(crate) fn from_hash(hash: &str) -> Option<UidNumber> {
        (hash.len() == DIGITS).then(|| UidNumber::parse(hash)).flatten()
    }
}

/// Returns the pods in a path of control groups, the outermost one first. A container that may create control groups
/// below its own can add any further names, but none before its own pod's.
pub(crate) fn pods_in_path(path: &str) -> impl Iterator<Item = UidNumber> {
    let starts = path.match_indices("pod").map(|(at, word)| (at, at + word.len()));
    let before = |at: usize| path.get(..at).and_then(|before| before.chars().next_back());
    let begins = move |at: usize| before(at).is_none_or(|c| !c.is_ascii_alphanumeric());
    starts.filter(move |(at, _)| begins(*at)).filter_map(|(_, end)| {
        let (number, rest) = leading_uid(path.get(end..)?)?;
        let ends = rest.chars().next().is_none_or(|c| !c.is_ascii_alphanumeric());
        ends.then_some(number)
    })
}

/// Returns the paths in a `/proc/PID/cgroup` of version 1 or 2.
pub(crate) fn cgroup_paths(cgroup: &str) -> impl Iterator<Item = &str> {
    cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

/// Returns whether a `/proc/PID/cgroup` names any pod.
pub fn names_a_pod(cgroup: &str) -> bool {
    cgroup_paths(cgroup).any(|path| pods_in_path(path).next().is_some())
}

/// Returns the UID with which a text begins, and the rest of the text.
fn leading_uid(text: &str) -> Option<(UidNumber, &str)> {
    let (mut rest, mut number) = (text, 0_u128);
    for (place, length) in GROUPS.into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix(['-', '_']).unwrap_or(rest);
        }
        let group = rest.get(..length)?;
        for digit in group.chars() {
            number = number << 4 | u128::from(digit.to_digit(16)?);
        }
        rest = rest.get(length..)?;
    }
    Some((UidNumber(number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";
    const HASH: &str = "2a1b3c4d5e6f708192a3b4c5d6e7f809";
    const OTHER: &str = "00000000-0000-4000-8000-000000000001";

    fn pods(path: &str) -> Vec<UidNumber> {
        pods_in_path(path).collect()
    }

    #[test]
    fn pods_are_known_by_every_runtimes_paths() {
        let under = UID.replace('-', "_");
        let paths = [
            format!("/kubepods/burstable/pod{UID}/0123456789abcdef"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-0123.scope"
            ),
            format!(
                "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{under}.slice/crio-0123.scope"
            ),
            format!("/../../pod{UID}/0123"),
            format!(
                "/system.slice/containerd.service/kubepods-besteffort-pod{under}.slice:cri-containerd:0123"
            ),
            format!("/kubepods/pod{UID}"),
            format!("/kubepods/besteffort/pod{HASH}/0123"),
            format!("/kind/kubelet.slice/pod{}/0123", UID.to_ascii_uppercase()),
        ];
        for path in &paths {
            assert_eq!(pods(path), [UidNumber::parse(UID).unwrap()], "{path}");
        }
    }

    #[test]
    fn other_paths_name_no_pod() {
        let paths = [
            "/".to_owned(),
            String::new(),
            "/system.slice/kubelet.service".to_owned(),
            format!("/user.slice/tripod{UID}/x"),
            format!("/kubepods/pod{UID}0/x"),
            format!("/kubepods/pod{}/x", &UID[1..]),
            format!("/machine.slice/libpod-{HASH}.scope"),
        ];
        for path in &paths {
            assert_eq!(pods(path), [], "{path}");
        }
        assert!(!names_a_pod("no colons") && !names_a_pod("0::/") && !names_a_pod(""));
        assert!(names_a_pod(&format!("12:cpuset:/\n0::/kubepods/pod{UID}/1")));
    }

    #[test]
    fn a_path_names_the_outermost_pod_first() {
        let [uid, other] = [UID, OTHER].map(|uid| UidNumber::parse(uid).unwrap());
        assert_eq!(pods(&format!("/kubepods/pod{OTHER}/1/kubepods/pod{UID}/2")), [other, uid]);
        assert_eq!(pods(&format!("/kubepods/pod{OTHER}/ctr/pod{UID}/x")), [other, uid]);
    }

    #[test]
    fn only_a_hash_without_separators_is_a_hash() {
        assert_eq!(UidNumber::parse(UID), UidNumber::parse(HASH));
        assert_eq!(UidNumber::from_hash(HASH), UidNumber::parse(HASH));
        let under = UID.replace('-', "_");
        for none in ["", "u1", UID, &under, &HASH[1..], "2a1b3c4d5e6f708192a3b4c5d6e7f80g"] {
            assert_eq!(UidNumber::from_hash(none), None, "{none}");
        }
        for none in ["", "u1", &UID[1..], &format!("{UID}0"), "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f80g"] {
            assert_eq!(UidNumber::parse(none), None, "{none}");
        }
    }
}
