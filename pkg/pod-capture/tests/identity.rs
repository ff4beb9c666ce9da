//! Owner of a network namespace: real control groups, processes, namespaces and networks, and pods that claim those of others. The
//! result for the victim must not depend on any action of the attacker.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "named/netns.rs"]
mod named_netns;

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use model::{PodName, PodUid};
use netns::{Netns, NetnsId};
use pod_capture::{NetnsAnswer, NetnsFinder, NetnsQuery};
use pod_identity::{Ambiguity, KnownPods, PodIds, Witness};
use rules::inpod::InPodRulesConfig;

use named_netns::Named;

const IP: &str = "10.9.0.2";
const IP6: &str = "fd00:9::2";

static LAST: AtomicU32 = AtomicU32::new(0);

/// A hierarchy of real control groups, which no other test uses.
struct Groups(PathBuf);

impl Groups {
    fn new() -> Self {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("millrace-{}-{number}", std::process::id());
        let path = PathBuf::from(format!("/run/{name}"));
        fs::create_dir(&path).unwrap();
        let options = format!("none,name={name}");
        let mounted = Command::new("mount")
            .args(["-t", "cgroup", "-o", &options, "cgroup"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(path)
    }

    fn join(&self, path: &str, pid: u32) {
        let directory = self.0.join(path);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status()); // the hierarchy is removed with its last process
    }
}

/// A process; drop ends it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Network through which the node reaches pods' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// A route for each address to a veth pair, as with Calico's, AWS's and GKE's plugins.
    Routed,
    /// A bridge, as with the reference plugin.
    Bridge,
    /// A veth pair behind a switch that the kernel's tables do not show, as with Cilium and Open vSwitch.
    Opaque,
    /// No link to the node.
    Hardware,
}

const ALL: [Network; 4] = [Network::Routed, Network::Bridge, Network::Opaque, Network::Hardware];

struct Pod {
    ids: PodIds,
    netns: Named,
    processes: Vec<Process>,
}

impl Pod {
    fn uid(&self) -> &PodUid {
        &self.ids.uid
    }
}

/// A node on a kind of network, and UIDs of its pods: tests see each other's processes, and must not share any.
struct Node {
    victim: String,
    attacker: String,
    hash: String,
    network: Network,
    netns: Named,
    groups: Groups,
}

impl Node {
    fn new(network: Network) -> Self {
        let (netns, groups) = (Named::new("node"), Groups::new());
        if network == Network::Bridge {
            netns.sh("ip link add br0 type bridge");
            netns.sh("ip link set br0 up");
            netns.sh("ip address add 10.9.0.1/24 dev br0");
            netns.sh("ip -6 address add fd00:9::1/64 dev br0 nodad");
        }
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let [victim, attacker] =
            ["2a1b3c4d", "ffffffff"].map(|uid| format!("{uid}-5e6f-7081-92a3-{number:012x}"));
        let hash = format!("0123456789abcdef0123{number:012x}");
        Self { victim, attacker, hash, network, netns, groups }
    }

    /// A pod without a process.
    fn pod(&self, uid: &str, ips: &[&str]) -> Pod {
        let netns = Named::new("pod");
        let name = PodName { namespace: "shop".to_owned(), name: format!("pod-{}", netns.name()) };
        let (link, own) = (format!("v{}", LAST.fetch_add(1, Ordering::Relaxed)), netns.name().to_owned());
        match self.network {
            Network::Hardware => {
                netns.sh("ip link add eth0 type veth peer name eth1");
            }
            _ => {
                self.netns.sh(&format!("ip link add {link} type veth peer name eth0 netns {own}"));
                self.netns.sh(&format!("ip link set {link} up"));
            }
        }
        if self.network == Network::Bridge {
            self.netns.sh(&format!("ip link set {link} master br0"));
        }
        netns.sh("ip link set eth0 up");
        for ip in ips {
            self.give(&netns, ip, "eth0");
            if self.network == Network::Routed {
                self.netns.sh(&format!("ip route add {ip} dev {link}"));
            }
        }
        Pod { ids: PodIds { name, uid: uid.into(), manifest_hash: None }, netns, processes: Vec::new() }
    }

    fn give(&self, netns: &Named, ip: &str, device: &str) {
        let (family, length, rest) = if ip.contains(':') { ("-6", 128, " nodad") } else { ("-4", 32, "") };
        netns.sh(&format!("ip {family} address add {ip}/{length} dev {device}{rest}"));
    }

    /// Starts a process in a control group.
    fn run(&self, pod: &mut Pod, group: &str) {
        let netns = pod.netns.1.id();
        let process = self.process(&pod.netns, group);
        assert_eq!(netns_of(process.0.id()), netns);
        pod.processes.push(process);
    }

    fn process(&self, netns: &Named, group: &str) -> Process {
        let spawn = || Command::new("sleep").arg("600").stdin(Stdio::null()).spawn();
        let process = Process(netns.1.run_in(spawn).unwrap().unwrap());
        self.groups.join(group, process.0.id());
        process
    }

    fn answer(&self, pods: &[&Pod], of: &Pod, ips: &[&str]) -> Option<NetnsAnswer> {
        self.answers(pods, &[(of, ips, None)]).remove(of.uid())
    }

    fn answers(
        &self,
        pods: &[&Pod],
        sought: &[(&Pod, &[&str], Option<&Named>)],
    ) -> BTreeMap<PodUid, NetnsAnswer> {
        let node = Netns::open(&self.netns.0).unwrap();
        let finder = NetnsFinder::new(Path::new("/proc"), node, InPodRulesConfig::default());
        let known = KnownPods::new(pods.iter().map(|pod| pod.ids.clone()));
        let query = |(pod, ips, known): &(&Pod, &[&str], Option<&Named>)| {
            let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let known = known.map(|named| Arc::new(Netns::open(&named.0).unwrap()));
            (pod.uid().clone(), NetnsQuery { ips, known, recorded: None })
        };
        finder.find_netns(&known, &sought.iter().map(query).collect()).unwrap()
    }
}

fn netns_of(pid: u32) -> NetnsId {
    Netns::open(format!("/proc/{pid}/ns/net")).unwrap().id()
}

#[track_caller]
fn assert_found(answer: Option<NetnsAnswer>, pod: &Pod, witness: Witness, what: &str) {
    match answer {
        Some(NetnsAnswer::Found(found)) => {
            assert_eq!((found.netns.id(), found.witness), (pod.netns.1.id(), witness), "{what}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[track_caller]
fn assert_ambiguous(answer: &Option<NetnsAnswer>, why: Ambiguity, what: &str) {
    assert!(matches!(answer, Some(NetnsAnswer::Ambiguous(found)) if *found == why), "{what}: {answer:?}");
}

fn witness(network: Network) -> Witness {
    match network {
        Network::Routed => Witness::Route,
        Network::Bridge => Witness::Bridge,
        Network::Opaque | Network::Hardware => Witness::Processes,
    }
}

fn group(uid: &str) -> String {
    format!("kubepods/burstable/pod{uid}/ctr")
}

#[test]
fn a_pod_is_found_on_every_kind_of_network_and_in_both_families() {
    for network in ALL {
        for ip in [IP, IP6] {
            let node = Node::new(network);
            let mut pod = node.pod(&node.victim, &[IP, IP6]);
            assert!(node.answer(&[&pod], &pod, &[ip]).is_none(), "{network:?}: no process");
            node.run(&mut pod, &group(&node.victim));
            assert_found(
                node.answer(&[&pod], &pod, &[ip]),
                &pod,
                witness(network),
                &format!("{network:?} {ip}"),
            );
        }
    }
}

/// A container that may create control groups below its own names one after the victim, assigns itself the victim's address, and
/// runs longer than the victim.
#[test]
fn a_control_group_inside_of_a_pod_makes_nobody_another_pod() {
    for network in ALL {
        let node = Node::new(network);
        let mut attacker = node.pod(&node.attacker, &["10.9.0.66"]);
        node.give(&attacker.netns, IP, "lo");
        node.run(&mut attacker, &group(&node.attacker));
        for inner in
            [format!("pod{}", node.victim), format!("kubepods-pod{}.slice", node.victim.replace('-', "_"))]
        {
            node.run(&mut attacker, &format!("{}/{inner}/x", group(&node.attacker)));
        }
        let mut victim = node.pod(&node.victim, &[IP]);
        let pods = [&attacker, &victim];
        let before = node.answer(&pods, &victim, &[IP]);
        assert!(before.is_none(), "{network:?}: the victim has no process yet: {before:?}");
        node.run(&mut victim, &group(&node.victim));
        let pods = [&attacker, &victim];
        assert_found(node.answer(&pods, &victim, &[IP]), &victim, witness(network), &format!("{network:?}"));
        // A container without a pause process restarts: for a moment the victim has none.
        victim.processes.clear();
        let pods = [&attacker, &victim];
        let known = node.answers(&pods, &[(&victim, &[IP], Some(&victim.netns))]).remove(victim.uid());
        assert!(matches!(known, Some(NetnsAnswer::Unchanged { runs: false })), "{network:?}: {known:?}");
    }
}

/// An attack by a pod that the API server does not show any more: it was force-deleted, and still runs.
#[test]
fn a_pod_that_nobody_knows_makes_nobody_another_pod() {
    for network in ALL {
        let node = Node::new(network);
        let mut attacker = node.pod(&node.attacker, &["10.9.0.66"]);
        node.give(&attacker.netns, IP, "lo");
        node.run(&mut attacker, &format!("{}/pod{}/x", group(&node.attacker), node.victim));
        let mut victim = node.pod(&node.victim, &[IP]);
        let alone = node.answer(&[&victim], &victim, &[IP]);
        assert!(!matches!(alone, Some(NetnsAnswer::Found(_))), "{network:?}: {alone:?}");
        node.run(&mut victim, &group(&node.victim));
        assert_found(
            node.answer(&[&victim], &victim, &[IP]),
            &victim,
            witness(network),
            &format!("{network:?}"),
        );
    }
}

/// A node that runs in a pod of another cluster: all its pods are nested in one that this cluster does not know.
#[test]
fn a_nested_pod_is_found_where_the_nodes_routes_lead_to_it() {
    for (network, found) in [
        (Network::Routed, true),
        (Network::Bridge, false),
        (Network::Opaque, false),
        (Network::Hardware, false),
    ] {
        let node = Node::new(network);
        let mut pod = node.pod(&node.victim, &[IP]);
        node.run(&mut pod, &format!("kubepods/pod{}/ctr/{}", node.attacker, group(&node.victim)));
        let answer = node.answer(&[&pod], &pod, &[IP]);
        if found {
            assert_found(answer, &pod, Witness::Route, "routed");
        } else {
            assert_ambiguous(&answer, Ambiguity::Nested, &format!("{network:?}"));
        }
    }
}

/// A process of the pod has created a namespace inside, or has entered another pod's that has the pod's address.
#[test]
fn a_pods_own_processes_elsewhere_do_not_move_it() {
    for network in ALL {
        let node = Node::new(network);
        let mut pod = node.pod(&node.victim, &[IP]);
        let inside = Named::new("inside");
        inside.sh("ip link add dummy0 type veth peer name dummy1");
        inside.sh("ip link set dummy0 up");
        node.give(&inside, IP, "dummy0");
        let _first = node.process(&inside, &group(&node.victim));
        node.run(&mut pod, &group(&node.victim));
        let answer = node.answer(&[&pod], &pod, &[IP]);
        match network {
            // Neither of the two has a link to the node: they cannot be distinguished.
            Network::Hardware => assert_ambiguous(&answer, Ambiguity::SeveralFit, "hardware"),
            _ => assert_found(answer, &pod, witness(network), &format!("{network:?}")),
        }
        let other = node.pod(&node.attacker, &["10.9.0.66"]);
        node.give(&other.netns, IP, "lo");
        let _entered = node.process(&other.netns, &group(&node.victim));
        let pods = [&pod, &other];
        let answer = node.answer(&pods, &pod, &[IP]);
        match network {
            Network::Routed => assert_found(answer, &pod, Witness::Route, "routed"),
            _ => assert_ambiguous(&answer, Ambiguity::SeveralFit, &format!("{network:?}")),
        }
        // A known namespace stays.
        let known = node.answers(&pods, &[(&pod, &[IP], Some(&pod.netns))]).remove(pod.uid());
        assert!(matches!(known, Some(NetnsAnswer::Unchanged { runs: true })), "{network:?}: {known:?}");
        pod.processes.clear();
        let pods = [&pod, &other];
        let known = node.answers(&pods, &[(&pod, &[IP], Some(&pod.netns))]).remove(pod.uid());
        assert!(matches!(known, Some(NetnsAnswer::Unchanged { runs: true })), "{network:?}: {known:?}");
        // Only the lure is left, and nothing is known: it is refused where the node shows that it is one.
        let answer = node.answer(&pods, &pod, &[IP]);
        match network {
            Network::Routed => assert_ambiguous(&answer, Ambiguity::AddressElsewhere, "routed"),
            _ => drop(answer),
        }
    }
}

#[test]
fn a_sandbox_that_was_replaced_is_found_anew() {
    for network in [Network::Routed, Network::Bridge, Network::Opaque] {
        let node = Node::new(network);
        let (old, mut new) = (node.pod(&node.victim, &[]), node.pod(&node.victim, &[IP]));
        node.run(&mut new, &group(&node.victim));
        let answer = node.answers(&[&new], &[(&new, &[IP], Some(&old.netns))]).remove(new.uid());
        assert_found(answer, &new, witness(network), &format!("{network:?}"));
    }
}

/// Every author can write the annotations of a static pod's mirror; a UID belongs to the pod that has it.
#[test]
fn a_manifest_hash_gives_nobody_another_pods_processes() {
    for network in ALL {
        let node = Node::new(network);
        let (mut victim, mut attacker) =
            (node.pod(&node.victim, &[IP]), node.pod(&node.attacker, &["10.9.0.66"]));
        attacker.ids.manifest_hash = Some(node.victim.replace('-', "").as_str().into());
        node.run(&mut victim, &group(&node.victim));
        let sought: [(&Pod, &[&str], Option<&Named>); 2] = [(&victim, &[IP], None), (&attacker, &[IP], None)];
        let mut answers = node.answers(&[&victim, &attacker], &sought);
        assert_found(answers.remove(victim.uid()), &victim, witness(network), &format!("{network:?}"));
        let other = answers.remove(attacker.uid());
        assert!(other.is_none(), "{network:?}: {other:?}");
    }
}

#[test]
fn a_static_pod_is_found_by_its_hash_and_two_with_one_hash_are_not() {
    let node = Node::new(Network::Routed);
    let (mut pod, mut other) = (node.pod(&node.victim, &[IP]), node.pod(&node.attacker, &["10.9.0.66"]));
    pod.ids.manifest_hash = Some(node.hash.as_str().into());
    node.run(&mut pod, &group(&node.hash));
    assert_found(node.answer(&[&pod, &other], &pod, &[IP]), &pod, Witness::Route, "alone");
    other.ids.manifest_hash = Some(node.hash.as_str().into());
    assert_ambiguous(&node.answer(&[&pod, &other], &pod, &[IP]), Ambiguity::SharedUid, "twice");
    assert_ambiguous(&node.answer(&[&pod, &other], &other, &["10.9.0.66"]), Ambiguity::SharedUid, "twice");
}

/// Two pods whose processes are in one namespace with the addresses of both.
#[test]
fn a_namespace_is_given_to_one_pod_only() {
    let node = Node::new(Network::Opaque);
    let (mut pod, other) = (node.pod(&node.victim, &[IP]), node.pod(&node.attacker, &[]));
    node.give(&pod.netns, "10.9.0.66", "lo");
    node.run(&mut pod, &group(&node.victim));
    node.run(&mut pod, &group(&node.attacker));
    let sought: [(&Pod, &[&str], Option<&Named>); 2] = [(&pod, &[IP], None), (&other, &["10.9.0.66"], None)];
    let mut answers = node.answers(&[&pod, &other], &sought);
    for uid in [pod.uid(), other.uid()] {
        assert_ambiguous(&answers.remove(uid), Ambiguity::SharedNetns, uid.as_str());
    }
    // Where the node shows the owner, that pod gets it.
    let node = Node::new(Network::Routed);
    let (mut pod, other) = (node.pod(&node.victim, &[IP]), node.pod(&node.attacker, &["10.9.0.66"]));
    node.give(&pod.netns, "10.9.0.66", "lo");
    node.run(&mut pod, &group(&node.victim));
    node.run(&mut pod, &group(&node.attacker));
    let sought: [(&Pod, &[&str], Option<&Named>); 2] = [(&pod, &[IP], None), (&other, &["10.9.0.66"], None)];
    let mut answers = node.answers(&[&pod, &other], &sought);
    assert_found(answers.remove(pod.uid()), &pod, Witness::Route, "its own");
    assert_ambiguous(&answers.remove(other.uid()), Ambiguity::AddressElsewhere, "the other one");
}

/// A pod that shares the node's PID namespace, or a tool on the node, in the pod's network namespace.
#[test]
fn processes_of_others_in_a_pods_namespace_change_nothing() {
    for network in ALL {
        let node = Node::new(network);
        let mut pod = node.pod(&node.victim, &[IP]);
        node.run(&mut pod, &group(&node.attacker));
        node.run(&mut pod, "system.slice/sshd.service");
        node.run(&mut pod, &group(&node.victim));
        let other = node.pod(&node.attacker, &["10.9.0.66"]);
        assert_found(
            node.answer(&[&pod, &other], &pod, &[IP]),
            &pod,
            witness(network),
            &format!("{network:?}"),
        );
    }
}
