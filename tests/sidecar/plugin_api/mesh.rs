//! Pods of the mesh: rules as listed by the kernel, and traffic.

use std::net::SocketAddr;

use kit::{Echo, Families, Netns, NodeOptions, Pod, PodSandbox, Proto, Seen, Serve, TrafficClient, istio};
use serde_json::{Value, json};

use super::Cluster;
use crate::fixtures::plugin::{DUAL, V4, bare_pod, expected, routes, rules, saves};

const APP: u32 = 1000;

fn start(cluster: &Cluster, object: &Value) -> PodSandbox {
    let conflist = cluster.node.conflist(&[istio::plugin_entry(&cluster.kubeconfig)]);
    let runtime = cluster.node.runtime();
    cluster
        .node
        .add_pod(&runtime, &conflist, Pod::from_object(object))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn v4(pod: &Netns) -> String {
    rules(&pod.sh("iptables-save"))
}

fn v6(pod: &Netns) -> String {
    rules(&pod.sh("ip6tables-save"))
}

/// Name and port of the server that answered.
fn answered(seen: Result<Seen, kit::Failure>) -> (String, u16) {
    let seen = seen.unwrap_or_else(|failure| panic!("nobody answers: {failure}"));
    (seen.server, seen.listener)
}

/// Asserts that the application's traffic goes through the proxy in both directions, and the proxy's own does not.
fn captured(cluster: &Cluster, pod: &PodSandbox, ipv6: bool, proxy: u32) {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let serve = |port, name| Serve::new(Proto::Tcp, port).named(name);
    let _outside = Echo::start(cluster.node.outside(), &serve(80, "outside"));
    let _app = Echo::start(&pod.netns, &serve(8080, "application"));
    let own = |port| Echo::start(&pod.netns, &serve(port, "proxy").owned_by(proxy, proxy));
    let _proxy = [own(istio::OUTBOUND), own(istio::INBOUND)];
    let outside = SocketAddr::from((cluster.node.outside_ip(ipv6), 80));
    let client = |id| TrafficClient::new(Proto::Tcp).owned_by(id, id);
    let outbound = client(APP).connect(&pod.netns, outside).unwrap();
    assert_eq!((outbound.listener, outbound.original_dst), (istio::OUTBOUND, Some(outside)));
    assert_eq!(answered(client(proxy).connect(&pod.netns, outside)), ("outside".into(), 80));
    let inbound = client(APP).connect(cluster.node.outside(), (pod.ip(ipv6), 8080).into());
    assert_eq!(answered(inbound), ("proxy".into(), istio::INBOUND));
}

#[test]
fn a_sidecar_pod_with_ipv4() {
    let Some(cluster) = Cluster::start("mesh-v4", NodeOptions { families: Families::V4 }) else { return };
    let pod = start(&cluster, &cluster.create("web", |pod| pod));
    assert_eq!((v4(&pod.netns), v6(&pod.netns)), (expected(false), String::new()));
    assert_eq!(pod.result["ips"][0]["address"], json!(format!("{}/24", pod.ip(false))));
    assert_eq!(cluster.asked().len(), 1, "{:?}", cluster.asked());
    captured(&cluster, &pod, false, istio::PROXY_ID);
    pod.check().unwrap();
    let conflist = cluster.node.conflist(&[istio::plugin_entry(&cluster.kubeconfig)]);
    let runtime = cluster.node.runtime();
    let again = runtime.single("ADD", &conflist, "istio-cni", &pod.pod, &pod.netns_path(), &pod.result);
    assert_eq!(again.output.json(), pod.result);
    assert_eq!(v4(&pod.netns), expected(false));
}

/// The node prefers IPv4: whether a pod needs IPv6 shows in the pod alone.
#[test]
fn a_sidecar_pod_with_ipv6_only() {
    let Some(cluster) = Cluster::start("mesh-v6", NodeOptions { families: Families::V6 }) else { return };
    assert!(cluster.node.netns().addresses()[0].is_ipv4());
    let pod = start(&cluster, &cluster.create("web", |pod| pod));
    assert_eq!(v6(&pod.netns), expected(true));
    let shown = routes(&pod.netns);
    assert!(shown.lines().any(|line| line.split_whitespace().nth(3) == Some("::6/128")), "{shown}");
    captured(&cluster, &pod, true, istio::PROXY_ID);
}

#[test]
fn a_pod_of_both_families_is_redirected_in_both_when_it_says_so() {
    let Some(cluster) = Cluster::start("mesh-dual", NodeOptions::default()) else { return };
    let single = start(&cluster, &cluster.create("single", |pod| pod));
    assert_eq!((v4(&single.netns), v6(&single.netns)), (expected(false), String::new()));
    let says_so = |pod| istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true");
    let dual = start(&cluster, &cluster.create("dual", says_so));
    assert_eq!((v4(&dual.netns), v6(&dual.netns)), (expected(false), expected(true)));
    captured(&cluster, &dual, false, istio::PROXY_ID);
    captured(&cluster, &dual, true, istio::PROXY_ID);
}

#[test]
fn a_proxy_that_is_a_native_sidecar_is_one() {
    let Some(cluster) = Cluster::start("mesh-native", NodeOptions::default()) else { return };
    let native = cluster.create("web", |mut pod| {
        let mut proxy = pod["spec"]["containers"].as_array_mut().unwrap().remove(1);
        proxy["restartPolicy"] = json!("Always");
        proxy["securityContext"] = json!({"runAsUser": 2100, "runAsGroup": 2100});
        pod["spec"]["initContainers"] = json!([{"name": "other", "image": "other"}, proxy]);
        pod
    });
    let pod = start(&cluster, &native);
    assert_eq!(v4(&pod.netns), expected(false).replace("owner 1337", "owner 2100"));
    captured(&cluster, &pod, false, 2100);
}

#[test]
fn the_proxys_own_user_and_group_are_let_through() {
    let Some(cluster) = Cluster::start("mesh-ids", NodeOptions::default()) else { return };
    for (name, context, uid, gid) in [
        ("both", json!({"runAsUser": 2000, "runAsGroup": 3000}), "2000", "3000"),
        ("user", json!({"runAsUser": 2000}), "2000", "1337"),
        ("root", json!({"runAsUser": 0, "runAsGroup": 0}), "1337", "1337"),
    ] {
        cluster.create(name, |mut pod| {
            pod["spec"]["containers"][1]["securityContext"] = context;
            pod
        });
        let pod = bare_pod(V4);
        cluster.add(&pod, name).run().ok();
        let want = expected(false).replace("--uid-owner 1337", &format!("--uid-owner {uid}"));
        assert_eq!(v4(&pod), want.replace("--gid-owner 1337", &format!("--gid-owner {gid}")), "{name}");
    }
}

#[test]
fn dns_capture_and_invalid_packets() {
    let Some(cluster) = Cluster::start("mesh-dns", NodeOptions::default()) else { return };
    let flag = |name: &'static str| move |pod| istio::with_proxy_env(pod, name, "true");
    cluster.create("dns", flag("ISTIO_META_DNS_CAPTURE"));
    cluster.create("drop", flag("INVALID_DROP"));
    cluster.create("unreadable", |pod| istio::with_proxy_env(pod, "INVALID_DROP", "yes, please"));
    let added = |name| {
        let pod = bare_pod(V4);
        let outcome = cluster.add(&pod, name).run();
        outcome.ok();
        (saves(&pod), outcome)
    };
    let (dns, _) = added("dns");
    for rule in [
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 15053",
        "-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053",
        "-A ISTIO_OUTPUT_DNS -p udp -m udp --dport 53 -j CT --zone 2",
    ] {
        assert!(dns.lines().any(|line| line == rule), "no {rule}: {dns}");
    }
    let (drop, _) = added("drop");
    let rule = "-A ISTIO_PRERT -m conntrack --ctstate INVALID -j DROP";
    assert!(drop.lines().any(|line| line == rule), "{drop}");
    let (unreadable, outcome) = added("unreadable");
    assert_eq!(unreadable.trim(), expected(false));
    let warning = "INVALID_DROP of istio-proxy is \"yes, please\", which is not a boolean: taken as false";
    assert!(outcome.has_logged(warning), "{outcome}");
}

#[test]
fn a_dns_question_of_the_application_goes_to_the_proxy() {
    let Some(cluster) = Cluster::start("mesh-dns-traffic", NodeOptions::default()) else { return };
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let capture = |pod| istio::with_proxy_env(pod, "ISTIO_META_DNS_CAPTURE", "true");
    let pod = start(&cluster, &cluster.create("web", capture));
    let localhost = std::net::Ipv4Addr::LOCALHOST.into();
    let proxy =
        Serve::new(Proto::Udp, 15053).on(localhost).named("proxy").owned_by(istio::PROXY_ID, istio::PROXY_ID);
    let _servers = [
        Echo::start(&pod.netns, &proxy),
        Echo::start(cluster.node.outside(), &Serve::new(Proto::Udp, 53).named("dns")),
    ];
    let server = (cluster.node.outside_ip(false), 53).into();
    let ask = |id| answered(TrafficClient::new(Proto::Udp).owned_by(id, id).connect(&pod.netns, server)).0;
    assert_eq!((ask(APP).as_str(), ask(istio::PROXY_ID).as_str()), ("proxy", "dns"));
}

#[test]
fn tproxy_keeps_the_address_of_who_calls() {
    let Some(cluster) = Cluster::start("mesh-tproxy", NodeOptions::default()) else { return };
    let tproxy = |pod| {
        let pod = istio::annotated(pod, "sidecar.istio.io/interceptionMode", "TPROXY");
        istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true")
    };
    let pod = start(&cluster, &cluster.create("web", tproxy));
    let (saved, routed) = (saves(&pod.netns), routes(&pod.netns));
    for on_ip in ["0.0.0.0", "::"] {
        let rule = format!("-p tcp -j TPROXY --on-port 15006 --on-ip {on_ip} --tproxy-mark 0x539/0xffffffff");
        assert!(saved.contains(&rule), "no {rule}: {saved}");
    }
    assert_eq!(routed.matches("fwmark 0x539 lookup 133").count(), 2, "{routed}");
    let shown = |line: &str| routed.lines().any(|one| one.trim_end() == line);
    assert!(shown("local default dev lo scope host"), "IPv4: {routed}");
    assert!(shown("local default dev lo metric 1024 pref medium"), "IPv6: {routed}");
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let id = istio::PROXY_ID;
    let serve = Serve::new(Proto::Tcp, istio::INBOUND).named("proxy").owned_by(id, id).transparent();
    let _proxy = Echo::start(&pod.netns, &serve);
    for ipv6 in [false, true] {
        let target = SocketAddr::from((pod.ip(ipv6), 8080));
        let seen = kit::connect(cluster.node.outside(), Proto::Tcp, target).unwrap();
        assert_eq!((seen.listener, seen.local), (istio::INBOUND, target));
        assert_eq!(seen.peer.ip(), cluster.node.outside_ip(ipv6));
    }
}

#[test]
fn annotations_shape_the_rules() {
    let Some(cluster) = Cluster::start("mesh-shaped", NodeOptions::default()) else { return };
    let traffic = [
        ("includeOutboundIPRanges", "10.0.0.0/8,fd00::/8"),
        ("excludeOutboundIPRanges", "10.1.2.3/24"),
        ("includeInboundPorts", "80, 8080"),
        ("excludeOutboundPorts", "25,3306"),
        ("kubevirtInterfaces", "net1"),
    ];
    cluster.create("web", |pod| {
        let annotate = |pod, (key, value): (&str, &str)| {
            istio::annotated(pod, &format!("traffic.sidecar.istio.io/{key}"), value)
        };
        let pod = traffic.into_iter().fold(pod, annotate);
        istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "1")
    });
    let pod = bare_pod(DUAL);
    cluster.add(&pod, "web").run().ok();
    let saved = saves(&pod);
    for rule in [
        "-A ISTIO_OUTPUT -d 10.0.0.0/8 -j ISTIO_REDIRECT",
        "-A ISTIO_OUTPUT -d fd00::/8 -j ISTIO_REDIRECT",
        "-A ISTIO_OUTPUT -d 10.1.2.0/24 -j RETURN",
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 80 -j ISTIO_IN_REDIRECT",
        "-A ISTIO_INBOUND -p tcp -m tcp --dport 8080 -j ISTIO_IN_REDIRECT",
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 25 -j RETURN",
        "-A ISTIO_OUTPUT -p tcp -m tcp --dport 3306 -j RETURN",
        "-A ISTIO_INBOUND -i net1 -j RETURN",
    ] {
        assert!(saved.lines().any(|line| line == rule), "no {rule}: {saved}");
    }
}

#[test]
fn a_dry_run_writes_the_restore_input_and_changes_nothing() {
    let Some(cluster) = Cluster::start("mesh-dry", NodeOptions::default()) else { return };
    let pod = bare_pod(DUAL);
    cluster.create("web", |pod| istio::with_proxy_env(pod, "ISTIO_DUAL_STACK", "true"));
    let before = saves(&pod);
    let file = cluster.node.dir().join("dry-run");
    let call = cluster.add(&pod, "web").env("DRY_RUN_FILE_PATH", file.to_str().unwrap());
    for annotations in [json!({}), json!({"sidecar.istio.io/status": "{}"})] {
        call.clone().annotations(&annotations).run().ok();
        assert_eq!(saves(&pod), before);
        if annotations == json!({}) {
            assert!(!file.exists(), "not injected, says the runtime: nothing to write");
            continue;
        }
        let restored = bare_pod(DUAL);
        let text = std::fs::read_to_string(&file).unwrap();
        let (v4_text, v6_text) = text.split_at(text.rfind("*nat").unwrap());
        restored.pipe("iptables-restore", v4_text);
        restored.pipe("ip6tables-restore", v6_text);
        assert_eq!((v4(&restored), v6(&restored)), (expected(false), expected(true)));
    }
}

#[test]
fn an_unknown_way_of_interception_is_refused_for_sidecar_pods_only() {
    let Some(cluster) = Cluster::start("mesh-type", NodeOptions::default()) else { return };
    cluster.create("web", |pod| pod);
    cluster.api.create_pod(&kit::ApiServer::pod(cluster.namespace, "plain"));
    let pod = bare_pod(V4);
    let refused = cluster.add(&pod, "web").kubernetes("intercept_type", json!("ebpf")).run().refused();
    let expected = "kubernetes.intercept_type is \"ebpf\"; allowed: \"iptables\"";
    assert_eq!((refused.code, refused.msg.as_str()), (7, expected));
    assert_eq!(v4(&pod), "");
    cluster.add(&pod, "plain").kubernetes("intercept_type", json!("ebpf")).run().ok();
}
