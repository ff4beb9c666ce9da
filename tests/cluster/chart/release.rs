//! Releases in a real API server: from Istio's chart to ours, back, and uninstalled.

use std::fs;
use std::path::{Path, PathBuf};

use kit::{ApiServer, Auth, TempDir};
use serde_json::{Map, Value, json};

use super::helm::{HUB, Helm, chart};
use crate::install_manifests::documents::repository;
use crate::istio_charts::chart::{Chart, named};

/// An administrator's kubeconfig, for a process in the sandbox's own namespace.
fn kubeconfig(api: &ApiServer, directory: &Path) -> PathBuf {
    let admin = Auth::ClientCert { user: "helm".to_owned(), group: "system:masters".to_owned() };
    let (_, port) = ApiServer::address();
    let text = api.kubeconfig(&admin).replace(&api.url(), &format!("https://127.0.0.1:{port}"));
    let path = directory.join("kubeconfig");
    fs::write(&path, text).unwrap();
    path
}

/// A recording's namespaced objects.
fn recorded_objects(recording: &Chart) -> Vec<Value> {
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "istio-cni"}}),
        with_type(recording.daemon_set(), "apps/v1", "DaemonSet"),
    ];
    for (name, data) in recording.config_maps() {
        objects
            .push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}));
    }
    objects
}

/// A chart of these objects, in place of Istio's chart itself.
fn recorded_chart(recording: &Chart, directory: &Path) -> PathBuf {
    let path = directory.join("recorded");
    fs::create_dir_all(path.join("templates")).unwrap();
    fs::write(path.join("Chart.yaml"), "apiVersion: v2\nname: cni\nversion: 1.0.0\n").unwrap();
    for (number, one) in recorded_objects(recording).iter().enumerate() {
        fs::write(path.join(format!("templates/{number}.yaml")), one.to_string()).unwrap();
    }
    path
}

fn with_type(mut object: Value, version: &str, kind: &str) -> Value {
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object
}

struct Release<'a> {
    helm: &'a Helm,
    api: &'a ApiServer,
    namespace: String,
    kubeconfig: PathBuf,
}

impl Release<'_> {
    fn helm(&self, arguments: &[&str]) {
        let kubeconfig = self.kubeconfig.to_str().unwrap();
        let output =
            self.helm.run(&[arguments, &["-n", &self.namespace, "--kubeconfig", kubeconfig]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Without the objects outside namespaces, which other tests have.
    fn upgrade(&self, chart: &Path, set: &[&str]) {
        let mut arguments = vec!["upgrade", "--install", "istio-cni", chart.to_str().unwrap()];
        arguments.extend(set.iter().flat_map(|value| ["--set", *value]));
        self.helm(&arguments);
    }

    fn image(&self) -> Value {
        let path = format!("/apis/apps/v1/namespaces/{}/daemonsets/istio-cni-node", self.namespace);
        self.api.admin().get(&path)["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    }

    /// Runs `helm test` while a stand-in for the kubelet reports the end of the pod; returns whether Helm counts it as a success.
    fn test(&self, phase: &str) -> bool {
        let kubeconfig = self.kubeconfig.to_str().unwrap();
        let path = format!("/api/v1/namespaces/{}/pods/istio-cni-test", self.namespace);
        let before = self.api.admin().request("GET", &path, None).body["metadata"]["uid"].clone();
        std::thread::scope(|scope| {
            let arguments =
                ["test", "istio-cni", "-n", &self.namespace, "--kubeconfig", kubeconfig, "--timeout", "60s"];
            let helm = scope.spawn(move || self.helm.run(&arguments));
            kit::until("the pod of this test", || {
                let pod = self.api.admin().request("GET", &path, None);
                pod.status == 200 && pod.body["metadata"]["uid"] != before
            });
            self.api.admin().patch_status(&path, &json!({"phase": phase}));
            helm.join().unwrap().status.success()
        })
    }

    fn is_there(&self, path: &str) -> bool {
        self.api.admin().request("GET", &path.replace("NAMESPACE", &self.namespace), None).status == 200
    }
}

#[test]
fn a_release_of_istios_chart_becomes_ours_and_istios_again_and_goes() {
    let Some(helm) = Helm::find() else { return };
    let Some(api) = ApiServer::shared() else { return };
    let hub = format!("millrace.image.hub={HUB}");
    let ours = ["global.resourceScope=namespace", &hub];
    let role = "/apis/rbac.authorization.k8s.io/v1/namespaces/NAMESPACE/roles/istio-cni";
    for (case, layout) in [
        ("1-20-8-default", "compatibilityVersion=1.20"),
        ("1-24-6-ambient", "compatibilityVersion=1.24"),
        ("1-29-1-ambient", "profile=ambient"),
    ] {
        let directory = TempDir::new().unwrap();
        let namespace = format!("release-{case}");
        api.create_namespace(&namespace);
        let release = Release { helm: &helm, api, kubeconfig: kubeconfig(api, directory.path()), namespace };
        let theirs = recorded_chart(&named(case), directory.path());
        release.upgrade(&theirs, &[]);
        assert_eq!(release.image(), "install-cni", "{case}: what stands for Istio's chart");

        release.upgrade(&chart(), &[&ours[..], &["millrace.image.tag=1", layout]].concat());
        assert_eq!(release.image(), "registry.example/mesh/install-cni:1", "{case}");
        assert!(release.is_there(role), "{case}");
        assert!(release.test("Succeeded"), "{case}");
        assert!(!release.test("Failed"), "{case}");
        release.upgrade(&chart(), &[&ours[..], &["millrace.image.tag=2"]].concat());
        assert_eq!(release.image(), "registry.example/mesh/install-cni:2", "{case}");

        release.upgrade(&theirs, &[]);
        assert_eq!(release.image(), "install-cni", "{case}");
        assert!(!release.is_there(role), "{case}: Istio's chart has none");

        release.upgrade(&chart(), &ours);
        release.helm(&["uninstall", "istio-cni"]);
        for path in [
            role,
            "/api/v1/namespaces/NAMESPACE/configmaps/istio-cni-config",
            "/api/v1/namespaces/NAMESPACE/serviceaccounts/istio-cni",
            "/apis/apps/v1/namespaces/NAMESPACE/daemonsets/istio-cni-node",
        ] {
            assert!(!release.is_there(path), "{case}: {path}");
        }
    }
}

/// By Istio's source (`prune` in operator/pkg/install/install.go), `istioctl install` deletes objects with both labels that are not
/// in its file.
#[test]
fn istioctl_prunes_nothing_that_our_chart_has_adopted() {
    const PRUNED: &str = "operator.istio.io/managed=Reconcile,operator.istio.io/component";
    const KINDS: [&str; 5] = ["configmaps", "daemonsets", "rolebindings", "roles", "serviceaccounts"];
    let Some(helm) = Helm::find() else { return };
    let Some(api) = ApiServer::shared() else { return };
    let directory = TempDir::new().unwrap();
    let namespace = "release-istioctl".to_owned();
    api.create_namespace(&namespace);
    let path = |kind: &str| {
        let group = match kind {
            "daemonsets" => "apis/apps/v1",
            "rolebindings" | "roles" => "apis/rbac.authorization.k8s.io/v1",
            _ => "api/v1",
        };
        format!("/{group}/namespaces/release-istioctl/{kind}")
    };
    let selected = |selector: &str| -> Vec<String> {
        let paths = KINDS.into_iter().flat_map(|kind| {
            let list = api.admin().get(&format!("{}?labelSelector={selector}", path(kind)));
            let items = list["items"].as_array().unwrap().clone();
            items.into_iter().map(move |one| format!("{kind}/{}", one["metadata"]["name"].as_str().unwrap()))
        });
        paths.collect()
    };
    for mut one in recorded_objects(&named("1-29-1-ambient")) {
        one["metadata"]["labels"] =
            json!({"operator.istio.io/managed": "Reconcile", "operator.istio.io/component": "Cni"});
        let kind = one["kind"].as_str().unwrap().to_lowercase();
        api.admin().create(&path(&format!("{kind}s")), &one);
    }
    let release = Release { helm: &helm, api, kubeconfig: kubeconfig(api, directory.path()), namespace };
    let (chart, hub) = (chart(), format!("millrace.image.hub={HUB}"));
    let ours = ["global.resourceScope=namespace", &hub];
    release.helm(&[
        "upgrade",
        "--install",
        "istio-cni",
        chart.to_str().unwrap(),
        "--set",
        ours[0],
        "--set",
        ours[1],
        "--take-ownership",
    ]);
    let adopted = ["configmaps/istio-cni-config", "daemonsets/istio-cni-node", "serviceaccounts/istio-cni"];
    assert_eq!(selected(PRUNED), adopted, "Helm leaves the label where it was");

    let page = fs::read_to_string(repository("docs/migrate.md")).unwrap();
    let removed = page.split_whitespace().filter(|word| word.starts_with("operator.istio.io/"));
    let labels: Map<String, Value> =
        removed.filter_map(|word| Some((word.strip_suffix('-')?.to_owned(), Value::Null))).collect();
    for one in selected("operator.istio.io/component=Cni") {
        let (kind, name) = one.split_once('/').unwrap();
        api.admin().patch(&format!("{}/{name}", path(kind)), &json!({"metadata": {"labels": &labels}}));
    }
    for version in ["1", "2"] {
        let tag = format!("millrace.image.tag={version}");
        release.upgrade(&chart, &[&ours[..], &[tag.as_str()]].concat());
    }
    assert_eq!(selected(PRUNED), Vec::<String>::new());
}
