//! Verdict on a path, from the kernel's state.

use std::{io, net::SocketAddr};

use report::{ProofPath, ProofResult};
use rules::PacketVerdict;

use crate::plan::PlannedPath;

/// Fate of a packet.
#[derive(Debug)]
pub(crate) enum Observation {
    /// The namespace has no route to the address.
    Unroutable(io::Error),
    /// The kernel discarded the packet before it left.
    Refused,
    /// The pod sent the packet, and connection tracking has no entry of it.
    Untracked,
    /// The packet was sent to the pod, and has not arrived there.
    Discarded,
    /// Connection tracking has an entry, or the packet has arrived.
    Tracked {
        /// Target of the packet: its destination, or another address.
        to: SocketAddr,
        /// Whether a process of the namespace receives there; `None`: unknown.
        listens: Option<bool>,
    },
    /// Another process than the proxy receives the packet at this address, the proxy's.
    Intercepted(SocketAddr),
    /// Why the packet could not be sent, or the kernel not be queried, as a clause.
    Failed(String),
}

/// Returns the report row of a path.
pub(crate) fn judge_path(path: &PlannedPath, observed: &Observation) -> ProofPath {
    let packet = &path.packet;
    let (result, message) = match (path.expected, packet.source.is_some()) {
        (PacketVerdict::Redirected(port) | PacketVerdict::Tproxied(port), arrives) => {
            judge_redirected(packet.dest, port.0, arrives, observed)
        }
        (PacketVerdict::Untouched | PacketVerdict::Dropped, false) => judge_untouched(packet.dest, observed),
        (PacketVerdict::Untouched | PacketVerdict::Dropped, true) => judge_passing(packet.dest, observed),
    };
    path.to_row(result, message)
}

fn judge_redirected(
    dest: SocketAddr,
    port: u16,
    arrives: bool,
    observed: &Observation,
) -> (ProofResult, String) {
    let bypasses = if arrives { "reaches the application" } else { "leaves the pod" };
    match observed {
        // Arriving packets are delivered to an address of the pod.
        Observation::Tracked { to, listens } if to.port() == port && (arrives || to.ip().is_loopback()) => {
            let clause = if *to == dest { "arrives at" } else { "redirected to" };
            match listens {
                Some(true) => (ProofResult::Proven, format!("{clause} {to}, where a process receives it")),
                Some(false) => (ProofResult::Held, format!("{clause} {to}, where no process listens")),
                None => {
                    let why = "whether a process listens there could not be determined";
                    (ProofResult::NotTestable, format!("{clause} {to}; {why}"))
                }
            }
        }
        Observation::Tracked { to, .. } if *to == dest => {
            (ProofResult::Bypasses, format!("{bypasses}: no rule redirects it"))
        }
        Observation::Tracked { to, .. } => (
            ProofResult::Bypasses,
            format!("redirected to {to} instead of port {port} by another component's rule"),
        ),
        Observation::Untracked => {
            let why = "no connection is tracked, so no rule redirects it";
            (ProofResult::Bypasses, format!("{bypasses}: {why}"))
        }
        Observation::Intercepted(to) => {
            (ProofResult::Bypasses, format!("arrives at {to}, where another process than ztunnel listens"))
        }
        other => judge_undelivered(other),
    }
}

/// Judges traffic that should reach the application without the proxy: by the pod's annotations, or as a probe of the
/// node.
fn judge_passing(dest: SocketAddr, observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Tracked { to, .. } if *to == dest => (
            ProofResult::Proven,
            "reaches the application, as expected: excluded from redirection".to_owned(),
        ),
        Observation::Tracked { to, .. } => {
            (ProofResult::Held, format!("redirected to {to}, although it is excluded from redirection"))
        }
        other => judge_undelivered(other),
    }
}

/// Judges traffic of the proxy, which would loop if it were redirected.
fn judge_untouched(dest: SocketAddr, observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Tracked { to, .. } if *to != dest => {
            (ProofResult::Held, format!("redirected to {to}: the proxy cannot reach its destination"))
        }
        Observation::Untracked | Observation::Tracked { .. } => {
            (ProofResult::Proven, "leaves the pod untouched".to_owned())
        }
        other => judge_undelivered(other),
    }
}

fn judge_undelivered(observed: &Observation) -> (ProofResult, String) {
    match observed {
        Observation::Refused => {
            let why = "a rule or a full connection tracking table discards it (EPERM)";
            (ProofResult::Held, why.to_owned())
        }
        Observation::Discarded => {
            let why = "arrives nowhere in the pod: a rule or the pod's routing discards it";
            (ProofResult::Held, why.to_owned())
        }
        Observation::Unroutable(error) => {
            (ProofResult::NotTestable, format!("the pod has no route to it: {error}"))
        }
        Observation::Failed(why) => (ProofResult::NotTestable, why.clone()),
        Observation::Untracked | Observation::Tracked { .. } | Observation::Intercepted(_) => {
            (ProofResult::NotTestable, "the kernel shows nothing of it".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Port;
    use rules::{FirstPacket, TransportProtocol};

    use super::*;
    use crate::plan::packet_to;

    const DEST: &str = "192.0.2.1:80";

    fn judged(expected: PacketVerdict, observed: &Observation) -> ProofPath {
        let packet = packet_to(DEST.parse().unwrap(), TransportProtocol::Tcp);
        judge_path(&PlannedPath { name: "application-tcp", packet, sender: (0, 0), expected }, observed)
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
            (Observation::Intercepted("127.0.0.1:15001".parse().unwrap()), Bypasses),
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

    fn judged_arriving(expected: PacketVerdict, observed: &Observation) -> ProofPath {
        let packet = packet_to("10.0.0.2:80".parse().unwrap(), TransportProtocol::Tcp);
        let packet = FirstPacket { source: Some("192.0.2.1".parse().unwrap()), ..packet };
        judge_path(&PlannedPath { name: "inbound-tcp", packet, sender: (0, 0), expected }, observed)
    }

    #[test]
    fn what_arrives_must_reach_a_process_at_the_proxys_port() {
        use ProofResult::{Bypasses, Held, NotTestable, Proven};
        for (observed, expected) in [
            (led("10.0.0.2:15006", Some(true)), Proven),
            (led("10.0.0.2:15006", Some(false)), Held),
            (led("10.0.0.2:15006", None), NotTestable),
            (led("10.0.0.2:9999", None), Bypasses),
            (led("10.0.0.2:80", None), Bypasses),
            (Observation::Discarded, Held),
            (Observation::Failed("its eth0 is not a veth pair".to_owned()), NotTestable),
        ] {
            for verdict in [PacketVerdict::Redirected(Port(15006)), PacketVerdict::Tproxied(Port(15006))] {
                let found = judged_arriving(verdict, &observed);
                assert_eq!(found.result, expected, "{observed:?}: {}", found.message);
            }
        }
        // An HBONE connection reaches the proxy's port without any rule.
        let tunnel = judged_arriving(PacketVerdict::Redirected(Port(80)), &led("10.0.0.2:80", Some(true)));
        assert_eq!(tunnel.result, Proven);
    }

    #[test]
    fn what_is_excluded_must_reach_the_application() {
        use ProofResult::{Held, NotTestable, Proven};
        for (observed, expected) in [
            (led("10.0.0.2:80", None), Proven),
            (led("10.0.0.2:15006", None), Held),
            (Observation::Discarded, Held),
            (unroutable(), NotTestable),
        ] {
            let found = judged_arriving(PacketVerdict::Untouched, &observed);
            assert_eq!(found.result, expected, "{observed:?}: {}", found.message);
        }
    }
}
