//! A user's shell on the cluster: programs on the path, and an administrator's kubeconfig.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::agent::Agent;
use crate::control::Places;
use crate::fixture::Fixture;
use crate::machine::NAME;

/// Time limit for an answer that depends on the cluster's convergence.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Programs and settings of a user of the cluster.
pub(crate) struct Workplace {
    bin: PathBuf,
    kubeconfig: PathBuf,
    pub(crate) home: PathBuf,
    node_shell: String,
}

impl Workplace {
    /// Creates it with kubectl, Helm, our own command, and these programs.
    pub(crate) fn new(fixture: &Fixture, places: &Places, more: &[(&str, PathBuf)]) -> Self {
        let home = places.work.join("home");
        let bin = home.join("bin");
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&bin).expect("a directory of ours");
        let from = |variable: &str| PathBuf::from(std::env::var_os(variable).expect("hack/e2e sets it"));
        let millrace = Path::new("dist/millrace").canonicalize().expect("hack/build has built it");
        let traffic = std::env::current_exe().expect("a path").with_file_name("kit-traffic");
        let programs = [
            ("kubectl", from("MILLRACE_KUBECTL").join("kubectl")),
            ("helm", from("MILLRACE_HELM")),
            ("millrace", millrace.clone()),
            ("kubectl-millrace", millrace),
            ("kit-traffic", traffic),
        ];
        for (name, program) in programs.iter().chain(more) {
            symlink(program, bin.join(name)).expect("a link of ours");
        }
        Self { bin, kubeconfig: fixture.control.kubeconfig(), home, node_shell: fixture.machine.shell() }
    }

    /// A program with access to the cluster.
    pub(crate) fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command.env("PATH", format!("{}:{path}", self.bin.display())).env("KUBECONFIG", &self.kubeconfig);
        command.env("HOME", &self.home).env("CHART", Agent::our_chart()).env("NODE_SHELL", &self.node_shell);
        command
    }

    /// Shows a command line and its output, repeated until it succeeds and has these words.
    pub(crate) fn ask(&self, fixture: &mut Fixture, line: &str, words: &[&str]) {
        let ask = || self.command("sh").args(["-c", line]).output().expect("sh can be run");
        let text = |output: &Output| {
            let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
            String::from_utf8_lossy(&both).into_owned()
        };
        let is_expected = |output: &Output| {
            let text = text(output);
            output.status.success() && words.iter().all(|word| text.contains(word))
        };
        let answer = kit::found_within(ANSWER_LIMIT, || Some(ask()).filter(is_expected));
        let holds = answer.is_some();
        let answer = text(&answer.unwrap_or_else(ask));
        println!("\n{NAME} $ {line}");
        answer.lines().for_each(|line| fixture.checks.note(line));
        fixture.checks.check(holds, format!("{line}: {}", words.join(", ")));
    }

    /// Runs a shell until it exits.
    pub(crate) fn stay(&self) {
        let prompt = "millrace cluster \\w # ";
        drop(self.command("bash").args(["--norc", "-i"]).env("PS1", prompt).status());
    }
}
