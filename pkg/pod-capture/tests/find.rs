//! Network namespaces of running pods, with real namespaces and a simulated process list.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "named/netns.rs"]
mod named_netns;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firewall::{Backend, FirewallOptions};
use model::{ExistingConnections, Family, PodName};
use netns::Netns;
use pod_capture::{
    NetnsAnswer, NetnsFinder, NetnsMatch, NetnsQuery, PodRulesSpec, capture_pod, captured_families,
    release_pod,
};
use pod_identity::{Ambiguity, KnownPods, PodIds, Witness};
use rules::inpod::{InPodRulesConfig, PodOptions};

use named_netns::Named;

const UID: &str = "2a1b3c4d-5e6f-7081-92a3-b4c5d6e7f809";
const IP: &str = "10.9.0.2";

/// Desired state in both families; connections are kept.
fn desired_rules<'a>(config: &'a InPodRulesConfig, pod: &'a PodOptions) -> PodRulesSpec<'a> {
    PodRulesSpec { config, pod, families: &Family::BOTH, existing: ExistingConnections::Keep }
}

/// Node, pod, and processes.
struct Fixture {
    node: Named,
    pod: Named,
    proc: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let (node, pod) = (Named::new("node"), Named::new("pod"));
        node.sh(&format!("ip link add veth0 type veth peer name eth0 netns {}", pod.name()));
        pod.sh(&format!("ip address add {IP}/32 dev eth0"));
        let proc = std::env::temp_dir().join(format!("proc-{}", node.name()));
        std::fs::create_dir_all(&proc).unwrap();
        Self { node, pod, proc }
    }

    fn process(&self, pid: u32, uid: &str, started: u64, netns: &Path) {
        let directory = self.proc.join(pid.to_string());
        std::fs::create_dir_all(directory.join("ns")).unwrap();
        std::fs::write(directory.join("cgroup"), format!("0::/kubepods/pod{uid}/0123\n")).unwrap();
        let fields = vec!["0"; 18].join(" ");
        std::fs::write(directory.join("stat"), format!("{pid} (a b) S {fields} {started} 0\n")).unwrap();
        symlink(netns, directory.join("ns/net")).unwrap();
    }

    fn find(&self) -> Option<NetnsMatch> {
        match self.answer(None)? {
            NetnsAnswer::Found(found) => Some(found),
            other => panic!("{other:?}"),
        }
    }

    fn answer(&self, known: Option<&Path>) -> Option<NetnsAnswer> {
        let finder =
            NetnsFinder::new(&self.proc, Netns::open(&self.node.0).unwrap(), InPodRulesConfig::default());
        let name = PodName { namespace: "shop".to_owned(), name: "it".to_owned() };
        let pods = KnownPods::new([PodIds { name, uid: UID.into(), manifest_hash: None }]);
        let known = known.map(|path| Arc::new(Netns::open(path).unwrap()));
        let ips: Vec<IpAddr> = vec![IP.parse().unwrap(), "fd00::2".parse().unwrap()];
        let sought = BTreeMap::from([(UID.into(), NetnsQuery { ips, known, recorded: None })]);
        finder.find_netns(&pods, &sought).unwrap().remove(UID)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.proc));
    }
}

#[test]
fn a_pod_is_found_by_its_processes_and_its_address() {
    let fixture = Fixture::new();
    assert!(fixture.find().is_none());
    fixture.process(20, UID, 200, &fixture.pod.0);
    fixture.process(21, UID, 210, &fixture.pod.0);
    let found = fixture.find().unwrap();
    assert_eq!(
        (found.netns.id(), found.witness, found.captured),
        (fixture.pod.1.id(), Witness::Processes, false)
    );
    let known = fixture.answer(Some(&fixture.pod.0));
    assert!(matches!(known, Some(NetnsAnswer::Unchanged { runs: true })), "it is still there: {known:?}");
    // Entries that are no process, or have ended meanwhile, are skipped.
    std::fs::create_dir_all(fixture.proc.join("sys")).unwrap();
    std::fs::create_dir_all(fixture.proc.join("99")).unwrap();
    assert!(fixture.find().is_some());
}

#[test]
fn processes_elsewhere_mislead_nobody() {
    let fixture = Fixture::new();
    let (empty, lure) = (Named::new("empty"), Named::new("lure"));
    // Older than the pod's own: in the node's namespace, in one without the address, and in one that the pod created and assigned
    // its address to.
    lure.sh("ip link add dummy0 type veth peer name dummy1");
    lure.sh(&format!("ip address add {IP}/32 dev dummy0"));
    fixture.process(10, UID, 1, &fixture.node.0);
    fixture.process(11, UID, 2, &empty.0);
    fixture.process(12, UID, 3, &lure.0);
    fixture.process(30, UID, 300, &fixture.pod.0);
    // Another pod's process in this pod's namespace, also older.
    fixture.process(9, "00000000-5e6f-7081-92a3-b4c5d6e7f809", 1, &fixture.pod.0);
    assert_eq!(fixture.find().unwrap().netns.id(), fixture.pod.1.id());
    // Its own have ended: no result is better than a wrong one, even if it is the only one with the address.
    std::fs::remove_dir_all(fixture.proc.join("30")).unwrap();
    std::fs::remove_dir_all(fixture.proc.join("12")).unwrap();
    assert!(fixture.find().is_none());
}

/// A process that needs no capability for it can create thousands, each of which takes a descriptor and time.
#[test]
fn a_pod_in_very_many_namespaces_is_ambiguous() {
    let fixture = Fixture::new();
    fixture.process(1000, UID, 200, &fixture.pod.0);
    let others: Vec<Named> = (0..64).map(|_| Named::new("more")).collect();
    let (few, rest) = others.split_at(62);
    (1..).zip(few).for_each(|(pid, other)| fixture.process(pid, UID, 1, &other.0));
    assert_eq!(fixture.find().unwrap().netns.id(), fixture.pod.1.id());
    (100..).zip(rest).for_each(|(pid, other)| fixture.process(pid, UID, 1, &other.0));
    let answer = fixture.answer(None);
    assert!(matches!(answer, Some(NetnsAnswer::Ambiguous(Ambiguity::TooMany))), "{answer:?}");
    let known = fixture.answer(Some(&fixture.pod.0));
    assert!(matches!(known, Some(NetnsAnswer::Unchanged { runs: true })), "{known:?}");
}

#[test]
fn a_captured_pod_is_recognised_until_it_is_released() {
    let fixture = Fixture::new();
    fixture.process(20, UID, 200, &fixture.pod.0);
    let (config, options, pod) = (
        InPodRulesConfig::default(),
        FirewallOptions::default(),
        PodOptions { dns: true, ..PodOptions::default() },
    );
    let wanted = desired_rules(&config, &pod);
    let first = capture_pod(&fixture.pod.1, &wanted, &options).unwrap();
    assert!(!first.differences.is_empty());
    assert_eq!(capture_pod(&fixture.pod.1, &wanted, &options).unwrap().differences, Vec::<String>::new());
    assert!(fixture.find().unwrap().captured);
    // One family is removed, the other stays; the option is removed with all its rules.
    let plain = PodOptions::default();
    let narrower = PodRulesSpec { pod: &plain, families: &[Family::V6], ..wanted };
    let changed = capture_pod(&fixture.pod.1, &narrower, &options).unwrap().differences;
    for place in ["IPv4 nat", "IPv6 raw"] {
        let expected = format!("{place}: chain ISTIO_OUTPUT should not exist");
        assert!(changed.contains(&expected), "{changed:?}");
    }
    assert!(!captured_families(&fixture.pod.1, &config).unwrap().is_empty());
    assert!(!release_pod(&fixture.pod.1, &config, &options).unwrap().is_empty());
    assert_eq!(release_pod(&fixture.pod.1, &config, &options).unwrap(), Vec::<String>::new());
    assert!(captured_families(&fixture.pod.1, &config).unwrap().is_empty());
    assert!(!fixture.find().unwrap().captured);
}

/// Our rules recognise the loopback by its name, and do not redirect what leaves on it.
#[test]
fn an_interface_with_the_name_of_the_loopback_is_reported() {
    let fixture = Fixture::new();
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    let (netns, options) = (&fixture.pod.1, FirewallOptions::default());
    let reasons = || {
        let _ = capture_pod(netns, &wanted, &options).unwrap();
        let seen = pod_capture::observe_pod(netns, &wanted, None, &options).unwrap();
        assert!(seen.is_complete(), "{seen:?}");
        seen.bypass_reasons().count()
    };
    assert_eq!(reasons(), 0);
    for step in ["lo down", "lo name lo0", "lo0 up", "eth0 name lo"] {
        fixture.pod.sh(&format!("ip link set {step}"));
    }
    assert_eq!(reasons(), 1);
}

#[test]
fn one_look_at_many_pods_tells_which_was_changed_and_skips_what_there_is_no_time_for() {
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    let fixtures = [Fixture::new(), Fixture::new(), Fixture::new()];
    let verified = |fixture: &Fixture| {
        let options = FirewallOptions::default();
        let _ = capture_pod(&fixture.pod.1, &wanted, &options).unwrap();
        pod_capture::observe_pod(&fixture.pod.1, &wanted, None, &options).unwrap()
    };
    let before = fixtures.each_ref().map(verified);
    assert!(before.iter().all(pod_capture::PodRulesSnapshot::is_complete));
    fixtures[1].pod.sh("ip rule del pref 32764");
    let pods: Vec<_> = fixtures
        .iter()
        .zip(&before)
        .map(|(fixture, before)| (&fixture.pod.1, wanted, Some(before)))
        .collect();
    let look = |until: Instant| pod_capture::observe_each(&pods, &FirewallOptions::default(), until);
    let seen = look(Instant::now() + Duration::from_secs(60));
    let whole = seen.iter().map(|seen| seen.as_ref().unwrap().is_complete());
    assert_eq!(whole.collect::<Vec<bool>>(), [true, false, true]);
    assert_eq!(look(Instant::now()), [None, None, None]);
}

#[test]
fn an_observation_names_the_difference_in_tables_of_both_backends() {
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    for backend in [Backend::Nft, Backend::Legacy] {
        let fixture = Fixture::new();
        let netns = &fixture.pod.1;
        let options = FirewallOptions { forced: Some(backend), ..FirewallOptions::default() };
        let _ = capture_pod(netns, &wanted, &options).unwrap();
        let seen = pod_capture::observe_pod(netns, &wanted, None, &options).unwrap();
        assert!(seen.is_complete(), "{seen:?}");
        // The comparison stays valid as long as no rule changes.
        let observe = || pod_capture::observe_pod(netns, &wanted, Some(&seen), &options).unwrap();
        assert_eq!(observe(), seen);
        // The desired rules may have changed by now.
        let other = PodOptions { bypass_inbound: true, ..pod.clone() };
        let other = PodRulesSpec { pod: &other, ..wanted };
        let other = pod_capture::observe_pod(netns, &other, Some(&seen), &options).unwrap();
        assert!(!other.is_complete(), "{other:?}");
        for (tool, family) in [("iptables", Family::V4), ("ip6tables", Family::V6)] {
            // Neither the number of rules nor their length changes.
            let rule = "-t nat -R ISTIO_OUTPUT 1 -p tcp -d";
            let [before, after] = if tool == "iptables" { ["1.2.3.4", "1.2.3.5"] } else { ["1::4", "1::5"] };
            for address in [before, after] {
                fixture.pod.sh(&format!("{tool}-{backend} {rule} {address} -j ACCEPT"));
                let differences: Vec<String> = observe().differences().map(str::to_owned).collect();
                let [found] =
                    differences.iter().filter(|one| one.starts_with(&family.to_string())).collect::<Vec<_>>()
                        [..]
                else {
                    panic!("{backend} {tool}: {differences:?}")
                };
                assert!(found.contains("chain ISTIO_OUTPUT rule 1 is") && found.contains(address), "{found}");
            }
        }
        fixture.pod.sh("ip rule del pref 32764");
        assert!(
            observe().differences().any(|one| one.contains("has no policy rule")),
            "{backend}: {:?}",
            observe()
        );
    }
}

/// Whatever backend an earlier agent used, and this one uses.
#[test]
fn a_release_takes_the_rules_of_both_backends() {
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    let forced = |backend| FirewallOptions { forced: Some(backend), ..FirewallOptions::default() };
    for (made, released) in [(Backend::Nft, Backend::Legacy), (Backend::Legacy, Backend::Nft)] {
        let fixture = Fixture::new();
        let _ = capture_pod(&fixture.pod.1, &wanted, &forced(made)).unwrap();
        let taken = release_pod(&fixture.pod.1, &config, &forced(released)).unwrap();
        assert!(taken.iter().any(|what| what.starts_with(&format!("{made}: "))), "{taken:?}");
        for tool in ["iptables", "ip6tables"] {
            let left = fixture.pod.sh(&format!("{tool}-{made}-save"));
            assert!(!left.contains("ISTIO"), "{left}");
        }
    }
}

/// Rules that have matched packets have other counters, but are the same rules.
#[test]
fn traffic_is_no_change() {
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    for backend in [Backend::Nft, Backend::Legacy] {
        let fixture = Fixture::new();
        let options = FirewallOptions { forced: Some(backend), ..FirewallOptions::default() };
        let _ = capture_pod(&fixture.pod.1, &wanted, &options).unwrap();
        for tool in ["iptables", "ip6tables"] {
            fixture
                .pod
                .sh(&format!("{tool}-{backend} -t mangle -A INPUT -i lo -m limit --limit 1/s -j ACCEPT"));
        }
        let observe = || pod_capture::observe_pod(&fixture.pod.1, &wanted, None, &options).unwrap();
        let counters =
            || ["iptables", "ip6tables"].map(|tool| fixture.pod.sh(&format!("{tool}-{backend}-save -c")));
        let (first, before) = (observe(), counters());
        for target in ["127.0.0.1:9", "[::1]:9"] {
            let refused = fixture.pod.1.run_in(|| std::net::TcpStream::connect(target)).unwrap().unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{target}");
        }
        for (before, after) in before.iter().zip(counters()) {
            assert!(rules_of(before) != rules_of(&after), "{backend}: nothing was counted\n{after}");
        }
        assert_eq!(first, observe(), "{backend}");
    }
}

/// Lines of rules and chains, without comments, which contain the time.
fn rules_of(save: &str) -> Vec<&str> {
    save.lines().filter(|line| !line.starts_with('#')).collect()
}

/// Observing creates no table.
#[test]
fn an_observation_leaves_no_trace() {
    let fixture = Fixture::new();
    let (config, pod) = (InPodRulesConfig::default(), PodOptions::default());
    let wanted = desired_rules(&config, &pod);
    fixture.pod.sh("iptables-legacy -t nat -L");
    let names =
        || ["ip", "ip6"].map(|family| fixture.pod.sh(&format!("cat /proc/net/{family}_tables_names")));
    let before = names();
    assert_eq!(before, ["nat\n", ""]);
    let _ = pod_capture::observe_pod(&fixture.pod.1, &wanted, None, &FirewallOptions::default()).unwrap();
    assert_eq!(names(), before);
}

/// Adds this number of the pod's own rules, to a table of its own and to that of our rules.
fn crowd(pod: &Named, number: usize) {
    let rules: String = (0..number)
        .map(|i| format!("-A OWN -s 10.{}.{}.{}/32 -j ACCEPT\n", i >> 16, i >> 8 & 255, i & 255))
        .collect();
    restore(pod, &format!("*nat\n:OWN - [0:0]\n{rules}COMMIT\n"));
}

fn restore(pod: &Named, text: &str) {
    let file = std::env::temp_dir().join(format!("crowd-{}", pod.name()));
    std::fs::write(&file, text).unwrap();
    pod.sh(&format!("iptables-nft-restore --noflush {}", file.display()));
    std::fs::remove_file(&file).unwrap();
}

/// Adds more rules at the front of OUTPUT than are read of such a chain.
fn bury_output(pod: &Named) {
    let rules: String =
        (1..=1500).map(|port| format!("-I OUTPUT 1 -p udp --dport {port} -j ACCEPT\n")).collect();
    restore(pod, &format!("*nat\n{rules}COMMIT\n"));
}

/// Adds more chains than are listed.
fn crowd_with_chains(pod: &Named) {
    let chains: String = (0..2000).map(|number| format!(":CHAIN-{number} - [0:0]\n")).collect();
    restore(pod, &format!("*nat\n{chains}COMMIT\n"));
}

#[test]
fn a_pod_with_very_many_rules_of_its_own_is_captured_repaired_and_released_as_any() {
    let fixture = Fixture::new();
    let pod = &fixture.pod;
    let (config, options, what) =
        (InPodRulesConfig::default(), FirewallOptions::default(), PodOptions::default());
    let wanted = desired_rules(&config, &what);
    crowd(pod, 12_000);
    let first = capture_pod(&pod.1, &wanted, &options).unwrap();
    assert!(first.differences.iter().any(|why| why.contains("OUTPUT does not jump")), "{first:?}");
    let observe = || {
        let seen = pod_capture::observe_pod(&pod.1, &wanted, None, &options).unwrap();
        seen.differences().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(observe(), [""; 0]);
    // The pod's own rules do not count.
    pod.sh("iptables-nft -t nat -A OUTPUT -p udp -j ACCEPT");
    assert_eq!(observe(), [""; 0]);
    let damages = [
        "iptables-nft -t nat -F ISTIO_OUTPUT",
        "iptables-nft -t nat -D OUTPUT -j ISTIO_OUTPUT",
        "iptables-nft -t mangle -I ISTIO_PRERT -j RETURN",
        "iptables-nft -t nat -I PREROUTING -j ACCEPT",
        "ip6tables-nft -t nat -F",
        "iptables-nft -t nat -A OUTPUT -j ISTIO_OUTPUT",
        "iptables-nft -t nat -A OWN -j ISTIO_OUTPUT",
        "iptables-nft -t nat -A OWN -m statistic --mode nth --every 2 --packet 0 -j ISTIO_OUTPUT",
    ];
    let repairs = |damage: &str| {
        assert!(!observe().is_empty(), "{damage}");
        let _ = capture_pod(&pod.1, &wanted, &options).unwrap();
        assert_eq!(observe(), [""; 0], "{damage}");
    };
    let does_damage = || {
        for damage in damages {
            pod.sh(damage);
            repairs(damage);
        }
    };
    does_damage();
    bury_output(pod);
    repairs("our jump comes last");
    bury_output(pod);
    crowd_with_chains(pod);
    repairs("our jump comes last, and our chains are asked for by name");
    does_damage();
    bury_output(pod); // it is there when everything is removed
    assert!(!release_pod(&pod.1, &config, &options).unwrap().is_empty());
    assert!(!pod.sh("iptables-nft-save").contains("ISTIO"), "{}", pod.sh("iptables-nft-save -t mangle"));
    assert!(!pod.sh("ip6tables-nft-save").contains("ISTIO"));
}
