//! What `--help` of a program says, as values.

use std::path::PathBuf;
use std::process::Command;

/// Of one program, or of one of its sub-commands.
pub(super) struct Help {
    pub(super) command: String,
    /// A sentence; empty where there is nothing to say.
    pub(super) exit_status: String,
    pub(super) flags: Vec<HelpFlag>,
}

pub(super) struct HelpFlag {
    /// With dashes, the long one last.
    pub(super) names: Vec<String>,
    variables: Vec<String>,
    default: Option<String>,
    meaning: String,
}

impl HelpFlag {
    /// A row of a table in Markdown.
    pub(super) fn row(&self) -> String {
        let code =
            |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let default = self.default.as_ref().map(|value| format!("`{value}`")).unwrap_or_default();
        let meaning = self.meaning.replace('|', "\\|");
        format!("| {} | {} | {default} | {meaning} |\n", code(&self.names), code(&self.variables))
    }
}

/// Where cargo puts programs: beside the directory of the test's own.
fn built(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let path = own.parent()?.parent()?.join(program);
    path.exists().then_some(path)
}

/// Asks the program; nothing if it has not been built. The taint controller is the agent by another name.
pub(super) fn of(program: &str, command: &str) -> Option<Help> {
    let file = match program {
        "istio-cni-taint" => "install-cni",
        other => other,
    };
    let mut call = Command::new(built(file)?);
    std::os::unix::process::CommandExt::arg0(&mut call, program);
    let words = if command.is_empty() { vec!["--help"] } else { vec![command, "--help"] };
    let output = call.args(words).env_clear().output().unwrap();
    assert!(output.status.success(), "{program} {command} --help: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Some(Help {
        command: format!("{program} {command}").trim_end().to_owned(),
        exit_status: exit_status(&text),
        flags: flags(&text),
    })
}

/// `Exit status 0: …` or `Exit status: 0 …`, which may go on in the next lines.
fn exit_status(text: &str) -> String {
    let Some((_, rest)) = text.split_once("Exit status") else { return String::new() };
    let paragraph = rest.split("\n\n").next().unwrap().replace('\n', " ");
    let sentence = paragraph.split(". ").next().unwrap();
    sentence.trim_start_matches(':').trim().trim_end_matches('.').to_owned()
}

fn flags(text: &str) -> Vec<HelpFlag> {
    let Some((_, table)) = text.split_once("\nFlags:\n") else { return Vec::new() };
    let mut flags: Vec<HelpFlag> = Vec::new();
    for line in table.lines().take_while(|line| !line.is_empty()) {
        match (line.strip_prefix("        "), flags.last_mut()) {
            (Some(text), Some(flag)) => flag.describe(text),
            _ => {
                let words = line.split([' ', ',']).filter(|word| word.starts_with('-'));
                let names = words.map(str::to_owned).collect();
                flags.push(HelpFlag { names, variables: Vec::new(), default: None, meaning: String::new() });
            }
        }
    }
    flags.retain(|flag| flag.names.last().is_none_or(|name| name != "--help"));
    flags
}

impl HelpFlag {
    /// `meaning (default X) [VARIABLE, VARIABLE]`.
    fn describe(&mut self, text: &str) {
        let (text, variables) = match text.strip_suffix(']').and_then(|text| text.rsplit_once(" [")) {
            Some((text, variables)) => (text, variables),
            None => (text, ""),
        };
        self.variables = variables.split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let (meaning, default) = match text.strip_suffix(')').and_then(|text| text.rsplit_once(" (default "))
        {
            Some((meaning, default)) => (meaning, Some(default.to_owned())),
            None => (text, None),
        };
        meaning.clone_into(&mut self.meaning);
        self.default = default;
    }
}

#[test]
fn help_is_read_as_values() {
    let text = "Exit status 0: well; 1: not\nat all. More.\n\nFlags:\n  -p, --port string\n        a | port (default 1) [A, B]\n  -h, --help\n        this text\n";
    let flags = flags(text);
    assert_eq!(flags.len(), 1);
    assert_eq!(flags[0].row(), "| `-p`, `--port` | `A`, `B` | `1` | a \\| port |\n");
    assert_eq!(exit_status(text), "0: well; 1: not at all");
}
