//! Pods by state and cause: those that suffer from one thing are one piece of news, however many there are.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{CaptureState, PodState, StateReport, cause, tables, text::clean};

/// Pods in one state that is due to one cause.
pub(super) struct PodGroup<'a> {
    pub(super) capture: CaptureState,
    /// The cause, see [`cause`], without what names one of the pods.
    pub(super) cause: String,
    pub(super) code: String,
    /// By namespace and name; never empty.
    pub(super) pods: Vec<&'a PodState>,
}

impl PodGroup<'_> {
    /// The cause, in the middle of a sentence.
    pub(super) fn clause(&self) -> String {
        let mut letters = self.cause.chars();
        letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
    }
}

/// Every pod of the node: the worst state first, and in each the cause of most pods.
pub(super) fn groups(state: &StateReport) -> Vec<PodGroup<'_>> {
    let mut groups = BTreeMap::<_, PodGroup<'_>>::new();
    for pod in &state.pods {
        let (cause, code) = cause(state, pod);
        let cause = impersonal(pod, &cause);
        let key = (tables::rank(pod.capture), code.clone(), cause.clone());
        let new = || PodGroup { capture: pod.capture, cause, code, pods: Vec::new() };
        groups.entry(key).or_insert_with(new).pods.push(pod);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| (tables::rank(group.capture), Reverse(group.pods.len())));
    for group in &mut groups {
        group.pods.sort_by_key(|pod| (&pod.namespace, &pod.name));
    }
    groups
}

/// Words about a pod without its name and its addresses, so that those of many pods can be compared.
pub(super) fn impersonal(pod: &PodState, words: &str) -> String {
    let title = clean(&pod.title());
    let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
    let mut text = String::with_capacity(words.len());
    for word in words.split(' ') {
        let bare = word.trim_matches(['(', ')', ',', ':', ';', '.']);
        let named = match bare {
            "" => bare,
            _ if bare == title => "",
            _ if ips.iter().any(|ip| ip == bare) && text.ends_with("address") => "",
            _ if ips.iter().any(|ip| ip == bare) => "its address",
            _ => bare,
        };
        // What stood behind a name that is left out stands behind the word before it.
        if !text.is_empty() && !named.is_empty() {
            text.push(' ');
        }
        text.push_str(&word.replacen(bare, named, 1));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_the_pod_are_left_out() {
        let pod = PodState {
            namespace: "shop".into(),
            name: "web".into(),
            ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            ..PodState::default()
        };
        for (words, expected) in [
            ("No ztunnel is ready, so the pod shop/web has none", "No ztunnel is ready, so the pod has none"),
            ("ztunnel refused the pod shop/web: no identity", "ztunnel refused the pod: no identity"),
            ("The address 10.0.0.7 of the pod shop/web is missing", "The address of the pod is missing"),
            ("(fd00::7 is in no set; 10.0.0.70 is)", "(its address is in no set; 10.0.0.70 is)"),
            ("the pod shop/web-1", "the pod shop/web-1"),
            ("", ""),
        ] {
            assert_eq!(impersonal(&pod, words), expected);
        }
    }
}
