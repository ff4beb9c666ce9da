//! Proof by packets: where the kernel redirected packets that were sent in a pod's network namespace.

use serde::{Deserialize, Serialize};

use crate::{
    document::known_or_default,
    explain::PodVerdict,
    tables::{Cell, Colour, render_table},
    text::sanitize_text,
};

model::word_enum! {
    /// Result for one path, the worst first.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum ProofResult {
        /// The packet bypasses the proxy.
        Bypasses = "bypasses",
        /// The packet reaches neither the proxy nor any other destination.
        Held = "held",
        /// No packet was sent, or its path could not be determined.
        #[default]
        NotTestable = "not-testable",
        /// The packet took the desired path.
        Proven = "proven",
    }
}

impl ProofResult {
    fn colour(self) -> Colour {
        match self {
            ProofResult::Bypasses | ProofResult::Held => Colour::Red,
            ProofResult::NotTestable => Colour::Yellow,
            ProofResult::Proven => Colour::Green,
        }
    }
}

/// A path of a pod's traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProofPath {
    /// Sender and protocol: `application-tcp`, `application-dns-udp`, `application-dns-tcp`, `proxy-tcp`, `proxy-dns-udp` or
    /// `proxy-dns-tcp`; for traffic to the pod `inbound-tcp`, `inbound-tunnel`, `inbound-probe` or `inbound-excluded`.
    pub name: String,
    /// IP family, 4 or 6.
    pub family: u8,
    /// Protocol: `tcp` or `udp`.
    pub protocol: String,
    /// Destination address and port of the packet; empty: none was sent.
    pub destination: String,
    /// Result of the test.
    #[serde(deserialize_with = "known_or_default")]
    pub result: ProofResult,
    /// Evidence from the kernel, as a clause.
    pub message: String,
}

impl ProofPath {
    /// Whether the pod's result depends on the path: not if it is one of the proxy's that could not be tested, for which most
    /// agents lack the capabilities, and which proves nothing about the application's traffic.
    fn counts_for_result(&self) -> bool {
        self.result != ProofResult::NotTestable || !self.name.starts_with("proxy-")
    }
}

/// Results for one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Proof {
    /// Pod as `NAMESPACE/NAME`.
    pub pod: String,
    /// Whether the node has this pod, or may have it.
    pub found: bool,
    /// Reason why nothing was tested, as a clause; `None`: tests were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// All paths that were tested, or would have been.
    pub paths: Vec<ProofPath>,
}

impl Proof {
    /// Returns a proof without tests, and the reason.
    pub fn untested(pod: String, found: bool, why: String) -> Proof {
        Proof { pod, found, message: Some(why), paths: Vec::new() }
    }

    /// Returns the worst result of the paths that count.
    pub fn worst_result(&self) -> ProofResult {
        let counted = self.paths.iter().filter(|path| path.counts_for_result());
        counted.map(|path| path.result).min().unwrap_or_default()
    }

    /// Returns the exit status: 0: every path is proven; 1: at least one bypasses the proxy; 2: none does, but one is held or could
    /// not be tested; 3: the node has no such pod.
    pub fn exit_status(&self) -> u8 {
        match self.worst_result() {
            _ if !self.found => PodVerdict::NotFound.exit_status(),
            ProofResult::Bypasses => 1,
            ProofResult::Held | ProofResult::NotTestable => 2,
            ProofResult::Proven => 0,
        }
    }

    /// Returns the message of the first path with the worst result, or why nothing was tested; empty if all are proven.
    fn worst_message(&self) -> String {
        let worst = self
            .paths
            .iter()
            .filter(|path| path.result != ProofResult::Proven)
            .min_by_key(|path| path.result);
        let of = |path: &ProofPath| format!("{} IPv{}: {}", path.name, path.family, path.message);
        worst.map(of).or(self.message.clone()).unwrap_or_default()
    }

    /// Renders the results for people.
    pub fn render_table(&self, colour: bool) -> String {
        let pod = sanitize_text(&self.pod);
        if let Some(why) = &self.message {
            return format!("{pod}: {}: {}\n", ProofResult::NotTestable.as_str(), sanitize_text(why));
        }
        let row = |path: &ProofPath| {
            vec![
                Cell::plain(&path.name),
                Cell::plain(&format!("IPv{}", path.family)),
                Cell::plain(if path.destination.is_empty() { "-" } else { &path.destination }),
                Cell::coloured(path.result.as_str(), path.result.colour()),
                Cell::plain(&path.message),
            ]
        };
        let rows = self.paths.iter().map(row);
        let table = render_table(&["PATH", "FAMILY", "TO", "RESULT", "MESSAGE"], rows, colour);
        format!("{pod}: {}\n\n{table}", self.worst_result().as_str())
    }
}

/// Returns the exit status for several pods, as [`Proof::exit_status`] for one. Pods that no longer exist are ignored.
pub fn proofs_status(proofs: &[Proof]) -> u8 {
    let statuses: Vec<u8> = proofs.iter().filter(|proof| proof.found).map(Proof::exit_status).collect();
    if statuses.contains(&1) { 1 } else { statuses.into_iter().max().unwrap_or_default() }
}

/// Renders the results of several pods for people, a line each, the worst first.
pub fn proofs_text(proofs: &[Proof], colour: bool) -> String {
    if proofs.is_empty() {
        return "No pods of the mesh.\n".to_owned();
    }
    let mut proofs: Vec<&Proof> = proofs.iter().collect();
    proofs.sort_by_key(|proof| (proof.worst_result(), &proof.pod));
    let row = |proof: &&Proof| {
        let result = proof.worst_result();
        let proven = proof.paths.iter().filter(|path| path.result == ProofResult::Proven).count();
        vec![
            Cell::plain(&proof.pod),
            Cell::coloured(result.as_str(), result.colour()),
            Cell::plain(&format!("{proven} of {}", proof.paths.len())),
            Cell::plain(&proof.worst_message()),
        ]
    };
    render_table(&["POD", "RESULT", "PROVEN", "MESSAGE"], proofs.iter().map(row), colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof(results: &[ProofResult]) -> Proof {
        let path = |result: &ProofResult| ProofPath {
            name: "application-tcp".to_owned(),
            family: 4,
            protocol: "tcp".to_owned(),
            destination: "192.0.2.1:80".to_owned(),
            result: *result,
            message: "a clause".to_owned(),
        };
        Proof {
            pod: "shop/web".to_owned(),
            found: true,
            message: None,
            paths: results.iter().map(path).collect(),
        }
    }

    #[test]
    fn the_worst_path_decides_on_the_exit_status() {
        use ProofResult::{Bypasses, Held, NotTestable, Proven};
        for (results, status) in [
            (&[Proven, Proven][..], 0),
            (&[Proven, Bypasses, Held, NotTestable], 1),
            (&[Proven, Held], 2),
            (&[NotTestable, Proven], 2),
            (&[], 2),
        ] {
            assert_eq!(proof(results).exit_status(), status, "{results:?}");
        }
        let mut untested_proxy = proof(&[Proven, NotTestable]);
        untested_proxy.paths[1].name = "proxy-tcp".to_owned();
        assert_eq!(untested_proxy.exit_status(), 0);
        untested_proxy.paths[1].result = Held;
        assert_eq!(untested_proxy.exit_status(), 2);
        let gone = Proof::untested("shop/web".to_owned(), false, "the node has no such pod".to_owned());
        assert_eq!((gone.exit_status(), gone.worst_result()), (3, NotTestable));
    }

    #[test]
    fn of_several_pods_the_worst_decides_and_comes_first() {
        use ProofResult::{Bypasses, Held, Proven};
        let gone = || Proof::untested("shop/gone".to_owned(), false, "the node has no such pod".to_owned());
        for (proofs, status) in [
            (vec![], 0),
            (vec![proof(&[Proven]), gone()], 0),
            (vec![proof(&[Held]), proof(&[Proven, Bypasses])], 1),
            (vec![proof(&[Held]), proof(&[Proven])], 2),
        ] {
            assert_eq!(proofs_status(&proofs), status, "{proofs:?}");
        }
        let text = proofs_text(&[proof(&[Proven, Proven]), gone(), proof(&[Proven, Bypasses])], false);
        let expected = "\
POD        RESULT        PROVEN  MESSAGE
shop/web   bypasses      1 of 2  application-tcp IPv4: a clause
shop/gone  not-testable  0 of 0  the node has no such pod
shop/web   proven        2 of 2
";
        assert_eq!(text, expected);
        assert_eq!(proofs_text(&[], false), "No pods of the mesh.\n");
    }

    #[test]
    fn a_result_of_a_later_version_counts_as_not_testable() {
        let text = r#"{"pod":"a/b","found":true,"paths":[{"name":"x","result":"teleported","new":1}]}"#;
        let read: Proof = serde_json::from_str(text).unwrap();
        assert_eq!(read.worst_result(), ProofResult::NotTestable);
        for result in
            [ProofResult::Bypasses, ProofResult::Held, ProofResult::NotTestable, ProofResult::Proven]
        {
            assert_eq!(serde_json::to_value(result).unwrap(), result.as_str());
        }
    }

    #[test]
    fn people_see_each_path_on_a_line() {
        let text = proof(&[ProofResult::Proven, ProofResult::Bypasses]).render_table(false);
        assert!(text.starts_with("shop/web: bypasses\n\nPATH"), "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
        let why =
            Proof::untested("shop/web".to_owned(), true, "it is \u{1b}outside".to_owned()).render_table(true);
        assert_eq!(why, "shop/web: not-testable: it is \\u{1b}outside\n");
    }
}
