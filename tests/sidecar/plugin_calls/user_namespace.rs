//! Pods with `hostUsers: false`: their network namespace belongs to their own user namespace, and the kernel rejects rules about
//! users from any process outside.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use kit::UserNetns;
use model::Family;
use proof::ProxyIdentity;
use report::ProofResult;

use crate::fixtures::plugin::PluginFixture;
use crate::iptables_cli::tool::tempdir;
use crate::sidecar_proof::spec;

const PORT: u16 = 15001;

/// A pod with the namespaces that the kubelet creates.
struct UserPod(UserNetns);

impl UserPod {
    fn new(name: &str) -> UserPod {
        let netns = UserNetns::new(name);
        let batch = [
            "link add eth0 type veth peer name peer0",
            "link set peer0 up",
            "link set eth0 up",
            "link set lo up",
            "address add 10.244.1.2/24 dev eth0",
        ];
        batch.iter().for_each(|line| drop(netns.ip(&format!("-n {} {line}", netns.name()))));
        UserPod(netns)
    }

    /// Runs a command in the pod's network namespace as the node's root.
    fn sh(&self, line: &str) -> String {
        self.0.ip(&format!("netns exec {} {line}", self.0.name()))
    }

    /// A command in the pod as one of its users.
    fn run(&self, user: u32, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--net", "--target", &self.0.pid().to_string()]);
        command.args(["--setuid", &user.to_string(), "--setgid", &user.to_string(), "bash", "-c", script]);
        command.stdin(Stdio::null());
        command
    }

    /// Whether packets of this user to another pod are redirected to the proxy.
    fn is_captured(&self, user: u32) -> bool {
        let script = "timeout 1 bash -c 'exec 3<>/dev/tcp/10.244.1.9/80; head -c 5 <&3'";
        let Output { stdout, .. } = self.run(user, script).output().unwrap();
        stdout == b"proxy"
    }

    /// Waits until packets of all users but the proxy's are captured: on a slow machine, one attempt may take too long.
    fn wait_until_captured(&self, what: &str) {
        for user in [0, 1000] {
            kit::until(format_args!("{what}: user {user} is captured"), || self.is_captured(user));
        }
    }

    /// Starts a listener in place of the proxy until the test ends.
    fn proxy(&self) {
        let netns = netns::Netns::open(self.0.path()).unwrap();
        let listener = netns.run_in(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))).unwrap().unwrap();
        thread::spawn(move || {
            listener.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"proxy")));
        });
    }
}

/// Asserts that the kernel refuses: otherwise the tests below prove nothing.
fn refuses_from_outside(pod: &UserPod, backend: &str) {
    let rule = format!("iptables-{backend} -w -t nat -A OUTPUT -m owner --uid-owner 1337 -j RETURN");
    let output =
        Command::new("ip").args(["netns", "exec", pod.0.name()]).args(rule.split(' ')).output().unwrap();
    assert!(!output.status.success(), "{rule} is accepted");
}

/// As an init container of such a pod: no process in it may exceed the node's limits of socket buffers. Its network namespace
/// exists only after the users are mapped.
#[test]
fn very_many_rules_are_made_from_within() {
    if !kit::has_other_users() {
        return kit::skip("the machine lends us no users to map");
    }
    let (pod, directory) = (UserPod::new("many"), tempdir());
    let tool = directory.path().join("istio-iptables");
    kit::copy_program(&kit::binary("istio-iptables"), &tool);
    let ports: Vec<String> = (20_000..20_500).map(|port| port.to_string()).collect();
    let script = format!(
        "exec unshare --net bash -euc 'ip link add eth0 type veth peer name peer0
        ip link set eth0 up
        ip link set peer0 up
        ip link set lo up
        ip address add 10.244.1.2/24 dev eth0
        {} -b \"*\" -i \"*\" -d {} >&2
        nft list chain ip nat ISTIO_INBOUND'",
        tool.display(),
        ports.join(",")
    );
    let output = pod.run(0, &script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap().lines().count();
    assert!(lines > ports.len(), "{lines} lines");
}

fn is_redirected(backend: &str) {
    if !kit::has_other_users() {
        return kit::skip("the machine lends us no users to map");
    }
    let fixture = PluginFixture::new();
    let pod = UserPod::new(backend);
    refuses_from_outside(&pod, backend);
    // The plugin uses the backend that has rules.
    let _ = pod.sh(&format!("iptables-{backend} -w -t nat -A OUTPUT -p udp --dport 9 -j RETURN"));
    pod.proxy();
    assert!(!pod.is_captured(0));
    let add = || {
        crate::fixtures::plugin::Call::new(&fixture.node, "ADD")
            .netns(&pod.0.path())
            .kubeconfig(&fixture.kubeconfig)
    };
    add().run().ok();
    pod.wait_until_captured(backend);
    assert!(!pod.is_captured(1337), "{backend}: the proxy's own");
    let save = || pod.sh(&format!("iptables-{backend}-save -t nat"));
    let of_proxy = "-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN";
    assert!(save().lines().any(|line| line == of_proxy), "{backend}: {}", save());
    let before = save();
    add().run().ok();
    let rules =
        |text: &str| text.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rules(&save()), rules(&before), "{backend}: a second time");
}

/// The proxy's user has another ID on the node, from which the packets are sent.
#[test]
fn a_pod_with_users_of_its_own_is_proven() {
    if !kit::has_other_users() {
        return kit::skip("the machine lends us no users to map");
    }
    let fixture = PluginFixture::new();
    let pod = UserPod::new("proof");
    let _ = pod.sh("ip route add default via 10.244.1.1");
    pod.proxy();
    let add = crate::fixtures::plugin::Call::new(&fixture.node, "ADD").netns(&pod.0.path());
    add.kubeconfig(&fixture.kubeconfig).run().ok();
    let netns = netns::Netns::open(pod.0.path()).unwrap();
    let users = netns.foreign_owner().unwrap().unwrap();
    let on_node = users.owner_on_node(Path::new("/proc"), 1337, 1337);
    let proxy = |on_node| ProxyIdentity::Owner { uid: 1337, gid: 1337, on_node };
    let object = kit::istio::injected_pod("shop", "web");
    for (on_node, expected) in [
        (on_node, [ProofResult::Proven, ProofResult::Proven]),
        (None, [ProofResult::Proven, ProofResult::NotTestable]),
        // Another user, whose traffic is redirected.
        (Some((1337, 1337)), [ProofResult::Proven, ProofResult::Held]),
    ] {
        let found = proof::prove(&netns, None, &spec(&object, &[Family::V4], proxy(on_node))).unwrap();
        let sent = found.iter().filter(|path| !path.name.starts_with("inbound-"));
        let results: Vec<ProofResult> = sent.map(|path| path.result).collect();
        assert_eq!(results, expected, "{found:#?}");
    }
}

/// On a node without tools, and with the setting on any node.
#[test]
fn a_pod_with_users_of_its_own_is_redirected_by_native_tables_without_tools() {
    if !kit::has_other_users() {
        return kit::skip("the machine lends us no users to map");
    }
    let fixture = PluginFixture::new();
    for (name, path, setting) in
        [("none", "/nowhere", false), ("native", "/usr/sbin:/usr/bin:/sbin:/bin", true)]
    {
        let pod = UserPod::new(name);
        pod.proxy();
        let call = |command| {
            let call = crate::fixtures::plugin::Call::new(&fixture.node, command)
                .netns(&pod.0.path())
                .kubeconfig(&fixture.kubeconfig);
            call.env("PATH", path).with("native_nftables", serde_json::json!(setting))
        };
        call("ADD").run().ok();
        pod.wait_until_captured(name);
        assert!(!pod.is_captured(1337), "{name}: the proxy's own");
        call("CHECK").run().ok();
        assert_eq!(pod.sh("nft list tables"), "table inet istio-proxy-nat\n", "{name}");
    }
}

#[test]
fn a_pod_with_users_of_its_own_is_redirected_with_nft() {
    is_redirected("nft");
}

#[test]
fn a_pod_with_users_of_its_own_is_redirected_with_legacy() {
    is_redirected("legacy");
}
