//! Pods for decisions: one as the injector creates it, and arbitrary ones.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;

use enrolment::{AMBIENT_REDIRECTION, DATAPLANE_MODE, INJECT, STATUS};
use model::{Container, EnvVar, Namespace, ObjectMeta, Pod, PodSpec, SecurityContext};
use proptest::{collection::vec, option, prelude::*, sample};

/// Every annotation that redirection reads.
pub(crate) const ANNOTATIONS: [&str; 10] = [
    "sidecar.istio.io/interceptionMode",
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "traffic.sidecar.istio.io/excludeOutboundIPRanges",
    "traffic.sidecar.istio.io/includeInboundPorts",
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/includeOutboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
    "traffic.sidecar.istio.io/kubevirtInterfaces",
    "traffic.sidecar.istio.io/excludeInterfaces",
    "istio.io/reroute-virtual-interfaces",
];

pub(crate) fn container(name: &str) -> Container {
    Container { name: name.into(), ..Container::default() }
}

pub(crate) fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()) }
}

/// The annotations of an injected pod, with additional ones.
pub(crate) fn with_status(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = [(STATUS, "{}")].iter().chain(more);
    all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// shop/web-0 as the injector leaves it.
pub(crate) fn injected() -> Pod {
    let proxy = Container { args: vec!["proxy".into(), "sidecar".into()], ..container("istio-proxy") };
    Pod {
        metadata: ObjectMeta {
            name: "web-0".into(),
            namespace: "shop".into(),
            annotations: with_status(&[]),
            ..ObjectMeta::default()
        },
        spec: PodSpec { containers: vec![container("app"), proxy], ..PodSpec::default() },
        ..Pod::default()
    }
}

/// An injected pod with one more annotation.
pub(crate) fn annotated(key: &str, value: &str) -> Pod {
    let mut pod = injected();
    pod.metadata.annotations.insert(key.into(), value.into());
    pod
}

/// A namespace with this data plane mode.
pub(crate) fn namespace(mode: &str) -> Namespace {
    let labels = BTreeMap::from([(DATAPLANE_MODE.to_owned(), mode.to_owned())]);
    Namespace { metadata: ObjectMeta { labels, ..ObjectMeta::default() } }
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "(REDIRECT|TPROXY|NONE|\\*|true|false|disabled||15020)",
        "[0-9]{1,6}(, ?[0-9]{1,6}){0,3},?",
        "[0-9]{1,3}[.][0-9]{1,3}[.]0[.]0/[0-9]{1,2}(,(fd00::/8|[*]|::1/128))?",
        "(net1|eth0|vnet[+])(, ?[a-z0-9!/]{1,17}){0,2}",
        "\\PC{0,300}",
    ]
}

fn map(keys: &'static [&'static str]) -> impl Strategy<Value = BTreeMap<String, String>> {
    let entry = (sample::select(keys).prop_map(str::to_owned), value());
    vec(entry, 0..3).prop_map(|entries| entries.into_iter().collect())
}

fn any_container() -> impl Strategy<Value = Container> {
    let name = sample::select(vec!["app", "istio-proxy", "istio-proxy", "istio-init", "istio-validation"]);
    let word = sample::select(vec!["proxy", "sidecar", "router", ""]).prop_map(str::to_owned);
    let args = prop_oneof![Just(vec!["proxy".to_owned(), "sidecar".to_owned()]), vec(word, 0..3)];
    let variable = sample::select(vec![
        "DISABLE_ENVOY",
        "ISTIO_META_DNS_CAPTURE",
        "ISTIO_DUAL_STACK",
        "ISTIO_AGENT_DUAL_STACK",
        "INVALID_DROP",
        "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR",
    ]);
    let env = (variable.prop_map(str::to_owned), option::of(value()))
        .prop_map(|(name, value)| EnvVar { name, value });
    let id = || option::of(prop_oneof![Just(0), Just(1337), any::<i64>()]);
    let security = (id(), id()).prop_map(|(run_as_user, run_as_group)| SecurityContext {
        run_as_user,
        run_as_group,
        ..SecurityContext::default()
    });
    (name, args, vec(env, 0..2), option::weighted(0.2, security)).prop_map(|(name, args, env, security)| {
        Container { name: name.to_owned(), args, env, security_context: security.unwrap_or_default() }
    })
}

/// Any pod; many are injected and have a proxy.
pub(crate) fn pod() -> impl Strategy<Value = Pod> {
    let injected = prop::bool::weighted(0.7);
    let other = sample::select(vec![INJECT, AMBIENT_REDIRECTION]);
    let other = option::weighted(0.2, (other.prop_map(str::to_owned), value()));
    let containers = (vec(any_container(), 0..3), vec(any_container(), 0..2));
    let label = option::weighted(0.1, value());
    let mode = option::weighted(0.2, sample::select(vec!["ambient", "none", "other"]));
    let labels = (label, mode).prop_map(|(inject, mode)| {
        let inject = inject.map(|value| (INJECT.to_owned(), value));
        inject.into_iter().chain(mode.map(|mode| (DATAPLANE_MODE.to_owned(), mode.to_owned()))).collect()
    });
    (injected, map(&ANNOTATIONS), other, labels, containers, prop::bool::weighted(0.1)).prop_map(
        |(injected, mut annotations, other, labels, (containers, init_containers), host_network)| {
            annotations.extend(other);
            annotations.extend(injected.then(|| (STATUS.to_owned(), "{}".to_owned())));
            let metadata = ObjectMeta {
                name: "web-0".into(),
                namespace: "shop".into(),
                labels,
                annotations,
                ..ObjectMeta::default()
            };
            let spec = PodSpec { containers, init_containers, host_network, ..PodSpec::default() };
            Pod { metadata, spec, ..Pod::default() }
        },
    )
}
