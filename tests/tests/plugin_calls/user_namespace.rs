//! Pods with `hostUsers: false`: their network namespace belongs to a user namespace of their own, and its kernel takes rules
//! about users from nobody outside.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::stage::Stage;

/// The users of the pod are these of the node.
const FIRST_USER: u32 = 100_000;
const PORT: u16 = 15001;

/// A pod as the kubelet makes it, as far as its namespaces are concerned.
struct UserPod {
    process: Child,
    name: String,
}

impl UserPod {
    fn new(name: &str) -> UserPod {
        let own = fs::read_link("/proc/self/ns/user").unwrap();
        let mut command = Command::new("unshare");
        let process = command.args(["--user", "--net", "sleep", "600"]).spawn().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", process.id()));
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_link(proc.join("ns/user")).is_ok_and(|now| now == own) {
            assert!(Instant::now() < deadline, "unshare does not come to its namespaces");
            thread::sleep(Duration::from_millis(2)); // between two looks at another process
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(proc.join(map), format!("0 {FIRST_USER} 65536")).unwrap();
        }
        let pod = UserPod { name: format!("{name}-{}", process.id()), process };
        sh(&format!("ip netns attach {} {}", pod.name, pod.process.id()));
        let batch = [
            "link add eth0 type veth peer name peer0",
            "link set peer0 up",
            "link set eth0 up",
            "link set lo up",
        ];
        batch.iter().for_each(|line| drop(sh(&format!("ip -n {} {line}", pod.name))));
        sh(&format!("ip -n {} address add 10.244.1.2/24 dev eth0", pod.name));
        pod
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// A command in the pod, as one of its users.
    fn run(&self, user: u32, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--user", "--net", "--target", &self.process.id().to_string()]);
        command.args(["--setuid", &user.to_string(), "--setgid", &user.to_string(), "bash", "-c", script]);
        command.stdin(Stdio::null());
        command
    }

    /// Whether what this user sends to another pod arrives at the proxy.
    fn is_captured(&self, user: u32) -> bool {
        let script = "timeout 1 bash -c 'exec 3<>/dev/tcp/10.244.1.9/80; head -c 5 <&3'";
        let Output { stdout, .. } = self.run(user, script).output().unwrap();
        stdout == b"proxy"
    }

    /// Something that answers as the proxy, until the test ends.
    fn proxy(&self) {
        let netns = netns::Netns::open(self.path()).unwrap();
        let listener = netns.run_in(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))).unwrap().unwrap();
        thread::spawn(move || {
            listener.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"proxy")));
        });
    }
}

impl Drop for UserPod {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        sh(&format!("ip netns delete {}", self.name));
    }
}

fn sh(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The kernel does refuse: else the tests below prove nothing.
fn refuses_from_outside(pod: &UserPod, backend: &str) {
    let rule = format!("iptables-{backend} -t nat -A OUTPUT -m owner --uid-owner 1337 -j RETURN");
    let output =
        Command::new("ip").args(["netns", "exec", &pod.name]).args(rule.split(' ')).output().unwrap();
    assert!(!output.status.success(), "{rule} is accepted");
}

fn is_redirected(backend: &str) {
    if !kit::has_other_users() {
        return; // the machine lends us no users to map
    }
    let stage = Stage::new();
    let pod = UserPod::new(backend);
    refuses_from_outside(&pod, backend);
    // The plugin takes the backend that holds something.
    sh(&format!("ip netns exec {} iptables-{backend} -t nat -A OUTPUT -p udp --dport 9 -j RETURN", pod.name));
    pod.proxy();
    assert!(!pod.is_captured(0));
    let add = || super::stage::Call::new(&stage.node, "ADD").netns(&pod.path()).kubeconfig(&stage.kubeconfig);
    add().run().ok();
    assert!(pod.is_captured(0) && pod.is_captured(1000), "{backend}");
    assert!(!pod.is_captured(1337), "{backend}: the proxy's own");
    let save = || sh(&format!("ip netns exec {} iptables-{backend}-save -t nat", pod.name));
    assert!(save().contains("--uid-owner"), "{backend}: {}", save());
    let before = save();
    add().run().ok();
    let rules =
        |text: &str| text.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rules(&save()), rules(&before), "{backend}: a second time");
}

#[test]
fn a_pod_with_users_of_its_own_is_redirected_with_nft() {
    is_redirected("nft");
}

#[test]
fn a_pod_with_users_of_its_own_is_redirected_with_legacy() {
    is_redirected("legacy");
}
