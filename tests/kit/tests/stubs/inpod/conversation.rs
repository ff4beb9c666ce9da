//! Answers of the stub to an agent that complies with the protocol.

use std::os::fd::AsFd as _;

use kit::{InpodOptions, InpodZtunnel, Netns, Node, NodeOptions, Workload, WorkloadState, ZdsMessage};

use super::agent::{Agent, DONE, SNAPSHOT, del, keep, open};

const PORTS: [u16; 3] = [15001, 15006, 15008];

/// The ports with a listener in a namespace. Binding does not detect them: connections use them, too.
pub(super) fn taken(netns: &Netns) -> Vec<u16> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let sockets = netns.run(|| tables.map(|path| std::fs::read_to_string(path).unwrap())).concat();
    let listening = |port: &u16| {
        sockets.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words[1].ends_with(&format!(":{port:04X}")) && words[3] == "0A"
        })
    };
    PORTS.into_iter().filter(listening).collect()
}

fn start(agent: &Agent) -> (Node, InpodZtunnel) {
    let node = Node::new(NodeOptions::default());
    let ztunnel = InpodZtunnel::start(&node, "ztunnel-a", &agent.path(), InpodOptions::default());
    (node, ztunnel)
}

#[test]
fn a_whole_conversation() {
    let mut agent = Agent::absent();
    let (_node, ztunnel) = start(&agent);
    assert!(!ztunnel.connected());
    let pod = Netns::new("pod");
    agent.listen();
    let connection = agent.accept();
    // Examples of the protocol with known meaning.
    let add = b"\x0a\x11\x0a\x02u1\x12\x0b\x0a\x01p\x12\x02ns\x1a\x02sa";
    connection.send(add, &[open(&pod).as_fd()]);
    assert_eq!(connection.receive(), DONE);
    assert_eq!(taken(&pod), PORTS, "they are bound before it says so");
    let workload = ztunnel.wait_for_workload("u1");
    let (name, namespace, service_account) = ("p".to_owned(), "ns".to_owned(), "sa".to_owned());
    let expected = Workload { state: WorkloadState::Up, name, namespace, service_account, error: None };
    assert_eq!((workload, ztunnel.connections(), ztunnel.connected()), (expected, 1, true));
    assert_eq!(connection.ask(b"\x2a\x04\x0a\x02u2"), DONE);
    assert_eq!(ztunnel.snapshots(), 0);
    assert_eq!(connection.ask(b"\x1a\x00"), DONE);
    ztunnel.wait_for_snapshots(1);
    assert_eq!(connection.ask(b"\x12\x04\x12\x02u1"), DONE);
    ztunnel.wait_for_state("u1", WorkloadState::Gone);
    assert!(taken(&pod).is_empty());
    assert_eq!(connection.ask(b"\x12\x04\x12\x02u1"), DONE, "it is gone already");
    let (u1, u2) = (|| "u1".to_owned(), "u2".to_owned());
    let expected = [
        ZdsMessage::Add(u1()),
        ZdsMessage::Keep(u2),
        ZdsMessage::SnapshotSent,
        ZdsMessage::Del(u1()),
        ZdsMessage::Del(u1()),
    ];
    ztunnel.wait_for("the last message", |all| all == expected);
    assert_eq!((ztunnel.seen(), ztunnel.alive(), ztunnel.protocol_error()), (vec![], true, None));
}

#[test]
fn pods_outlive_a_connection_and_end_with_a_snapshot_without_them() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent);
    let pods = ["a", "b", "c"].map(|name| (name, Netns::new(name)));
    let connection = agent.accept();
    for (uid, netns) in &pods {
        assert_eq!(connection.add(uid, netns), DONE);
    }
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    drop(connection);
    let connection = agent.accept();
    assert!(pods.iter().all(|(_, netns)| taken(netns) == PORTS), "nobody is cut off by the agent's end");
    assert_eq!(connection.ask(&keep("a")), DONE);
    assert_eq!(connection.add("b", &pods[1].1), DONE);
    assert_eq!(connection.ask(&del("b")), DONE);
    assert_eq!(taken(&pods[1].1), PORTS, "before the snapshot, nothing ends");
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    ztunnel.wait_for_snapshots(2);
    let states: Vec<_> = ztunnel.workloads().into_values().collect();
    assert_eq!(states, [WorkloadState::Up, WorkloadState::Gone, WorkloadState::Gone]);
    let left: Vec<_> = pods.iter().map(|(_, netns)| taken(netns).len()).collect();
    assert_eq!((left, ztunnel.connections()), (vec![3, 0, 0], 2));
}

#[test]
fn the_same_namespace_is_no_news_and_another_one_is() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent);
    let (first, second) = (Netns::new("first"), Netns::new("second"));
    let connection = agent.accept();
    for netns in [&first, &first, &second] {
        assert_eq!(connection.add("a", netns), DONE);
        assert_eq!(taken(netns), PORTS);
    }
    assert!(taken(&first).is_empty());
    assert_eq!(ztunnel.workloads().len(), 1);
}

#[test]
fn a_namespace_is_held_by_nobody_when_its_pod_is_gone() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent);
    let connection = agent.accept();
    let inode = |netns: &Netns| std::os::unix::fs::MetadataExt::ino(&netns.path().metadata().unwrap());
    let pod = Netns::new("pod");
    let link = format!("net:[{}]", inode(&pod));
    let held = || {
        let all = ["fd", "task"].map(|part| format!("/proc/{}/{part}", ztunnel.pid()));
        let entries = all.iter().flat_map(|path| std::fs::read_dir(path).unwrap());
        let links = entries.flat_map(|entry| {
            let path = entry.unwrap().path();
            [path.clone(), path.join("ns/net")].map(|path| std::fs::read_link(path).ok())
        });
        links.flatten().filter(|target| target.as_os_str() == link.as_str()).count()
    };
    assert_eq!((connection.add("a", &pod), connection.ask(&SNAPSHOT)), (DONE.to_vec(), DONE.to_vec()));
    assert_eq!(held(), 1, "by the proxy's thread");
    assert_eq!(connection.ask(&del("a")), DONE);
    // Joining a thread returns a little earlier than the kernel releases it.
    kit::until("it is left", || held() == 0);
}

#[test]
fn without_ipv6_it_listens_for_ipv4_only() {
    let agent = Agent::listening();
    let node = Node::new(NodeOptions::default());
    let options = InpodOptions { ipv6: false, ..InpodOptions::default() };
    let _ztunnel = InpodZtunnel::start(&node, "ztunnel-a", &agent.path(), options);
    let pod = Netns::new("pod");
    assert_eq!(agent.accept().add("a", &pod), DONE);
    assert_eq!(taken(&pod), PORTS);
    let free = |port: &u16| {
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None).unwrap();
        socket.set_only_v6(true).unwrap();
        socket.bind(&std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, *port)).into()).is_ok()
    };
    assert!(pod.run(|| PORTS.iter().all(free)));
}
