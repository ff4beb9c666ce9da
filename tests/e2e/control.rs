//! The control plane: etcd and the three Kubernetes components, in the sandbox's own network.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kit::{Auth, Client, ISSUER, Pki, kubeconfig};
use serde_json::{Value, json};

/// The first service address, at which pods expect the API server. Without kube-proxy it is a local address.
pub(crate) const API: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const ADMIN_TOKEN: &str = "e2e-admin";

/// Directories of the cluster's programs and files.
pub(crate) struct Places {
    /// Programs that `hack/e2e` built, etcd among them.
    pub(crate) programs: PathBuf,
    /// Image archives.
    pub(crate) images: PathBuf,
    /// Working directory on the sandbox's own tmpfs, which is removed with the sandbox.
    pub(crate) work: PathBuf,
}

impl Places {
    /// Directories of a sandbox.
    pub(crate) fn new(programs: PathBuf, images: PathBuf) -> Self {
        Self { programs, images, work: "/run/e2e".into() }
    }

    /// Version of Kubernetes, as printed by its programs: `Kubernetes v1.34.4`.
    pub(crate) fn kubernetes(&self) -> String {
        let output = Command::new(self.programs.join("kubelet")).arg("--version").output();
        String::from_utf8_lossy(&output.expect("hack/e2e built it").stdout).trim().to_owned()
    }
}

/// The running control plane.
pub(crate) struct ControlPlane {
    pub(crate) admin: Client,
    programs: PathBuf,
    files: PathBuf,
    apiserver: Child,
    etcd: Child,
    controllers: Vec<Child>,
}

pub(crate) fn url() -> String {
    format!("https://{API}:443")
}

impl ControlPlane {
    pub(crate) fn start(places: &Places) -> Self {
        let files = places.work.join("control");
        // In the previous cluster's store, the node of the same name would be ready.
        fs::create_dir_all(&places.work).expect("cannot make a directory");
        fs::create_dir(&files).expect("the last control plane has removed its files");
        write_files(&files);
        let etcd = etcd(&places.programs, &files);
        let apiserver = apiserver(&places.programs, &files);
        let admin = Client::new(&url(), &Auth::Token(ADMIN_TOKEN.into()));
        let mut control = Self {
            admin,
            programs: places.programs.clone(),
            files,
            apiserver,
            etcd,
            controllers: Vec::new(),
        };
        control.wait_until_ready();
        control.start_controllers();
        control
    }

    fn wait_until_ready(&mut self) {
        let ready =
            || self.admin.try_request("GET", "/readyz", None).ok().filter(|answer| answer.status == 200);
        let ended = kit::found_within(Duration::from_secs(90), ready);
        assert!(
            ended.is_some(),
            "the API server does not start: {}",
            tail(&self.files.join("kube-apiserver.log"))
        );
    }

    fn start_controllers(&mut self) {
        let account = ["--service-account-private-key-file=token.key", "--root-ca-file=server-ca.pem"];
        let manager = [account[0], account[1], "--allocate-node-cidrs=false"];
        for (program, flags) in [("kube-controller-manager", &manager[..]), ("kube-scheduler", &[])] {
            self.controllers.push(controller(&self.programs, &self.files, program, flags));
        }
    }

    /// Kills the API server and the components that depend on it; further connections are refused.
    pub(crate) fn kill_apiserver(&mut self) {
        for mut child in self.controllers.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.apiserver.kill();
        let _ = self.apiserver.wait();
    }

    pub(crate) fn start_apiserver(&mut self) {
        self.apiserver = apiserver(&self.programs, &self.files);
        self.wait_until_ready();
        self.start_controllers();
    }

    /// Creates an object in the collection at `path`; it may already exist.
    pub(crate) fn apply(&self, path: &str, object: &Value) {
        let answer = self.admin.request("POST", path, Some(object));
        assert!([201, 409].contains(&answer.status), "POST {path}: {} {}", answer.status, answer.body);
    }

    /// An administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.files.join("admin.kubeconfig")
    }

    /// The object at a path, if it exists and the server answers.
    pub(crate) fn find(&self, path: &str) -> Option<Value> {
        let answer = self.admin.try_request("GET", path, None).ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    /// Pods of a namespace.
    pub(crate) fn pods(&self, namespace: &str) -> Vec<Value> {
        let mut list = self.find(&format!("/api/v1/namespaces/{namespace}/pods")).unwrap_or_default();
        let mut pods = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        for pod in &mut pods {
            // List items have neither.
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
        }
        pods
    }

    /// Deletes as `kubectl delete` and Helm do: with background propagation.
    pub(crate) fn delete(&self, path: &str) {
        let answer = self.admin.request("DELETE", &format!("{path}?propagationPolicy=Background"), None);
        assert!([200, 202, 404].contains(&answer.status), "DELETE {path}: {} {}", answer.status, answer.body);
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.kill_apiserver();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        let _ = fs::remove_dir_all(&self.files);
    }
}

fn write_files(files: &Path) {
    let pki = Pki::shared();
    let server = pki.server(&[IpAddr::from(API), Ipv4Addr::LOCALHOST.into()]);
    let kubelet_client = pki.client("kube-apiserver-kubelet-client", "system:masters");
    let (token_public, token_private) = pki.token_keys_pem();
    for (name, text) in [
        ("kubelet-client.pem", kubelet_client.cert_pem.as_str()),
        ("kubelet-client.key", &kubelet_client.key_pem),
        ("server.pem", server.cert_pem.as_str()),
        ("server.key", &server.key_pem),
        ("server-ca.pem", pki.server_ca_pem()),
        ("client-ca.pem", pki.client_ca_pem()),
        ("token.pub", &token_public),
        ("token.key", &token_private),
        ("tokens.csv", &format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n")),
        ("admin.kubeconfig", &kubeconfig(&url(), &Auth::Token(ADMIN_TOKEN.into()))),
    ] {
        fs::write(files.join(name), text).expect("cannot write a file");
    }
}

fn etcd(programs: &Path, files: &Path) -> Child {
    let mut command = Command::new(programs.join("etcd"));
    command.args([
        "--data-dir=etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]);
    start(&mut command, files, "etcd")
}

fn apiserver(programs: &Path, files: &Path) -> Child {
    let mut command = Command::new(programs.join("kube-apiserver"));
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        "--advertise-address=10.99.0.254",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--tls-cert-file=server.pem",
        "--tls-private-key-file=server.key",
        "--client-ca-file=client-ca.pem",
        "--kubelet-client-certificate=kubelet-client.pem",
        "--kubelet-client-key=kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--token-auth-file=tokens.csv",
        "--service-account-key-file=token.pub",
        "--service-account-signing-key-file=token.key",
        "--cert-dir=certs",
        &format!("--service-account-issuer={ISSUER}"),
    ]);
    start(&mut command, files, "kube-apiserver")
}

fn controller(programs: &Path, files: &Path, program: &str, flags: &[&str]) -> Child {
    let mut command = Command::new(programs.join(program));
    command.args(["--kubeconfig=admin.kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1"]);
    command.arg("--authentication-skip-lookup=true").args(flags);
    start(&mut command, files, program)
}

/// Starts a program in its own directory, with a log there.
fn start(command: &mut Command, files: &Path, name: &str) -> Child {
    let log = File::options().create(true).append(true).open(files.join(format!("{name}.log")));
    let log = log.expect("cannot make a log");
    command.current_dir(files).stdin(Stdio::null());
    command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"))
}

/// End of a file, for the message of a failure.
pub(crate) fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// A patch of an object's labels or annotations.
pub(crate) fn metadata(field: &str, key: &str, value: Option<&str>) -> Value {
    json!({"metadata": {field: {key: value}}})
}
