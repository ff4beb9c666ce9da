//! Root processes outside ztunnel pods that connect to ztunnel's socket: they receive nothing that is meant for the node's ztunnel,
//! and do not delay it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::{InpodOptions, InpodZtunnel, SetOnDrop, ZdsMessage};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::fixtures::inpod::InPod;

/// More than the maximum number of connections.
const STRANGERS: usize = 60;
/// `ZdsHello{version: V1}`.
const HELLO: &[u8] = b"\x08\x01";
/// Time for which each holds a connection that is not closed.
const HELD: Duration = Duration::from_secs(20);

/// Sends the hello, and nothing more, until the connection is closed.
fn hold(socket: &Path) -> io::Result<()> {
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_timeout(&connection, rustix::net::sockopt::Timeout::Recv, Some(HELD))?;
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket)?)?;
    rustix::net::send(&connection, HELLO, SendFlags::NOSIGNAL)?;
    while rustix::net::recv(&connection, &mut [0_u8; 1024][..], RecvFlags::empty())?.0 > 0 {}
    Ok(())
}

/// Waits until the agent knows the namespace of a ztunnel's pod.
fn wait_known(fixture: &mut InPod) {
    fixture.wait_logged("network namespace of the ztunnel pod found", "uid=");
}

#[test]
fn silent_strangers_keep_no_ztunnel_from_its_place_and_fill_no_log() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    wait_known(&mut fixture);
    let before = fixture.log().lines().count();
    let (over, dialled, socket) = (AtomicBool::new(false), AtomicUsize::new(0), fixture.socket());
    thread::scope(|scope| {
        let _ends = SetOnDrop(&over);
        for _ in 0..STRANGERS {
            let (over, dialled, socket) = (&over, &dialled, &socket);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let _ = hold(socket); // closed by either side
                    dialled.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let are_dialled = || dialled.load(Ordering::Relaxed) >= 1000;
        kit::until_within(Duration::from_secs(60), "all places are taken that they can get", are_dialled);
        let mut took = ["one", "two", "three"].map(|name| {
            ztunnel.restart();
            let began = Instant::now();
            let pod = fixture.mesh_pod(name);
            fixture.wait_served(&ztunnel, &pod);
            began.elapsed()
        });
        took.sort();
        println!("they are served {took:?} after a restart of ztunnel");
        // The median: the machine may have stalled in one.
        assert!(took[1] < Duration::from_secs(7), "{took:?}");
    });
    assert_eq!(ztunnel.protocol_error(), None);
    let log = fixture.log();
    let is_zds = |line: &&str| kit::log_lines(line).iter().any(|line| line.scope == "zds");
    let lines: Vec<&str> = log.lines().skip(before).filter(is_zds).collect();
    println!("{} connections, {} lines", dialled.load(Ordering::Relaxed), lines.len());
    assert!((1..80).contains(&lines.len()), "{}", lines.join("\n"));
}

/// An address can be added to any namespace.
#[test]
fn the_address_of_a_ztunnel_pod_gives_nobody_its_place() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    wait_known(&mut fixture);
    let sandbox = fixture.node.pod(kit::Pod::new("plain", "fake"), &[]);
    for ip in ztunnel.pod().netns.addresses() {
        let (length, rest) = if ip.is_ipv4() { (32, "") } else { (128, " nodad") };
        let _ = sandbox.netns.sh(&format!("ip address add {ip}/{length} dev lo{rest}"));
    }
    let fake = InpodZtunnel::start_in(sandbox, &fixture.socket(), InpodOptions::default());
    fake.wait_for("the end of the snapshot", |all| all.contains(&ZdsMessage::SnapshotSent));
    let unknown = "istio_cni_ambient_unknown_ztunnels";
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(unknown) == Some(1.0));
    let web = fixture.mesh_pod("web");
    fixture.wait_served(&ztunnel, &web);
    let taken = fake.messages().iter().any(|one| matches!(one, ZdsMessage::Add(_)));
    assert!(!taken, "{:?}", fake.messages());
    assert_eq!(fixture.shown("ztunnel-a"), [Some(true); 3]);
}
