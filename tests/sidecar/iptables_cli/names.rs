//! `install-cni` under the names of both tools, as in the images, compared with the tools themselves: all output is equal.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use kit::{Netns, binary};

use super::tool::{Ended, applied, ended, run, tempdir};
use crate::sidecar_kernel::state::{State, pod_netns};

const REDIRECT: &str = "istio-iptables";
const CLEAN: &str = "istio-clean-iptables";
/// Variables that would make the agent exit, or change its behaviour, at startup.
const AGENTS: [(&str, &str); 4] = [
    ("LOG_LEVEL", "nonsense"),
    ("KUBERNETES_SERVICE_HOST", "not an address"),
    ("CNI_NETWORK_CONFIG", "{"),
    ("CHAINED_CNI_PLUGIN", "perhaps"),
];

fn link(directory: &Path, name: &str, program: &Path) -> PathBuf {
    let path = directory.join(name);
    symlink(program, &path).unwrap();
    path
}

fn answer(ended: Ended) -> (i32, String, String) {
    (ended.code, ended.stdout, ended.stderr)
}

#[test]
fn the_agent_under_a_tools_name_answers_as_the_tool() {
    let (netns, bin) = (pod_netns("names"), tempdir());
    let before = State::of(&netns);
    let injected = ["-p", "15001", "-u", "1337", "-m", "TPROXY", "-i", "*", "-x", "", "-b", "*", "--dry-run"];
    let calls: [(&str, &[&str]); 9] = [
        (REDIRECT, &["--help"]),
        (REDIRECT, &["version"]),
        (REDIRECT, &["uninstall"]),
        (REDIRECT, &["-p", "http"]),
        (REDIRECT, &injected),
        (REDIRECT, &["--dry-run", "--restore-format=false", "--redirect-dns", "--dual-stack"]),
        (CLEAN, &["--help"]),
        (CLEAN, &["state"]),
        (CLEAN, &["--dry-run"]),
    ];
    for name in [REDIRECT, CLEAN] {
        link(bin.path(), name, &binary("install-cni"));
    }
    for (name, arguments) in calls {
        for env in [&[][..], &AGENTS] {
            let [alone, agent] = [binary(name), bin.path().join(name)]
                .map(|program| answer(run(&netns, &program, env, arguments)));
            assert_eq!(agent, alone, "{name} {arguments:?} {env:?}");
        }
    }
    State::of(&netns).assert_is(&before, "answers and dry runs");
}

#[test]
fn the_agent_under_a_tools_name_makes_and_removes_the_tools_rules() {
    let bin = tempdir();
    let [redirect, clean] = [REDIRECT, CLEAN].map(|name| link(bin.path(), name, &binary("install-cni")));
    let (by_tool, by_agent) = (pod_netns("tool"), pod_netns("agent"));
    let arguments = ["-b", "*", "-i", "*", "-d", "15020,15021,15090"];
    let alone = answer(run(&by_tool, &binary(REDIRECT), &[], &arguments));
    assert_eq!(answer(run(&by_agent, &redirect, &AGENTS, &arguments)), alone);
    State::of(&by_agent).assert_is(&State::of(&by_tool), "rules");
    let alone = answer(run(&by_tool, &binary(CLEAN), &[], &[]));
    assert_eq!(answer(run(&by_agent, &clean, &AGENTS, &[])), alone);
    State::of(&by_agent).assert_is(&State::of(&by_tool), "a removal");
}

/// As in `istio-validation`: the proxy's user, no capability, a read-only root.
fn confined(limit: &str, netns: &Netns, program: &Path) -> (i32, String, String) {
    let script = r#"mount -o remount,bind,ro /
        exec setpriv --reuid=1337 --regid=1337 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script, "sh"]).arg(program);
    command.args(["--run-validation", "--skip-rule-apply", "--probe-timeout", limit]);
    answer(ended(netns, command, &AGENTS))
}

#[test]
fn a_validation_needs_no_privilege_under_either_program() {
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let bin = tempdir();
    // A path from which every user may run them: a build directory may be accessible to its owner only.
    let [alone, agent] = ["alone", "install-cni"].map(|name| bin.path().join(name));
    kit::copy_program(&binary(REDIRECT), &alone);
    kit::copy_program(&binary("install-cni"), &agent);
    let agent = link(bin.path(), REDIRECT, Path::new("install-cni"));
    let netns = pod_netns("confined");
    let missed = confined("1500ms", &netns, &agent);
    assert_eq!((missed.0, missed.2.as_str()), (126, ""), "{missed:?}");
    assert_eq!(missed, confined("1500ms", &netns, &alone));
    applied(&netns, &[], &["-b", "*", "-i", "*"]);
    let proved = confined("20s", &netns, &agent);
    assert_eq!((proved.0, proved.2.as_str()), (0, ""), "{proved:?}");
    assert_eq!(proved, confined("20s", &netns, &alone));
}
