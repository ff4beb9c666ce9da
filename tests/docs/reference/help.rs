//! Output of a program's `--help`, as values.

use std::path::PathBuf;
use std::process::Command;

/// The program whose flags are parsed by clap, not by `flags`.
const CLAP: &str = "millrace";

/// Help of a program, or of one of its sub-commands.
pub(super) struct Help {
    pub(super) command: String,
    /// A sentence; empty if the help has none.
    pub(super) exit_status: String,
    pub(super) flags: Vec<HelpFlag>,
}

pub(super) struct HelpFlag {
    /// With dashes, the long one last.
    names: Vec<String>,
    variables: Vec<String>,
    default: Option<String>,
    meaning: String,
}

impl HelpFlag {
    /// A row of a Markdown table.
    pub(super) fn row(&self) -> String {
        let code =
            |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let default = self.default.as_ref().map(|value| format!("`{value}`")).unwrap_or_default();
        // A placeholder in angle brackets would be parsed as HTML.
        let meaning = self.meaning.replace('|', "\\|").replace('<', "\\<");
        format!("| {} | {} | {default} | {meaning} |\n", code(&self.names), code(&self.variables))
    }
}

/// Path of a program in cargo's directory, beside that of the test.
fn built(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let path = own.parent()?.parent()?.join(program);
    path.exists().then_some(path)
}

/// Runs the program; `None` if it has not been built. The taint controller is the agent under another name, as the tools are in
/// the image.
pub(super) fn text(program: &str, command: &str) -> Option<String> {
    let file = match program {
        "istio-cni-taint" => "install-cni",
        other => other,
    };
    let mut call = Command::new(built(file)?);
    std::os::unix::process::CommandExt::arg0(&mut call, program);
    let output = call.args(command.split_whitespace().chain(["--help"])).env_clear().output().unwrap();
    assert!(output.status.success(), "{program} {command} --help: {output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The parsed help.
pub(super) fn of(program: &str, command: &str) -> Option<Help> {
    let text = text(program, command)?;
    Some(Help {
        command: format!("{program} {command}").trim_end().to_owned(),
        exit_status: exit_status(&text),
        flags: if program == CLAP { clap_flags(&text) } else { flags(&text) },
    })
}

/// `Exit status 0: …` or `Exit status: 0 …`, which may continue in the next lines.
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

/// Indentation of clap's description of a flag.
const BELOW_FLAG: &str = "          ";

/// Parses clap's format: sections with flags, and below each flag paragraphs, values and the default.
fn clap_flags(text: &str) -> Vec<HelpFlag> {
    let mut flags: Vec<HelpFlag> = Vec::new();
    let mut is_flags = false;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let words = line.trim();
        if !line.starts_with(' ') {
            is_flags = ["Options:", "Flags of every command:"].contains(&line);
        } else if is_flags && !line.starts_with(BELOW_FLAG) {
            let names = words.split([' ', ',']).filter(|word| word.starts_with('-'));
            let names = names.map(str::to_owned).collect();
            flags.push(HelpFlag { names, variables: Vec::new(), default: None, meaning: String::new() });
        } else if let Some(flag) = flags.last_mut().filter(|_| is_flags) {
            flag.describe_for_clap(words);
        }
    }
    flags.retain(|flag| !["--help", "--version"].map(Some).contains(&flag.names.last().map(String::as_str)));
    flags
}

impl HelpFlag {
    /// Parses one line below a flag.
    fn describe_for_clap(&mut self, line: &str) {
        let bracket = |name: &str| line.strip_prefix(name).and_then(|rest| rest.strip_suffix(']'));
        if let Some(default) = bracket("[default: ") {
            self.default = Some(default.to_owned());
        } else if line == "Possible values:" {
            self.meaning.push_str(". Values:");
        } else if let Some(value) = line.strip_prefix("- ") {
            let separator = if self.meaning.ends_with("Values:") { " " } else { "; " };
            self.meaning.push_str(separator);
            self.meaning.push_str(&value.split_whitespace().collect::<Vec<_>>().join(" "));
        } else {
            let separator = if self.meaning.is_empty() { "" } else { " " };
            self.meaning.push_str(separator);
            self.meaning.push_str(line);
        }
    }

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

#[test]
fn the_help_of_clap_is_read_as_values() {
    let text = "Does it.\n\nExit status: 0: well;\n1: not.\n\nUsage: x [OPTIONS] <POD>\n\nArguments:\n  <POD>\n          -n or not\n\nOptions:\n  \
                -o, --output <FORMAT>\n          Output\n          -f or\n          format\n\n          Possible values:\n          - table: For people\n          \
                - json:  One value\n          \n          [default: table]\n\n  -h, --help\n          Print help\n";
    let flags = clap_flags(text);
    assert_eq!(flags.len(), 1);
    let row = "| `-o`, `--output` |  | `table` | Output -f or format. Values: table: For people; json: One value |\n";
    assert_eq!(flags[0].row(), row);
    assert_eq!(exit_status(text), "0: well; 1: not");
}
