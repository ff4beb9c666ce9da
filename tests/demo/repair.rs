//! A pod that started before the plugin: its validation fails, and the agent repairs it in place.

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use kit::{Daemon, Echo, Pod, PodSandbox, ProcessTable, Proto, Serve, binary, connect, istio};
use serde_json::{Value, json};

use crate::{cluster::Cluster, show::Show};

const PODS: &str = "/api/v1/namespaces/shop/pods";
const SUCCESS: &str = r#"istio_cni_repair_pods_repaired_total{type="repair",result="success"}"#;

/// Runs the scene; `None` means that there is no API server.
pub(crate) fn play(show: &mut Show) -> Option<()> {
    let mut cluster = Cluster::start(show)?;
    let processes = ProcessTable::new(&cluster.node);
    let container = &mut cluster.container;
    container.add_mount(processes.path(), "/host/proc");
    container.add_mount(Path::new("/run/netns"), "/var/run/netns");
    for (key, value) in [("REPAIR_ENABLED", "true"), ("REPAIR_REPAIR_PODS", "true"), ("NODE_NAME", "node-1")]
    {
        container.set_env(key, value);
    }

    show.chapter("an injected pod starts while the plugin is not installed");
    let sandbox = sandbox(&cluster);
    processes.add_pod(11, &sandbox);
    let _service = Echo::start(cluster.node.outside(), &Serve::new(Proto::Tcp, 8080).named("the service"));
    let sidecar = Serve::new(Proto::Tcp, 15001).named("its sidecar").owned_by(1337, 1337);
    let _sidecar = Echo::start(&sandbox.netns, &sidecar);
    let target = SocketAddr::new(cluster.node.outside_ip(false), 8080);
    let server = || {
        connect(&sandbox.netns, Proto::Tcp, target).map_or_else(|error| error.to_string(), |seen| seen.server)
    };
    show.check(
        server() == "the service",
        format!("a connection to the service bypasses its sidecar: answered by {}", server()),
    );
    let code = validation(&sandbox);
    show.check(
        code == Some(126),
        format!("istio-validation ends with exit code {}, so the pod does not start", code.unwrap_or(-1)),
    );
    fail(&cluster, code.unwrap_or_default());

    show.chapter("the agent starts, with REPAIR_REPAIR_PODS=true");
    let began = Instant::now();
    let mut daemon = cluster.daemon();
    daemon.wait_for("the pod is repaired", |daemon| daemon.metric(SUCCESS) == Some(1.0));
    show.note(format!(
        "repaired {:.1?} after the agent's start, which includes the plugin's installation",
        began.elapsed()
    ));
    show.check(server() == "its sidecar", format!("a connection to the service is answered by {}", server()));
    let code = validation(&sandbox);
    show.check(
        code == Some(0),
        format!("istio-validation ends with exit code {} when the kubelet restarts it", code.unwrap_or(-1)),
    );
    event(&cluster, &mut daemon, show);
    let broken = daemon.metric("istio_cni_repair_broken_pods");
    show.check(broken == Some(1.0), "the agent looks at the pod again until the kubelet has restarted it");
    recover(&cluster);
    daemon.wait_for("it is not broken any more", |daemon| {
        daemon.metric("istio_cni_repair_broken_pods") == Some(0.0)
    });
    show.check(true, "it is not broken any more, and the agent leaves it alone");
    Some(())
}

fn sandbox(cluster: &Cluster) -> PodSandbox {
    let mut object = istio::injected_pod("shop", "early");
    object["spec"]["nodeName"] = json!("node-1");
    object["spec"]["initContainers"] = json!([{"name": "istio-validation", "image": "proxyv2"}]);
    let sandbox = cluster.node.pod(Pod::from_object(&cluster.api.create_pod(&object)), &[]);
    // A pod is pending until its init containers have succeeded.
    let mut status = sandbox.manifest()["status"].clone();
    status["phase"] = json!("Pending");
    cluster.api.admin().patch_status(&format!("{PODS}/early"), &status);
    sandbox
}

/// Runs the validation as the pod's init container does: as the proxy's user, and without changing anything.
fn validation(sandbox: &PodSandbox) -> Option<i32> {
    let mut command = Command::new(for_everybody());
    command.uid(1337).gid(1337).args(["--run-validation", "--skip-rule-apply", "--probe-timeout", "1500ms"]);
    sandbox.netns.output(&mut command).status.code()
}

/// A copy of the tool that every user may run: a build directory may be accessible to its owner only.
fn for_everybody() -> PathBuf {
    let path = std::env::temp_dir().join(format!("istio-iptables-{}", std::process::id()));
    if !path.exists() {
        kit::copy_program(&binary("istio-iptables"), &path);
    }
    path
}

/// Reports a failed init container, as the kubelet does.
fn fail(cluster: &Cluster, code: i32) {
    let ended = json!({"terminated": {"exitCode": code, "reason": "Error"}});
    tell(cluster, &json!({"waiting": {"reason": "CrashLoopBackOff"}}), &ended);
}

/// Reports that it succeeded at its next start.
fn recover(cluster: &Cluster) {
    let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    tell(cluster, &done, &json!({}));
}

fn tell(cluster: &Cluster, state: &Value, last: &Value) {
    let status = json!({"initContainerStatuses": [{
        "name": "istio-validation", "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
        "state": state, "lastState": last,
    }]});
    cluster.api.admin().patch_status(&format!("{PODS}/early"), &status);
}

fn event(cluster: &Cluster, daemon: &mut Daemon, show: &mut Show) {
    let path = "/api/v1/namespaces/shop/events?fieldSelector=reason=BrokenPodRepaired";
    let events = || cluster.api.admin().get(path)["items"].as_array().cloned().unwrap_or_default();
    daemon.wait_for("the Event", |_| !events().is_empty());
    let message = events()[0]["message"].as_str().unwrap_or_default().to_owned();
    show.check(
        message.contains("are in place now"),
        format!("its Event: {}…", message.chars().take(110).collect::<String>()),
    );
}
