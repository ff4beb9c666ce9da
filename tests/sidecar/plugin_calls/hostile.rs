//! Malicious input: an error with the correct code, and no change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kit::{ApiServer, FakeReply, istio};
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, DUAL, PluginFixture, Refusal, V4, bare_pod, plugin_auth, saves, tables};

/// Asserts that no request was sent, and that the pod has no table.
fn refused(fixture: &PluginFixture, call: &Call<'_>, pod: &kit::Netns) -> Refusal {
    let outcome = call.run();
    let error = outcome.refused();
    assert!(outcome.wall() < Duration::from_secs(5), "{outcome}");
    assert!(error.msg.len() < 2000, "a message for people: {} bytes", error.msg.len());
    assert_eq!((tables(pod), fixture.api.requests().len()), (String::new(), 0), "{error:?}");
    error
}

#[test]
fn stdin_is_read_up_to_two_mebibytes() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let call = fixture.call("ADD", &pod).annotations(&json!({"note": "plain"}));
    let mut most = call.input();
    most.resize(2 << 20, b' ');
    fixture.call("ADD", &pod).stdin(most.clone()).run().ok();
    most.push(b' ');
    for bytes in [most, vec![b'{'; 64 << 20]] {
        let error = refused(&fixture, &fixture.call("ADD", &pod).stdin(bytes), &pod);
        assert_eq!((error.code, &*error.msg), (6, "the configuration is larger than 2097152 bytes"));
    }
}

#[test]
fn what_is_no_configuration_is_refused() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let deep = format!("{{\"a\":{}", "[".repeat(500_000));
    for bytes in [
        "",
        " ",
        "null",
        "[]",
        "7",
        "\"text\"",
        "{",
        "{}}",
        "{\"name\":\"net\",}",
        "\0",
        "{\"name\":\"a\0b\"}",
        &deep,
        "\u{feff}{}",
        "<xml/>",
    ] {
        let error = refused(&fixture, &fixture.call("ADD", &pod).stdin(bytes), &pod);
        assert_eq!(error.code, 6, "{bytes:.40}: {error:?}");
    }
    assert_eq!(refused(&fixture, &fixture.call("ADD", &pod).stdin([b'{', 0xff, b'}']), &pod).code, 6);
}

#[test]
fn members_of_the_wrong_type_or_value_are_named() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let call = || fixture.call("ADD", &pod);
    let annotations = |value: Value| json!({"io.kubernetes.cri.pod-annotations": value});
    for (call, code, part) in [
        (call().with("cniVersion", json!(1)), 6, "cniVersion"),
        (call().with("cniVersion", json!("2.0.0")), 1, "2.0.0"),
        (call().with("cniVersion", json!("1.0.0\n")), 1, "cniVersion"),
        (call().with("name", Value::Null), 7, "name"),
        (call().with("name", json!("../../x")), 7, "name"),
        (call().with("name", json!({})), 6, "name"),
        (call().with("kubernetes", json!("x")), 6, "kubernetes"),
        (call().kubernetes("exclude_namespaces", json!("shop")), 6, "kubernetes.exclude_namespaces"),
        (call().kubernetes("exclude_namespaces", json!([1])), 6, "kubernetes.exclude_namespaces"),
        (call().kubernetes("kubeconfig", json!(["x"])), 6, "kubernetes.kubeconfig"),
        (call().kubernetes("api_timeout_seconds", json!("5")), 6, "kubernetes.api_timeout_seconds"),
        (call().kubernetes("api_timeout_seconds", json!(0)), 7, "kubernetes.api_timeout_seconds"),
        (call().kubernetes("api_timeout_seconds", json!(301)), 7, "kubernetes.api_timeout_seconds"),
        (call().kubernetes("api_timeout_seconds", json!(-1)), 7, "kubernetes.api_timeout_seconds"),
        (call().with("ambient_enabled", json!("true")), 6, "ambient_enabled"),
        (call().with("log_level", json!(3)), 6, "log_level"),
        (call().with("log_uds_address", json!({})), 6, "log_uds_address"),
        (call().with("pod_namespace", json!("../x")), 7, "pod_namespace"),
        (call().with("runtimeConfig", json!([])), 6, "runtimeConfig"),
        (call().with("runtimeConfig", annotations(json!("x"))), 6, "pod-annotations"),
        (call().with("runtimeConfig", annotations(json!({"a": 1}))), 6, "pod-annotations"),
    ] {
        let error = refused(&fixture, &call, &pod);
        assert!(error.code == code && error.msg.contains(part), "{part}: {error:?}");
    }
}

#[test]
fn args_that_are_no_names_are_refused() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let long = "a".repeat(300);
    for name in [
        "../secrets/x",
        "..",
        ".",
        "a/b",
        "a%2fb",
        "a?watch=1",
        "a#b",
        "a b",
        "a\nb",
        "a\r\nHost: x",
        "$(reboot)",
        "`x`",
        "a|b",
        "a&b",
        "'",
        "\"",
        "-a",
        "a-",
        "A",
        "ä",
        "\u{202e}a",
        "a\\b",
        "*",
        &long,
    ] {
        for (key, call) in [
            ("K8S_POD_NAME", fixture.call("ADD", &pod).pod("shop", name)),
            ("K8S_POD_NAMESPACE", fixture.call("ADD", &pod).pod(name, "web")),
        ] {
            let error = refused(&fixture, &call, &pod);
            assert!(error.code == 4 && error.msg.contains(key), "{name:?}: {error:?}");
        }
    }
    for (args, why) in [
        ("K8S_POD_NAME", "has \"K8S_POD_NAME\", which is not one key=value"),
        ("K8S_POD_NAME=a=b", "has \"K8S_POD_NAME=a=b\", which is not one key=value"),
        ("IgnoreUnknown=maybe", "key IgnoreUnknown: \"maybe\" is neither true nor false"),
        ("IgnoreUnknown=1;;", "has \"\", which is not one key=value"),
        ("=;=", "has unknown keys and no IgnoreUnknown=true: , "),
        ("Other=1;K8S_POD_NAME=a", "has unknown keys and no IgnoreUnknown=true: Other"),
        (
            "IgnoreUnknown=1;K8S_POD_UID=../x",
            "key K8S_POD_UID: \"../x\" is not a pod UID (alphanumerics, '-', '.', '_')",
        ),
        (&format!("IgnoreUnknown=1;x={}", "y".repeat(100_000)), "is longer than 16384 bytes"),
    ] {
        let error = refused(&fixture, &fixture.call("ADD", &pod).env("CNI_ARGS", args), &pod);
        assert_eq!((error.code, error.msg), (4, format!("CNI_ARGS {why}")), "{args:.60}");
    }
}

#[test]
fn ids_and_interface_names_that_are_none_are_refused() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let long = "a".repeat(5000);
    for (key, values) in [
        ("CNI_IFNAME", vec!["a/b", "..", ".", "a b", "a\nb", "sixteen-byte-ifn", "eth0:1", &long, "ä b"]),
        ("CNI_CONTAINERID", vec!["../x", "a/b", "a b", "a\nb", "-", ".", ";reboot", "ä", &long]),
    ] {
        for value in values {
            let error = refused(&fixture, &fixture.call("ADD", &pod).env(key, value), &pod);
            assert!(error.code == 4 && error.msg.contains(key), "{key}={value:.40}: {error:?}");
        }
    }
}

/// Files of every kind that are no pod's network namespace.
fn impostors(fixture: &PluginFixture) -> Vec<PathBuf> {
    let at = |name: &str| fixture.node.dir().join(name);
    fs::write(at("file"), "").unwrap();
    fs::create_dir(at("directory")).unwrap();
    symlink(at("file"), at("link-to-file")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let below = ["file", "directory", "link-to-file", "dangling", "loop", "fifo", "missing", "file/below"];
    let absolute = [
        "/",
        "/dev/null",
        "/dev/zero",
        "/dev/tty",
        "/proc/self/ns/mnt",
        "/proc/self/ns/pid",
        "/proc/self/ns/user",
        "/proc/self/environ",
        "/run/netns/$(reboot)",
        "/run/netns/a\nb",
        "/proc/999999999/ns/net",
    ];
    below.map(at).into_iter().chain(absolute.map(PathBuf::from)).collect()
}

#[test]
fn a_path_that_leads_to_no_network_namespace_is_refused() {
    let fixture = PluginFixture::new();
    let node = tables(fixture.node.netns());
    for path in impostors(&fixture) {
        let outcome = Call::new(&fixture.node, "ADD").netns(&path).kubeconfig(&fixture.kubeconfig).run();
        let error = outcome.refused();
        let shown = path.display();
        let kinds = [
            "an ordinary file or directory",
            "a socket or a device",
            "a mount namespace",
            "a PID namespace",
            "a user namespace",
        ];
        let other = kinds.map(|kind| format!("{shown} is {kind}, not a network namespace"));
        let why = error.msg.strip_prefix("cannot redirect pod shop/web: CNI_NETNS: ");
        let why = why.unwrap_or_else(|| panic!("{shown}: {error:?}"));
        let is_absent = why == format!("no network namespace at {shown}");
        assert!(
            error.code == 4 && (is_absent || other.iter().any(|other| other == why)),
            "{shown}: {error:?}"
        );
        assert!(outcome.wall() < Duration::from_secs(5), "{}: {outcome}", path.display());
    }
    for (path, why) in [
        ("netns", "\"netns\" is not an absolute path"),
        ("./netns", "\"./netns\" is not an absolute path"),
        ("../run/netns/x", "\"../run/netns/x\" is not an absolute path"),
        (&format!("/{}", "a".repeat(5000)), "is longer than 4095 bytes"),
    ] {
        let error = Call::new(&fixture.node, "ADD").env("CNI_NETNS", path).run().refused();
        assert_eq!((error.code, error.msg), (4, format!("CNI_NETNS {why}")));
    }
    assert_eq!(tables(fixture.node.netns()), node);
}

#[test]
fn the_nodes_own_namespace_is_never_redirected() {
    let fixture = PluginFixture::new();
    let link = fixture.node.dir().join("link");
    symlink(fixture.node.netns().path(), &link).unwrap();
    for path in
        [fixture.node.netns().path(), "/proc/self/ns/net".into(), "/proc/thread-self/ns/net".into(), link]
    {
        let call = Call::new(&fixture.node, "ADD").netns(&path).kubeconfig(&fixture.kubeconfig);
        let error = call.run().refused();
        let own = format!("{} is the network namespace of the node itself", path.display());
        assert_eq!((error.code, error.msg), (4, format!("cannot redirect pod shop/web: CNI_NETNS: {own}")));
    }
    assert_eq!(tables(fixture.node.netns()), "");
}

#[test]
fn a_link_to_a_pods_namespace_leads_there() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let link = fixture.node.dir().join("link");
    symlink(pod.path(), &link).unwrap();
    fixture.call("ADD", &pod).netns(&link).run().ok();
    assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"));
}

#[test]
fn a_pod_without_an_address_is_refused_and_gets_nothing() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(&[]);
    let error = fixture.call("ADD", &pod).run().refused();
    let why = "the network namespace has no address beyond loopback and link-local ones";
    let expected = format!("cannot redirect pod shop/web in {}: {why}", pod.path().display());
    assert_eq!((error.code, error.msg), (999, expected));
    assert_eq!(tables(&pod), "");
}

/// As on a node whose limit of processes is reached: no thread can have a stack of this size.
#[test]
fn a_node_that_starts_no_thread_is_an_error_and_no_panic() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let call = fixture.call("ADD", &pod).annotations(&json!({"sidecar.istio.io/status": "{}"}));
    let error = call.env("RUST_MIN_STACK", "1000000000000000").run().refused();
    assert_eq!((error.code, tables(&pod)), (999, String::new()), "{error:?}");
}

const INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
const KUBEVIRT: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";
const NETWORKS: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
const NOT_NETWORKS: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
const PORTS: &str = "traffic.sidecar.istio.io/includeInboundPorts";
const NOT_PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
const MODE: &str = "sidecar.istio.io/interceptionMode";

#[test]
fn annotations_that_would_break_out_of_a_rule_stop_the_pod() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("hostile");
    let fixture = PluginFixture::new();
    let kubeconfig = istio::write_kubeconfig(&fixture.node, api, &plugin_auth(api));
    let pod = bare_pod(DUAL);
    let long = "1,".repeat(50_000);
    let hostile = [
        (INTERFACES, "eth0 -j ACCEPT"),
        (INTERFACES, "eth0\nCOMMIT\n*filter\n-A INPUT -j DROP"),
        (INTERFACES, "-j ACCEPT"),
        (INTERFACES, "a/b"),
        (INTERFACES, "\"eth0\""),
        (INTERFACES, "a-name-over-15-bytes"),
        (KUBEVIRT, "net1 -j ACCEPT"),
        (KUBEVIRT, "net1\n-A OUTPUT -j DROP"),
        (NETWORKS, "10.0.0.0/8 -j ACCEPT"),
        (NETWORKS, "10.0.0.0/8;fd00::/8"),
        (NETWORKS, "10.0.0.0/33"),
        (NETWORKS, "*,10.0.0.0/8"),
        (NETWORKS, "localhost"),
        (NOT_NETWORKS, "*"),
        (NOT_NETWORKS, "10.0.0.0/8\n-A OUTPUT -j DROP"),
        (NOT_NETWORKS, "! 10.0.0.0/8"),
        (PORTS, "80;443"),
        (PORTS, "80 -j ACCEPT"),
        (PORTS, "65536"),
        (PORTS, "-1"),
        (PORTS, "80\n81"),
        (PORTS, "80,,-"),
        (PORTS, "http"),
        (NOT_PORTS, "0x50"),
        (NOT_PORTS, "٣"),
        (NOT_PORTS, &long),
        (MODE, "redirect"),
        (MODE, "TPROXY;"),
        (MODE, ""),
    ];
    for (at, (key, value)) in hostile.iter().enumerate() {
        let name = format!("pod-{at}");
        api.create_pod(&istio::annotated(istio::injected_pod("hostile", &name), key, value));
        let call = fixture.call("ADD", &pod).kubeconfig(&kubeconfig).pod("hostile", &name);
        let error = refused(&fixture, &call, &pod);
        assert_eq!(error.code, 999, "{key}={value:.40}: {error:?}");
        let quoted = format!("{:?}", value.chars().take(200).collect::<String>());
        for part in [&format!("pod hostile/{name}"), *key, &quoted, "allowed: "] {
            assert!(error.msg.contains(part), "{key}={value:.40}: no {part} in {error:?}");
        }
    }
}

#[test]
fn interface_names_that_are_odd_and_legal_stay_one_word() {
    let fixture = PluginFixture::answering(|request| {
        let pod = crate::fixtures::plugin::injected(request);
        FakeReply::Json(200, istio::annotated(pod, INTERFACES, "eth0;reboot,$(id), #x,`y`,a&b|c>d"))
    });
    let pod = bare_pod(V4);
    fixture.call("ADD", &pod).run().ok();
    let saved = saves(&pod);
    for name in ["eth0;reboot", "$(id)", "#x", "`y`", "a&b|c>d"] {
        let rule = format!("-A ISTIO_INBOUND -i {name} -j RETURN");
        assert!(saved.lines().any(|line| line == rule), "{name}: {saved}");
    }
    fixture.call("CHECK", &pod).run().ok();
}

#[test]
fn ids_of_a_proxy_that_are_no_ids_stop_the_pod() {
    // The API server rejects them, but a plugin need not rely on that.
    for id in [json!(-1), json!(4_294_967_296_i64), json!(i64::MIN)] {
        let value = id.clone();
        let fixture = PluginFixture::answering(move |request| {
            let mut pod = crate::fixtures::plugin::injected(request);
            pod["spec"]["containers"][1]["securityContext"] = json!({"runAsUser": id});
            FakeReply::Json(200, pod)
        });
        let pod = bare_pod(V4);
        let error = fixture.call("ADD", &pod).run().refused();
        let field = "istio-proxy securityContext.runAsUser";
        let expected =
            format!("pod shop/web: annotation {field} has the value \"{value}\"; allowed: 0 to 4294967294");
        assert_eq!(error.msg, expected);
        assert_eq!(tables(&pod), "");
    }
}
