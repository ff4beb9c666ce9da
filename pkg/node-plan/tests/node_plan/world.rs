//! A small model of the kernel under the node path: network namespaces with links, addresses, rules, routes, firewall and settings,
//! and the sets. Its state is what `node-capture` would observe.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::{Family, IpNet, PodUid, TableId};
use node_plan::{
    DesiredState, NodeConfig, ObservedInside, ObservedLink, ObservedState, Operation, PathRoute, PathRule,
    RouteTo, ZtunnelInstance, ZtunnelSlot, inside_table, is_our_inside_rule, is_our_rule, link_pairs,
    plan_operations, watched_inside_sysctls, watched_sysctls,
};
use rules::SavedTables;

use crate::kernel::Kernel;

/// A network namespace: the node's, or that of the ztunnel with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ns {
    Node,
    Pod(u8),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    pub(crate) peer: Option<(Ns, String)>,
}

/// The tables of one family, and their content as parsed from a save.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Firewall {
    pub(crate) kernel: Kernel,
    pub(crate) saved: SavedTables,
}

impl Firewall {
    fn of(texts: &[&str]) -> Firewall {
        let mut firewall = Firewall { kernel: Kernel::new(), saved: SavedTables::default() };
        texts.iter().for_each(|text| firewall.restore(text).unwrap());
        firewall
    }

    pub(crate) fn restore(&mut self, text: &str) -> Result<(), String> {
        self.kernel.restore(text)?;
        self.saved = SavedTables::parse(&self.kernel.save(false)).unwrap();
        Ok(())
    }
}

/// A route, and whether it has our protocol number.
pub(crate) type Route = (PathRoute, bool);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Netns {
    pub(crate) links: BTreeMap<String, Link>,
    pub(crate) addresses: BTreeSet<(String, IpNet)>,
    pub(crate) rules: Vec<PathRule>,
    pub(crate) routes: Vec<Route>,
    pub(crate) firewall: BTreeMap<Family, Firewall>,
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Previous values of settings, which the agent keeps in a file.
    pub(crate) journal: BTreeMap<String, String>,
    /// Whether that file records which built-in chains existed.
    pub(crate) chains_noted: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    pub(crate) config: NodeConfig,
    pub(crate) node: Netns,
    pub(crate) pods: BTreeMap<u8, Netns>,
    pub(crate) sets: BTreeMap<Family, BTreeMap<IpAddr, Option<PodUid>>>,
    pub(crate) slots: [Option<u8>; 2],
}

/// Four ztunnels: two dual-stack ones, one of each family alone.
pub(crate) const ZTUNNELS: [u8; 4] = [1, 2, 3, 4];

pub(crate) fn ztunnel(number: u8) -> ZtunnelInstance {
    let v4: IpAddr = [10, 0, 0, number].into();
    let v6: IpAddr = [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into();
    let ips = match number {
        3 => vec![v4],
        4 => vec![v6],
        _ => vec![v4, v6],
    };
    ZtunnelInstance {
        uid: format!("z{number}").into(),
        veth: format!("veth{number}"),
        uplink: "eth0".to_owned(),
        ips,
        dns: number % 2 == 1,
    }
}

/// Foreign rules in places where ours are, too.
const FOREIGN: &str = "*mangle
:CALI-forward - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -i cali+ -j CALI-forward
-A ISTIO_PRERT -p tcp -j RETURN
-A CALI-forward -m mark --mark 0x80000/0x80000 -j RETURN
COMMIT
*nat
:KUBE-SERVICES - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"not for ztunnel-POSTROUTING\" -j MASQUERADE
COMMIT
";

fn foreign_rules() -> Vec<PathRule> {
    let rule = |family, priority, mark, table| PathRule {
        family,
        priority,
        mark: Some(model::Mark { value: mark, mask: mark }),
        table: TableId(table),
    };
    let of = |family| [rule(family, 50, 0x8_0000, 100), rule(family, 105, 0x8_0000, 500)];
    Family::BOTH.into_iter().flat_map(of).collect()
}

fn foreign_routes() -> Vec<Route> {
    let route = |table, dst: &str, to| {
        let dst: IpNet = dst.parse().unwrap();
        let family = Family::from_ip(dst.addr());
        (PathRoute { family, table: TableId(table), dst: Some(dst), metric: 0, to }, false)
    };
    let via = |ip: &str| RouteTo::Via(ip.parse().unwrap(), "eth0".to_owned());
    vec![
        route(100, "172.30.0.0/16", via("10.0.0.254")),
        route(101, "172.30.0.0/16", RouteTo::Blackhole),
        route(254, "172.31.0.0/16", via("10.0.0.254")),
        route(110, "fd99::/64", via("fd00::fe")),
    ]
}

impl Netns {
    fn new(rp_filter: &str, firewall: &[&str]) -> Netns {
        let mut made = Netns {
            links: BTreeMap::new(),
            addresses: BTreeSet::new(),
            rules: Vec::new(),
            routes: Vec::new(),
            firewall: Family::BOTH.map(|family| (family, Firewall::of(firewall))).into(),
            sysctls: BTreeMap::from([
                (PORTS.to_owned(), "32768\t60999".to_owned()),
                ("net/ipv4/conf/all/src_valid_mark".to_owned(), "0".to_owned()),
            ]),
            journal: BTreeMap::new(),
            chains_noted: false,
        };
        for name in ["all", "default"] {
            made.sysctls.insert(format!("net/ipv4/conf/{name}/rp_filter"), rp_filter.to_owned());
        }
        made.link("lo", None);
        made.links.values_mut().for_each(|link| link.up = true);
        made
    }

    pub(crate) fn link(&mut self, name: &str, peer: Option<(Ns, String)>) {
        self.links.insert(name.to_owned(), Link { up: false, peer });
        let filter = self.sysctls["net/ipv4/conf/default/rp_filter"].clone();
        self.sysctls.insert(format!("net/ipv4/conf/{name}/rp_filter"), filter);
        self.sysctls.insert(format!("net/ipv4/conf/{name}/accept_local"), "0".to_owned());
    }

    fn routes_of_ours(&self, tables: &[TableId]) -> Vec<PathRoute> {
        let ours = self.routes.iter().filter(|(route, ours)| *ours && tables.contains(&route.table));
        ours.map(|(route, _)| route.clone()).collect()
    }

    fn rules_that(&self, are: impl Fn(&PathRule) -> bool) -> Vec<PathRule> {
        let found: BTreeSet<_> = self.rules.iter().filter(|rule| are(rule)).cloned().collect();
        found.into_iter().collect()
    }

    fn saved(&self) -> BTreeMap<Family, SavedTables> {
        self.firewall.iter().map(|(family, firewall)| (*family, firewall.saved.clone())).collect()
    }

    fn settings(&self, names: &[String]) -> BTreeMap<String, String> {
        names.iter().filter_map(|name| Some((name.clone(), self.sysctls.get(name)?.clone()))).collect()
    }

    fn addresses_of(&self, names: &BTreeSet<String>) -> BTreeSet<(String, IpNet)> {
        self.addresses.iter().filter(|(link, _)| names.contains(link)).cloned().collect()
    }
}

impl World {
    /// A node with four ztunnels and foreign objects, without objects of ours.
    pub(crate) fn new(rp_filter: u8) -> World {
        let filter = rp_filter.to_string();
        let mut node = Netns::new(&filter, &[FOREIGN]);
        node.rules = foreign_rules();
        node.routes = foreign_routes();
        let mut pods = BTreeMap::new();
        for number in ZTUNNELS {
            let mut pod = Netns::new(&filter, &["*filter\n-A INPUT -p tcp -j ACCEPT\nCOMMIT\n"]);
            node.link(&ztunnel(number).veth, Some((Ns::Pod(number), "eth0".to_owned())));
            pod.link("eth0", Some((Ns::Node, ztunnel(number).veth)));
            pod.links.values_mut().for_each(|link| link.up = true);
            pods.insert(number, pod);
        }
        ["eth0", "cali1"].iter().for_each(|name| node.link(name, None));
        node.links.values_mut().for_each(|link| link.up = true);
        let config = NodeConfig::default();
        World { config, node, pods, sets: BTreeMap::new(), slots: [None, None] }
    }

    pub(crate) fn ns(&mut self, ns: Ns) -> Result<&mut Netns, String> {
        match ns {
            Ns::Node => Ok(&mut self.node),
            Ns::Pod(number) => self.pods.get_mut(&number).ok_or(format!("ztunnel {number} is gone")),
        }
    }

    /// Ztunnels to which the links of a slot lead.
    pub(crate) fn leads_to(&self, slot: ZtunnelSlot) -> [Option<u8>; 2] {
        link_pairs(slot).map(|pair| match self.node.links.get(&pair.node)?.peer {
            Some((Ns::Pod(number), _)) => Some(number),
            _ => None,
        })
    }

    pub(crate) fn plan(&mut self, desired: Option<&DesiredState>, slots: &[Option<u8>; 2]) -> Vec<Operation> {
        let observed = self.observe(slots);
        plan_operations(&self.config, desired, &observed)
    }

    /// Observation of `NodePath` for these slots.
    pub(crate) fn observe(&mut self, slots: &[Option<u8>; 2]) -> ObservedState {
        self.slots = *slots;
        let names: BTreeSet<String> = node_links();
        let links = self.node.links.iter().filter(|(name, _)| names.contains(*name));
        let observed = |link: &Link| ObservedLink { index: 0, up: link.up, right: false };
        let links = links.map(|(name, link)| (name.clone(), observed(link)));
        let mut seen = ObservedState {
            sets: self.sets.clone(),
            firewall: self.node.saved(),
            rules: self.node.rules_that(|rule| is_our_rule(&self.config, rule)),
            routes: self.node.routes_of_ours(&self.config.all_tables()),
            links: links.collect(),
            addresses: self.node.addresses_of(&names),
            journal: self.node.journal.clone(),
            chains_noted: self.node.chains_noted,
            ..ObservedState::default()
        };
        for slot in ZtunnelSlot::BOTH {
            let Some(number) = *slot.select_from(slots) else { continue };
            seen.sysctls.extend(self.node.settings(&watched_sysctls(slot, &ztunnel(number).veth)));
            for pair in link_pairs(slot) {
                let leads_there = |link: &Link| matches!(&link.peer, Some((ns, _)) if *ns == Ns::Pod(number));
                if let Some(link) = seen.links.get_mut(&pair.node) {
                    link.right = leads_there(&self.node.links[&pair.node]);
                }
            }
            *slot.part_mut(&mut seen.inside) = self.pods.get(&number).map(inside);
        }
        seen
    }
}

pub(crate) fn node_links() -> BTreeSet<String> {
    ZtunnelSlot::BOTH.into_iter().flat_map(link_pairs).map(|pair| pair.node).collect()
}

pub(crate) fn far_links() -> BTreeSet<String> {
    link_pairs(ZtunnelSlot::Zero).into_iter().map(|pair| pair.ztunnel).collect()
}

/// Ephemeral port range.
const PORTS: &str = "net/ipv4/ip_local_port_range";

fn inside(pod: &Netns) -> ObservedInside {
    let names = far_links();
    let links = pod.links.iter().filter(|(name, _)| names.contains(*name));
    ObservedInside {
        links: links.map(|(name, link)| (name.clone(), link.up)).collect(),
        addresses: pod.addresses_of(&names),
        rules: pod.rules_that(is_our_inside_rule),
        routes: pod.routes_of_ours(&[inside_table()]),
        inactive: Vec::new(),
        firewall: pod.saved(),
        sysctls: pod.settings(&watched_inside_sysctls()),
        journal: pod.journal.clone(),
        chains_noted: pod.chains_noted,
    }
}
