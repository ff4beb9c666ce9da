//! The model: tables, built-in chains, our own chains, and rules.

mod parts;
mod rule_set;

use std::{borrow::Cow, fmt};

use model::{IfName, IpNet, Port};

pub use parts::{AddressSide, CtStates, Match, MatchValue, PortRange, Target, TransportProtocol};
pub use rule_set::{HookJump, JumpPlace, LocalRoute, RuleSet, TableRules};

model::word_enum! {
    /// A netfilter table, in the order in which a restore commits them: tables that only prepare precede `nat`, which
    /// activates the redirection. (A restore is atomic per table, not per file.)
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Table {
        /// `raw`: before connection tracking.
        #[default]
        Raw = "raw",
        /// `filter`: accept and drop. On a node, also marks connections that `mangle` sends to a ztunnel.
        Filter = "filter",
        /// `mangle`: marks and TPROXY.
        Mangle = "mangle",
        /// `nat`: address translation; processes only the first packet of a connection.
        Nat = "nat",
    }
}

model::word_enum! {
    /// A built-in chain: the point in the kernel where a packet meets the table. In the order of the kernel's numbers
    /// (`NF_INET_PRE_ROUTING` is 0).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Hook {
        /// Arriving packets, before routing.
        Prerouting = "PREROUTING",
        /// Packets for this host.
        Input = "INPUT",
        /// Forwarded packets.
        Forward = "FORWARD",
        /// Packets sent by this host.
        Output = "OUTPUT",
        /// Leaving packets, after routing.
        Postrouting = "POSTROUTING",
    }
}

/// Name of a chain that is not built in; at most 28 bytes (kernel: `XT_EXTENSION_MAXNAMELEN` less one).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chain(pub Cow<'static, str>);

impl Chain {
    /// Returns a chain whose name is known at compile time.
    pub const fn named(name: &'static str) -> Chain {
        Chain(Cow::Borrowed(name))
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One rule: all conditions must hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Source address.
    pub source: Option<MatchValue<IpNet>>,
    /// Destination address.
    pub dest: Option<MatchValue<IpNet>>,
    /// Interface on which the packet arrived.
    pub input: Option<MatchValue<IfName>>,
    /// Interface by which the packet leaves.
    pub output: Option<MatchValue<IfName>>,
    /// Transport protocol.
    pub proto: Option<MatchValue<TransportProtocol>>,
    /// Further conditions, in order.
    pub matches: Vec<Match>,
    /// The verdict.
    pub target: Target,
}

impl Rule {
    /// Returns a rule that matches every packet.
    pub const fn new(target: Target) -> Rule {
        Rule { source: None, dest: None, input: None, output: None, proto: None, matches: Vec::new(), target }
    }

    /// Returns a rule that jumps to `chain`.
    pub const fn jump_to(chain: Chain) -> Rule {
        Rule::new(Target::Jump(chain))
    }

    /// Only packets from `net`; no condition if that is every address, because the tools would drop it.
    #[must_use]
    pub fn source(mut self, net: IpNet) -> Rule {
        self.source = net_condition(net);
        self
    }

    /// Only packets from anywhere but `net`.
    #[must_use]
    pub fn not_source(mut self, net: IpNet) -> Rule {
        self.source = Some(MatchValue::ne(net));
        self
    }

    /// Only packets to `net`; no condition if that is every address.
    #[must_use]
    pub fn dest(mut self, net: IpNet) -> Rule {
        self.dest = net_condition(net);
        self
    }

    /// Only packets to anywhere but `net`.
    #[must_use]
    pub fn not_dest(mut self, net: IpNet) -> Rule {
        self.dest = Some(MatchValue::ne(net));
        self
    }

    /// Only packets that arrive on `interface`; no condition if that is `+`, every interface.
    #[must_use]
    pub fn input(mut self, interface: &IfName) -> Rule {
        self.input = match_some_interfaces(interface);
        self
    }

    /// Only packets that arrive on another interface than `interface`.
    #[must_use]
    pub fn not_input(mut self, interface: &IfName) -> Rule {
        self.input = Some(MatchValue::ne(interface.clone()));
        self
    }

    /// Only packets that leave by `interface`; no condition if that is `+`.
    #[must_use]
    pub fn output(mut self, interface: &IfName) -> Rule {
        self.output = match_some_interfaces(interface);
        self
    }

    /// Only packets that leave by another interface than `interface`.
    #[must_use]
    pub fn not_output(mut self, interface: &IfName) -> Rule {
        self.output = Some(MatchValue::ne(interface.clone()));
        self
    }

    /// Only packets of `proto`.
    #[must_use]
    pub fn proto(mut self, proto: TransportProtocol) -> Rule {
        self.proto = Some(MatchValue::eq(proto));
        self
    }

    /// Only TCP.
    #[must_use]
    pub fn tcp(self) -> Rule {
        self.proto(TransportProtocol::Tcp)
    }

    /// Only UDP.
    #[must_use]
    pub fn udp(self) -> Rule {
        self.proto(TransportProtocol::Udp)
    }

    /// All protocols except TCP.
    #[must_use]
    pub fn not_tcp(mut self) -> Rule {
        self.proto = Some(MatchValue::ne(TransportProtocol::Tcp));
        self
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, condition: Match) -> Rule {
        self.matches.push(condition);
        self
    }

    /// Only packets to `port`.
    #[must_use]
    pub fn dport(self, port: Port) -> Rule {
        self.when(Match::DestPort(MatchValue::eq(port)))
    }

    /// Returns a rule with the same conditions and another verdict.
    pub fn with_target(&self, target: Target) -> Rule {
        Rule { target, ..self.clone() }
    }
}

/// `-d 0.0.0.0/0` is in no save, because it is no condition (observed with iptables 1.8.9, both backends).
fn net_condition(net: IpNet) -> Option<MatchValue<IpNet>> {
    (net.prefix_len() > 0).then(|| MatchValue::eq(net))
}

/// `-i +` is in no save, either.
fn match_some_interfaces(interface: &IfName) -> Option<MatchValue<IfName>> {
    (interface.as_str() != "+").then(|| MatchValue::eq(interface.clone()))
}
