//! A simulation equals the agent's decisions after the change.

use std::{collections::BTreeMap, thread};

use agent::{
    AgentHandle, AgentMetrics, AgentOutputs, AgentStatus, MeshPodMetrics, Reconciler, ReconcilerInbox,
    SidecarsOnly, StaleCollection,
};
use enrolment::{Fact, WatchedCollection, inpod::PodOptionPolicy};
use model::ObjectMeta;
use pod_status::PodLife;
use prometheus_client::registry::Registry;
use proptest::{
    option,
    prelude::*,
    sample::{select, subsequence},
};
use serde_json::json;

use super::*;

const NAMESPACES: [&str; 3] = ["shop", "bank", "kube-system"];
const LABELS: [(&str, &str); 7] = [
    ("istio.io/dataplane-mode", "ambient"),
    ("istio.io/dataplane-mode", "none"),
    ("sidecar.istio.io/inject", "true"),
    ("sidecar.istio.io/inject", "false"),
    ("istio.io/rev", "canary"),
    ("mesh", "yes"),
    ("app", "ztunnel"),
];
const ANNOTATIONS: [(&str, &str); 15] = [
    ("ambient.istio.io/redirection", "disabled"),
    ("sidecar.istio.io/status", "{}"),
    ("ambient.istio.io/dns-capture", "false"),
    ("ambient.istio.io/dns-capture", "true"),
    ("ambient.istio.io/bypass-inbound-capture", "true"),
    ("cni.istio.io/existing-connections", "reset"),
    ("cni.istio.io/excludeOutboundPorts", "5432"),
    ("cni.istio.io/excludeOutboundPorts", ""),
    ("cni.istio.io/excludeOutboundIPRanges", "10.0.0.0/8"),
    ("cni.istio.io/excludeInboundPorts", "9100"),
    ("cni.istio.io/excludeInterfaces", "eth0"),
    ("cni.istio.io/dnsCapture", "false"),
    ("cni.istio.io/dnsCapture", "true"),
    ("cni.istio.io/withoutZtunnel", "open"),
    ("unknown", "x"),
];

type Texts = BTreeMap<String, String>;

fn texts(from: &'static [(&'static str, &'static str)], most: usize) -> impl Strategy<Value = Texts> {
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    subsequence(from, 0..=most).prop_map(move |pairs| pairs.into_iter().map(owned).collect())
}

fn pod(at: usize) -> impl Strategy<Value = Pod> {
    // The namespace of the last one is unknown.
    let names = select([NAMESPACES.as_slice(), &["unknown"]].concat());
    let own = (names, texts(&LABELS, 3), texts(&ANNOTATIONS, 5));
    let spec = (
        any::<bool>(),
        prop::bool::weighted(0.2),
        select(vec!["Running", "Succeeded", "Pending"]),
        any::<bool>(),
    );
    (own, spec).prop_map(
        move |((namespace, labels, annotations), (has_proxy, host_network, phase, has_ip))| {
            let containers: &[&str] = if has_proxy { &["app", "istio-proxy"] } else { &["app"] };
            let containers: Vec<_> = containers.iter().map(|name| json!({"name": name})).collect();
            let ips = if has_ip { json!([{"ip": format!("10.0.0.{at}")}]) } else { json!([]) };
            let pod = json!({
                "metadata": {"namespace": namespace, "name": format!("pod{at}"), "uid": format!("uid{at}"),
                    "labels": labels, "annotations": annotations},
                "spec": {"nodeName": "n1", "hostNetwork": host_network, "containers": containers},
                "status": {"phase": phase, "podIPs": ips},
            });
            serde_json::from_value(pod).unwrap()
        },
    )
}

fn namespace(name: &'static str) -> impl Strategy<Value = Namespace> {
    (texts(&LABELS, 3), texts(&ANNOTATIONS, 5)).prop_map(move |(labels, annotations)| Namespace {
        metadata: ObjectMeta { name: name.to_owned(), labels, annotations, ..ObjectMeta::default() },
    })
}

fn cluster() -> impl Strategy<Value = (Vec<Pod>, Vec<Namespace>)> {
    let pods = (0..6).map(pod).collect::<Vec<_>>();
    (pods, Vec::from(NAMESPACES.map(namespace)))
}

/// Settings, and whether ambient mode is on.
fn settings() -> impl Strategy<Value = (CaptureSettings, bool)> {
    let allowed = select(vec!["none", "all", "outbound-ports,dns", "inbound-ports,without-ztunnel"]);
    let selector = json!([{"podSelector": {"matchLabels": {"mesh": "yes"}}}]);
    let enablement =
        option::of(Just(selector)).prop_map(|list| list.map(|list| serde_json::from_value(list).unwrap()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.8));
    (allowed, enablement, flags).prop_map(
        |(allowed, enablement, (dns_capture, is_in_pod, ignores_opt_out, ambient))| {
            let in_pod = InPodConfig {
                rules: rules::inpod::InPodRulesConfig::default(),
                detected_probes: Vec::new(),
                socket: "/nowhere/socket".into(),
                pods: PodOptionPolicy { dns_capture, allowed: allowed.parse().unwrap() },
                existing: ExistingConnections::Keep,
                ipv6: true,
                proc: "/nowhere/proc".into(),
            };
            let policy = EnrolmentPolicy {
                excluded_namespaces: vec!["kube-system".to_owned()],
                ambient,
                enablement,
                ignores_opt_out,
                ..EnrolmentPolicy::default()
            };
            let settings = CaptureSettings {
                capture: if is_in_pod { CaptureConfig::InPod(in_pod) } else { CaptureConfig::Node },
                starts_in_pod: true,
                node: node_plan::NodeConfig::default(),
                policy,
                fallback: node_plan::ZtunnelFallback::default(),
                drift_attribution: false,
                tools: firewall::FirewallOptions::default(),
                // It has no namespaces, so no connection is counted.
                netns_directory: "/nowhere/netns".into(),
                records: Arc::new(agent::RecordIndex::new("/nowhere/records".into())),
                journal: "/nowhere/journal".into(),
                history: "/nowhere/history".into(),
                shared_config: "/nowhere/config".into(),
            };
            (settings, ambient)
        },
    )
}

fn change() -> impl Strategy<Value = LabelChange> {
    let label = select(LABELS.to_vec());
    let labels = prop::collection::vec((label, any::<bool>()), 1..3);
    (select(NAMESPACES.to_vec()), option::of(0_usize..6), labels).prop_map(|(namespace, pod, labels)| {
        let labels = labels
            .into_iter()
            .map(|((key, value), is_set)| (key.to_owned(), is_set.then(|| value.to_owned())));
        LabelChange {
            namespace: namespace.to_owned(),
            pod: pod.map(|at| format!("pod{at}")),
            labels: labels.collect(),
        }
    })
}

/// An agent without a node.
struct Agent(AgentHandle);

impl Agent {
    fn start(settings: &CaptureSettings) -> Agent {
        let (handle, inbox) = ReconcilerInbox::new();
        let policy = settings.policy.clone();
        thread::spawn(move || {
            let metrics = AgentMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
            let (mode, status) = (Box::new(SidecarsOnly), Arc::new(AgentStatus::default()));
            let (annotate, notify) = (Box::new(drop), Box::new(drop));
            Reconciler::new(mode, policy, inbox, AgentOutputs { metrics, status, annotate, notify }).run();
        });
        Agent(handle)
    }

    /// Sends the cluster's facts, and returns the agent's resulting state and decisions.
    fn snapshot(
        &self,
        (pods, namespaces): &(Vec<Pod>, Vec<Namespace>),
        (settings, ambient): (&CaptureSettings, bool),
    ) -> AgentSnapshot {
        self.0.send_fact(Fact::Namespaces(namespaces.clone()));
        self.0.send_fact(Fact::Pods(pods.clone()));
        let mut snapshot = *self.0.request_snapshot(Duration::from_secs(30)).unwrap();
        snapshot.capture = match &settings.capture {
            _ if !ambient => CaptureSnapshot::None,
            CaptureConfig::Node => CaptureSnapshot::Node {
                repairs: 0,
                desired: None,
                fallback: settings.fallback,
                refused_exceptions: BTreeMap::new(),
            },
            CaptureConfig::InPod(_) | CaptureConfig::Auto(_) => CaptureSnapshot::InPod {
                members: Default::default(),
                enrolled: BTreeMap::new(),
                ztunnels: Vec::new(),
            },
        };
        snapshot
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Capture mode, intended exceptions, and refused ones.
type Decision = (Option<RedirectionMode>, Vec<String>, Vec<String>);

/// Decisions of the agent itself.
fn decisions(snapshot: &AgentSnapshot, settings: &CaptureSettings) -> BTreeMap<String, Decision> {
    let decide = |known: &KnownPod| {
        let is_member =
            matches!(known.standing, AmbientStanding::Member { .. } | AmbientStanding::Pending(_));
        let mode = redirection_mode(&snapshot.capture).filter(|_| is_member);
        let asked = InPodAnnotations::read_from(&known.pod);
        let inherited = inherited_exceptions(known);
        let (outside, refused) = match (mode, &settings.capture) {
            (Some(RedirectionMode::InPod), CaptureConfig::InPod(config)) => {
                let effective = asked.effective_options(inherited.as_ref(), &config.pods);
                (effective.options.outside_descriptions(), effective.refused)
            }
            (Some(RedirectionMode::Node), _) => {
                (Vec::new(), asked.exceptions.refused_on_node(inherited.as_ref()))
            }
            _ => Default::default(),
        };
        (mode, outside, refused)
    };
    let known = snapshot.pods.iter().filter(|known| known.namespace.is_some());
    known.map(|known| (known.pod.metadata.name.clone(), decide(known))).collect()
}

/// Decisions of the simulation. A sidecar is no ambient mode; a pod whose namespace is unknown has no decision.
fn simulated(answer: NodeSimulation) -> BTreeMap<String, Decision> {
    let known = answer.pods.into_iter().filter(|pod| NAMESPACES.contains(&pod.namespace.as_str()));
    let decision = |pod: SimulatedPod| {
        let mode = pod.after.filter(|mode| *mode != RedirectionMode::Sidecar);
        (pod.name, (mode, pod.exceptions, pod.refused_exceptions))
    };
    known.map(decision).collect()
}

proptest! {
    #[test]
    fn what_is_simulated_of_labels_is_what_the_agent_does(
        mut cluster in cluster(), (settings, ambient) in settings(), change in change(),
    ) {
        let before = Agent::start(&settings).snapshot(&cluster, (&settings, ambient));
        let answer = simulate_labels(&settings, &before, &[], &change);
        let pods = cluster.0.iter_mut().map(|pod| &mut pod.metadata);
        let pods = pods.filter(|meta| meta.namespace == change.namespace && Some(&meta.name) == change.pod.as_ref());
        let namespaces = cluster.1.iter_mut().map(|namespace| &mut namespace.metadata);
        let namespaces = namespaces.filter(|meta| meta.name == change.namespace && change.pod.is_none());
        for meta in pods.chain(namespaces) {
            for (key, value) in &change.labels {
                match value {
                    Some(value) => drop(meta.labels.insert(key.clone(), value.clone())),
                    None => drop(meta.labels.remove(key)),
                }
            }
        }
        // In a running agent, the same change takes effect with its next pass.
        let done = decisions(&Agent::start(&settings).snapshot(&cluster, (&settings, ambient)), &settings);
        for (name, simulated) in simulated(answer) {
            prop_assert_eq!(Some(&simulated), done.get(&name), "{}", name);
        }
    }

    #[test]
    fn what_is_simulated_of_settings_is_what_the_next_agent_does(
        cluster in cluster(), (now, was_ambient) in settings(), (then, ambient) in settings(),
    ) {
        let before = Agent::start(&now).snapshot(&cluster, (&now, was_ambient));
        let other = SimulatedSettings { ambient, capture: then.clone(), not_simulated: Vec::new() };
        let answer = simulate_settings((&now, was_ambient), &before, &[], other);
        let done = decisions(&Agent::start(&then).snapshot(&cluster, (&then, ambient)), &then);
        prop_assert_eq!(simulated(answer), done);
    }

    #[test]
    fn no_namespace_is_missing_while_the_watch_of_namespaces_fails(
        (settings, _) in settings(), change in change(), fails in any::<bool>(),
    ) {
        let mut snapshot = Agent::start(&settings).snapshot(&(Vec::new(), Vec::new()), (&settings, true));
        let (collection, age) = (WatchedCollection::Namespaces, Duration::from_secs(20));
        let stale = StaleCollection { collection, age, error: "403".to_owned() };
        snapshot.stale = fails.then_some(stale).into_iter().collect();
        let answer = simulate_labels(&settings, &snapshot, &[], &change);
        prop_assert_eq!((answer.synced, answer.namespace_missing), (!fails, !fails));
    }
}

#[test]
fn a_pod_whose_sandbox_is_gone_for_good_is_left_out() {
    for (deleted, ended, is_left_out) in
        [(false, false, false), (false, true, false), (true, false, false), (true, true, true)]
    {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        let pod = json!({"metadata": {"namespace": "shop", "name": "web", "deletionTimestamp": deleted}});
        let known = KnownPod {
            pod: serde_json::from_value(pod).unwrap(),
            namespace: None,
            standing: AmbientStanding::Out(SkipReason::NotLabelled),
            reported_ips: Vec::new(),
            life: if ended { PodLife::Ending } else { PodLife::Running },
            unconfirmed: false,
            since: None,
        };
        assert_eq!(known.is_gone(), is_left_out, "{deleted:?} {ended}");
    }
}
