//! Pods with in-pod capture.

use kit::{InpodOptions, Pod, WorkloadState};
use serde_json::json;

use super::{assert_words, comes_to_say, comes_to_say_after, list, says, verify};
use crate::fixtures::ambient::{MESH, PLAIN, starting};
use crate::fixtures::inpod::InPod;

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];
const CAPTURED: super::Expected = ("captured", "captured", "in-pod", 0);

/// In legacy tables, whose changes the kernel does not report: the agent would have repaired others by now, and repairs these at
/// its next observation.
#[test]
fn a_damage_is_explained_while_it_lasts() {
    let mut fixture = InPod::new(&[("FORCE_IPTABLES_BINARY", "legacy")]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let web = fixture.mesh_pod("web");
    comes_to_say(&fixture.container, "mesh/web", CAPTURED);
    let damage = || drop(web.sandbox.netns.sh("iptables-legacy -w -t nat -F ISTIO_OUTPUT"));
    let drifted = ("drifted", "bypassing", "in-pod", 1);
    let answer = comes_to_say_after(damage, &fixture.container, "mesh/web", drifted);
    assert_words(&answer, &["ISTIO_OUTPUT"]);
    assert_eq!(answer.advice[0], super::WAIT, "{answer}");
}

#[test]
fn captured_held_and_refused() {
    let mut fixture = InPod::new(&[]);
    let mut ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let (web, probed) = (fixture.mesh_pod("web"), fixture.mesh_pod("probed"));
    let running = fixture.running_pod(PLAIN, "running");
    fixture.wait_captured(&web);
    fixture.wait_captured(&probed);
    comes_to_say(&fixture.container, "mesh/web", CAPTURED);
    says(&fixture.container, "istio-system/ztunnel-a", ("ztunnel", "outside", "-", 0));

    let ip = probed.ip(false);
    let set = format!("ipset del istio-inpod-probes-v4 {ip}");
    let damage = || {
        let words: Vec<&str> = set.split(' ').collect();
        let _ = fixture.node.netns().output(std::process::Command::new(words[0]).args(&words[1..]));
    };
    let expected = ("probe-address-missing", "captured", "in-pod", 1);
    comes_to_say_after(damage, &fixture.container, "mesh/probed", expected);

    ztunnel.refuse(&running.sandbox.pod.uid);
    fixture.manifests.put_namespace(PLAIN, &AMBIENT);
    let _ = ztunnel.wait_for_state(&running.sandbox.pod.uid, WorkloadState::Refused);
    let refused = ("ztunnel-refused", "held", "in-pod", 1);
    comes_to_say(&fixture.container, "plain/running", refused);
    ztunnel.accept(&running.sandbox.pod.uid);
    fixture.wait_served(&ztunnel, &running);
    comes_to_say(&fixture.container, "plain/running", CAPTURED);

    ztunnel.kill();
    fixture.wait_said("no ztunnel is connected");
    let gone = ("ztunnel-not-connected", "held", "in-pod", 1);
    comes_to_say(&fixture.container, "plain/running", gone);
    assert_eq!(list(&fixture.container, &["--bypassing"]).0, 0, "it is held, and gets nowhere");
}

#[test]
fn pods_that_are_not_found_not_started_and_on_their_way_out() {
    let mut fixture = InPod::new(&[]);
    // A start without any ztunnel fails, and the answer has the reason.
    let early = Pod::new(MESH, "early");
    let _ = fixture.add(early, &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    comes_to_say(&fixture.container, "mesh/early", ("ztunnel-not-connected", "pending", "in-pod", 1));
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let answer = comes_to_say(&fixture.container, "mesh/early", ("failed", "pending", "in-pod", 1));
    assert_words(&answer, &["no ztunnel is connected"]);
    fixture.manifests.put_pod(&starting(&Pod::new(MESH, "new")));
    comes_to_say(&fixture.container, "mesh/new", ("no-address", "pending", "in-pod", 1));
    // A running pod in the API without a known process.
    let lost = fixture.node.pod(Pod::new(MESH, "lost"), &[]);
    fixture.manifests.put_pod(&lost.manifest());
    comes_to_say(&fixture.container, "mesh/lost", ("netns-not-found", "bypassing", "in-pod", 1));
    assert_eq!(list(&fixture.container, &["--bypassing"]), (1, vec!["mesh/lost".to_owned()]));
    assert_ne!(verify(&fixture.container).0, 0);
    // A pod whose rules cannot be removed: its legacy tables have some, too, and the legacy tools fail in the agent's container.
    let web = fixture.mesh_pod("web");
    fixture.wait_captured(&web);
    web.sandbox.netns.sh("iptables-legacy -w -t nat -N ISTIO_OUTPUT");
    let agent = fixture.daemon().pid().to_string();
    let inside = |line: &str| {
        let mut command = std::process::Command::new("nsenter");
        let done = command.args(["-t", &agent, "-m", "-r"]).args(line.split(' ')).output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    };
    inside("mount --bind /usr/bin/false /usr/sbin/xtables-legacy-multi");
    let mut manifest = web.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
    fixture.manifests.put_pod(&manifest);
    let leaving = ("leaving", "leaving", "-", 1);
    let answer = comes_to_say(&fixture.container, "mesh/web", leaving);
    assert_words(&answer, &["it is labelled istio.io/dataplane-mode=none itself"]);
    inside("umount -l /usr/sbin/xtables-legacy-multi"); // lazily: the agent may be using it
    let _ = ztunnel.wait_for_state(&web.sandbox.pod.uid, WorkloadState::Gone);
    comes_to_say(&fixture.container, "mesh/web", ("pod-label-none", "outside", "-", 0));
}

/// The kubelet deletes the API object several seconds after the sandbox: nothing can bypass the mesh meanwhile.
#[test]
fn a_deleted_pod_whose_sandbox_is_gone_raises_no_alarm() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let mut web = fixture.mesh_pod("web");
    fixture.wait_captured(&web);
    let mut manifest = web.sandbox.manifest();
    manifest["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    fixture.manifests.put_pod(&manifest);
    comes_to_say(&fixture.container, "mesh/web", CAPTURED);
    let _ = web.sandbox.delete().unwrap();
    let _ = ztunnel.wait_for_state(&web.sandbox.pod.uid, WorkloadState::Gone);
    let ended = ("terminated", "outside", "-", 0);
    comes_to_say(&fixture.container, "mesh/web", ended);
    assert_eq!(list(&fixture.container, &["--bypassing"]), (0, Vec::new()));
    let (status, text) = verify(&fixture.container);
    assert!(status == 0, "{text}");
    let pending = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"pending\"}";
    fixture.daemon().wait_for("none is pending", |daemon| daemon.metric(pending) == Some(0.0));
    // A new agent has not seen the DEL, and the object still exists.
    fixture.restart();
    ztunnel.wait_for_snapshots(2);
    assert_eq!(list(&fixture.container, &["--bypassing"]), (0, Vec::new()));
}
