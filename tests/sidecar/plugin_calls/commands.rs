//! Answer of each command, and its required input.

use std::time::Duration;

use kit::istio;
use serde_json::{Value, json};

use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod, saves, tables};

#[test]
fn version_lists_what_is_spoken_whatever_stdin_says() {
    let fixture = PluginFixture::new();
    for stdin in ["", "{}", r#"{"cniVersion":"9.9.9"}"#, "nonsense"] {
        let answer = Call::new(&fixture.node, "VERSION").stdin(stdin).run().ok();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["cniVersion"], "1.1.0");
        let versions = json!(["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
        assert_eq!(answer["supportedVersions"], versions);
    }
}

#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let fixture = PluginFixture::new();
    let (script, plugin) = (fixture.node.dir().join("full"), kit::binary("istio-cni"));
    kit::write_script(&script, &format!("#!/bin/sh\nexec {} >/dev/full\n", plugin.display()));
    let call = Call::new(&fixture.node, "VERSION");
    let output = fixture.node.runtime().exec(&script, &call.environment(), &call.input());
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_person_who_starts_the_plugin_learns_what_it_is() {
    let fixture = PluginFixture::new();
    for call in [
        Call::new(&fixture.node, "").stdin(""),
        Call::new(&fixture.node, "x").unset("CNI_COMMAND").stdin("anything"),
    ] {
        let outcome = call.run();
        assert_eq!(outcome.ok(), "");
        let stderr = outcome.0.stderr_text();
        assert!(stderr.starts_with("CNI plugin istio-cni "), "{stderr}");
        let versions = "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
        assert_eq!(stderr.lines().nth(1), Some(versions), "{stderr}");
        assert_eq!(stderr.lines().nth(2), Some("TLS provider: ring"), "{stderr}");
    }
}

#[test]
fn variables_that_are_missing_or_empty_are_named() {
    let fixture = PluginFixture::new();
    let container = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"];
    let plugin = ["CNI_PATH"];
    for (command, required) in
        [("ADD", &container[..]), ("CHECK", &container), ("STATUS", &plugin), ("GC", &plugin)]
    {
        for name in required {
            let call = || Call::new(&fixture.node, command).env("CNI_NETNS", "/run/netns/x");
            for call in [call().unset(name), call().env(name, "")] {
                let error = call.run().refused();
                let expected = format!("{command} needs variables that are not set: {name}");
                assert_eq!((error.code, error.msg), (4, expected));
            }
        }
    }
    for command in ["add", "UPDATE", "ADD ", "ADD\n", &"A".repeat(100_000)] {
        let error = Call::new(&fixture.node, command).run().refused();
        assert!(error.code == 4 && error.msg.len() < 300, "{error:?}");
    }
}

#[test]
fn del_succeeds_in_every_form() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    fixture.call("ADD", &pod).run().ok();
    let before = saves(&pod);
    let del = || fixture.call("DEL", &pod);
    let dead = fixture.node.net_d().join("gone");
    let calls = [
        del(),
        del().unset("CNI_NETNS"),
        del().env("CNI_NETNS", ""),
        del().env("CNI_NETNS", "/run/netns/gone"),
        del().env("CNI_NETNS", "relative/../x"),
        del().env("CNI_ARGS", "garbage;=;="),
        del().unset("CNI_ARGS"),
        del().unset("CNI_CONTAINERID").unset("CNI_IFNAME").unset("CNI_PATH"),
        del().env("CNI_CONTAINERID", "../../etc").env("CNI_IFNAME", "a/b"),
        del().stdin(""),
        del().stdin("not JSON"),
        del().stdin(vec![b' '; 3 << 20]),
        del().stdin(vec![0xff; 10]),
        del().with("cniVersion", json!("9.9.9")),
        del().with("name", json!(7)).with("prevResult", json!("?")),
        del().kubeconfig(&dead),
        del().env("PATH", "/nonexistent"),
        del(),
    ];
    for (at, call) in calls.iter().enumerate() {
        let outcome = call.run();
        assert_eq!(outcome.ok(), "", "call {at}");
        assert!(outcome.wall() < Duration::from_secs(5), "call {at}: {outcome}");
    }
    assert_eq!(saves(&pod), before, "a pod's rules end with its namespace, not before");
}

#[test]
fn native_tables_are_made_checked_and_kept_when_the_setting_is_gone() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let native = |command| fixture.call(command, &pod).with("native_nftables", json!(true));
    native("ADD").run().ok();
    let made = pod.sh("nft list ruleset");
    assert_eq!(pod.sh("nft list tables"), "table inet istio-proxy-nat\n", "{made}");
    assert_eq!(native("CHECK").run().ok(), "");
    pod.sh("nft flush chain inet istio-proxy-nat istio-output");
    let error = native("CHECK").run().refused();
    assert_eq!((error.code, error.details.as_str()), (999, "no rule redirects IPv4 or IPv6 outbound"));
    // Neither command needs the setting once the tables exist.
    fixture.call("ADD", &pod).run().ok();
    assert_eq!(pod.sh("nft list ruleset"), made);
    fixture.call("CHECK", &pod).run().ok();
    fixture.call("DEL", &pod).run().ok();
}

#[test]
fn check_wants_a_version_that_has_it_and_no_result() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let check = || fixture.call("CHECK", &pod);
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1"] {
        let call = check().with("cniVersion", json!(version)).with("prevResult", json!({}));
        assert_eq!(call.run().refused().code, 1, "{version}");
    }
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        // CRI-O without its cache calls with the configuration on disk, which has no result.
        for previous in [json!({}), Value::Null] {
            let call = check().with("cniVersion", json!(version)).with("prevResult", previous);
            let error = call.run().refused();
            let bypasses = "pod shop/web bypasses the mesh: its traffic is not redirected";
            assert_eq!((error.code, error.msg.as_str()), (999, bypasses), "{version}");
        }
    }
    assert_eq!(tables(&pod), "", "CHECK changes nothing");
    let plain = check().annotations(&json!({"note": "plain"}));
    assert_eq!(plain.run().ok(), "", "a pod that is none of ours needs no rules");
    fixture.call("ADD", &pod).run().ok();
    assert_eq!(check().with("prevResult", Value::Null).run().ok(), "", "a pod whose rules are in place");
}

/// While STATUS fails, the kubelet starts no pod with its own network, including an agent that could repair anything.
#[test]
fn status_fails_only_for_what_keeps_every_pod_from_starting_and_no_pod_can_repair() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let status = || {
        let call = fixture.call("STATUS", &pod).unset("CNI_NETNS").with("prevResult", Value::Null);
        let call = call.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_ARGS", "");
        call.with("cniVersion", json!("1.1.0"))
    };
    let ambient = || status().with("ambient_enabled", json!(true));
    let missing = fixture.node.net_d().join("no-such-kubeconfig");
    let broken = istio::write_file(&fixture.node, "broken", "{");
    let nobody = json!(fixture.node.run_dir().join("agent.sock"));
    for (what, call) in [
        ("all is there", status()),
        ("no kubeconfig", status().kubeconfig(&missing)),
        ("a broken kubeconfig", status().kubeconfig(&broken)),
        ("no credential configured", status().kubernetes("kubeconfig", Value::Null)),
        ("a redirection that is unknown", status().kubernetes("intercept_type", json!("ebpf"))),
        ("no agent", ambient().with("agent_socket", nobody.clone())),
        ("no agent and no kubeconfig", ambient().with("agent_socket", nobody.clone()).kubeconfig(&missing)),
        ("no tools in ambient mode", ambient().with("agent_socket", nobody).env("PATH", "/nonexistent")),
        ("no tools", status().env("PATH", "/nonexistent")),
        ("invalid selectors", ambient().with("enablement_selectors", json!([{"podselector": {}}]))),
    ] {
        assert_eq!(call.run().ok(), "", "{what}");
    }
    for (call, code, message) in [
        (status().with("pod_namespace", json!("../x")), 7, "pod_namespace: \"../x\" is not a DNS-1123 label"),
        (
            status().with("cniVersion", json!("1.0.0")),
            1,
            "cniVersion 1.0.0 has no STATUS; it came with 1.1.0",
        ),
    ] {
        let error = call.run().refused();
        assert_eq!((error.code, error.msg.as_str()), (code, message));
    }
    assert_eq!(fixture.api.requests(), [], "STATUS asks nobody: it comes every few seconds");
}

#[test]
fn gc_has_nothing_to_do_and_says_when_it_was_not_told_enough() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    fixture.call("ADD", &pod).run().ok();
    let before = saves(&pod);
    let untold =
        || fixture.call("GC", &pod).with("cniVersion", json!("1.1.0")).with("prevResult", Value::Null);
    let gc = || untold().with("cni.dev/valid-attachments", json!([]));
    assert_eq!(gc().run().ok(), "");
    let attachments = json!([{"containerID": "0123456789abcdef", "ifname": "eth0"}]);
    assert_eq!(gc().with("cni.dev/valid-attachments", attachments).run().ok(), "");
    assert_eq!(gc().with("cni.dev/valid-attachments", Value::Null).run().ok(), "", "as Go writes none");
    assert_eq!(untold().run().refused().code, 7);
    assert_eq!(gc().with("cni.dev/valid-attachments", json!("x")).run().refused().code, 6);
    assert_eq!(gc().with("cniVersion", json!("1.0.0")).run().refused().code, 1);
    assert_eq!(saves(&pod), before);
}
