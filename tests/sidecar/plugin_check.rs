//! CHECK: whether the pod is still redirected. It fails only for a pod that is known to bypass the mesh, and takes two seconds at
//! most, whichever component is unavailable.

mod rule_sets;
mod unavailable;

use std::{fs, path::PathBuf, time::Duration};

use kit::{FakeReply, Netns, istio};
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, DUAL, Outcome, PluginFixture, V4, bare_pod, injected, saves, tables};

/// Two seconds in total, whichever component is unavailable, and an allowance for a busy machine. Other calls wait longer.
const LIMIT: Duration = Duration::from_secs(5);

fn socket(fixture: &PluginFixture) -> PathBuf {
    fixture.node.run_dir().join("log.sock")
}

/// A call that writes and reads records.
fn call<'f>(fixture: &'f PluginFixture, command: &str, pod: &Netns) -> Call<'f> {
    fixture.call(command, pod).with("log_uds_address", json!(socket(fixture)))
}

fn record(fixture: &PluginFixture) -> PathBuf {
    socket(fixture).with_file_name("pods").join("0123456789abcdef")
}

fn succeeds(what: &str, outcome: &Outcome) {
    assert_eq!(outcome.ok(), "", "{what}");
    assert!(outcome.wall() < LIMIT, "{what}: {:?}", outcome.wall());
}

fn bypasses(what: &str, outcome: &Outcome, detail: &str) {
    let error = outcome.refused();
    assert_eq!(error.code, 999, "{what}: {error:?}");
    assert_eq!(error.msg, "pod shop/web bypasses the mesh: its traffic is not redirected", "{what}");
    assert!(error.details.contains(detail), "{what}: {error:?}");
    assert!(outcome.wall() < LIMIT, "{what}: {:?}", outcome.wall());
}

#[test]
fn traffic_that_the_add_redirected_and_no_rule_redirects_now_fails_it() {
    let pod = bare_pod(DUAL);
    let dual = PluginFixture::answering(|request| {
        FakeReply::Json(200, istio::with_proxy_env(injected(request), "ISTIO_DUAL_STACK", "true"))
    });
    let check = || call(&dual, "CHECK", &pod).run();
    for (damage, lost) in [
        ("iptables -t nat -D OUTPUT -p tcp -j ISTIO_OUTPUT", "IPv4 outbound"),
        ("iptables -t nat -D PREROUTING -p tcp -j ISTIO_INBOUND", "IPv4 inbound"),
        ("ip6tables -t nat -D OUTPUT -p tcp -j ISTIO_OUTPUT", "IPv6 outbound"),
        ("iptables -t nat -F ISTIO_OUTPUT", "IPv4 outbound"),
        ("iptables -t nat -I ISTIO_OUTPUT -j ACCEPT", "IPv4 outbound"),
        (
            "iptables -t nat -F ISTIO_REDIRECT; iptables -t nat -F ISTIO_IN_REDIRECT",
            "IPv4 inbound, IPv4 outbound",
        ),
        ("nft flush ruleset", "IPv4 inbound, IPv4 outbound, IPv6 inbound, IPv6 outbound"),
    ] {
        call(&dual, "ADD", &pod).run().ok();
        succeeds(damage, &check());
        damage.split("; ").for_each(|command| drop(pod.sh(command)));
        let damaged = (saves(&pod), dual.api.requests().len());
        let ambient = call(&dual, "CHECK", &pod).with("ambient_enabled", json!(true));
        for outcome in [check(), ambient.run()] {
            bypasses(damage, &outcome, &format!("no rule redirects {lost}"));
        }
        assert_eq!(
            (saves(&pod), dual.api.requests().len()),
            damaged,
            "CHECK changes nothing, and asks nobody"
        );
    }
    let dormant = bare_pod(DUAL);
    call(&dual, "ADD", &dormant).run().ok();
    dormant.pipe("nft -f -", "add table ip nat { flags dormant; }");
    let lost = "no rule redirects IPv4 inbound, IPv4 outbound; nf_tables ip nat is dormant, so the kernel does not evaluate \
                our rules there";
    bypasses("a dormant table", &call(&dual, "CHECK", &dormant).run(), lost);
    for change in [
        "iptables -t nat -D ISTIO_INBOUND 1",
        "iptables -t nat -I ISTIO_OUTPUT -p tcp --dport 9 -j RETURN",
        "iptables -t nat -I OUTPUT -p tcp -j ISTIO_OUTPUT",
        "iptables -t nat -A OUTPUT -p udp -j ACCEPT",
    ] {
        call(&dual, "ADD", &pod).run().ok();
        pod.sh(change);
        succeeds(change, &check());
    }
}

#[test]
fn annotations_and_settings_that_changed_since_the_add_do_not_matter() {
    let annotated = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        PluginFixture::answering(move |request| {
            FakeReply::Json(200, istio::annotated(injected(request), &key, &value))
        })
    };
    for (key, value) in [
        ("traffic.sidecar.istio.io/includeInboundPorts", ""),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "9,10"),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0/8"),
        ("sidecar.istio.io/interceptionMode", "TPROXY"),
        ("sidecar.istio.io/interceptionMode", "NONE"),
        ("sidecar.istio.io/interceptionMode", "no such mode"),
    ] {
        let (fixture, pod) = (PluginFixture::new(), bare_pod(V4));
        let changed = annotated(key, value);
        for with_record in [true, false] {
            call(&fixture, "ADD", &pod).run().ok();
            let check = call(&fixture, "CHECK", &pod).kubeconfig(&changed.kubeconfig);
            let what = format!("{key}={value}, record: {with_record}");
            if !with_record {
                fs::remove_file(record(&fixture)).unwrap();
            }
            succeeds(&what, &check.run());
        }
    }
    let (fixture, pod) = (PluginFixture::new(), bare_pod(V4));
    for native in [false, true] {
        call(&fixture, "ADD", &pod).with("native_nftables", json!(native)).run().ok();
        let check = || call(&fixture, "CHECK", &pod).with("native_nftables", json!(!native));
        let selectors = json!([{"podselector": {}}]);
        for (what, check) in [
            ("native tables switched", check()),
            ("another redirection", check().kubernetes("intercept_type", json!("ebpf"))),
            ("its namespace is excluded now", check().kubernetes("exclude_namespaces", json!(["shop"]))),
            ("ambient mode", check().with("ambient_enabled", json!(true))),
            ("invalid selectors", check().with("enablement_selectors", selectors)),
        ] {
            succeeds(&format!("{what}, {native}"), &check.run());
        }
        pod.sh("nft flush ruleset");
        bypasses("removed", &check().run(), "outbound");
    }
}

/// The agent's pod, which repairs them, starts, and so does every pod that the call alone identifies as outside; any pod ends.
#[test]
fn invalid_selectors_fail_the_add_of_a_pod_that_may_belong_to_the_mesh_and_no_other_call() {
    let (fixture, pod) = (PluginFixture::new(), bare_pod(V4));
    let invalid = |command: &str| {
        let call = call(&fixture, command, &pod).with("ambient_enabled", json!(true));
        call.with("enablement_selectors", json!([{"podSelector": {"matchLabel": {"a": "b"}}}]))
    };
    for add in [
        invalid("ADD").pod("kube-system", "one").kubernetes("exclude_namespaces", json!(["kube-system"])),
        invalid("ADD").pod("mesh", "istio-cni-node-x7x2p").with("pod_namespace", json!("mesh")),
        invalid("ADD").env("CNI_ARGS", ""),
    ] {
        add.run().ok();
    }
    let error = invalid("ADD").run().refused();
    assert!(error.code == 6 && error.msg.starts_with("enablement_selectors: unknown field"), "{error:?}");
    assert_eq!(fixture.api.requests(), [], "no pod is asked for in vain");
    call(&fixture, "ADD", &pod).run().ok();
    assert!(record(&fixture).exists());
    invalid("DEL").run().ok();
    assert!(!record(&fixture).exists());
}

/// Without a record of this pod, the agent or the API server determines whether it belongs to the mesh.
#[test]
fn a_record_that_is_not_of_this_pod_counts_for_nothing() {
    let fixture = PluginFixture::new();
    let (pod, other) = (bare_pod(V4), bare_pod(V4));
    call(&fixture, "ADD", &pod).run().ok();
    let own: Value = serde_json::from_slice(&fs::read(record(&fixture)).unwrap()).unwrap();
    let with = |key: &str, value: Value| {
        let mut record = own.clone();
        record[key] = value;
        record.to_string().into_bytes()
    };
    let later = with("later", json!([1]));
    let former = {
        let mut record = own.clone();
        record.as_object_mut().unwrap().remove("captured").unwrap();
        record.to_string().into_bytes()
    };
    let unknown = with("captured", json!(["IPv9 sideways"]));
    let skipped = with("decision", json!("a reason of a later version"));
    let strange: [(&str, Vec<u8>); 6] = [
        ("another name", with("name", json!("other"))),
        ("another netns", with("netnsFile", json!({"dev": 1, "ino": 1}))),
        ("no decision", with("decision", json!(""))),
        ("not JSON", b"{".to_vec()),
        ("too long", vec![b' '; 1 << 20]),
        ("empty", Vec::new()),
    ];
    let plain = json!({"note": "plain"});
    for (what, text) in [("later", &later), ("former", &former), ("other words", &unknown)] {
        fs::write(record(&fixture), text).unwrap();
        let before = fixture.api.requests().len();
        succeeds(what, &call(&fixture, "CHECK", &pod).run());
        pod.sh("iptables -t nat -D PREROUTING -p tcp -j ISTIO_INBOUND");
        let checked = call(&fixture, "CHECK", &pod).run();
        match what {
            "later" => bypasses(what, &checked, "IPv4 inbound"),
            _ => succeeds(what, &checked), // it may never have redirected that
        }
        assert_eq!(fixture.api.requests().len(), before, "{what}: nobody is asked");
        call(&fixture, "ADD", &pod).run().ok();
    }
    let bare = || call(&fixture, "CHECK", &other);
    fs::write(record(&fixture), &skipped).unwrap();
    succeeds("outside of the mesh", &call(&fixture, "CHECK", &pod).run());
    for (what, text) in &strange {
        fs::write(record(&fixture), text).unwrap();
        let before = fixture.api.requests().len();
        bypasses(what, &bare().run(), "outbound");
        assert!(fixture.api.requests().len() > before, "{what}: the API server is asked");
        succeeds(what, &bare().annotations(&plain).run());
        succeeds(what, &call(&fixture, "CHECK", &pod).run());
    }
    fs::remove_file(record(&fixture)).unwrap();
    fs::create_dir(record(&fixture)).unwrap();
    bypasses("a directory", &bare().run(), "outbound");
    assert_eq!(tables(&other), "", "CHECK changes nothing");
}

/// A pod that has ended, or shares the node's namespace because of an error of the runtime, bypasses nothing.
#[test]
fn a_namespace_that_cannot_be_entered_is_in_order() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    call(&fixture, "ADD", &pod).run().ok();
    let file = fixture.node.net_d().join("file");
    fs::write(&file, "").unwrap();
    let gone = fixture.node.net_d().join("gone");
    for path in [&gone, &file, &fixture.node.netns().path(), &PathBuf::from("/proc/self/ns/net")] {
        succeeds(&path.display().to_string(), &call(&fixture, "CHECK", &pod).netns(path).run());
    }
    assert_eq!(call(&fixture, "CHECK", &pod).env("CNI_NETNS", "").run().refused().code, 4);
}

#[test]
fn rules_of_a_pod_with_ipv6_alone_are_checked() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(&["fd00:244::2/64"]);
    call(&fixture, "ADD", &pod).run().ok();
    succeeds("IPv6", &call(&fixture, "CHECK", &pod).run());
    pod.sh("ip6tables -t nat -F OUTPUT");
    bypasses("IPv6", &call(&fixture, "CHECK", &pod).run(), "IPv6 outbound");
}

/// A pod may create as many rules as it likes: they take no time.
#[test]
fn rules_of_megabytes_are_not_read_to_their_end() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    call(&fixture, "ADD", &pod).run().ok();
    let rules = "add rule ip crowd crowd ip saddr 10.0.0.1 ip daddr 10.0.0.2 counter accept\n".repeat(60_000);
    pod.pipe("nft -f -", &format!("add table ip crowd\nadd chain ip crowd crowd\n{rules}"));
    succeeds("a crowd", &call(&fixture, "CHECK", &pod).run());
}
