//! `--run-validation` as the pod's init container runs it: as the proxy's user.

use std::{os::unix::process::CommandExt as _, path::PathBuf, process::Command, sync::OnceLock};

use kit::{Echo, Netns, Proto, Serve, binary};

use super::tool::{Ended, applied, ended};
use crate::sidecar_kernel::state::{State, pod_netns};

/// A copy of the tool that every user may run: a build directory may be accessible to its owner only.
fn tool() -> PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    let copy = || {
        let path = std::env::temp_dir().join(format!("istio-iptables-{}", std::process::id()));
        kit::copy_program(&binary("istio-iptables"), &path);
        path
    };
    COPY.get_or_init(copy).clone()
}

/// A validation that misses, soon.
fn validate(netns: &Netns, user: u32, arguments: &[&str]) -> Ended {
    validate_within("1.5s", netns, user, arguments)
}

/// A validation that succeeds, however slow the machine is.
fn prove(netns: &Netns, user: u32, arguments: &[&str]) -> Ended {
    validate_within("20s", netns, user, arguments)
}

fn validate_within(limit: &str, netns: &Netns, user: u32, arguments: &[&str]) -> Ended {
    let mut command = Command::new(tool());
    command.uid(user).gid(user).args(["--run-validation", "--probe-timeout", limit]).args(arguments);
    ended(netns, command, &[])
}

/// The whole output if a connection to this port was redirected.
fn passed(port: u16) -> String {
    format!("validation passed: a connection to port {port} arrived at the proxy's port\n")
}

fn v6_netns() -> Netns {
    let netns = pod_netns("v6");
    netns.sh("ip address del 10.1.0.2/24 dev eth0");
    netns
}

#[test]
fn the_redirection_is_proved_or_missed() {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    for backend in ["nft", "legacy"] {
        for (netns, why) in [
            (
                pod_netns("v4"),
                "127.0.0.6:15002 arrived at 15001 or 15006 within 1500 ms (last: Connection refused (os error 111))",
            ),
            (
                v6_netns(),
                "[::6]:15002 arrived at 15001 or 15006 within 1500 ms (last: Network is unreachable (os error 101))",
            ),
        ] {
            let before = State::of(&netns);
            let missed = validate(&netns, 1337, &["--skip-rule-apply"]);
            assert_eq!(missed.code, 126, "{missed:?}");
            let why = format!("validation failed: no connection to {why}");
            assert_eq!(missed.stdout.lines().next(), Some(&*why), "{missed:?}");
            State::of(&netns).assert_is(&before, "a validation");
            applied(&netns, &[], &["-b", "*", "-i", "*", "--iptables-backend", backend]);
            let proved = prove(&netns, 1337, &["--skip-rule-apply"]);
            assert_eq!((proved.code, proved.stdout), (0, passed(15002)), "{}", proved.stderr);
        }
    }
}

/// As in Istio: with exit status 126, repair would delete or label the pod.
#[test]
fn a_pod_without_an_address_is_not_validated() {
    let ended = validate(&Netns::new("bare"), 0, &["--skip-rule-apply"]);
    let why = "istio-iptables: the network namespace has no address beyond loopback and link-local ones\n";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (1, "", why));
}

/// For another user than the proxy's, no connection within the pod is redirected, so that nothing is proved.
#[test]
fn another_user_proves_nothing() {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let netns = pod_netns("other");
    applied(&netns, &[], &["-b", "*", "-i", "*"]);
    assert_eq!(validate(&netns, 1000, &["--skip-rule-apply"]).code, 126);
}

/// If the proxy already runs, its own ports are shared or in use; the probe port may be another.
#[test]
fn the_ports_of_the_validation_can_be_others() {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let netns = pod_netns("ports");
    applied(&netns, &[], &["-b", "*", "-i", "*", "-p", "16001", "-z", "16006"]);
    let others = ["--skip-rule-apply", "-p", "16001", "-z", "16006", "--iptables-probe-port", "17002"];
    let proved = prove(&netns, 1337, &others);
    assert_eq!((proved.code, proved.stdout), (0, passed(17002)), "{}", proved.stderr);
    assert_eq!(validate(&netns, 1337, &["--skip-rule-apply"]).code, 126, "listens where nothing arrives");
}

/// Rules and validation in one run, as in `istio-init` without the plugin: as root, which counts as the proxy only if configured
/// so.
#[test]
fn rules_and_validation_in_one_run() {
    let netns = pod_netns("both");
    let both = ["-b", "*", "-i", "*", "-u", "0", "-g", "0"];
    let ended = prove(&netns, 0, &both);
    assert_eq!(ended.code, 0, "{ended:?}");
    let redirected = format!("IPv4: redirected ({} backend)", firewall::available_backend().unwrap());
    assert_eq!(ended.stdout.lines().next(), Some(&*redirected), "{ended:?}");
    assert_eq!(ended.stdout.split_inclusive('\n').next_back(), Some(&*passed(15002)), "{ended:?}");
}

/// A proxy that uses one of the ports is no obstacle; one that uses both is.
#[test]
fn one_free_port_is_enough_to_listen() {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let netns = pod_netns("taken");
    applied(&netns, &[], &["-b", "*", "-i", "*"]);
    let outbound = Echo::start(&netns, &Serve::new(Proto::Tcp, 15001));
    assert_eq!(prove(&netns, 1337, &["--skip-rule-apply"]).code, 0);
    let inbound = Echo::start(&netns, &Serve::new(Proto::Tcp, 15006));
    let taken = validate(&netns, 1337, &["--skip-rule-apply"]);
    assert_eq!(taken.code, 126, "{taken:?}");
    let why = "cannot listen on 127.0.0.1:15001 nor on 127.0.0.1:15006: Address already in use (os error 98)";
    assert_eq!(taken.stdout.lines().next(), Some(&*format!("validation failed: {why}")), "{taken:?}");
    drop((outbound, inbound));
}
