//! `--dry-run` and `--skip-rule-apply`: nothing changes, and the output is what would be applied.

use super::tool::{applied, tempdir};
use crate::sidecar_kernel::state::{State, pod_netns};

/// Calls that together cover everything that is printed at a special place or in a special format.
const CALLS: [&str; 5] = [
    "",
    "-i * -b * -d 15020,15021,15090 -o 15020 --dual-stack",
    "-i * -b * -m TPROXY --redirect-dns --capture-all-dns --drop-invalid --dual-stack -k vnet0 -c net1",
    "-i 10.0.0.0/8,fd00::/8 -b 80 -u 1,2 -g 3 -q 443 --dual-stack",
    "-i * -b * -c net$x;y,$(z) --iptables-trace-logging",
];

#[test]
fn a_dry_run_prints_the_same_each_time_and_changes_nothing() {
    let netns = pod_netns("dry");
    let before = State::of(&netns);
    for call in CALLS {
        for form in ["--restore-format=true", "--restore-format=false"] {
            let words: Vec<&str> = call.split_whitespace().chain([form]).collect();
            let flag = applied(&netns, &[], &[&words[..], &["--dry-run"]].concat());
            assert_eq!(applied(&netns, &[], &[&words[..], &["-n"]].concat()), flag);
            assert_eq!(applied(&netns, &[("DRY_RUN", "true")], &words), flag);
            let command = if form.ends_with("true") { "" } else { "iptables -t nat " };
            let rule = format!("{command}-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006");
            assert!(kit::has_line(&flag, &rule), "{flag}");
        }
    }
    State::of(&netns).assert_is(&before, "dry runs");
}

/// The output is a script; run by a shell, it creates what the tool creates.
#[test]
fn a_dry_runs_text_does_what_the_tool_does() {
    for call in CALLS {
        for form in ["--restore-format=true", "--restore-format=false"] {
            let words: Vec<&str> = call.split_whitespace().chain([form]).collect();
            let (by_tool, by_shell) = (pod_netns("tool"), pod_netns("shell"));
            applied(&by_tool, &[], &words);
            let script = applied(&by_shell, &[], &[&words[..], &["--dry-run"]].concat());
            by_shell.pipe("sh -eu", &script);
            State::of(&by_shell)
                .assert_is_but_for_route_protocols(&State::of(&by_tool), &format!("{call} {form}"));
        }
    }
}

#[test]
fn a_dry_run_can_write_a_file() {
    let (netns, dir) = (pod_netns("file"), tempdir());
    let file = dir.path().join("rules");
    let env = [("DRY_RUN_FILE_PATH", file.to_str().unwrap())];
    let printed = applied(&netns, &env, &["--dry-run", "-i", "*", "-b", "*"]);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.starts_with("*nat\n") && written.ends_with("COMMIT\n"), "{written}");
    assert!(printed.contains(&written), "{printed}\n{written}");
    netns.pipe("iptables-restore --test --noflush", &written);
    let unwritable = super::tool::istio_iptables(&netns, &[("DRY_RUN_FILE_PATH", "/nonexistent/x")], &["-n"]);
    assert_eq!(unwritable.code, 1);
    let why = "cannot write /nonexistent/x: No such file or directory (os error 2)";
    assert_eq!(unwritable.stderr, format!("istio-iptables: {why}\n"));
}

#[test]
fn skipping_the_rules_changes_nothing() {
    let netns = pod_netns("skip");
    let before = State::of(&netns);
    applied(&netns, &[], &["--skip-rule-apply", "-b", "*", "-m", "TPROXY"]);
    applied(&netns, &[("SKIP_RULE_APPLY", "true")], &["-b", "*"]);
    State::of(&netns).assert_is(&before, "skipped");
}
