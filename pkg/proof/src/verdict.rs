//! The verdict on a path, from what the kernel shows.

use std::{io, net::SocketAddr};

use report::{ProofPath, ProofResult};
use rules::PacketVerdict;

use crate::plan::PlannedPath;

/// The fate of a packet.
#[derive(Debug)]
pub(crate) enum Observation {
    /// The namespace has no route to the address.
    Unroutable(io::Error),
    /// The kernel discarded it before it left.
    Refused,
    /// The connection tracking has no entry of it.
    Untracked,
    /// The tracking has an entry.
    Tracked {
        /// Where the packet was led: its destination, or another address.
        to: SocketAddr,
        /// Whether a process of the namespace receives there; `None`: unknown.
        listens: Option<bool>,
    },
    /// Why it could not be sent, or the kernel not be asked, as a clause.
    Failed(String),
}

/// Returns the row of a path.
pub(crate) fn judge(path: &PlannedPath, observed: &Observation) -> ProofPath {
    let (result, message) = match path.expected {
        PacketVerdict::Redirected(port) => redirected(path.packet.dest, port.0, observed),
        PacketVerdict::Untouched | PacketVerdict::Dropped => untouched(path.packet.dest, observed),
    };
    path.row(result, message)
}

fn redirected(dest: SocketAddr, port: u16, observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Tracked { to, .. } if *to == dest => {
            (ProofResult::Bypasses, "leaves the pod: no rule redirects it".to_owned())
        }
        Observation::Tracked { to, listens } if to.ip().is_loopback() && to.port() == port => match listens {
            Some(true) => (ProofResult::Proven, format!("redirected to {to}, where a process receives it")),
            Some(false) => (ProofResult::Held, format!("redirected to {to}, where no process listens")),
            None => {
                let why = "whether a process listens there could not be determined";
                (ProofResult::NotTestable, format!("redirected to {to}; {why}"))
            }
        },
        Observation::Tracked { to, .. } => {
            (ProofResult::Bypasses, format!("led to {to} instead of port {port}: a foreign rule precedes"))
        }
        Observation::Untracked => {
            let why = "no connection is tracked, so no rule redirects it";
            (ProofResult::Bypasses, format!("leaves the pod: {why}"))
        }
        other => unsent(other),
    }
}

/// Traffic of the proxy, which would come back to it.
fn untouched(dest: SocketAddr, observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Untracked => (ProofResult::Proven, "leaves the pod untouched".to_owned()),
        Observation::Tracked { to, .. } if *to == dest => {
            (ProofResult::Proven, "leaves the pod untouched".to_owned())
        }
        Observation::Tracked { to, .. } => {
            (ProofResult::Held, format!("led to {to}: the proxy cannot reach its destination"))
        }
        other => unsent(other),
    }
}

fn unsent(observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Refused => {
            let why = "a rule or a full connection tracking table discards it (EPERM)";
            (ProofResult::Held, why.to_owned())
        }
        Observation::Unroutable(error) => {
            (ProofResult::NotTestable, format!("the pod has no route to it: {error}"))
        }
        Observation::Failed(why) => (ProofResult::NotTestable, why.clone()),
        Observation::Untracked | Observation::Tracked { .. } => {
            (ProofResult::NotTestable, "the kernel shows nothing of it".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{IfName, Port};
    use rules::{FirstPacket, TransportProtocol};

    use super::*;

    const DEST: &str = "192.0.2.1:80";

    fn judged(expected: PacketVerdict, observed: &Observation) -> ProofPath {
        let packet = FirstPacket {
            dest: DEST.parse().unwrap(),
            protocol: TransportProtocol::Tcp,
            output: IfName::known("eth0"),
            uid: 0,
            gid: 0,
            mark: 0,
        };
        judge(&PlannedPath { name: "application-tcp", packet, sender: (0, 0), expected }, observed)
    }

    fn led(to: &str, listens: Option<bool>) -> Observation {
        Observation::Tracked { to: to.parse().unwrap(), listens }
    }

    fn unroutable() -> Observation {
        Observation::Unroutable(io::ErrorKind::NetworkUnreachable.into())
    }

    #[test]
    fn traffic_of_the_application_must_reach_a_process_at_the_proxys_port() {
        use ProofResult::{Bypasses, Held, NotTestable, Proven};
        for (observed, expected) in [
            (led("127.0.0.1:15001", Some(true)), Proven),
            (led("[::1]:15001", Some(true)), Proven),
            (led("127.0.0.1:15001", Some(false)), Held),
            (led("127.0.0.1:15001", None), NotTestable),
            (led("127.0.0.1:9999", Some(true)), Bypasses),
            (led("10.0.0.9:15001", Some(true)), Bypasses),
            (led(DEST, None), Bypasses),
            (Observation::Untracked, Bypasses),
            (Observation::Refused, Held),
            (unroutable(), NotTestable),
            (Observation::Failed("the agent lacks CAP_NET_RAW".to_owned()), NotTestable),
        ] {
            let found = judged(PacketVerdict::Redirected(Port(15001)), &observed);
            assert_eq!(found.result, expected, "{observed:?}: {}", found.message);
            assert_eq!((found.destination.as_str(), found.family), (DEST, 4));
        }
    }

    #[test]
    fn traffic_of_the_proxy_must_leave_untouched() {
        use ProofResult::{Held, NotTestable, Proven};
        for (observed, expected) in [
            (led(DEST, None), Proven),
            (Observation::Untracked, Proven),
            (led("127.0.0.1:15001", Some(true)), Held),
            (Observation::Refused, Held),
            (unroutable(), NotTestable),
        ] {
            let found = judged(PacketVerdict::Untouched, &observed);
            assert_eq!(found.result, expected, "{observed:?}: {}", found.message);
        }
    }
}
