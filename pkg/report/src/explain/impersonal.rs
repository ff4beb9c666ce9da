//! Text about one pod, generalised to others.

use crate::{pod::PodState, text::sanitize_text};

/// Returns text about a pod without its name and its addresses, so that the text is equal for all pods in the same situation.
pub(crate) fn strip_pod_identity(pod: &PodState, text: &str) -> String {
    let title = sanitize_text(&pod.title());
    let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
    let mut result = String::with_capacity(text.len());
    for word in text.split(' ') {
        let bare = word.trim_matches(['(', ')', ',', ':', ';', '.']);
        let named = match bare {
            "" => bare,
            _ if bare == title => "",
            _ if ips.iter().any(|ip| ip == bare) && result.ends_with("address") => "",
            _ if ips.iter().any(|ip| ip == bare) => "its address",
            _ => bare,
        };
        // Punctuation after a removed name is attached to the previous word.
        if !result.is_empty() && !named.is_empty() {
            result.push(' ');
        }
        result.push_str(&word.replacen(bare, named, 1));
    }
    result
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
        for (text, expected) in [
            ("No ztunnel is ready, so the pod shop/web has none", "No ztunnel is ready, so the pod has none"),
            ("ztunnel refused the pod shop/web: no identity", "ztunnel refused the pod: no identity"),
            ("The address 10.0.0.7 of the pod shop/web is missing", "The address of the pod is missing"),
            ("(fd00::7 is in no set; 10.0.0.70 is)", "(its address is in no set; 10.0.0.70 is)"),
            ("the pod shop/web-1", "the pod shop/web-1"),
            ("", ""),
        ] {
            assert_eq!(strip_pod_identity(&pod, text), expected);
        }
    }
}
