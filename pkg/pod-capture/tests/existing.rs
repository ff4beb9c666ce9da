//! Existing connections of a pod when it is captured, with real traffic between two network namespaces.
#![allow(clippy::unwrap_used, reason = "a test: a panic is its failure")]

#[path = "named/netns.rs"]
mod named_netns;

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use conntrack::{ConnectionsReport, KeptConnections};
use firewall::{Backend, FirewallOptions};
use model::{ExistingConnections, Family};
use pod_capture::{CaptureReport, PodRulesSpec, capture_pod, release_pod};
use rules::inpod::{InPodRulesConfig, PodOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect_unspec, socket_with, sockopt};

use named_netns::Named;

const POD: [&str; 2] = ["10.9.1.2", "fd00:9::2"];
const PEER: [&str; 2] = ["10.9.1.1", "fd00:9::1"];
const PORT: u16 = 8080;

impl Named {
    /// Echoes every byte, on all addresses, as long as the process runs.
    fn serve(&self) {
        let listener = self.1.run_in(|| TcpListener::bind(("::", PORT)).unwrap()).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut bytes = [0; 64];
                    while let Ok(length @ 1..) = stream.read(&mut bytes) {
                        if stream.write_all(bytes.get(..length).unwrap()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }

    fn connect(&self, address: &str) -> Result<TcpStream, ErrorKind> {
        let at = SocketAddr::new(address.parse().unwrap(), PORT);
        let stream = self.1.run_in(|| TcpStream::connect_timeout(&at, Duration::from_secs(5))).unwrap();
        let stream = stream.map_err(|error| error.kind())?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Ok(stream)
    }
}

impl Named {
    /// Waits until a worker of the kernel has made the IPv6 addresses usable, which it does also without duplicate address detection.
    fn wait_until_addresses_are_usable(&self) {
        wait_until("addresses are usable", || self.sh("ip -6 -oneline address show tentative").is_empty());
    }

    /// Connects from this port, which may have been in use until recently.
    fn connect_from(&self, port: u16, address: &str) -> TcpStream {
        let at = SocketAddr::new(address.parse().unwrap(), PORT);
        let connect = || {
            let socket =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            sockopt::set_socket_reuseaddr(&socket, true).unwrap();
            rustix::net::bind(&socket, &SocketAddr::from(([0, 0, 0, 0], port))).unwrap();
            rustix::net::connect(&socket, &at).unwrap();
            TcpStream::from(socket)
        };
        self.1.run_in(connect).unwrap()
    }
}

/// Waits until a condition holds that depends on this machine alone.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        thread::sleep(Duration::from_millis(1)); // between two polls
    }
}

/// Ends a connection with a reset and without a trace. Closing it does not suffice: a child that another test is starting may have
/// a copy of its descriptor for a moment.
fn abort(stream: TcpStream) {
    connect_unspec(&stream).unwrap();
    drop(stream);
}

/// Sends one byte and receives it back.
fn exchange(mut stream: &TcpStream) -> Result<(), ErrorKind> {
    let mut byte = [7];
    let done = stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte));
    done.map_err(|error| error.kind())
}

/// A pod, and a peer outside.
struct Fixture {
    pod: Named,
    peer: Named,
    backend: Backend,
}

impl Fixture {
    fn new(backend: Backend) -> Fixture {
        let (pod, peer) = (Named::new("pod"), Named::new("peer"));
        // Duplicate address detection would keep the links' own addresses unusable for a second or two.
        let accept_dad = "/proc/sys/net/ipv6/conf/default/accept_dad";
        [&pod, &peer].iter().for_each(|side| side.1.run_in(|| fs::write(accept_dad, "0").unwrap()).unwrap());
        peer.sh(&format!("ip link add veth0 type veth peer name eth0 netns {}", pod.name()));
        for (side, device, addresses) in [(&pod, "eth0", POD), (&peer, "veth0", PEER)] {
            let [v4, v6] = addresses;
            side.sh(&format!("ip address add {v4}/24 dev {device}"));
            side.sh(&format!("ip address add {v6}/64 dev {device}"));
            side.sh(&format!("ip link set {device} up"));
            side.serve();
        }
        [&pod, &peer].iter().for_each(|side| side.wait_until_addresses_are_usable());
        Fixture { pod, peer, backend }
    }

    /// Opens `count` connections of each family in each direction.
    fn connections(&self, count: usize) -> Vec<TcpStream> {
        let ways = PEER.map(|to| (&self.pod, to)).into_iter().chain(POD.map(|to| (&self.peer, to)));
        ways.flat_map(|(from, to)| (0..count).map(move |_| from.connect(to).unwrap())).collect()
    }

    fn capture(&self, existing: ExistingConnections) -> CaptureReport {
        self.capture_with(existing, &PodOptions::default())
    }

    fn capture_with(&self, existing: ExistingConnections, pod: &PodOptions) -> CaptureReport {
        self.capture_families(&Family::BOTH, existing, pod)
    }

    fn capture_families(
        &self,
        families: &[Family],
        existing: ExistingConnections,
        pod: &PodOptions,
    ) -> CaptureReport {
        let config = InPodRulesConfig::default();
        let wanted = PodRulesSpec { config: &config, pod, families, existing };
        capture_pod(&self.pod.1, &wanted, &self.options()).unwrap()
    }

    fn release(&self) {
        assert!(!release_pod(&self.pod.1, &InPodRulesConfig::default(), &self.options()).unwrap().is_empty());
    }

    fn options(&self) -> FirewallOptions {
        FirewallOptions { forced: Some(self.backend), ..FirewallOptions::default() }
    }

    /// New connections are redirected to a port without a listener.
    fn assert_redirected(&self) {
        for (from, to) in PEER.map(|to| (&self.pod, to)).into_iter().chain(POD.map(|to| (&self.peer, to))) {
            assert_eq!(from.connect(to).unwrap_err(), ErrorKind::ConnectionRefused, "{to}");
        }
    }

    fn outside(&self) -> usize {
        self.pod.1.run_in(|| conntrack::outside_connections().unwrap().len()).unwrap()
    }
}

/// Ends threads beside a test, even if the test fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kept(count: usize) -> Option<ConnectionsReport> {
    Some(ConnectionsReport::Kept(KeptConnections { kept: count, ..KeptConnections::default() }))
}

fn on_both_backends(test: impl Fn(Fixture)) {
    for backend in [Backend::Nft, Backend::Legacy] {
        test(Fixture::new(backend));
    }
}

#[test]
fn connections_survive_capture_release_and_capture_and_new_ones_are_redirected() {
    on_both_backends(|fixture| {
        let mut streams = fixture.connections(25);
        let (idle, busy) = streams.split_at(50);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = EndOnDrop(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    busy.iter().for_each(|stream| exchange(stream).unwrap());
                }
            });
            for _ in 0..2 {
                assert_eq!(fixture.capture(ExistingConnections::Keep).connections, kept(100));
                fixture.assert_redirected();
                idle.iter().for_each(|stream| exchange(stream).unwrap());
                assert_eq!(fixture.outside(), 100);
                fixture.release();
                idle.iter().for_each(|stream| exchange(stream).unwrap());
            }
        });
        assert_eq!(fixture.capture(ExistingConnections::Keep).connections, kept(100));
        assert_eq!(fixture.capture(ExistingConnections::Keep).connections, None, "nothing changed");
        streams.truncate(60);
        drop(streams.drain(..20));
        wait_until("the servers have closed their ends", || fixture.outside() == 40);
        streams.iter().for_each(|stream| exchange(stream).unwrap());
    });
}

#[test]
fn none_that_opens_or_closes_meanwhile_breaks() {
    on_both_backends(|fixture| {
        let held = fixture.connections(5);
        let (is_over, opened) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            let _end = EndOnDrop(&is_over);
            let ways = PEER.map(|to| (&fixture.pod, to)).into_iter().chain(POD.map(|to| (&fixture.peer, to)));
            for (from, to) in ways {
                let (is_over, opened) = (&is_over, &opened);
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        match from.connect(to) {
                            Ok(stream) => (0..3).for_each(|_| exchange(&stream).unwrap()),
                            Err(refused) => assert_eq!(refused, ErrorKind::ConnectionRefused),
                        }
                        opened.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 1..=5 {
                let before = opened.load(Ordering::Relaxed);
                wait_until("others open", || opened.load(Ordering::Relaxed) >= before + 20);
                let report = fixture.capture(ExistingConnections::Keep).connections;
                let Some(ConnectionsReport::Kept(kept)) = report else { panic!("{report:?}") };
                assert!(kept.refused.is_none() && kept.kept >= held.len(), "{round}: {kept:?}");
                fixture.assert_redirected();
                held.iter().for_each(|stream| exchange(stream).unwrap());
                fixture.release();
            }
        });
        fixture.capture(ExistingConnections::Keep);
        wait_until("none is left of those that were closed", || fixture.outside() == held.len());
    });
}

/// For a connection that was redirected when the pod left, the kernel keeps an entry, which refers to a closed socket.
#[test]
fn a_connection_with_the_addresses_of_one_that_was_redirected_survives() {
    on_both_backends(|fixture| {
        fixture.capture(ExistingConnections::Keep);
        let proxies = [("127.0.0.1", 15001), (POD[0], 15006)];
        let proxies = proxies.map(|at| fixture.pod.1.run_in(|| TcpListener::bind(at).unwrap()).unwrap());
        let pair = || [fixture.pod.connect_from(40001, PEER[0]), fixture.peer.connect_from(40002, POD[0])];
        let redirected = pair();
        let accepted = proxies.map(|proxy| proxy.accept().unwrap().0);
        fixture.release();
        redirected.into_iter().chain(accepted).for_each(abort);
        let streams = pair();
        streams.iter().for_each(|stream| exchange(stream).unwrap());
        assert_eq!(fixture.capture(ExistingConnections::Keep).connections, kept(2));
        streams.iter().for_each(|stream| exchange(stream).unwrap());
    });
}

#[test]
fn on_demand_they_are_closed_at_once() {
    on_both_backends(|fixture| {
        let streams = fixture.connections(5);
        assert_eq!(
            fixture.capture(ExistingConnections::Reset).connections,
            Some(ConnectionsReport::Reset(20))
        );
        for stream in &streams {
            let error = (&*stream).read(&mut [0]).unwrap_err().kind();
            assert!(matches!(error, ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset), "{error}");
        }
        fixture.assert_redirected();
        assert_eq!(fixture.outside(), 0);
    });
}

/// As a gateway's clients.
#[test]
fn inbound_connections_that_are_not_captured_stay() {
    let gateway = PodOptions { bypass_inbound: true, ..PodOptions::default() };
    on_both_backends(|fixture| {
        let streams = fixture.connections(5);
        let (outbound, inbound) = streams.split_at(10);
        let done = fixture.capture_with(ExistingConnections::Reset, &gateway).connections;
        assert_eq!(done, Some(ConnectionsReport::Reset(10)));
        inbound.iter().for_each(|stream| exchange(stream).unwrap());
        outbound.iter().for_each(|stream| assert!(exchange(stream).is_err()));
    });
    on_both_backends(|fixture| {
        let streams = fixture.connections(5);
        assert_eq!(fixture.capture_with(ExistingConnections::Keep, &gateway).connections, kept(10));
        streams.iter().for_each(|stream| exchange(stream).unwrap());
        assert_eq!(fixture.outside(), 10);
    });
}

/// As with `AMBIENT_IPV6=false`.
#[test]
fn connections_of_a_family_that_is_not_captured_stay() {
    for (existing, outcome) in [
        (ExistingConnections::Reset, Some(ConnectionsReport::Reset(10))),
        (ExistingConnections::Keep, kept(10)),
    ] {
        on_both_backends(|fixture| {
            let streams = fixture.connections(5);
            let done = fixture.capture_families(&[Family::V4], existing, &PodOptions::default()).connections;
            assert_eq!(done, outcome);
            let v6 = streams.iter().filter(|stream| stream.local_addr().unwrap().is_ipv6());
            assert_eq!(v6.map(|stream| exchange(stream).unwrap()).count(), 10);
        });
    }
}

#[test]
fn connections_within_the_pod_are_nobodys_business() {
    on_both_backends(|fixture| {
        let within = [("127.0.0.1"), ("::1"), POD[0], POD[1]].map(|to| fixture.pod.connect(to).unwrap());
        assert_eq!(fixture.capture(ExistingConnections::Keep).connections, kept(0));
        within.iter().for_each(|stream| exchange(stream).unwrap());
        fixture.release();
        assert_eq!(fixture.capture(ExistingConnections::Reset).connections, None);
        within.iter().for_each(|stream| exchange(stream).unwrap());
    });
}
