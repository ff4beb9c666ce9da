//! Stop and start as in an upgrade, and starts at unusual moments: none of our objects is missing at any time.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::{Echo, Live, LiveConnections, Netns, NodeOptions, Pod, SetOnDrop, UplinkWatch};
use serde_json::Value;

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, starting};

/// Our objects in a namespace: firewall rules, policy rules, routes, set members.
fn ours(netns: &Netns) -> BTreeSet<String> {
    let commands = ["iptables-nft-save", "ip6tables-nft-save", "ip -4 rule", "ip -6 rule", "ipset save"];
    let more = ["ip -4 route show table 100", "ip -6 route show table 100", "ip -4 route show table 101"];
    let show = |line: &&str| {
        let words: Vec<&str> = line.split(' ').collect();
        let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let kept =
            text.lines().filter(|line| !line.starts_with(['#', ':'])).map(|found| format!("{line}: {found}"));
        kept.collect::<Vec<_>>()
    };
    netns.run(|| commands.iter().chain(&more).flat_map(show).collect())
}

/// Reads one of the kernel's listings after another, repeatedly, and returns the objects that were ever missing.
fn watch_over(netns: &Netns, wanted: &BTreeSet<String>, over: &AtomicBool) -> (u32, Vec<String>) {
    let (mut looks, mut missing) = (0, Vec::new());
    while !over.load(Ordering::Relaxed) {
        let found = ours(netns);
        looks += 1;
        missing.extend(wanted.difference(&found).cloned());
    }
    (looks, missing)
}

/// Part of the name of objects that are made and removed last.
const LAST: &str = "29999";

/// `ip monitor` and `nft monitor` report every change, which sampling could miss.
struct Monitors<'n> {
    netns: &'n Netns,
    children: Vec<std::process::Child>,
    files: kit::TempDir,
}

impl<'n> Monitors<'n> {
    /// Returns as soon as all have subscribed.
    fn start(netns: &'n Netns) -> Self {
        let files = kit::TempDir::new().unwrap();
        let lines = ["ip -4 monitor rule route", "ip -6 monitor rule route", "nft monitor"];
        let start = |(number, line): (usize, &str)| {
            let out = std::fs::File::create(files.path().join(number.to_string())).unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            netns.spawn(Command::new(words[0]).args(&words[1..]).stdout(out))
        };
        let children: Vec<_> = lines.into_iter().enumerate().map(start).collect();
        kit::until("they have subscribed", || children.iter().all(|child| has_subscribed(child.id())));
        Self { netns, children, files }
    }

    fn texts(&self) -> Vec<String> {
        let text = |number: usize| std::fs::read_to_string(self.files.path().join(number.to_string()));
        (0..self.children.len()).map(|number| text(number).unwrap()).collect()
    }

    /// Returns all removed objects.
    fn removed(mut self) -> Vec<String> {
        // All notifications before those of these objects have been written when theirs are.
        for (tool, object) in [("ip -4 rule", "pref"), ("ip -6 rule", "pref"), ("nft", "table ip")] {
            let name = if tool == "nft" { format!("kit{LAST}") } else { LAST.to_owned() };
            let lookup = if tool == "nft" { "" } else { "lookup 29999" };
            self.netns.sh(&format!("{tool} add {object} {name} {lookup}"));
            self.netns.sh(&format!("{tool} delete {object} {name}"));
        }
        let is_last = |line: &String| line.contains(LAST);
        kit::until("all is written", || self.texts().iter().all(|text| removed(text).iter().any(is_last)));
        for child in &mut self.children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.texts().iter().flat_map(|text| removed(text)).filter(|line| !is_last(line)).collect()
    }
}

/// Lines about removed objects.
fn removed(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.to_lowercase().starts_with("delete"));
    lines.map(str::to_owned).collect()
}

/// Whether a process has a netlink socket that is a member of a group.
fn has_subscribed(pid: u32) -> bool {
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/netlink")).unwrap_or_default();
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(2) == Some(&&*pid.to_string()) && fields.get(3).is_some_and(|groups| *groups != "00000000")
    })
}

#[test]
fn an_upgrade_removes_nothing_and_breaks_nothing() {
    let mut fixture = Ambient::new(&[]);
    let ztunnels = ["ztunnel-a", "ztunnel-b"].map(|name| fixture.ztunnel(name));
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let (first, second, plain) =
        (fixture.pod(MESH, "first"), fixture.pod(MESH, "second"), fixture.pod(PLAIN, "plain"));
    // The API has no address of this pod, before and after.
    let pending = fixture.starting(Pod::new(MESH, "pending"));
    fixture.settle();
    let node = Arc::clone(&fixture.node);
    let addresses: Vec<_> = [&first, &second, &pending].iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let uplink = UplinkWatch::start(&node, &addresses);
    let outside = [false, true].map(|v6| SocketAddr::new(node.outside_ip(v6), PORT));
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let mut crowd = LiveConnections::start(&first.sandbox.netns, live);
    for target in [second.at(false), second.at(true), plain.at(false), outside[0], outside[1]] {
        let _ = crowd.open(target, 4);
    }
    let wanted = ours(node.netns());
    assert!(wanted.len() > 60, "{wanted:#?}");
    let (over, monitors) = (AtomicBool::new(false), Monitors::start(node.netns()));
    let looked = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch_over(node.netns(), &wanted, &over));
        let over = SetOnDrop(&over);
        for _ in 0..3 {
            let (status, log) = fixture.daemon.take().unwrap().terminate();
            assert!(status.success(), "{log}");
            assert!(kit::logged(&log, "enrolled pods stay captured", "") == 1, "{log}");
            for peer in [&first, &pending] {
                assert!(fixture.is_captured(peer) && fixture.is_reached_through_ztunnel(peer));
            }
            fixture.start();
            fixture.assert_owned(&pending);
        }
        drop(over);
        watching.join().unwrap()
    });
    assert_eq!(monitors.removed(), Vec::<String>::new());
    let (looks, missing) = looked;
    assert_eq!(missing, Vec::<String>::new(), "in {looks} looks");
    println!("{looks} looks");
    crowd.finish().assert_unbroken();
    assert_eq!(uplink.total().direct, 0, "{:?}", uplink.total());
    assert!(ztunnels.iter().all(|ztunnel| ztunnel.pid() > 0));
}

#[test]
fn an_agent_that_starts_in_the_middle_of_a_rollout_goes_on_with_it() {
    let mut fixture = Ambient::new(&[]);
    let [old, new] = ["ztunnel-a", "ztunnel-b"].map(|name| fixture.ztunnel(name));
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(MESH, "web");
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let outside = [false, true].map(|v6| SocketAddr::new(fixture.node.outside_ip(v6), PORT));
    let crowd = || {
        let mut crowd = LiveConnections::start(&pod.sandbox.netns, live);
        for target in outside {
            let _ = crowd.open(target, 4);
        }
        crowd
    };
    let of_new = crowd();
    let is_of = |count: usize, ztunnel: &kit::Ztunnel| ztunnel.seen().len() >= count;
    fixture.eventually("it has accepted all of them", |_| is_of(8, &new));
    fixture.announce(&old, true); // back to the first one, so that both have connections
    fixture.wait_switches(1);
    let of_old = crowd();
    fixture.eventually("it has accepted all of them", |_| is_of(8, &old));
    let before = fixture.state(&[&old, &new]);
    for _ in 0..2 {
        fixture.restart();
        assert_eq!(fixture.state(&[&old, &new]), before);
        let seen = new.seen().len();
        assert!(fixture.is_captured(&pod));
        assert_eq!(new.seen().len(), seen, "new connections go where they went");
    }
    // The retired ztunnel ends while there is no agent.
    of_new.finish().assert_unbroken();
    fixture.daemon.take().unwrap().kill();
    fixture.manifests.remove_pod("istio-system", new.name());
    let _ = new.delete();
    assert!(fixture.is_captured(&pod));
    fixture.start();
    fixture.settle();
    assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
    of_old.finish().assert_unbroken();
    assert_eq!(fixture.node.netns().sh("ip -oneline link show").matches("istio").count(), 2);
}

#[test]
fn a_start_that_knows_pods_without_addresses_releases_nothing() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pods = ["one", "two", "three"].map(|name| fixture.starting(Pod::new(MESH, name)));
    let began = Instant::now();
    for round in 0..4 {
        fixture.restart();
        fixture.settle();
        for pod in &pods {
            fixture.assert_owned(pod);
        }
        // One of them is unknown for a while: the first list is older than the pod.
        if round == 1 {
            fixture.daemon.take().unwrap().kill();
            fixture.manifests.remove_pod(MESH, "three");
        }
        if round == 2 {
            fixture.manifests.put_pod(&starting(&pods[2].sandbox.pod));
        }
    }
    assert!(pods.iter().all(|pod| fixture.is_captured(pod)), "{:?}", began.elapsed());
}

/// The rules of its predecessor would precede its own, and lead to routes that nobody maintains.
#[test]
fn an_agent_with_other_numbers_replaces_the_rules_and_routes_of_its_predecessor() {
    let mut fixture = Ambient::new(&[]);
    let old = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(MESH, "web");
    fixture.settle();
    let node = Arc::clone(&fixture.node);
    let numbers = |family: &str| {
        let rules = node.netns().sh(&format!("ip {family} rule"));
        let places = rules.lines().map(|line| line.split(':').next().unwrap().parse().unwrap());
        let ours: Vec<u32> = places.filter(|place| !matches!(place, 0 | 32766 | 32767)).collect();
        let routes = node.netns().sh(&format!("ip -json {family} route show table all"));
        let routes: Vec<Value> = serde_json::from_str(&routes).unwrap();
        let tables = routes.iter().filter_map(|route| route["table"].as_str()?.parse::<u32>().ok());
        (ours, tables.filter(|table| (100..200).contains(table)).count())
    };
    for first in [100_u32, 5000] {
        fixture.container.set_env("AMBIENT_TABLES", "1200,1201,1210,1220,1230");
        fixture.container.set_env("AMBIENT_RULE_PRIORITY", &first.to_string());
        fixture.restart();
        let expected = ((first..first + 10).collect::<Vec<u32>>(), 0);
        assert_eq!(["-4", "-6"].map(numbers), [expected.clone(), expected], "{}", fixture.dump());
        assert!(fixture.is_captured(&pod));
    }
    let _new = fixture.ztunnel("ztunnel-b");
    fixture.manifests.remove_pod("istio-system", old.name());
    let _ = old.delete();
    fixture.settle();
    assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
}

/// It removes them when it ends, unless it is killed.
#[test]
fn links_of_istios_own_agent_do_not_take_what_is_ours() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod_without_plugin(MESH, "web");
    let ip = pod.ip(false);
    for line in [
        "ip link add istioin type veth peer name istioout",
        "ip link set istioin up",
        "ip link set istioout up",
        "ip address add 192.168.126.1/30 dev istioin",
        "ip address add 192.168.127.1/30 dev istioout",
        &format!("ip route add {ip} via 192.168.126.2 dev istioin table 100"),
        "ip route add default via 192.168.127.2 dev istioout table 101",
        "ip rule add priority 101 fwmark 0x100/0x100 lookup 101",
        "ip rule add priority 103 lookup 100",
        "ipset create ztunnel-pods-ips hash:ip comment",
        &format!("ipset add ztunnel-pods-ips {ip}"),
    ] {
        fixture.node.netns().sh(line);
    }
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.wait_enrolled(&pod, true);
    assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
    assert_eq!(fixture.explain("mesh/web").code, "captured");
}
