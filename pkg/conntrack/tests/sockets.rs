//! With the kernel, each test in its own network namespace.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "../../netns/tests/fresh/create.rs"]
mod create;

use std::{
    io::{ErrorKind, Read as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
};

use conntrack::sockets::{TcpSocket, TcpSockets, TcpState};

/// Runs a test inside a new network namespace with a loopback. Without permission to create one it is skipped, with the reason on
/// stderr; CI must have it.
fn in_fresh_netns(test: impl FnOnce() + Send) {
    let Some(netns) = create::create_or_skip() else { return };
    let with_loopback = || {
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        test();
    };
    netns.run_in(with_loopback).unwrap();
}

fn connection(listener: &TcpListener, address: &str) -> (TcpStream, TcpStream) {
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(format!("{address}:{port}")).unwrap();
    (client, listener.accept().unwrap().0)
}

fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    (plain(stream.local_addr().unwrap()), plain(stream.peer_addr().unwrap()))
}

fn list_local_ends(sockets: &[TcpSocket]) -> Vec<SocketAddr> {
    sockets.iter().map(|socket| socket.local).collect()
}

#[test]
fn connections_of_both_families_are_listed_and_those_that_are_over_are_not() {
    in_fresh_netns(|| {
        assert_eq!(TcpSockets::observe_netns().unwrap(), TcpSockets::default());
        let listener = TcpListener::bind("[::]:0").unwrap();
        let streams: Vec<_> = ["127.0.0.1", "[::1]"].map(|address| connection(&listener, address)).into();
        let over = connection(&listener, "[::1]");
        drop(over.0);
        drop(over.1);
        let sockets = TcpSockets::observe_netns().unwrap();
        let found = sockets.by_addresses();
        assert_eq!(
            (found.len(), sockets.connected.len(), sockets.is_truncated),
            (4, 4, false),
            "{sockets:?}"
        );
        for stream in streams.iter().flat_map(|(client, server)| [client, server]) {
            let socket = found[&ends(stream)];
            assert_eq!((socket.state, socket.is_local()), (TcpState::Established, true));
        }
        assert_eq!(sockets.listeners, [listener.local_addr().unwrap()]);
        assert_eq!(
            list_local_ends(&conntrack::sockets::tcp_listeners().unwrap().unwrap()),
            sockets.listeners
        );
    });
}

#[test]
fn udp_sockets_without_a_peer_receive_from_everybody() {
    in_fresh_netns(|| {
        assert_eq!(conntrack::sockets::udp_receivers().unwrap(), Some(Vec::new()));
        let sockets = ["127.0.0.1:0", "[::]:0"].map(|address| UdpSocket::bind(address).unwrap());
        let connected = UdpSocket::bind("127.0.0.1:0").unwrap();
        connected.connect("127.0.0.1:9").unwrap();
        let expected = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        assert_eq!(list_local_ends(&conntrack::sockets::udp_receivers().unwrap().unwrap()), expected);
    });
}

#[test]
fn the_user_of_a_socket_is_known_while_a_process_holds_it() {
    in_fresh_netns(|| {
        let us = rustix::process::getuid().as_raw();
        let listener = TcpListener::bind("[::]:0").unwrap();
        for address in ["127.0.0.1", "[::1]"] {
            let (client, server) = connection(&listener, address);
            let (theirs, ours) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
            assert_eq!(conntrack::sockets::connection_user(theirs, ours).unwrap(), Some(us), "{address}");
            drop(client);
            assert_eq!(
                conntrack::sockets::connection_user(theirs, ours).unwrap(),
                None,
                "{address}: nobody holds it"
            );
        }
    });
}

#[test]
fn a_connection_is_closed_for_both_sides_and_no_other_one() {
    in_fresh_netns(|| {
        let listener = TcpListener::bind("[::]:0").unwrap();
        for address in ["127.0.0.1", "[::1]"] {
            let (mut client, mut server) = connection(&listener, address);
            let (other, _others) = connection(&listener, address);
            let sockets = TcpSockets::observe_netns().unwrap();
            let socket = sockets.by_addresses()[&ends(&client)].clone();
            let mut handle = netlink::Socket::open(netlink::NetlinkProtocol::Sockets).unwrap();
            assert!(conntrack::sockets::destroy_socket(&mut handle, &socket).unwrap());
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
            assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(!conntrack::sockets::destroy_socket(&mut handle, &socket).unwrap(), "gone");
            assert!(TcpSockets::observe_netns().unwrap().by_addresses().contains_key(&ends(&other)));
        }
    });
}
