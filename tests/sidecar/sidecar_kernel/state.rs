//! Everything in a network namespace that redirection could change, as the host's own tools list it.

use std::collections::BTreeMap;

use firewall::{Backend, FirewallOptions, XtablesLock};
use kit::Netns;
use model::Family;

/// Both backends.
pub(crate) const BACKENDS: [Backend; 2] = [Backend::Nft, Backend::Legacy];

/// One save: chains with their policy, each with its rules in order; without counters and comments.
pub(crate) type Save = BTreeMap<Chain, Vec<String>>;

/// A chain's table and name; the policy is `-` for a user-defined chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Chain {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) policy: String,
}

impl Chain {
    /// Whether the chain belongs to sidecar redirection. The names are repeated here: the list of the code under test proves
    /// nothing.
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with("ISTIO_")
    }

    pub(crate) fn is_builtin(&self) -> bool {
        self.policy != "-"
    }
}

/// All saves of both backends, and all policy rules, routes and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) saves: BTreeMap<(Backend, Family), Save>,
    pub(crate) network: String,
}

impl State {
    /// Reads the state of a namespace.
    pub(crate) fn of(netns: &Netns) -> State {
        State::of_backends(netns, &BACKENDS)
    }

    /// Reads only these backends' tables: each costs two processes.
    pub(crate) fn of_backends(netns: &Netns, backends: &[Backend]) -> State {
        let both = backends.iter().flat_map(|backend| Family::BOTH.map(|family| (*backend, family)));
        let saves = both.map(|(backend, family)| ((backend, family), save(netns, backend, family))).collect();
        State { saves, network: network(netns) }
    }

    /// Asserts that the states are equal; the message has the lines that differ.
    pub(crate) fn assert_is(&self, expected: &State, what: &str) {
        let (found, expected) = (self.lines(), expected.lines());
        if found != expected {
            let only = |one: &[String], other: &[String]| {
                one.iter().filter(|line| !other.contains(line)).cloned().collect::<Vec<_>>().join("\n  ")
            };
            let (more, less) = (only(&found, &expected), only(&expected, &found));
            panic!("{what}: the state differs (or its order)\n+ {more}\n- {less}");
        }
    }

    /// As [`State::assert_is`], whatever the positions of our jumps among foreign rules.
    pub(crate) fn assert_is_but_for_places(&self, expected: &State, what: &str) {
        let ((found, jumps), (expected, wanted)) = (self.without_jumps(), expected.without_jumps());
        found.assert_is(&expected, what);
        assert_eq!(jumps, wanted, "{what}: jumps");
    }

    /// As [`State::assert_is`], whatever the protocol of the routes: `ip` sets its own (`boot`), we set none.
    pub(crate) fn assert_is_but_for_route_protocols(&self, expected: &State, what: &str) {
        let anonymous = |state: &State| State { network: without_protocols(&state.network), ..state.clone() };
        anonymous(self).assert_is(&anonymous(expected), what);
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((backend, family), save) in &self.saves {
            for (Chain { table, name, policy }, rules) in save {
                lines.push(format!("{backend} {family} {table} :{name} {policy}"));
                lines.extend(rules.iter().map(|rule| format!("{backend} {family} {table} -A {name} {rule}")));
            }
        }
        lines.extend(self.network.lines().map(str::to_owned));
        lines
    }

    /// The saves of one backend.
    pub(crate) fn of_backend(&self, backend: Backend) -> impl Iterator<Item = (Family, &Save)> {
        self.saves
            .iter()
            .filter(move |((found, _), _)| *found == backend)
            .map(|((_, family), s)| (*family, s))
    }

    /// Whether one backend has nothing but empty built-in chains.
    pub(crate) fn is_blank(&self, backend: Backend) -> bool {
        let blank = |save: &Save| save.iter().all(|(chain, rules)| chain.is_builtin() && rules.is_empty());
        self.of_backend(backend).all(|(_, save)| blank(save))
    }

    /// Whether one backend has not even a table.
    pub(crate) fn has_no_table(&self, backend: Backend) -> bool {
        self.of_backend(backend).all(|(_, save)| save.is_empty())
    }

    /// The state without the jumps to our chains, whose positions among foreign rules may differ; with it, the number of each.
    pub(crate) fn without_jumps(&self) -> (State, BTreeMap<String, usize>) {
        let (mut state, mut jumps) = (self.clone(), BTreeMap::new());
        for ((backend, family), save) in &mut state.saves {
            for (chain, rules) in save.iter_mut().filter(|(chain, _)| !chain.is_ours()) {
                for jump in rules.extract_if(.., |rule| leads_to_ours(rule)) {
                    *jumps
                        .entry(format!("{backend} {family} {} {} {jump}", chain.table, chain.name))
                        .or_default() += 1;
                }
            }
        }
        (state, jumps)
    }
}

/// Whether a rule's verdict is a chain of ours. (The foreign rules of these tests end with their verdict.)
pub(crate) fn leads_to_ours(rule: &str) -> bool {
    rule.rsplit_once("-j ")
        .is_some_and(|(_, verdict)| verdict.starts_with("ISTIO_") && !verdict.contains(' '))
}

/// Name of a tool of the host; `suffix` is `-save`, `-restore` or empty.
pub(crate) fn tool(backend: Backend, family: Family, suffix: &str) -> String {
    let prefix = if family == Family::V4 { "iptables" } else { "ip6tables" };
    // Beside native tables, those of other components are in nf_tables.
    let backend = if backend == Backend::Native { Backend::Nft } else { backend };
    format!("{prefix}-{backend}{suffix}")
}

/// Output of one save, verbatim.
pub(crate) fn save_text(netns: &Netns, backend: Backend, family: Family) -> String {
    netns.sh(&tool(backend, family, "-save"))
}

/// Runs a restore with this input.
pub(crate) fn restore(netns: &Netns, backend: Backend, family: Family, text: &str) {
    // Other tests in this sandbox may hold the lock of the legacy tables.
    let wait = if backend == Backend::Legacy { " --wait=30" } else { "" };
    netns.pipe(&format!("{} --noflush{wait}", tool(backend, family, "-restore")), text);
}

/// Runs the `iptables` of one backend with these arguments.
pub(crate) fn iptables(netns: &Netns, backend: Backend, family: Family, arguments: &str) {
    let wait = if backend == Backend::Legacy { " --wait=30" } else { "" };
    netns.sh(&format!("{}{wait} {arguments}", tool(backend, family, "")));
}

/// Recreates a chain of nf_tables with its rules: at the hook of `base`, or, if that is empty, at none.
pub(crate) fn rehook(netns: &Netns, table: &str, chain: &str, base: &str) {
    let listed = netns.sh(&format!("nft --stateless list chain {table} {chain}"));
    let is_rule = |line: &&str| !["table ", "chain ", "type ", "}"].iter().any(|word| line.starts_with(word));
    let rules = listed.lines().map(str::trim).filter(is_rule);
    let rules: String = rules.map(|rule| format!("add rule {table} {chain} {rule}\n")).collect();
    let base = if base.is_empty() { String::new() } else { format!("{{ type {base} ; }}") };
    let again = format!(
        "flush chain {table} {chain}\ndelete chain {table} {chain}\nadd chain {table} {chain} {base}\n"
    );
    netns.pipe("nft -f -", &(again + &rules));
}

fn save(netns: &Netns, backend: Backend, family: Family) -> Save {
    let (mut save, mut table) = (Save::new(), String::new());
    for line in save_text(netns, backend, family).lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.to_owned();
        } else if let Some(chain) = line.strip_prefix(':') {
            let (name, rest) = chain.split_once(' ').unwrap();
            let policy = rest.split(' ').next().unwrap().to_owned();
            save.insert(Chain { table: table.clone(), name: name.to_owned(), policy }, Vec::new());
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, rule) = rule.split_once(' ').unwrap();
            let mut chains = save.iter_mut();
            let chain = chains.find(|(chain, _)| chain.table == table && chain.name == name);
            chain.expect("a rule's chain is declared").1.push(rule.to_owned());
        }
    }
    save
}

/// Policy rules, routes of all tables and addresses, of both families. Waits for the kernel's own routes to IPv6 addresses, which
/// it adds a moment after the address.
pub(crate) fn network(netns: &Netns) -> String {
    kit::until("the kernel has made a route to each address", || {
        let mut lines = Vec::new();
        for family in ["-4", "-6"] {
            let batch = "rule show\nroute show table all\naddress show\n";
            let text = netns.pipe(&format!("ip {family} -oneline -batch -"), batch);
            // The other end does not belong to the pod: the kernel removes its multicast route asynchronously.
            let ours = text.lines().filter(|line| !line.contains(" dev far0 "));
            lines.extend(ours.map(|line| format!("{family} {}", line.trim())));
        }
        // Policy rules have priorities; the order of routes and addresses does not matter.
        lines.sort();
        let text = lines.join("\n");
        let address = |line: &str| Some(line.split_once("inet6 ")?.1.split('/').next()?.to_owned());
        let routed = |ip: String| text.contains(&format!("local {ip} dev"));
        let is_whole = text.lines().filter_map(address).all(routed);
        is_whole.then_some(text)
    })
}

/// Routes without their protocol.
fn without_protocols(network: &str) -> String {
    let word = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_protocol = |at: usize| words[at] == "proto" || at > 0 && words[at - 1] == "proto";
        (0..words.len()).filter(|at| !is_protocol(*at)).map(|at| words[at]).collect::<Vec<_>>().join(" ")
    };
    network.lines().map(word).collect::<Vec<_>>().join("\n")
}

/// A pod's namespace: `eth0` with an address of both families, and nothing that the kernel adds later.
pub(crate) fn pod_netns(prefix: &str) -> Netns {
    let netns = Netns::new(prefix);
    netns.pipe(
        "ip -batch -",
        "link add eth0 type veth peer name far0\n\
         link set eth0 addrgenmode none\n\
         link set far0 addrgenmode none\n\
         link set eth0 up\n\
         link set far0 up\n\
         address add 10.1.0.2/24 dev eth0\n\
         address add fd00:1::2/64 dev eth0\n",
    );
    netns.wait_until_addresses_are_usable();
    netns
}

/// Options of a pod's redirection with this backend.
pub(crate) fn forced(backend: Backend) -> FirewallOptions {
    FirewallOptions { forced: Some(backend), ..detecting() }
}

/// Options of a pod's redirection with a detected backend.
pub(crate) fn detecting() -> FirewallOptions {
    FirewallOptions { lock: XtablesLock::Private("/proc/self/ns/net".into()), ..FirewallOptions::default() }
}
