//! While the agent is down: its last record, and the current state of kernel and files.

use std::fs;
use std::time::Duration;

use kit::{InpodOptions, Pod};
use serde_json::{Value, json};

use super::{assert_words, call, explain, list, says, verify};
use crate::debug_state::{injected, pod};
use crate::fixtures::ambient::{Ambient, MESH, PLAIN};
use crate::fixtures::inpod::InPod;

const DOWN: &str = "he agent does not run on this node";

/// Waits until a new agent has recorded that these pods are captured, and kills it.
fn dies(fixture: &mut Ambient, pods: &[&str]) {
    fixture.restart();
    let path = fixture.node.run_dir().join("last-state.json");
    let _ = fs::remove_file(&path); // it exists only if the machine is slow
    let holds = || {
        let last: Value = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok())?;
        let is_captured = |name: &&str| {
            let found = last["pods"].as_array()?.iter().find(|pod| pod["name"] == **name)?;
            (found["capture"] == "captured").then_some(())
        };
        pods.iter().all(|name| is_captured(name).is_some()).then_some(())
    };
    // The record is written every minute.
    let described = std::fmt::from_fn(|f| write!(f, "it is written down: {}", fixture.log()));
    kit::until_within(Duration::from_secs(90), described, holds);
    fixture.daemon.take().unwrap().kill();
}

#[test]
fn captured_on_the_node_and_what_happens_meanwhile() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let (_web, _plain) = (fixture.pod(MESH, "web"), fixture.pod(PLAIN, "plain"));
    let sidecar = injected(&fixture, "sidecar");
    fixture.settle();
    dies(&mut fixture, &["web", "sidecar"]);
    let down = ("agent-down", "captured", "node", 1);
    let answer = says(&fixture.container, "mesh/web", down);
    assert!(answer.details.iter().any(|text| text.contains("its last record, of")), "{answer}");
    says(&fixture.container, "plain/sidecar", ("agent-down", "captured", "sidecar", 1));
    let outside = ("agent-down", "outside", "-", 2); // its labels may have changed since
    let answer = says(&fixture.container, "plain/plain", outside);
    assert!(answer.node_problems.iter().any(|text| text.contains(DOWN)), "{answer}");
    says(&fixture.container, "mesh/other", ("agent-down", "-", "-", 2));
    assert_eq!(list(&fixture.container, &["--bypassing"]), (2, Vec::new()), "pods may have started since");
    let (status, text) = verify(&fixture.container);
    let first = "No difference was found, but not everything could be observed.";
    assert_eq!((status, text.lines().next()), (2, Some(first)), "{text}");

    // Faults that a running agent would repair.
    let failed = Pod::new(MESH, "late");
    let _ = fixture.add(failed, &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    let failed = ("failed", "pending", "-", 1);
    says(&fixture.container, "mesh/late", failed);
    fixture.container.set_account("a.token.of-later", "no certificate");
    let answer = says(&fixture.container, "mesh/web", down);
    let stale = "The plugin's credential for the API server is missing or stale";
    assert!(answer.node_problems.iter().any(|text| text.starts_with(stale)), "{answer}");
    fixture.node.write_conflist("10-kit.conflist", &fixture.node.conflist(&[]));
    let answer = says(&fixture.container, "mesh/web", down);
    let entry = "The container runtime's network configuration lacks our entry";
    assert!(answer.node_problems.iter().any(|text| text.starts_with(entry)), "{answer}");
    assert_eq!(verify(&fixture.container).0, 1);

    fixture.node.netns().sh("iptables-nft -t mangle -D PREROUTING -j ztunnel-PREROUTING");
    let drifted = ("drifted", "bypassing", "node", 1);
    let answer = says(&fixture.container, "mesh/web", drifted);
    assert_words(&answer, &["PREROUTING"]);
    assert!(!answer.advice.iter().any(|text| text == super::WAIT), "{answer}");
    sidecar.sandbox.netns.sh("nft flush ruleset");
    let broken = ("sidecar-rules-missing", "bypassing", "sidecar", 1);
    says(&fixture.container, "plain/sidecar", broken);
    assert_eq!(list(&fixture.container, &["--bypassing"]).0, 1);
    let (_, text) = call(&fixture.container, &["state"]);
    let observed = text.lines().find(|line| line.starts_with("Observed "));
    assert!(observed.is_some_and(|line| line.ends_with(" by this command: no agent answers")), "{text}");
}

#[test]
fn captured_from_within() {
    let mut fixture = InPod::new(&[]);
    let mut ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let [web, flushed, inbound] = ["web", "flushed", "inbound"].map(|name| {
        let pod = fixture.mesh_pod(name);
        fixture.wait_captured(&pod);
        pod
    });
    dies(&mut fixture, &["web", "flushed", "inbound"]);
    let down = ("agent-down", "captured", "in-pod", 1);
    let answer = says(&fixture.container, "mesh/web", down);
    // Its policy routes still exist, and so does the listener.
    flushed.sandbox.netns.sh("nft flush ruleset");
    let drifted = ("drifted", "bypassing", "in-pod", 1);
    assert_words(
        &says(&fixture.container, "mesh/flushed", drifted),
        &["no rule redirects IPv4 outbound traffic"],
    );
    inbound.sandbox.netns.sh("ip6tables-nft -t nat -F ISTIO_OUTPUT");
    assert_words(
        &says(&fixture.container, "mesh/inbound", drifted),
        &["no rule redirects IPv6 outbound traffic"],
    );
    let redirected = "policy routes are in its network namespace, and rules redirect IPv4 inbound and IPv4 outbound and IPv6 inbound and IPv6 outbound traffic to ztunnel; they were \
                      not compared one by one";
    assert!(answer.details.iter().any(|text| text.contains(redirected)), "{answer}");
    // The kernel shows that ztunnel has ended and is back; the last agent did not see it.
    ztunnel.kill();
    let answer = explain(&fixture.container, "mesh/web");
    assert_eq!(
        (answer.capture.map(report::CaptureState::as_str), answer.verdict.exit_status()),
        (Some("held"), 1),
        "{answer}"
    );
    assert!(answer.details.iter().any(|text| text.contains("ztunnel does not listen")), "{answer}");
    web.sandbox.netns.sh("ip rule del pref 32764");
    assert_words(&says(&fixture.container, "mesh/web", drifted), &["no policy route to ztunnel"]);
}

/// The record of an agent that ended may be outdated; the kernel's state is current.
#[test]
fn the_kernel_counts_more_than_the_last_record() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _web = fixture.pod(MESH, "web");
    fixture.settle();
    dies(&mut fixture, &["web"]);
    let path = fixture.node.run_dir().join("last-state.json");
    let mut last: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // As if it had been written before that ztunnel was ready.
    last["node"]["activeSlot"] = Value::Null;
    last["ztunnels"][0]["active"] = false.into();
    last["ztunnels"][0]["ready"] = false.into();
    fs::write(&path, last.to_string()).unwrap();
    let down = ("agent-down", "captured", "node", 1);
    says(&fixture.container, "mesh/web", down);
}

/// A pod that was not observed is not called what the record calls it, nor is a ztunnel connected to an agent that ended.
#[test]
fn a_recorded_state_that_was_not_observed_is_unknown() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let web = fixture.mesh_pod("web");
    fixture.wait_captured(&web);
    dies(&mut fixture, &["web"]);
    for (flags, expected) in [
        (&[][..], "captured"),
        (&["--ambient-enabled=false"], "unknown"),
        (&["--netns-dir", "/proc/version"], "unknown"),
    ] {
        let (_, text) = call(&fixture.container, &[&["state", "-o", "json"], flags].concat());
        let state: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(pod(&state, MESH, "web")["capture"], expected, "{flags:?}: {state:#}");
        assert_eq!(state["ztunnels"][0]["connected"], Value::Null, "{state:#}");
    }
    let path = fixture.node.run_dir().join("last-state.json");
    let mut last: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let pods = last["pods"].as_array_mut().unwrap();
    let recorded = pods.iter_mut().find(|pod| pod["name"] == "web").unwrap();
    recorded["kernel"]["precedingRules"] = json!(["nf_tables inet x out sets the mark 0x539"]);
    fs::write(&path, last.to_string()).unwrap();
    let unknown = ("kernel-unobserved", "unknown", "in-pod", 2);
    assert_words(&says(&fixture.container, "mesh/web", unknown), &["rules of another component preceded"]);
}

/// A change is recorded within seconds.
#[test]
fn the_record_follows_changes() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let web = fixture.mesh_pod("web");
    fixture.wait_captured(&web);
    let path = fixture.node.run_dir().join("last-state.json");
    let captured = |name: &str| {
        let Ok(text) = fs::read(&path) else { return false };
        let Ok(last) = serde_json::from_slice::<Value>(&text) else { return false };
        let pods = last["pods"].as_array().cloned().unwrap_or_default();
        pods.iter().any(|pod| pod["name"] == name && pod["capture"] == "captured")
    };
    fixture.eventually("it is written down", |_| captured("web"));
    let late = fixture.mesh_pod("late");
    fixture.wait_captured(&late);
    fixture.eventually("and so is the next one", |_| captured("late"));
}

#[test]
fn nobody_has_ever_run_here() {
    let fixture = Ambient::stopped(kit::NodeOptions::default(), &[]);
    let answer = says(&fixture.container, "mesh/web", ("agent-down", "-", "-", 2));
    assert!(answer.node_problems.iter().any(|text| text.contains(DOWN)), "{answer}");
    assert_eq!((list(&fixture.container, &["--bypassing"]).0, verify(&fixture.container).0), (2, 1));
}
