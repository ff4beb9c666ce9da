//! Connections of pods that stay open while one agent replaces another.

use std::net::SocketAddr;
use std::time::Duration;

use kit::{Live, LiveConnections, Netns};

use crate::fixture::{Fixture, place_of};
use crate::machine::OUTSIDE;
use crate::pods::PORT;
use crate::scenarios::Pods;

/// Connections in either direction of several pods, each with a description.
pub(crate) struct OpenConnections(Vec<(String, LiveConnections)>);

impl OpenConnections {
    /// Opens connections from each pod to the external server, and from there to each pod.
    pub(crate) fn start(pods: &Pods) -> Self {
        let mut connections = Vec::new();
        for (pod, _) in pods {
            let (net, ip) = (Fixture::net_of(pod).expect("the pod runs"), pod["status"]["podIP"].as_str());
            let net = net.trim_start_matches("--net=");
            let (from, to) =
                (open_in(net, OUTSIDE), open_in("/proc/self/ns/net", ip.expect("the pod has an address")));
            connections.push((format!("from {}", place_of(pod)), from));
            connections.push((format!("to {}", place_of(pod)), to));
        }
        Self(connections)
    }

    /// Checks that all of them have continued, and still do.
    pub(crate) fn check(&mut self, fixture: &mut Fixture, title: &str) {
        for (what, connections) in &mut self.0 {
            connections.wait_round();
            let now = connections.report();
            let claim = format!(
                "{title}: {} connections {what} go on, the slowest of {} exchanges took {:?} {:?}",
                now.connections, now.exchanges, now.slowest, now.broken
            );
            fixture.checks.check(now.broken.is_empty(), claim);
        }
    }
}

/// Three connections from a network namespace to an address.
fn open_in(net: &str, ip: &str) -> LiveConnections {
    let live = Live { stall: Duration::from_secs(10), ..Live::default() };
    let mut connections = LiveConnections::start(&Netns::at(net), live);
    connections.open(SocketAddr::new(ip.parse().expect("an address"), PORT), 3);
    connections
}
