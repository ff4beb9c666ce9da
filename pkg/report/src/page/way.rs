//! The packet flow in each capture mode, as rows of boxes. Picture and words are made of the same rows.

mod drawing;

use crate::{
    CaptureState, KernelView, LinkState, NetworkState, PodState, RedirectionMode, StateReport, ZtunnelState,
    explain::missing_ztunnel, tables,
};

pub(super) use drawing::draw;

/// One capture mode on this node.
pub(super) struct Drawing {
    way: RedirectionMode,
    title: &'static str,
    /// Label around the rows that are in pods' namespaces.
    frame: Option<&'static str>,
    rows: Vec<Row>,
}

/// Boxes side by side.
struct Row {
    boxes: Vec<Block>,
    framed: bool,
}

/// A box.
struct Block {
    title: String,
    detail: String,
    tone: Tone,
}

/// Numbers of differences that were found, and of parts that could not be observed.
struct FoundDifferences {
    differences: usize,
    /// Kinds of objects, or pods, that could not be observed.
    unseen: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Wrong,
    /// Nothing new comes here.
    Idle,
}

impl Block {
    fn new(title: impl Into<String>, detail: impl Into<String>, tone: Tone) -> Block {
        Block { title: title.into(), detail: detail.into(), tone }
    }

    /// One that should be without differences. What was not looked at is not called well.
    fn judged(title: &str, FoundDifferences { differences, unseen }: FoundDifferences, well: &str) -> Block {
        let seen = if unseen == 0 { String::new() } else { format!(", {unseen} not observed") };
        match differences {
            0 if unseen > 0 => Block::new(title, format!("? {unseen} not observed"), Tone::Plain),
            0 => Block::new(title, format!("✓ {well}"), Tone::Plain),
            1 => Block::new(title, format!("≠ 1 difference{seen}"), Tone::Wrong),
            some => Block::new(title, format!("≠ {some} differences{seen}"), Tone::Wrong),
        }
    }

    fn class(&self) -> &'static str {
        match self.tone {
            Tone::Plain => "box",
            Tone::Wrong => "box wrong",
            Tone::Idle => "box idle",
        }
    }
}

/// Returns the drawings of the capture modes in use: the node's own, and those of its pods.
pub(super) fn ways(state: &StateReport) -> Vec<Drawing> {
    let used = |way| state.node.mode == Some(way) || state.pods.iter().any(|pod| pod.mode == Some(way));
    let mut ways = Vec::new();
    if used(RedirectionMode::Node) {
        ways.push(node(state));
    }
    if used(RedirectionMode::InPod) {
        ways.push(in_pod(state));
    }
    if used(RedirectionMode::Sidecar) {
        ways.push(sidecar(state));
    }
    ways
}

fn framed(block: Block) -> Row {
    Row { boxes: vec![block], framed: true }
}

fn open(boxes: Vec<Block>) -> Row {
    Row { boxes, framed: false }
}

/// Returns the box of the pods in this capture mode, with their states.
fn pods(state: &StateReport, way: RedirectionMode) -> Block {
    let wrong = of(state, way).any(|pod| pod.capture.is_wrong());
    Block::new("Pods", tables::counts(of(state, way)), if wrong { Tone::Wrong } else { Tone::Plain })
}

fn of(state: &StateReport, way: RedirectionMode) -> impl Iterator<Item = &PodState> {
    state.pods.iter().filter(move |pod| pod.mode == Some(way))
}

/// Counts the differences within the network namespaces of pods in this capture mode.
fn within(state: &StateReport, way: RedirectionMode) -> FoundDifferences {
    FoundDifferences {
        differences: of(state, way).map(|pod| pod.kernel.differences.len()).sum(),
        unseen: of(state, way).filter(|pod| is_unseen(&pod.kernel)).count(),
    }
}

/// Neither in place nor missing: it was not looked for.
fn is_unseen(kernel: &KernelView) -> bool {
    kernel.unobserved.is_some() || (kernel.observed.is_empty() && kernel.differences.is_empty())
}

/// Counts the differences on the node, except those of links, which are drawn by themselves.
fn on_node(network: &NetworkState) -> FoundDifferences {
    let all = [
        network.ipsets.observed.is_none(),
        network.rules.observed.is_none(),
        network.routes.observed.is_none(),
        network.sysctls.observed.is_none(),
        network.firewall.observed.is_none(),
    ];
    FoundDifferences {
        differences: network.differences().filter(|(kind, _)| *kind != "links").count(),
        unseen: all.into_iter().filter(|unseen| *unseen).count(),
    }
}

/// The ztunnel that these pods lack, and what becomes of their connections.
fn missing(state: &StateReport, way: RedirectionMode) -> Option<Block> {
    let (missing, _) = missing_ztunnel(state, way)?;
    Some(Block::new(missing, without_proxy(state, way), Tone::Wrong))
}

/// Connections of pods that no proxy serves, by the states of these pods.
fn without_proxy(state: &StateReport, way: RedirectionMode) -> &'static str {
    let is = |capture| of(state, way).any(|pod| pod.capture == capture);
    match (is(CaptureState::Held), is(CaptureState::Bypassing)) {
        (true, true) => "connections are held back, or bypass the mesh",
        (true, false) if state.node.no_ztunnel_policy.as_deref() == Some("reject") => {
            "connections are refused"
        }
        (true, false) => "connections are held back",
        (false, true) => "connections bypass the mesh",
        (false, false) => "nothing takes new connections",
    }
}

/// Where packets go from there, unless none comes so far.
fn exit(state: &StateReport, way: RedirectionMode, title: &str, well: &str) -> Row {
    let is_wrong = of(state, way).next().is_some() && of(state, way).all(|pod| pod.capture.is_wrong());
    open(vec![if is_wrong || missing_ztunnel(state, way).is_some() {
        Block::new(title, without_proxy(state, way), Tone::Idle)
    } else {
        Block::new(title, well, Tone::Plain)
    }])
}

fn node(state: &StateReport) -> Drawing {
    let rules = Block::judged("The node's rules", on_node(&state.network), "mark, policy rules, routes");
    let mut rows = vec![open(vec![pods(state, RedirectionMode::Node)]), open(vec![rules])];
    let slots: Vec<_> = state.ztunnels.iter().filter(|one| one.slot.is_some()).take(2).collect();
    let missing = missing(state, RedirectionMode::Node);
    if missing.is_none() && !slots.is_empty() {
        rows.push(open(slots.iter().map(|one| link(state, one)).collect()));
        rows.push(open(slots.iter().map(|one| ztunnel(one)).collect()));
    }
    rows.extend(missing.map(|missing| open(vec![missing])));
    rows.push(exit(state, RedirectionMode::Node, "The node's uplink", "to pods of other nodes, as HBONE"));
    Drawing { way: RedirectionMode::Node, title: "Packet flow, node-level capture", frame: None, rows }
}

/// The link by which pods' connections come to a ztunnel.
fn link(state: &StateReport, one: &ZtunnelState) -> Block {
    let name = format!("istioout{}", one.slot.unwrap_or_default());
    let links = &state.network.links;
    let here = |link: &&LinkState| link.netns == "node" && link.name == name;
    let (detail, tone) = match links.observed.as_ref().map(|observed| observed.iter().find(here)) {
        None => ("? not observed", Tone::Plain),
        Some(None) => ("≠ missing", Tone::Wrong),
        Some(Some(link)) if !link.correct => ("≠ leads elsewhere", Tone::Wrong),
        Some(Some(link)) if !link.up => ("≠ down", Tone::Wrong),
        Some(Some(_)) => ("✓ up", Tone::Plain),
    };
    let idle = tone == Tone::Plain && !one.active;
    Block::new(format!("Link {name}"), detail, if idle { Tone::Idle } else { tone })
}

fn ztunnel(one: &ZtunnelState) -> Block {
    let slot = one.slot.map_or_else(String::new, |slot| format!("slot {slot}: "));
    let (detail, tone) = match (one.active, one.ready) {
        (true, _) => ("new connections", Tone::Plain),
        (false, true) => ("earlier ones", Tone::Idle),
        (false, false) => ("not ready", Tone::Idle),
    };
    Block::new(&one.name, format!("{slot}{detail}"), tone)
}

fn in_pod(state: &StateReport) -> Drawing {
    let rules = Block::judged("The pod's rules", within(state, RedirectionMode::InPod), "as desired");
    let out = exit(state, RedirectionMode::InPod, "The pod's own link", "to other pods, as HBONE");
    let rows = vec![
        framed(pods(state, RedirectionMode::InPod)),
        framed(rules),
        Row { boxes: listeners(state), framed: true },
        out,
    ];
    let frame = Some("network namespace of each pod");
    Drawing { way: RedirectionMode::InPod, title: "Packet flow, in-pod capture", frame, rows }
}

/// Sockets that ztunnels have opened in pods' namespaces.
fn listeners(state: &StateReport) -> Vec<Block> {
    if let Some(missing) = missing(state, RedirectionMode::InPod) {
        return vec![missing];
    }
    let listener = |one: &ZtunnelState| {
        let (detail, tone) = match (one.connected, one.active) {
            (Some(false), _) => ("≠ not connected", Tone::Wrong),
            (_, true) => ("15001, 15006, 15008", Tone::Plain),
            (_, false) => ("earlier connections", Tone::Idle),
        };
        Block::new(format!("Sockets of {}", one.name), detail, tone)
    };
    state.ztunnels.iter().take(2).map(listener).collect()
}

fn sidecar(state: &StateReport) -> Drawing {
    let rules = Block::judged("The pod's rules", within(state, RedirectionMode::Sidecar), "as desired");
    let rows = vec![
        framed(pods(state, RedirectionMode::Sidecar)),
        framed(rules),
        framed(Block::new("istio-proxy", "15001 out, 15006 in", Tone::Plain)),
        exit(state, RedirectionMode::Sidecar, "The pod's own link", "to other pods, by mutual TLS"),
    ];
    let frame = Some("network namespace of each pod");
    Drawing { way: RedirectionMode::Sidecar, title: "Packet flow, sidecar", frame, rows }
}
