//! Eight hostile pods on a node with a large foreign firewall, while a host on the network exhausts the connections of the agent's
//! server. None of them has any right on the node.

use std::{
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use kit::{HalfOpen, LegacyLock, Manifests, Netns, Node, Pod, PodSandbox, fill_with_services};
use serde_json::{Value, json};

/// Foreign rules on the node.
pub(crate) const NODE_RULES: usize = 50_000;
/// Rules that a pod creates in its own namespace.
pub(crate) const POD_RULES: usize = 300_000;
/// More than the maximum number of connections of the agent's server.
const CONNECTIONS: usize = 400;
/// Port of the probes.
pub(crate) const PORT: u16 = 8000;
/// The API server accepts at most 256 KiB of a pod's annotations in total.
const ANNOTATION: usize = 250_000;
/// Pods that start repeatedly with such an annotation.
const STARTING: usize = 4;
/// Pods with `CAP_NET_ADMIN`.
const FLUSHED: usize = 2;
/// Pods in which a process holds the lock of legacy tables.
const LOCKED: usize = 2;
/// Delay before the next attempt: as the kubelet retries a sandbox.
const PAUSE: Duration = Duration::from_secs(1);

/// Target of the attacks.
pub(crate) struct Target<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) manifests: &'a Manifests,
    /// Chain with which pods of the mesh start.
    pub(crate) conflist: Value,
    /// The namespace of the mesh.
    pub(crate) namespace: &'a str,
}

/// The eight pods, and the external host. Drop ends the attacks.
pub(crate) struct Attack {
    over: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
    flood: Option<HalfOpen>,
    locks: Vec<LegacyLock>,
    live: Vec<PodSandbox>,
}

/// Sets `istio.io/reroute-virtual-interfaces` to a value of the maximum length.
fn annotated(pod: Pod) -> Pod {
    pod.annotation("istio.io/reroute-virtual-interfaces", &"a,".repeat(ANNOTATION / 2))
}

/// The pod's object while its sandbox is created.
pub(crate) fn starting(pod: &Pod) -> Value {
    let mut manifest = pod.manifest(&[]);
    manifest["status"] = json!({"phase": "Pending"});
    manifest
}

impl Attack {
    /// Starts the long-running pods like any pod, and then the attacks. `runs` adds a pod's process for the agent.
    pub(crate) fn begin(target: &Target<'_>, mut runs: impl FnMut(&Pod, &Netns)) -> Attack {
        let over = Arc::new(AtomicBool::new(false));
        let mut attack = Attack {
            tries: Arc::default(),
            threads: Vec::new(),
            flood: None,
            locks: Vec::new(),
            live: Vec::new(),
            over,
        };
        for number in 0..FLUSHED {
            let pod = Pod::new(target.namespace, &format!("flushed-{number}"));
            target.manifests.put_pod(&starting(&pod));
            let sandbox = target.node.add_pod(&target.node.runtime(), &target.conflist, pod);
            attack.live.push(sandbox.unwrap_or_else(|error| panic!("{error}")));
        }
        for number in 0..LOCKED {
            let pod = Pod::new(target.namespace, &format!("locked-{number}"));
            let sandbox = target.node.pod(pod, &[]);
            sandbox.netns.sh("iptables-legacy -w -A INPUT -p sctp -j DROP");
            attack.locks.push(LegacyLock::hold(&sandbox.netns));
            attack.live.push(sandbox);
        }
        for sandbox in &attack.live {
            runs(&sandbox.pod, &sandbox.netns);
            target.manifests.put_pod(&annotated(sandbox.pod.clone()).manifest(&sandbox.ips()));
        }
        for sandbox in attack.live.iter().take(FLUSHED) {
            fill_with_services(&sandbox.netns, POD_RULES);
            attack.threads.push(flush(&sandbox.netns, &attack.over));
        }
        for number in 0..STARTING {
            attack.start_again_and_again(target, number);
        }
        let address = SocketAddr::new(target.node.ip(false), PORT);
        attack.flood = Some(HalfOpen::start(target.node.outside(), address, CONNECTIONS));
        attack
    }

    /// Starts a pod repeatedly, whatever the result.
    fn start_again_and_again(&mut self, target: &Target<'_>, number: usize) {
        let pod = annotated(Pod::new(target.namespace, &format!("starting-{number}")));
        target.manifests.put_pod(&starting(&pod));
        let (over, tries) = (Arc::clone(&self.over), Arc::clone(&self.tries));
        let (node, conflist) = (Arc::clone(target.node), target.conflist.clone());
        self.threads.push(thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                drop(node.add_pod(&node.runtime(), &conflist, pod.clone()));
                tries.fetch_add(1, Ordering::Relaxed);
                thread::sleep(PAUSE); // the kubelet's delay
            }
        }));
    }

    /// Number of starts of hostile pods, and of opened connections.
    pub(crate) fn effort(&self) -> (usize, usize) {
        (self.tries.load(Ordering::Relaxed), self.flood.as_ref().map_or(0, HalfOpen::opened))
    }
}

/// Flushes the chains with our rules repeatedly.
fn flush(netns: &Netns, over: &Arc<AtomicBool>) -> JoinHandle<()> {
    const CHAINS: [&str; 4] = ["nat ISTIO_OUTPUT", "nat OUTPUT", "mangle ISTIO_PRERT", "nat PREROUTING"];
    let (netns, over) = (netns.second_handle(), Arc::clone(over));
    thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            // One by one: a missing chain fails the whole command.
            for chain in CHAINS {
                let _ = netns.output(Command::new("nft").arg(format!("flush chain ip {chain}")));
            }
            thread::sleep(PAUSE); // a shorter pause would load the machine more than the agent
        }
    })
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
