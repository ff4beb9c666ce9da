//! With in-pod capture the pods.

use kit::{InpodOptions, Pod, WorkloadState};
use serde_json::json;

use super::{comes_to_say, explain, list, says, verify};
use crate::ambient_stage::{MESH, PLAIN, starting};
use crate::inpod_stage::InPod;

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];
const CAPTURED: super::Expected = ("captured", "captured", "in-pod", 0);

#[test]
fn captured_damaged_and_refused() {
    let mut stage = InPod::new(&[]);
    let mut ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let (web, probed) = (stage.mesh_pod("web"), stage.mesh_pod("probed"));
    let running = stage.running_pod(PLAIN, "running");
    stage.wait_captured(&web);
    stage.wait_captured(&probed);
    let _ = says(&stage.container, "mesh/web", CAPTURED, &["which listens there"]);
    let _ =
        says(&stage.container, "istio-system/ztunnel-a", ("ztunnel", "outside", "-", 0), &["it is ztunnel"]);

    web.sandbox.netns.sh("iptables-nft -t nat -F ISTIO_OUTPUT");
    let drifted = ("drifted", "bypassing", "in-pod", 1);
    let answer = says(&stage.container, "mesh/web", drifted, &["ISTIO_OUTPUT", "bypasses the mesh"]);
    assert!(answer.advice[0].contains("the agent repairs this by itself"), "{answer}");

    let ip = probed.ip(false);
    let set = format!("ipset del istio-inpod-probes-v4 {ip}");
    let damage = || {
        let words: Vec<&str> = set.split(' ').collect();
        let _ = stage.node.netns().output(std::process::Command::new(words[0]).args(&words[1..]));
    };
    let expected = ("probe-address-missing", "captured", "in-pod", 1);
    let _ = comes_to_say(
        &stage.container,
        "mesh/probed",
        damage,
        expected,
        &["the node's probes of it may fail"],
    );

    ztunnel.refuse(&running.sandbox.pod.uid);
    stage.manifests.put_namespace(PLAIN, &AMBIENT);
    let _ = ztunnel.wait_for_state(&running.sandbox.pod.uid, WorkloadState::Refused);
    let refused = ("ztunnel-refused", "held", "in-pod", 1);
    let _ = comes_to_say(
        &stage.container,
        "plain/running",
        || (),
        refused,
        &["ztunnel refused the pod plain/running"],
    );
    ztunnel.accept(&running.sandbox.pod.uid);
    stage.wait_served(&ztunnel, &running);
    let _ = comes_to_say(&stage.container, "plain/running", || (), CAPTURED, &[]);

    ztunnel.kill();
    stage.wait_said("no ztunnel is connected");
    let gone = ("ztunnel-not-connected", "held", "in-pod", 1);
    let _ = comes_to_say(
        &stage.container,
        "plain/running",
        || (),
        gone,
        &["No ztunnel is connected to the agent"],
    );
    assert_eq!(list(&stage.container, &["--bypassing"]).0, 0, "it is held, and gets nowhere");
}

#[test]
fn pods_that_are_not_found_not_started_and_on_their_way_out() {
    let mut stage = InPod::new(&[]);
    // A start without any ztunnel fails, and the answer says why.
    let early = Pod::new(MESH, "early");
    let _ = stage.add(early, &stage.node.conflist(&[stage.plugin()])).unwrap_err();
    let _ = comes_to_say(
        &stage.container,
        "mesh/early",
        || (),
        ("ztunnel-not-connected", "pending", "in-pod", 1),
        &["There is no ztunnel on this node"],
    );
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let _ = comes_to_say(
        &stage.container,
        "mesh/early",
        || (),
        ("failed", "pending", "in-pod", 1),
        &["its last ADD failed at", "no ztunnel is connected"],
    );
    stage.manifests.put_pod(&starting(&Pod::new(MESH, "new")));
    let _ = comes_to_say(&stage.container, "mesh/new", || (), ("no-address", "pending", "in-pod", 1), &[]);
    // One that runs, as the API has it, and of which no process is found.
    let lost = stage.node.pod(Pod::new(MESH, "lost"), &[]);
    stage.manifests.put_pod(&lost.manifest());
    let _ = comes_to_say(
        &stage.container,
        "mesh/lost",
        || (),
        ("netns-not-found", "bypassing", "in-pod", 1),
        &["no process of the pod was found"],
    );
    assert_eq!(list(&stage.container, &["--bypassing"]), (1, vec!["mesh/lost".to_owned()]));
    assert_ne!(verify(&stage.container).0, 0);
    // One whose rules cannot be taken away, because the tools fail in the agent's container.
    let web = stage.mesh_pod("web");
    stage.wait_captured(&web);
    let agent = stage.daemon().pid().to_string();
    let inside = |line: &str| {
        let mut command = std::process::Command::new("nsenter");
        let done = command.args(["-t", &agent, "-m", "-r"]).args(line.split(' ')).output().unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    };
    inside("mount --bind /usr/bin/false /usr/sbin/xtables-nft-multi");
    let mut manifest = web.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
    stage.manifests.put_pod(&manifest);
    let leaving = ("leaving", "leaving", "-", 1);
    let words = ["it is labelled istio.io/dataplane-mode=none itself"];
    let _ = comes_to_say(&stage.container, "mesh/web", || (), leaving, &words);
    inside("umount -l /usr/sbin/xtables-nft-multi"); // lazily: the agent may be trying just now
    let _ = ztunnel.wait_for_state(&web.sandbox.pod.uid, WorkloadState::Gone);
    let _ = comes_to_say(&stage.container, "mesh/web", || (), ("pod-label-none", "outside", "-", 0), &[]);
    assert_eq!(explain(&stage.container, "mesh/web").verdict.status(), 0);
}

/// The kubelet removes the API object some seconds after the sandbox: meanwhile nothing bypasses the mesh, for there is nothing.
#[test]
fn a_deleted_pod_whose_sandbox_is_gone_raises_no_alarm() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let mut web = stage.mesh_pod("web");
    stage.wait_captured(&web);
    let mut manifest = web.sandbox.manifest();
    manifest["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    stage.manifests.put_pod(&manifest);
    let _ = comes_to_say(&stage.container, "mesh/web", || (), CAPTURED, &[]);
    let _ = web.sandbox.delete().unwrap();
    let _ = ztunnel.wait_for_state(&web.sandbox.pod.uid, WorkloadState::Gone);
    let ended = ("terminated", "outside", "-", 0);
    let _ = says(&stage.container, "mesh/web", ended, &["it has ended"]);
    assert_eq!(list(&stage.container, &["--bypassing"]), (0, Vec::new()));
    let (status, text) = verify(&stage.container);
    assert!(status == 0, "{text}");
    let pending = "istio_cni_ambient_pods{state=\"pending\"}";
    stage.daemon().wait_for("none is pending", |daemon| daemon.metric(pending) == Some(0.0));
    // A new agent was not there at the DEL, and the object still is.
    stage.restart();
    ztunnel.wait_for_snapshots(2);
    assert_eq!(list(&stage.container, &["--bypassing"]), (0, Vec::new()));
}
