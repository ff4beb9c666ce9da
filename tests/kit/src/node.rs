//! A node: a namespace with an uplink to an external host, a link to the API server, and a pod CIDR for each family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::netns::{Netns, in_sandbox, pipe_here, sandbox};
use crate::pod::{Pod, PodSandbox};
use crate::runtime::{ChainError, Runtime};

/// Address families that pods of a node get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both, IPv4 first.
    #[default]
    Dual,
}

impl Families {
    /// Whether IPv4 is included.
    #[must_use]
    pub fn v4(self) -> bool {
        self != Self::V6
    }

    /// Whether IPv6 is included.
    #[must_use]
    pub fn v6(self) -> bool {
        self != Self::V4
    }
}

/// Settings of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Address families of the pods; the node itself always has both.
    pub families: Families,
}

/// A node of a cluster, isolated from all others.
#[derive(Debug)]
pub struct Node {
    netns: Arc<Netns>,
    outside: Netns,
    number: u16,
    options: NodeOptions,
    files: TempDir,
}

/// Address of the node on its uplink, equal in every node.
const NODE_V4: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 2);
const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 2);
/// Address of the external host at the other end of the uplink, the node's default gateway.
const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(10, 10, 0, 1);
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, 1);
/// Address of the API server, on `lo` of the sandbox, as a cluster's first service would have it.
pub(crate) const API_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
pub(crate) const API_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1);

impl Node {
    /// Creates a node.
    #[must_use]
    pub fn new(options: NodeOptions) -> Self {
        static COUNTER: AtomicU16 = AtomicU16::new(1);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        assert!(number < 0x4000, "more nodes than pod ranges");
        let netns = Arc::new(Netns::new("node"));
        let files = tempfile::Builder::new().prefix("node").tempdir().expect("cannot make a temp dir");
        let node = Self { netns, outside: Netns::new("outside"), number, options, files };
        for directory in ["net.d", "run", "log", "ipam", "netns"] {
            std::fs::create_dir(node.files.path().join(directory)).expect("cannot make a directory");
        }
        node.connect_outside();
        node.connect_api();
        node.netns.wait_until_running("eth0");
        node.outside.wait_until_running("eth0");
        node.netns.wait_until_running("kube0");
        sandbox().wait_until_running(&format!("kit{number}"));
        node
    }

    /// The node's own namespace.
    #[must_use]
    pub fn netns(&self) -> &Arc<Netns> {
        &self.netns
    }

    /// A host outside the node, reached through the uplink `eth0`.
    #[must_use]
    pub fn outside(&self) -> &Netns {
        &self.outside
    }

    /// Address of the external host.
    #[must_use]
    pub fn outside_ip(&self, v6: bool) -> IpAddr {
        if v6 { OUTSIDE_V6.into() } else { OUTSIDE_V4.into() }
    }

    /// The node's own address on its uplink.
    #[must_use]
    pub fn ip(&self, v6: bool) -> IpAddr {
        if v6 { NODE_V6.into() } else { NODE_V4.into() }
    }

    /// Directory for conflists, as `/etc/cni/net.d`.
    #[must_use]
    pub fn net_d(&self) -> PathBuf {
        self.files.path().join("net.d")
    }

    /// Directory for sockets, as `/var/run/istio-cni`.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.files.path().join("run")
    }

    /// Directory for logs.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.files.path().join("log")
    }

    /// The node's directory of files; drop removes it.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.files.path()
    }

    /// A runtime on this node that searches plugins in the directory of Debian's reference plugins and in cargo's.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        Runtime::new(Arc::clone(&self.netns))
    }

    /// Entry of the primary plugin: ptp, with pod addresses from this node's CIDRs.
    #[must_use]
    pub fn primary(&self) -> Value {
        let families = self.options.families;
        let (v4, v6) = self.pod_ranges();
        let wanted = [(families.v4(), v4, "0.0.0.0/0"), (families.v6(), v6, "::/0")];
        let wanted: Vec<_> = wanted.into_iter().filter(|(wanted, ..)| *wanted).collect();
        json!({
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": self.files.path().join("ipam"),
                "ranges": wanted.iter().map(|(_, subnet, _)| json!([{"subnet": subnet}])).collect::<Vec<_>>(),
                "routes": wanted.iter().map(|(_, _, dst)| json!({"dst": dst})).collect::<Vec<_>>(),
            },
        })
    }

    /// A conflist (name `kit`, CNI 1.0.0) of the primary plugin and then `plugins`.
    #[must_use]
    pub fn conflist(&self, plugins: &[Value]) -> Value {
        let mut chain = vec![self.primary()];
        chain.extend_from_slice(plugins);
        json!({"cniVersion": "1.0.0", "name": "kit", "plugins": chain})
    }

    /// Writes a conflist into [`Node::net_d`] and returns its path.
    pub fn write_conflist(&self, file: &str, conflist: &Value) -> PathBuf {
        let path = self.net_d().join(file);
        std::fs::write(&path, serde_json::to_vec_pretty(conflist).unwrap()).expect("cannot write a conflist");
        path
    }

    /// Starts a pod's sandbox: creates its network namespace and runs the chain of `conflist` with `runtime`.
    pub fn add_pod(
        &self,
        runtime: &Runtime,
        conflist: &Value,
        pod: Pod,
    ) -> Result<PodSandbox, Box<ChainError>> {
        let sandbox = PodSandbox::start(runtime, conflist, pod)?;
        // All nodes share `/var/run/netns` here, unlike real ones.
        let link = self.netns_dir().join(sandbox.netns.name());
        std::os::unix::fs::symlink(sandbox.netns_path(), link).expect("cannot make a link");
        Ok(sandbox)
    }

    /// A directory of symlinks into `/var/run/netns` for the namespaces of this node's pods alone.
    #[must_use]
    pub fn netns_dir(&self) -> PathBuf {
        self.files.path().join("netns")
    }

    /// Starts a pod with the node's own runtime and only `plugins` after the primary plugin.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn pod(&self, pod: Pod, plugins: &[Value]) -> PodSandbox {
        self.add_pod(&self.runtime(), &self.conflist(plugins), pod).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Pod CIDRs, IPv4 and IPv6, unique to this node in the sandbox.
    #[must_use]
    pub fn pod_ranges(&self) -> (String, String) {
        let [high, low] = self.number.to_be_bytes();
        (format!("10.{}.{low}.0/24", 128 + high), format!("fd00:{:x}::/64", 0x1000 + self.number))
    }

    fn connect_outside(&self) {
        let (node, outside) = (self.netns.name(), self.outside.name());
        let (pods_v4, pods_v6) = self.pod_ranges();
        at_sandbox(&format!("link add eth0 netns {node} type veth peer name eth0 netns {outside}"));
        let up = |address_v4, address_v6| {
            format!(
                "address add {address_v4}/24 dev eth0\n\
                 address add {address_v6}/64 dev eth0\n\
                 link set eth0 up\n"
            )
        };
        let at_node =
            format!("route add default via {OUTSIDE_V4}\nroute add default via {OUTSIDE_V6} dev eth0\n");
        let at_outside =
            format!("route add {pods_v4} via {NODE_V4}\nroute add {pods_v6} via {NODE_V6} dev eth0\n");
        self.outside.pipe("ip -batch -", &(up(OUTSIDE_V4, OUTSIDE_V6) + &at_outside));
        self.netns.pipe("ip -batch -", &(up(NODE_V4, NODE_V6) + &at_node));
        self.netns.sysctl("net/ipv4/ip_forward", "1");
        self.netns.sysctl("net/ipv6/conf/all/forwarding", "1");
    }

    /// Creates a link to the sandbox's own namespace, where the API server is, with addresses unique to this node.
    fn connect_api(&self) {
        let (node, number) = (self.netns.name(), self.number);
        let [high, low] = (number * 2).to_be_bytes();
        let link = format!("kit{number}");
        let (near, far) = (format!("10.98.{high}.{low}"), format!("10.98.{high}.{}", low + 1));
        let (near6, far6) = (format!("fd00:98::{:x}", number * 2), format!("fd00:98::{:x}", number * 2 + 1));
        let (pods_v4, pods_v6) = self.pod_ranges();
        at_sandbox(&format!(
            "link add {link} type veth peer name kube0 netns {node}\n\
             address replace {API_V4}/32 dev lo\n\
             address replace {API_V6}/128 dev lo nodad\n\
             address add {near}/31 dev {link}\n\
             address add {near6}/127 dev {link} nodad\n\
             link set {link} up\n\
             route add {pods_v4} via {far} dev {link} onlink\n\
             route add {pods_v6} via {far6} dev {link} onlink\n"
        ));
        let at_node = format!(
            "address add {far}/31 dev kube0\n\
             address add {far6}/127 dev kube0\n\
             link set kube0 up\n\
             route add {API_V4} via {near} dev kube0\n\
             route add {API_V6} via {near6} dev kube0\n"
        );
        self.netns.pipe("ip -batch -", &at_node);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Namespaces are removed some time after their last user; the link, whose name may be reused, now.
        let link = format!("kit{}", self.number);
        let _ = in_sandbox(|| Command::new("ip").args(["link", "delete", &link]).output());
    }
}

/// Runs a batch of `ip` in the sandbox's own namespace.
fn at_sandbox(batch: &str) {
    in_sandbox(|| pipe_here("ip -batch -", batch));
}
