//! A ztunnel pod whose proxy is a stub: it relays connections transparently that TPROXY redirects to it, and reports them. The
//! rules that redirect are not part of it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::helper::Helper;
use crate::manifests::status;
use crate::node::Node;
use crate::pod::{Pod, PodSandbox};
use crate::wait::LIMIT;

/// Settings of a ztunnel.
#[derive(Debug, Clone, Copy)]
pub struct ZtunnelOptions {
    /// Listens for DNS, and its manifest sets the variable.
    pub dns_capture: bool,
    /// Connect timeout of onward connections.
    pub connect_limit: Duration,
}

impl Default for ZtunnelOptions {
    fn default() -> Self {
        Self { dns_capture: false, connect_limit: Duration::from_secs(10) }
    }
}

/// Listener that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Port 15001.
    Outbound,
    /// Port 15006.
    Inbound,
    /// Port 15008. The stubs do not implement HBONE: a connection is relayed like the others, or answered where the listener itself
    /// was the destination, as in a pod.
    Hbone,
    /// Port 15053, UDP or TCP; the stub answers it itself.
    Dns,
}

/// A connection that a ztunnel accepted, reported when the onward connection was established or failed; or a DNS query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relayed {
    /// Listener that accepted it.
    pub via: Via,
    /// Source as ztunnel sees it.
    pub src: SocketAddr,
    /// Destination as ztunnel sees it; unspecified for DNS over UDP.
    pub dst: SocketAddr,
    /// Error of the onward connection.
    pub error: Option<String>,
    /// UID of the pod in whose namespace it was accepted; `None` from a [`Ztunnel`], which listens in its own.
    pub uid: Option<String>,
}

/// A ztunnel pod with its proxy's process. Drop ends both.
#[derive(Debug)]
pub struct Ztunnel {
    // Dropped in this order: containers end before their sandbox.
    process: Helper,
    sandbox: PodSandbox,
    options: ZtunnelOptions,
    past: Vec<Relayed>,
}

/// Label, service account and namespace of ztunnel.
pub(crate) const APP: &str = "ztunnel";
pub(crate) const NAMESPACE: &str = "istio-system";
/// Source ports of onward connections, below those of pods.
const PORTS: std::ops::Range<u16> = 16000..30000;
const PORTS_EACH: u16 = 500;

impl Ztunnel {
    /// Starts a ztunnel pod with this name on a node, with the primary plugin alone; it listens when this returns.
    #[must_use]
    pub fn start(node: &Node, name: &str, options: ZtunnelOptions) -> Self {
        Self::start_in(node.pod(Pod::new(NAMESPACE, name).label("app", APP), &[]), options)
    }

    /// As [`Ztunnel::start`], in a sandbox that the caller created with a chain of its own; the pod has to be in `istio-system`.
    #[must_use]
    pub fn start_in(sandbox: PodSandbox, options: ZtunnelOptions) -> Self {
        own_ports(&sandbox);
        let process = start_process(&sandbox, options);
        Self { process, sandbox, options, past: Vec::new() }
    }

    /// The pod's name, which is part of its DNS answers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.sandbox.pod.name
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> &PodSandbox {
        &self.sandbox
    }

    /// The pod's address of a family.
    #[must_use]
    pub fn ip(&self, v6: bool) -> IpAddr {
        self.sandbox.ip(v6)
    }

    /// All connections accepted so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Relayed> {
        let new = self.process.look(|lines| lines.iter().filter_map(relayed).collect::<Vec<_>>());
        [self.past.clone(), new].concat()
    }

    /// Waits for the first connection of all accepted ones for which `wanted` holds.
    ///
    /// # Panics
    /// If none is accepted within 20 seconds.
    pub fn wait_seen(&self, wanted: impl Fn(&Relayed) -> bool) -> Relayed {
        self.wait_seen_after(0, wanted)
    }

    /// As [`Ztunnel::wait_seen`], without the first `known` connections.
    ///
    /// # Panics
    /// If none is accepted within 20 seconds.
    pub fn wait_seen_after(&self, known: usize, wanted: impl Fn(&Relayed) -> bool) -> Relayed {
        if let Some(found) = self.past.iter().skip(known).find(|one| wanted(one)) {
            return found.clone();
        }
        let known = known.saturating_sub(self.past.len());
        let look = |lines: &[Value]| lines.iter().filter_map(relayed).skip(known).find(|one| wanted(one));
        let found = self.process.wait(LIMIT, look);
        found.unwrap_or_else(|| panic!("{} has not seen it, but {:?}", self.name(), self.seen()))
    }

    /// Waits until at least `count` connections were accepted in all: one is reported a moment after its client has it.
    ///
    /// # Panics
    /// If there are fewer after 20 seconds.
    pub fn wait_seen_count(&self, count: usize) -> Vec<Relayed> {
        let enough =
            |lines: &[Value]| lines.iter().filter_map(relayed).nth(count.checked_sub(self.past.len() + 1)?);
        if count > self.past.len() && self.process.wait(LIMIT, enough).is_none() {
            panic!("{} has not seen {count}, but {:?}", self.name(), self.seen());
        }
        self.seen()
    }

    /// Sends SIGKILL to the process; the pod stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a new process in the same pod, as the kubelet does after [`Ztunnel::kill`].
    pub fn restart(&mut self) {
        self.process.kill();
        self.past = self.seen();
        self.process = start_process(&self.sandbox, self.options);
    }

    /// Ends the pod as the kubelet does: the process is killed, DEL runs, the namespace is removed with its link. Returns all
    /// accepted connections.
    ///
    /// # Panics
    /// If DEL fails.
    pub fn delete(mut self) -> Vec<Relayed> {
        self.kill();
        self.sandbox.delete().unwrap_or_else(|e| panic!("{e}"));
        self.seen()
    }

    /// Process ID of the proxy, for measurements.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The API object of a pod of the DaemonSet, created at this time (RFC 3339).
    #[must_use]
    pub fn pod_manifest(&self, ready: bool, created: &str) -> Value {
        manifest(&self.sandbox, self.options.dns_capture, ready, created)
    }
}

/// The object of a pod of ztunnel's DaemonSet.
pub(crate) fn manifest(sandbox: &PodSandbox, dns_capture: bool, ready: bool, created: &str) -> Value {
    let mut manifest = sandbox.manifest();
    let metadata = &mut manifest["metadata"];
    metadata["creationTimestamp"] = json!(created);
    metadata["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": APP, "uid": "uid-of-ztunnel", "controller": true,
    }]);
    manifest["spec"]["serviceAccountName"] = json!(APP);
    manifest["spec"]["containers"] = json!([{
        "name": "istio-proxy", "image": "ztunnel", "args": ["proxy", "ztunnel"],
        "env": [{"name": "ISTIO_META_DNS_CAPTURE", "value": dns_capture.to_string()}],
    }]);
    manifest["status"] = status("istio-proxy", &sandbox.ips(), ready, created);
    manifest
}

/// Separates source ports: onward connections of two ztunnels, or of a pod and a ztunnel, have the same source address, and with
/// the same port the node's connection tracking would take them for one.
fn own_ports(sandbox: &PodSandbox) {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let slots = (PORTS.end - PORTS.start) / PORTS_EACH;
    let first = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % slots * PORTS_EACH;
    let range = format!("{first} {}", first + PORTS_EACH - 1);
    sandbox.netns.sysctl("net/ipv4/ip_local_port_range", &range);
    sandbox.netns.sysctl("net/ipv4/tcp_tw_reuse", "1");
}

fn start_process(sandbox: &PodSandbox, options: ZtunnelOptions) -> Helper {
    let limit = options.connect_limit.as_millis().to_string();
    let mut arguments = vec!["ztunnel", "--name", &sandbox.pod.name, "--timeout-ms", &limit];
    if options.dns_capture {
        arguments.push("--dns");
    }
    Helper::start(&sandbox.netns, &arguments)
}

pub(crate) fn relayed(line: &Value) -> Option<Relayed> {
    let via = match line["via"].as_str()? {
        "outbound" => Via::Outbound,
        "inbound" => Via::Inbound,
        "hbone" => Via::Hbone,
        "dns" => Via::Dns,
        other => panic!("no such listener: {other}"),
    };
    let address = |key: &str| line[key].as_str().and_then(|text| text.parse().ok()).expect("an address");
    let error = line["error"].as_str().map(str::to_owned);
    let uid = line["uid"].as_str().map(str::to_owned);
    Some(Relayed { via, src: address("src"), dst: address("dst"), error, uid })
}
