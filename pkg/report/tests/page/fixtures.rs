//! Nodes as documents, for tests of their presentation.
#![allow(dead_code, reason = "each test program uses some of them")]

mod troubled;

use std::net::IpAddr;

use report::{
    CaptureState, ChangeRecord, ChangeStatus, Comparison, DifferenceKind, EffectiveSetting, FirewallRule,
    InstalledFile, KernelView, LinkState, NetnsRef, NetworkState, NodeState, Observer, PartHealth, PlanStep,
    PodState, PolicyRuleState, Provenance, RedirectionMode, RouteState, SCHEMA, SetMember, StateDifference,
    StatePart, StateReason, StateReport, SysctlState, Unobserved, ZtunnelState, ZtunnelView,
};

pub(crate) use troubled::*;

/// Time of the observation, in all of them.
const NOW: &str = "2026-11-22T03:14:15Z";

/// All of them, by name.
pub(crate) fn all() -> Vec<(&'static str, StateReport)> {
    vec![
        ("none", StateReport::default()),
        ("well", well()),
        ("bypassing", bypassing()),
        ("rollout", rollout()),
        ("in-pod", in_pod()),
        ("no-agent", no_agent()),
        ("no-ztunnel-hold", no_ztunnel_hold()),
        ("no-ztunnel-open", no_ztunnel_open()),
        ("no-ztunnel-in-pod", no_ztunnel_in_pod()),
        ("two-causes", two_causes()),
        ("unknown", unknown()),
    ]
}

/// Eleven pods captured by the node, one outside, and no fault.
pub(crate) fn well() -> StateReport {
    let names = [
        "cart", "checkout", "frontend", "payments", "search", "users", "reviews", "stock", "mail", "audit",
        "web",
    ];
    let mut pods: Vec<_> =
        names.iter().enumerate().map(|(place, name)| node_pod(place, "shop", name)).collect();
    pods.push(host_network());
    StateReport {
        findings: Vec::new(),
        causes: Vec::new(),
        schema: SCHEMA.into(),
        version: "1.0.0".into(),
        observation: Provenance {
            observed_at: NOW.into(),
            duration_ms: 3.4,
            observer: Observer::Agent,
            unobserved: Vec::new(),
        },
        node: NodeState {
            name: "worker-3".into(),
            agent_started_at: Some("2026-11-20T09:00:00Z".into()),
            ambient_enabled: true,
            mode: Some(RedirectionMode::Node),
            configured_mode: "auto".into(),
            no_ztunnel_policy: Some("hold".into()),
            active_slot: Some(0),
            problem: None,
            synced: true,
        },
        health: ["installer", "agent"]
            .map(|part| PartHealth { component: part.into(), healthy: true, message: String::new() })
            .into(),
        preflight: Vec::new(),
        installation: installation(),
        ztunnels: vec![ztunnel("ztunnel-7x2kq", 0, true)],
        network: network(&pods),
        pods,
        plan: Vec::new(),
        history: history(),
        config: config(),
    }
}

/// Two pods bypass the mesh: one was never enrolled, the address of the other was removed from the set. A route is missing, too.
pub(crate) fn bypassing() -> StateReport {
    let mut state = well();
    for (place, difference, trouble) in [
        (3, "10.244.3.13 is not in the set of enrolled addresses", None),
        (
            10,
            "10.244.3.20 is not in the set of enrolled addresses",
            Some("its link is a bridge's, not a veth of its own"),
        ),
    ] {
        let pod = &mut state.pods[place];
        pod.capture = CaptureState::Bypassing;
        pod.last_transition_time = Some("2026-11-22T03:12:40Z".into());
        pod.kernel.differences = vec![difference.into()];
        pod.kernel.observed.truncate(1);
        pod.problem = trouble.map(Into::into);
    }
    let gone = [state.pods[3].ips[0], state.pods[10].ips[0]];
    let network = &mut state.network;
    let members: Vec<_> =
        network.ipsets.desired.iter().filter(|it| !gone.contains(&it.ip)).cloned().collect();
    network.ipsets = Comparison::compare_sets(network.ipsets.desired.clone(), members);
    network.routes = Comparison::compare_sets(network.routes.desired.clone(), vec![]);
    network.foreign = vec!["a bridge br0 of another component has 10.244.3.20's link".into()];
    state.plan = vec![PlanStep {
        kind: "members".into(),
        message: "Put two addresses into the set of enrolled addresses.".into(),
        operations: gone.iter().map(|ip| format!("ipset add istio-node-pods-v4 {ip}")).collect(),
    }];
    state.history.insert(
        0,
        ChangeRecord {
            started_at: "2026-11-22T03:12:41Z".into(),
            cause: "drift".into(),
            action: "Put an address into the set of enrolled addresses.".into(),
            pod: Some("shop/payments".into()),
            duration_ms: 2104.0,
            outcome: ChangeStatus::Failed,
            error: Some("ipset: Kernel error received: Operation not permitted".into()),
            ..ChangeRecord::default()
        },
    );
    state
}

/// A new ztunnel takes over; the old one drains its connections. One pod is joining, another leaves.
pub(crate) fn rollout() -> StateReport {
    let mut state = well();
    state.ztunnels[0].active = false;
    state.ztunnels[0].terminating = true;
    state.ztunnels.push(ztunnel("ztunnel-m9p4d", 1, true));
    state.node.active_slot = Some(1);
    state.network.links = Comparison::compare_sets(links(2), links(2));
    state.pods[2].capture = CaptureState::Pending;
    state.pods[5].capture = CaptureState::Leaving;
    state.pods[5].reason = reason("not-labelled", "neither it nor its namespace is labelled ambient");
    state
}

/// In-pod capture: one pod is refused by ztunnel and held, one has a sidecar.
pub(crate) fn in_pod() -> StateReport {
    let mut state = well();
    state.node.mode = Some(RedirectionMode::InPod);
    state.node.no_ztunnel_policy = None;
    state.node.active_slot = None;
    state.network = NetworkState::default();
    state.ztunnels[0] = ZtunnelState {
        slot: None,
        link: None,
        connected: Some(true),
        synced: Some(true),
        ..state.ztunnels[0].clone()
    };
    for pod in state.pods.iter_mut().filter(|pod| pod.mode.is_some()) {
        pod.mode = Some(RedirectionMode::InPod);
        pod.ztunnel = Some(ZtunnelView { acknowledged: true, error: None });
        pod.kernel.observed = vec!["its rules are in place, of both families".into()];
    }
    state.pods[0].exceptions = vec!["outbound TCP ports 5432".into()];
    state.pods[0].refused_exceptions = vec!["annotation cni.istio.io/dnsCapture has no effect".into()];
    let held = &mut state.pods[4];
    held.capture = CaptureState::Held;
    held.ztunnel = Some(ZtunnelView { acknowledged: false, error: Some("no identity for this pod".into()) });
    let sidecar = &mut state.pods[7];
    sidecar.mode = Some(RedirectionMode::Sidecar);
    sidecar.ztunnel = None;
    sidecar.reason = reason("sidecar", "it was injected");
    state
}

/// Observed by a command, which has limited permissions.
pub(crate) fn no_agent() -> StateReport {
    let mut state = well();
    state.observation.observer = Observer::Command;
    state.observation.unobserved = vec![Unobserved {
        part: StatePart::Firewall,
        description: "firewall rules".into(),
        message: "iptables-save is not installed here.".into(),
    }];
    state.node.agent_started_at = None;
    state.node.synced = false;
    state.network.firewall = Comparison::without_observation(state.network.firewall.desired);
    state.health.clear();
    state.history.clear();
    for pod in &mut state.pods[8..11] {
        pod.capture = CaptureState::Unknown;
        pod.last_transition_time = None;
        pod.kernel =
            KernelView { unobserved: Some("its namespace was not found".into()), ..KernelView::default() };
    }
    state
}

/// A healthy node with this number of pods.
pub(crate) fn crowd(pods: usize) -> StateReport {
    let mut state = well();
    state.pods = (0..pods).map(|place| node_pod(place, "load", &format!("worker-{place:03}"))).collect();
    state.network = network(&state.pods);
    state
}

/// A pod captured by node-level capture.
pub(crate) fn node_pod(place: usize, namespace: &str, name: &str) -> PodState {
    let ip = IpAddr::from([10, 244, 3 + (place / 200) as u8, (10 + place % 200) as u8]);
    PodState {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid(place).into(),
        ips: vec![ip],
        phase: "Running".into(),
        capture: CaptureState::Captured,
        mode: Some(RedirectionMode::Node),
        reason: reason("ambient-namespace", "its namespace is labelled istio.io/dataplane-mode=ambient"),
        last_transition_time: Some("2026-11-21T17:02:10Z".into()),
        redirection_annotation: Some("enabled".into()),
        kernel: KernelView {
            observed_at: Some(NOW.into()),
            netns: Some(NetnsRef { device: 4, inode: 4_026_532_000 + place as u64 }),
            observed: vec![
                format!("{ip} is in the set of enrolled addresses"),
                format!("a route leads to {ip}"),
            ],
            ..KernelView::default()
        },
        ..PodState::default()
    }
}

fn host_network() -> PodState {
    PodState {
        ips: vec![IpAddr::from([192, 168, 7, 3])],
        capture: CaptureState::Outside,
        mode: None,
        reason: reason("host-network", "it uses the node's network namespace (hostNetwork)"),
        redirection_annotation: None,
        kernel: KernelView::default(),
        ..node_pod(90, "kube-system", "kube-proxy-5jx8w")
    }
}

fn uid(place: usize) -> String {
    format!("6f0c2a52-0d1e-4c1b-9a77-{place:012}")
}

fn reason(code: &str, words: &str) -> StateReason {
    StateReason { code: code.into(), message: words.into() }
}

fn ztunnel(name: &str, slot: u32, active: bool) -> ZtunnelState {
    ZtunnelState {
        namespace: "istio-system".into(),
        name: name.into(),
        uid: uid(900 + slot as usize).into(),
        ips: vec![IpAddr::from([10, 244, 3, 4 + slot as u8])],
        ready: true,
        terminating: false,
        active,
        slot: Some(slot),
        link: Some(format!("istioout{slot}")),
        dns_proxy: true,
        connected: None,
        synced: None,
    }
}

fn links(slots: u32) -> Vec<LinkState> {
    let link = |name: String, address: &str| LinkState {
        netns: "node".into(),
        name,
        up: true,
        correct: true,
        addresses: vec![address.into()],
    };
    (0..slots)
        .flat_map(|slot| {
            [
                link(format!("istioin{slot}"), "192.168.126.1/30"),
                link(format!("istioout{slot}"), "192.168.127.1/30"),
            ]
        })
        .collect()
}

fn same<T: Clone>(objects: Vec<T>) -> Comparison<T> {
    Comparison { desired: objects.clone(), observed: Some(objects), differences: Vec::new() }
}

/// A network without differences, for these pods.
fn network(pods: &[PodState]) -> NetworkState {
    let enrolled = pods.iter().filter(|pod| pod.mode == Some(RedirectionMode::Node));
    let member = |pod: &PodState| SetMember {
        set: "istio-node-pods-v4".into(),
        ip: pod.ips[0],
        uid: Some(pod.uid.clone()),
    };
    let rule = |priority, mark, table| PolicyRuleState {
        netns: "node".into(),
        family: 4,
        priority,
        mark: Some(mark),
        mask: Some(0xfff),
        table,
    };
    let route = RouteState {
        netns: "node".into(),
        family: 4,
        table: 101,
        destination: "default".into(),
        kind: "unicast".into(),
        gateway: Some(IpAddr::from([192, 168, 127, 2])),
        device: Some("istioout0".into()),
        metric: 0,
    };
    let sysctl = SysctlState {
        netns: "node".into(),
        name: "net/ipv4/conf/istioin0/rp_filter".into(),
        value: "0".into(),
        previous_value: Some("1".into()),
    };
    let firewall = FirewallRule {
        netns: "node".into(),
        family: 4,
        table: "mangle".into(),
        chain: "ztunnel-PREROUTING".into(),
        rule: "-p tcp -m set --match-set istio-node-pods-v4 src -j MARK --set-xmark 0x100/0xfff".into(),
    };
    NetworkState {
        ipsets: same(enrolled.map(member).collect()),
        rules: same(vec![rule(20000, 0x200, 254), rule(20001, 0x100, 101)]),
        routes: same(vec![route]),
        links: same(links(1)),
        sysctls: same(vec![sysctl]),
        firewall: same(vec![firewall]),
        foreign: Vec::new(),
        overruling: Vec::new(),
    }
}

/// Adds one object that differs from the desired state.
pub(crate) fn drift(state: &mut StateReport) {
    let found = StateDifference {
        kind: DifferenceKind::Missing,
        family: None,
        object: state.network.rules.desired[1].to_string(),
    };
    state.network.rules.observed.as_mut().unwrap().truncate(1);
    state.network.rules.differences = vec![found];
}

fn installation() -> Vec<InstalledFile> {
    let file = |kind: &str, path: &str, detail: &str| InstalledFile {
        kind: kind.into(),
        path: path.into(),
        correct: true,
        message: detail.into(),
    };
    vec![
        file("plugin", "/host/opt/cni/bin/istio-cni", "it answers, as version 1.0.0"),
        file("entry", "/host/etc/cni/net.d/10-kindnet.conflist", "our entry is the last of three"),
        file("kubeconfig", "/host/etc/cni/net.d/ZZZ-istio-cni-kubeconfig", "for https://10.96.0.1:443"),
    ]
}

fn history() -> Vec<ChangeRecord> {
    let change = |at: &str, cause: &str, what: &str, pod: Option<&str>, took_ms| ChangeRecord {
        started_at: at.into(),
        cause: cause.into(),
        action: what.into(),
        pod: pod.map(Into::into),
        duration_ms: took_ms,
        outcome: ChangeStatus::Succeeded,
        error: None,
        ..ChangeRecord::default()
    };
    vec![
        change("2026-11-21T17:02:10Z", "pod shop/web joined", "Enrolled it.", Some("shop/web"), 4.2),
        change("2026-11-20T09:00:01Z", "start", "Made links, routes and rules for slot 0.", None, 61.0),
    ]
}

fn config() -> Vec<EffectiveSetting> {
    let setting = |name: &str, value: &str, origin: &str| EffectiveSetting {
        name: name.into(),
        value: value.into(),
        source: origin.into(),
    };
    vec![
        setting("ambient-enabled", "true", "environment AMBIENT_ENABLED"),
        setting("ambient-fallback", "hold", "default"),
        setting("ctrlz_port", "9876", "flag"),
    ]
}
