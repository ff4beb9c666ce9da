//! A real API server with its etcd, started once per test process, in the sandbox's own namespace. Nodes connect to it at
//! [`ApiServer::url`]; it ends with the sandbox.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::artefacts::{require_sandbox, skip};
use crate::client::Client;
use crate::netns::{in_sandbox, pipe_here};
use crate::node::{API_V4, API_V6};
use crate::pki::{ISSUER, Pki};
use crate::pod::fresh_uuid;
use crate::wait::{found_within, until_within};

/// An API server for tests.
#[derive(Debug)]
pub struct ApiServer {
    files: TempDir,
    admin: Client,
    // Held, not waited for: both end with the sandbox.
    _etcd: Child,
    _apiserver: Child,
}

/// Credential of a client.
#[derive(Debug, Clone)]
pub enum Auth {
    /// Bearer token.
    Token(String),
    /// Bearer token from a file.
    TokenFile(PathBuf),
    /// Client certificate of this user and group.
    ClientCert {
        /// The user's name.
        user: String,
        /// The user's only group.
        group: String,
    },
    /// Bearer token; the client does not verify the server's certificate.
    Insecure(String),
    /// No credential.
    Anonymous,
}

/// One request that the API server received, from its audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The user, empty if not authenticated.
    pub user: String,
    /// The client's `User-Agent`.
    pub user_agent: String,
    /// The Kubernetes verb: get, list, watch, ...
    pub verb: String,
    /// The resource, such as `pods`; empty for a path that names none.
    pub resource: String,
    /// Path and query.
    pub uri: String,
}

impl Request {
    /// Value of a query parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        parameter(&self.uri, name)
    }
}

/// Value of a query parameter of a request, decoded; `request` is path and query, or the query alone.
#[must_use]
pub fn parameter(request: &str, name: &str) -> Option<String> {
    let query = request.split_once('?').map_or(request, |(_, query)| query);
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut parts = value.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2).expect("an encoded character has two digits");
        decoded.push(u8::from_str_radix(code, 16).expect("which are hexadecimal").into());
        decoded.push_str(rest);
    }
    Some(decoded)
}

/// Whether a segment of the request's path is this resource, such as `pods`.
#[must_use]
pub fn has_segment(request: &str, segment: &str) -> bool {
    let path = request.split('?').next().unwrap_or_default();
    path.split('/').any(|one| one == segment)
}

/// Whether a request, as for [`parameter`], is a watch.
#[must_use]
pub fn is_watch(request: &str) -> bool {
    parameter(request, "watch").as_deref() == Some("true")
}

/// Whether a request, as for [`parameter`], is a watch that begins with a list.
#[must_use]
pub fn is_streaming_list(request: &str) -> bool {
    is_watch(request) && parameter(request, "sendInitialEvents").as_deref() == Some("true")
}

/// A pod for [`ApiServer::store_pods`].
#[derive(Debug)]
pub struct StoredPod {
    /// Namespace of the pod.
    pub namespace: &'static str,
    /// Name of the pod.
    pub name: String,
    /// Name of its node.
    pub node: String,
    /// Value of its label `app`; `None` means no such label.
    pub app: Option<&'static str>,
}

/// Creation time of [`StoredPod`]s, in seconds since 1970: the start of 2026.
const CREATED: u64 = 1_767_225_600;
/// URL of etcd.
const ETCD: &str = "http://127.0.0.1:2379";
/// Version that [`hack/envtest`](../../../hack/envtest) builds.
const VERSION: &str = "v1.34.4";
const PORT: u16 = 6443;
const ADMIN_TOKEN: &str = "kit-admin";
const START_LIMIT: Duration = Duration::from_secs(90);

impl ApiServer {
    /// The API server of this process, started by the first call.
    ///
    /// `None` means that this machine has none and that the test is [skipped](skip); the caller returns.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<ApiServer>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| assets().map(|assets| Self::start(&assets))).as_ref();
        if shared.is_none() {
            skip("no kube-apiserver and etcd: run hack/envtest, or set KUBEBUILDER_ASSETS");
        }
        shared
    }

    /// Address and port for every node; the address is what a cluster's first service would have.
    #[must_use]
    pub fn address() -> (IpAddr, u16) {
        (API_V4.into(), PORT)
    }

    /// URL for every node.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{API_V4}:{PORT}")
    }

    /// URL over IPv6 for every node.
    #[must_use]
    pub fn url_v6(&self) -> String {
        format!("https://[{API_V6}]:{PORT}")
    }

    /// PEM certificate of the CA that signed the server's certificate.
    #[must_use]
    pub fn ca_pem(&self) -> &'static str {
        Pki::shared().server_ca_pem()
    }

    /// A client with all permissions.
    #[must_use]
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    /// A client in the sandbox's own namespace.
    #[must_use]
    pub fn client(&self, auth: &Auth) -> Client {
        Client::new(&local_url(), auth)
    }

    /// Creates a namespace.
    pub fn create_namespace(&self, name: &str) -> Value {
        self.admin.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
    }

    /// Creates a pod in the namespace of its object, and returns it as stored.
    pub fn create_pod(&self, pod: &Value) -> Value {
        let namespace = pod["metadata"]["namespace"].as_str().expect("the pod names its namespace");
        self.admin.create(&format!("/api/v1/namespaces/{namespace}/pods"), pod)
    }

    /// Writes many pods to etcd as if they had been created, at a twentieth of the cost.
    ///
    /// # Panics
    /// If etcd does not accept them.
    pub fn store_pods(&self, pods: impl IntoIterator<Item = StoredPod>) {
        let etcd = Client::new(ETCD, &Auth::Anonymous);
        let puts: Vec<Value> = pods.into_iter().map(|pod| put_of_pod(&pod)).collect();
        // The most operations that etcd accepts in a transaction.
        for puts in puts.chunks(128) {
            let answer = etcd.request("POST", "/v3/kv/txn", Some(&json!({"success": puts})));
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }

    /// The smallest valid pod, for the caller to complete.
    #[must_use]
    pub fn pod(namespace: &str, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name, "labels": {}, "annotations": {}},
            "spec": {"containers": [{"name": "app", "image": "app"}]},
        })
    }

    /// Creates a service account with these `rules` of a ClusterRole, and returns a token for it that is valid for an hour. The
    /// rules are in force when this returns.
    pub fn service_account(&self, namespace: &str, name: &str, rules: &Value) -> String {
        let uid = self.create_account(namespace, name);
        let role = format!("kit:{namespace}:{name}");
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        self.admin
            .create(&format!("{rbac}/clusterroles"), &json!({"metadata": {"name": role}, "rules": rules}));
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
        });
        self.admin.create(&format!("{rbac}/clusterrolebindings"), &binding);
        let user = format!("system:serviceaccount:{namespace}:{name}");
        for rule in rules.as_array().into_iter().flatten() {
            self.wait_until_allowed(&user, rule);
        }
        self.mint_token(namespace, name, &uid, SystemTime::now() + Duration::from_secs(3600))
    }

    /// A token of a service account that ends at `expiry`, which may be in the past.
    #[must_use]
    pub fn mint_token(&self, namespace: &str, account: &str, uid: &str, expiry: SystemTime) -> String {
        Pki::shared().token(namespace, account, uid, expiry)
    }

    /// A kubeconfig for nodes.
    #[must_use]
    pub fn kubeconfig(&self, auth: &Auth) -> String {
        kubeconfig(&self.url(), auth)
    }

    /// All requests so far from the audit log, each once, refused ones included.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.requests_with("")
    }

    /// Requests whose line in the audit log contains `text`: cheap to poll.
    #[must_use]
    pub fn requests_with(&self, text: &str) -> Vec<Request> {
        let log = fs::read_to_string(self.files.path().join("audit.log")).unwrap_or_default();
        let mut seen = std::collections::BTreeSet::new();
        let lines = log.lines().filter(|line| line.contains(text));
        // The server may not have finished the last line.
        let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events
            .filter(|event| seen.insert(event["auditID"].to_string()))
            .map(|event| request(&event))
            .collect()
    }

    /// Requests of this user that were refused (403), as verb and URI, without those that the kit sent as this user.
    #[must_use]
    pub fn refused(&self, user: &str) -> Vec<String> {
        let log = fs::read_to_string(self.files.path().join("audit.log")).unwrap_or_default();
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let refused = events.filter(|event| {
            event["responseStatus"]["code"] == 403
                && event["stage"] == "ResponseComplete"
                && event["user"]["username"] == user
                && event["userAgent"] != "kit"
        });
        refused.map(|event| request(&event)).map(|one| format!("{} {}", one.verb, one.uri)).collect()
    }

    /// Whether the server streams lists (`sendInitialEvents`): with an etcd before 3.5 it refuses, and clients have to list.
    #[must_use]
    pub fn streams_lists(&self) -> bool {
        let query =
            "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let path = format!("/api/v1/namespaces?{query}&timeoutSeconds=1");
        let answer = self.admin.request("GET", &path, None);
        answer.status == 200 && answer.body["type"] != "ERROR"
    }

    /// Requests for pods by clients whose user agent starts with `user_agent`.
    #[must_use]
    pub fn requests_to_pods(&self, user_agent: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.resource == "pods" && request.user_agent.starts_with(user_agent));
        requests
    }

    fn start(assets: &Path) -> Self {
        require_sandbox();
        let files = tempfile::Builder::new().prefix("api").tempdir().expect("cannot make a temp dir");
        write_files(files.path());
        in_sandbox(|| {
            let addresses =
                format!("address replace {API_V4}/32 dev lo\naddress replace {API_V6}/128 dev lo nodad");
            pipe_here("ip -batch -", &addresses);
            let etcd = start_etcd(&assets.join("etcd"), files.path());
            let apiserver = start_apiserver(&assets.join("kube-apiserver"), files.path());
            let admin = Client::new(&local_url(), &Auth::Token(ADMIN_TOKEN.into()));
            let mut server = Self { files, admin, _etcd: etcd, _apiserver: apiserver };
            server.wait_until_ready();
            server
        })
    }

    fn wait_until_ready(&mut self) {
        let mut last = None;
        let ready = found_within(START_LIMIT, || {
            // The server is ready before it has created its namespaces, of which this is the last that tests use.
            let paths = ["/readyz", "/api/v1/namespaces/default"];
            let is_there = |path: &str| {
                last = Some(self.admin.try_request("GET", path, None));
                matches!(&last, Some(Ok(answer)) if answer.status == 200)
            };
            let is_ready = paths.into_iter().all(is_there);
            let has_ended = self._apiserver.try_wait().expect("a child can be asked").is_some();
            (is_ready || has_ended).then_some(is_ready)
        });
        assert_eq!(ready, Some(true), "the API server does not start ({last:?}): {}", self.log_tail());
    }

    fn log_tail(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.files.path().join(name)).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        format!("etcd:\n{}\nkube-apiserver:\n{}", tail("etcd.log"), tail("apiserver.log"))
    }

    /// Creates the service account and returns its UID.
    fn create_account(&self, namespace: &str, name: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let account = self.admin.create(&path, &json!({"metadata": {"name": name}}));
        account["metadata"]["uid"].as_str().expect("stored objects have a UID").to_owned()
    }

    /// Waits for new rules: the authorizer receives them from its own watch, a moment after they are stored.
    fn wait_until_allowed(&self, user: &str, rule: &Value) {
        let Some(resource) = rule["resources"][0].as_str() else { return };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = json!({
            "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource,
            "subresource": subresource, "name": rule["resourceNames"][0],
        });
        let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
        until_within(START_LIMIT, format_args!("{user} is allowed {rule}"), || {
            let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            self.admin.create(reviews, &review)["status"]["allowed"] == json!(true)
        });
    }
}

/// A kubeconfig with one cluster, user and context, in block-style YAML.
#[must_use]
pub fn kubeconfig(url: &str, auth: &Auth) -> String {
    let trust = match auth {
        Auth::Insecure(_) => "insecure-skip-tls-verify: true".to_owned(),
        _ => format!("certificate-authority-data: {}", STANDARD.encode(Pki::shared().server_ca_pem())),
    };
    let user = match auth {
        Auth::Token(token) | Auth::Insecure(token) => format!("token: \"{token}\""),
        Auth::TokenFile(path) => format!("tokenFile: {}", path.display()),
        Auth::ClientCert { user, group } => {
            let certificate = Pki::shared().client(user, group);
            let (cert, key) = (STANDARD.encode(&certificate.cert_pem), STANDARD.encode(&certificate.key_pem));
            format!("client-certificate-data: {cert}\n    client-key-data: {key}")
        }
        Auth::Anonymous => "{}".to_owned(),
    };
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    server: {url}\n    {trust}\n\
         users:\n- name: kit\n  user:\n    {user}\n\
         contexts:\n- name: kit\n  context:\n    cluster: local\n    user: kit\ncurrent-context: kit\n"
    )
}

fn local_url() -> String {
    format!("https://127.0.0.1:{PORT}")
}

/// The directory with both programs, if it exists; only `hack/envtest` builds them.
fn assets() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || {
        let cache = variable("MILLRACE_CACHE").or_else(|| {
            Some(
                variable("XDG_CACHE_HOME")
                    .or_else(|| Some(variable("HOME")?.join(".cache")))?
                    .join("millrace"),
            )
        });
        cache.map(|cache| cache.join(format!("envtest-{VERSION}")))
    };
    let directory = variable("KUBEBUILDER_ASSETS").or_else(cache)?;
    ["etcd", "kube-apiserver"].iter().all(|name| directory.join(name).is_file()).then_some(directory)
}

/// An operation of etcd's JSON API that stores a pod, with the fields that the API server would have added.
///
/// In protobuf, as the API server stores pods: it decodes all of them for each list, and decoding JSON takes many times as long.
fn put_of_pod(pod: &StoredPod) -> Value {
    let (namespace, name, labels) = (pod.namespace, pod.name.as_str(), pod.app.iter());
    let label = |app: &&str| field(11, &[field(1, b"app"), field(2, app.as_bytes())].concat());
    let metadata = [
        field(1, name.as_bytes()),
        field(3, namespace.as_bytes()),
        field(5, fresh_uuid().as_bytes()),
        field(8, &[&[1 << 3], varint(CREATED).as_slice()].concat()),
        labels.flat_map(label).collect(),
    ];
    let container = [field(1, b"app"), field(2, b"app")].concat();
    let spec = [field(2, &container), field(10, pod.node.as_bytes())].concat();
    let status = [field(1, b"Pending"), field(9, b"BestEffort")].concat();
    let object = [field(1, &metadata.concat()), field(2, &spec), field(3, &status)].concat();
    let kind = [field(1, b"v1"), field(2, b"Pod")].concat();
    let value = [b"k8s\0", field(1, &kind).as_slice(), &field(2, &object)].concat();
    let key = format!("/registry/pods/{namespace}/{name}");
    json!({"requestPut": {"key": STANDARD.encode(key), "value": STANDARD.encode(value)}})
}

/// A length-delimited field of a protobuf message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], varint(value.len() as u64).as_slice(), value].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Writes certificates, keys, tokens and the audit policy.
fn write_files(directory: &Path) {
    let pki = Pki::shared();
    let addresses: [IpAddr; 4] =
        [API_V4.into(), API_V6.into(), Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let server = pki.server(&addresses);
    let kubelet_client = pki.client("kube-apiserver-kubelet-client", "system:masters");
    let (token_public, token_private) = pki.token_keys_pem();
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    for (name, text) in [
        ("server.pem", server.cert_pem.as_str()),
        ("server.key", &server.key_pem),
        ("client-ca.pem", pki.client_ca_pem()),
        ("server-ca.pem", pki.server_ca_pem()),
        ("kubelet-client.pem", &kubelet_client.cert_pem),
        ("kubelet-client.key", &kubelet_client.key_pem),
        ("token.pub", &token_public),
        ("token.key", &token_private),
        ("tokens.csv", &format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n")),
        ("audit.json", &policy.to_string()),
    ] {
        fs::write(directory.join(name), text).expect("cannot write a file");
    }
}

fn start_etcd(program: &Path, files: &Path) -> Child {
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(files.join("etcd"));
    command.args([format!("--listen-client-urls={ETCD}"), format!("--advertise-client-urls={ETCD}")]);
    command.args(["--listen-peer-urls=http://127.0.0.1:2380"]);
    start_logged(&mut command, &files.join("etcd.log"))
}

fn start_apiserver(program: &Path, files: &Path) -> Child {
    let mut command = Command::new(program);
    for (flag, file) in [
        ("tls-cert-file", "server.pem"),
        ("tls-private-key-file", "server.key"),
        ("client-ca-file", "client-ca.pem"),
        ("kubelet-certificate-authority", "server-ca.pem"),
        ("kubelet-client-certificate", "kubelet-client.pem"),
        ("kubelet-client-key", "kubelet-client.key"),
        ("token-auth-file", "tokens.csv"),
        ("service-account-key-file", "token.pub"),
        ("service-account-signing-key-file", "token.key"),
        ("audit-policy-file", "audit.json"),
        ("audit-log-path", "audit.log"),
        ("cert-dir", "certs"),
    ] {
        command.arg(format!("--{flag}={}", files.join(file).display()));
    }
    command.args([
        &format!("--etcd-servers={ETCD}"),
        "--bind-address=::",
        &format!("--secure-port={PORT}"),
        // Nothing answers at this address; without kube-proxy no client connects to it either.
        "--advertise-address=10.97.0.1",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        &format!("--service-account-issuer={ISSUER}"),
        // Pods have no service account: no controller would create one.
        "--disable-admission-plugins=ServiceAccount",
        "--allow-privileged=true",
    ]);
    start_logged(&mut command, &files.join("apiserver.log"))
}

fn start_logged(command: &mut Command, log: &Path) -> Child {
    let log = File::create(log).expect("cannot make a log");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
    command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"))
}

fn request(event: &Value) -> Request {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Request {
        user: text(&event["user"]["username"]),
        user_agent: text(&event["userAgent"]),
        verb: text(&event["verb"]),
        resource: text(&event["objectRef"]["resource"]),
        uri: text(&event["requestURI"]),
    }
}
