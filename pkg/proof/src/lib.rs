//! Proof by a packet: the target to which the kernel redirects what a pod sends.
//!
//! In the pod's own network namespace a packet is sent to an address that is reserved for documentation, and the
//! kernel's connection tracking shows where it was redirected. Its checksum is wrong: netfilter does not verify what a
//! host itself sends, and the receiver discards the packet, so the proxy sees no connection and sends no reply. Its TTL
//! is 1, so the next hop discards a packet that was not redirected. The entry in connection tracking is deleted
//! afterwards.
//!
//! A packet that arrives in the pod is sent by the node's end of its interface, from an address for documentation, in a
//! broadcast frame (`node_end.rs`): netfilter treats it as any other, and the kernel then discards it before it looks
//! up a socket. Its checksum is correct, because netfilter verifies arriving packets.
//!
//! The packets follow from the desired rules ([`ProofSpec`]), so that excluded traffic is not mistaken for a leak.
//! Called by `node-status`, on the thread of the request. Changes no rule, and requires `CAP_NET_ADMIN` and
//! `CAP_NET_RAW` in the namespace.
//!
//! Sources: the kernel's `net/ipv4/raw.c`, `net/ipv6/raw.c`, `nf_conntrack_error` of
//! `net/netfilter/nf_conntrack_proto_tcp.c` (checksums are verified in PREROUTING only), `net/netfilter/xt_owner.c`.

mod node_end;
mod packet;
mod plan;
mod probe;
mod verdict;

use std::time::{Duration, Instant};

use model::{Family, Mark, Port};
use netns::Netns;
use report::ProofPath;
use rules::{RuleSet, inpod::ProbeAddresses};

/// Time limit for all packets of a proof. Paths beyond it are not tested.
pub const LIMIT: Duration = Duration::from_secs(1);

/// The desired redirection of a pod.
#[derive(Clone, Debug)]
pub struct ProofSpec {
    /// The rule set of each family that is redirected.
    pub rules: Vec<(Family, RuleSet)>,
    /// How the rules identify the proxy.
    pub proxy: ProxyIdentity,
    /// The desired redirection of packets that arrive.
    pub inbound: InboundSpec,
}

/// Properties of inbound redirection besides the rules.
#[derive(Clone, Copy, Debug)]
pub struct InboundSpec {
    /// Port of tunnels (HBONE), which are not redirected.
    pub tunnel: Port,
    /// Source address of the node's probes, which are not redirected either. `None`: the pod has a sidecar, which has
    /// no such address and need not receive tunnels.
    pub probes: Option<ProbeAddresses>,
}

/// Property by which rules distinguish the proxy's own traffic from the application's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyIdentity {
    /// A mark on its packets.
    Mark(Mark),
    /// The user and the group of its process.
    Owner {
        /// The user, as in the rules.
        uid: u32,
        /// The group, as in the rules.
        gid: u32,
        /// Their IDs on the node, which differ if the pod has a user namespace. `None`: unknown, and traffic of the
        /// proxy is not tested.
        on_node: Option<(u32, u32)>,
    },
}

impl ProxyIdentity {
    /// Returns whether the rules use user IDs of the node.
    fn has_users_of_node(self) -> bool {
        match self {
            ProxyIdentity::Mark(_) => true,
            ProxyIdentity::Owner { uid, gid, on_node } => on_node == Some((uid, gid)),
        }
    }
}

/// Sends the packets in a pod's namespace, and returns the verdict on each path. `node` is the network namespace of the
/// node, with the other end of the pod's interface; `None`: that of the calling thread. Blocks for about [`LIMIT`] at
/// most.
///
/// # Errors
/// The namespace cannot be entered.
pub fn prove(netns: &Netns, node: Option<&Netns>, spec: &ProofSpec) -> Result<Vec<ProofPath>, netns::Error> {
    let until = Instant::now() + LIMIT;
    let node = match node {
        None => node_end::NodeSocket::open(),
        Some(node) => node.run_in(node_end::NodeSocket::open).unwrap_or_else(|error| Err(error.to_string())),
    };
    netns.run_in(|| {
        let mut prober = probe::Prober::open(node, spec.proxy);
        plan::plan_paths(spec, probe::own_address)
            .into_iter()
            .map(|planned| match planned {
                Ok(path) => verdict::judge_path(&path, &prober.observe_path(&path, until)),
                Err(untestable) => untestable,
            })
            .collect()
    })
}
