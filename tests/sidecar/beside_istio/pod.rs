//! A pod whose proxy, application and neighbours report which of them received a packet.

use std::{
    io::{PipeReader, PipeWriter, Write as _, pipe},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

use kit::Netns;
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};

use super::{Tables, ruleset, settings::Setting};
use crate::iptables_cli::tool::program_with_file;

/// A user and a group.
pub(crate) type Owner = (u32, u32);
pub(crate) const PROXY: Owner = (1337, 1337);
pub(crate) const APP: Owner = (1000, 1000);
pub(crate) const ROOT: Owner = (0, 0);

/// Ports of the application; others of its addresses are closed.
pub(crate) const APP_PORTS: [u16; 7] = [53, 80, 8080, 9000, 15008, 15020, 15090];

/// A pod with two networks and a virtual machine behind it, and an external host that answers for every other network.
pub(crate) struct PodNetwork {
    pub(crate) pod: Netns,
    pub(crate) outside: Netns,
    pub(crate) machine: Netns,
    _servers: Vec<Server>,
}

impl PodNetwork {
    pub(crate) fn new(setting: &Setting) -> Self {
        let (pod, outside, machine) = (Netns::new("pod"), Netns::new("outside"), Netns::new("machine"));
        for forwarding in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            pod.sysctl(forwarding, "1");
        }
        let (outside_name, machine_name) = (outside.name(), machine.name());
        pod.pipe(
            "ip -batch -",
            &format!(
                "link add eth0 type veth peer name eth0 netns {outside_name}\n\
                 link add net1 type veth peer name net1 netns {outside_name}\n\
                 link add vnet0 type veth peer name eth0 netns {machine_name}\n\
                 address add 10.1.0.2/24 dev eth0\n\
                 address add fd00:1::2/64 dev eth0\n\
                 address add 10.9.0.2/24 dev net1\n\
                 address add fd00:9::2/64 dev net1\n\
                 address add 10.8.0.1/24 dev vnet0\n\
                 address add fd00:8::1/64 dev vnet0\n\
                 link set eth0 up\nlink set net1 up\nlink set vnet0 up\n\
                 route add default via 10.1.0.1\n\
                 route add default via fd00:1::1 dev eth0\n"
            ),
        );
        machine.pipe(
            "ip -batch -",
            "address add 10.8.0.2/24 dev eth0\n\
             address add fd00:8::2/64 dev eth0\n\
             link set eth0 up\n\
             route add default via 10.8.0.1\n\
             route add default via fd00:8::1 dev eth0\n",
        );
        outside.pipe(
            "ip -batch -",
            "address add 10.1.0.1/24 dev eth0\n\
             address add fd00:1::1/64 dev eth0\n\
             address add 10.9.0.1/24 dev net1\n\
             address add fd00:9::1/64 dev net1\n\
             link set eth0 up\nlink set net1 up\n\
             route add 10.8.0.0/24 via 10.1.0.2\n\
             route add fd00:8::/64 via fd00:1::2 dev eth0\n\
             route add local 10.2.0.0/16 dev lo\n\
             route add local 10.96.0.0/16 dev lo\n\
             route add local 192.0.2.0/24 dev lo\n\
             route add local fd00:2::/64 dev lo\n\
             route add local fd00:96::/64 dev lo\n\
             route add local 2001:db8::/64 dev lo\n",
        );
        outside.pipe(
            "nft -f -",
            "table inet catch {\n\
               chain everything { type nat hook prerouting priority -100; meta l4proto { tcp, udp } redirect to :9; }\n\
             }\n",
        );
        for (netns, link) in
            [(&pod, "eth0"), (&pod, "net1"), (&pod, "vnet0"), (&outside, "eth0"), (&machine, "eth0")]
        {
            netns.wait_until_running(link);
        }
        let app = APP_PORTS.iter().flat_map(|port| {
            let tcp = ["0.0.0.0", "::"].map(|ip| Listener::tcp(ip, *port));
            let local = ["127.0.0.1", "10.1.0.2", "10.9.0.2", "::1", "fd00:1::2", "fd00:9::2"];
            tcp.into_iter().chain(local.map(|ip| Listener::udp(ip, *port)))
        });
        let [outbound, inbound] = setting.proxy_ports;
        let transparent = setting.is_tproxy();
        let proxy = ["0.0.0.0", "::"].into_iter().flat_map(|ip| {
            [Listener::tcp(ip, outbound), Listener { transparent, ..Listener::tcp(ip, inbound) }]
        });
        let dns = ["127.0.0.1", "::1"]
            .into_iter()
            .flat_map(|ip| [Listener::tcp(ip, 15053), Listener::udp(ip, 15053)]);
        let outer = ["0.0.0.0", "::"].into_iter().flat_map(|ip| [Listener::tcp(ip, 9), Listener::udp(ip, 9)]);
        let servers = vec![
            Server::start(&pod, "app", APP, app.collect()),
            Server::start(&pod, "proxy", PROXY, proxy.chain(dns).collect()),
            Server::start(&outside, "outside", ROOT, outer.collect()),
        ];
        Self { pod, outside, machine, _servers: servers }
    }
}

/// Creates the rules of a setting with a program that finds a name server of each family in `/etc/resolv.conf`.
pub(crate) fn redirect(pod: &PodNetwork, program: &Path, setting: &Setting, tables: Tables) {
    let mut environment = setting.environment.to_vec();
    let mut flags = vec!["--dual-stack", "-u", "1337", "-g", "1337"];
    flags.extend(setting.flags);
    match tables {
        Tables::Nft => environment.push(("FORCE_IPTABLES_BINARY", "nft")),
        Tables::Legacy => environment.push(("FORCE_IPTABLES_BINARY", "legacy")),
        Tables::Native => flags.push("--native-nftables"),
    }
    let file = ("/etc/resolv.conf", "nameserver 10.96.0.10\nnameserver fd00:96::a\n");
    let ended = program_with_file(&pod.pod, program, file, &environment, &flags);
    assert_eq!(ended.code, 0, "{} of {}: {ended:?}{}", program.display(), setting.name, ruleset(&pod.pod));
    // Istio's `::6`; ours is usable immediately.
    pod.pod.wait_until_addresses_are_usable();
}

#[derive(Clone, Copy)]
struct Listener {
    kind: Type,
    address: SocketAddr,
    transparent: bool,
}

impl Listener {
    fn tcp(ip: &str, port: u16) -> Self {
        let ip: IpAddr = ip.parse().unwrap();
        Self { kind: Type::STREAM, address: SocketAddr::new(ip, port), transparent: false }
    }

    fn udp(ip: &str, port: u16) -> Self {
        Self { kind: Type::DGRAM, ..Self::tcp(ip, port) }
    }

    fn open(&self) -> Socket {
        let socket = Socket::new(Domain::for_address(self.address), self.kind, None).unwrap();
        if self.address.is_ipv6() {
            socket.set_only_v6(true).unwrap();
        }
        if self.transparent {
            // Applies to IPv6 sockets, too: the kernel has one bit for both.
            socket.set_ip_transparent_v4(true).unwrap();
        }
        socket.bind(&self.address.into()).unwrap_or_else(|error| panic!("{}: {error}", self.address));
        if self.kind == Type::STREAM {
            socket.listen(64).unwrap();
        }
        socket
    }
}

/// Answers on its listeners as a user until drop.
struct Server {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(netns: &Netns, name: &'static str, owner: Owner, listeners: Vec<Listener>) -> Self {
        let (stopped, stop) = pipe().unwrap();
        let netns = netns.second_handle();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            netns.enter();
            kit::become_user(owner.0, owner.1);
            let sockets: Vec<Socket> = listeners.iter().map(Listener::open).collect();
            ready.send(()).unwrap();
            serve(name, &listeners, &sockets, &stopped);
        });
        is_ready.recv().expect("the server listens");
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "a server panicked");
    }
}

fn serve(name: &str, listeners: &[Listener], sockets: &[Socket], stopped: &PipeReader) {
    loop {
        let mut fds: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        fds.push(PollFd::new(stopped, PollFlags::IN));
        poll(&mut fds, None).unwrap();
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[sockets.len()] {
            return;
        }
        for ((listener, socket), _) in listeners.iter().zip(sockets).zip(&ready).filter(|(_, ready)| **ready)
        {
            if listener.kind == Type::STREAM {
                greet(name, listener, socket);
            } else {
                answer(name, listener, socket);
            }
        }
    }
}

/// Writes the server's name, the port, and the original destination. A client that has disconnected needs no answer.
fn greet(name: &str, listener: &Listener, socket: &Socket) {
    let Ok((mut stream, peer)) = socket.accept() else { return };
    let original =
        if listener.address.is_ipv6() { stream.original_dst_v6() } else { stream.original_dst_v4() };
    let original = original.or_else(|_| stream.local_addr()).ok().and_then(|address| address.as_socket());
    let (port, peer) = (listener.address.port(), peer.as_socket().map(|peer| peer.ip()));
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    let _ = stream.write_all(format!("{name}:{port}, for {original:?} from {peer:?}").as_bytes());
}

fn answer(name: &str, listener: &Listener, socket: &Socket) {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
    let Ok((_, peer)) = socket.recv_from(&mut buffer) else { return };
    let (port, from) = (listener.address.port(), peer.as_socket().map(|peer| peer.ip()));
    let _ = socket.send_to(format!("{name}:{port}, from {from:?}").as_bytes(), &peer);
}
