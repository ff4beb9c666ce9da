//! Shell completion scripts for the commands and their flags.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use flags::Flag;
use report::{CaptureState, Severity};

use super::list_formats;

/// Supported shells.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Text of `completion --help`.
pub(crate) const USAGE: &str =
    "install-cni completion prints a script by which a shell completes commands and their flags.

Usage: install-cni completion bash | zsh | fish

Examples:
  source <(install-cni completion bash)
  install-cni completion fish > ~/.config/fish/completions/install-cni.fish

Exit status 0: printed; 1: unknown shell.";

/// Command name, one-line summary, and the command's own flags; the agent's flags are in its help.
pub(crate) type Subcommand = (&'static str, &'static str, Vec<Flag>);

/// Returns the completion script of a shell.
///
/// # Errors
/// The shell is not supported.
pub(crate) fn shell_script(shell: &str, commands: &[Subcommand]) -> Result<String> {
    Ok(match shell {
        "bash" => bash_script(commands),
        "zsh" => {
            format!(
                "#compdef install-cni\nautoload -U +X bashcompinit && bashcompinit\n{}",
                bash_script(commands)
            )
        }
        "fish" => fish_script(commands),
        _ => bail!("completion: {shell:?} must be one of bash, zsh and fish"),
    })
}

/// Returns the enumerated values of a flag.
fn flag_values(command: &str, flag: &Flag) -> Vec<&'static str> {
    match flag.long {
        "output" if command == "version" => vec!["json", "yaml"],
        "output" => list_formats(command == "check"),
        "fail-on" => Severity::ALL.map(Severity::code).to_vec(),
        "state" => CaptureState::ALL.map(CaptureState::as_str).to_vec(),
        _ => Vec::new(),
    }
}

/// Returns the enumerated operands of a command.
fn operand_words(command: &str) -> &'static [&'static str] {
    if command == "completion" { &SHELLS } else { &[] }
}

fn bash_script(commands: &[Subcommand]) -> String {
    let names: Vec<&str> = commands.iter().map(|(name, ..)| *name).collect();
    let mut cases = String::new();
    for (name, _, flags) in commands {
        let _ = writeln!(cases, "    {name}) case $before in"); // writing to a String cannot fail
        for flag in flags.iter().filter(|flag| !flag.switch) {
            let short = flag.short.map(|short| format!(" | -{short}")).unwrap_or_default();
            let values = match flag.long {
                "file" => "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return".to_owned(),
                _ => format!("words=\"{}\"", flag_values(name, flag).join(" ")),
            };
            let _ = writeln!(cases, "        --{flag}{short}) {values} ;;");
        }
        let flags = flags.iter().map(|flag| format!("--{flag}"));
        let words = operand_words(name).iter().map(|word| (*word).to_owned()).chain(flags);
        let words = words.collect::<Vec<_>>().join(" ");
        let _ = writeln!(cases, "        *) words=\"{words} --help\" ;;\n      esac ;;");
    }
    // Bash splits --output=json into three words at the equals sign.
    format!(
        "_install_cni() {{
  local words=\"{} help --help\" word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  [[ $word != = ]] || word=
  [[ $before != = ]] || before=${{COMP_WORDS[COMP_CWORD - 2]}}
  ((COMP_CWORD == 1)) || case ${{COMP_WORDS[1]}} in
{cases}    help) words=\"{0}\" ;;
    *) words= ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")
}}
complete -F _install_cni install-cni
",
        names.join(" ")
    )
}

fn fish_script(commands: &[Subcommand]) -> String {
    let mut script = String::from("complete -c install-cni -f\n");
    let names: Vec<&str> = commands.iter().map(|(name, ..)| *name).collect();
    let help = ("help", "show the help of a command", Vec::new());
    for (name, summary, flags) in commands.iter().chain([&help]) {
        let quoted = quote_word(summary);
        let _ = writeln!(script, "complete -c install-cni -n __fish_use_subcommand -a {name} -d {quoted}");
        let below = format!("complete -c install-cni -n '__fish_seen_subcommand_from {name}'");
        let operands = if *name == "help" { &names } else { operand_words(name) };
        if !operands.is_empty() {
            let _ = writeln!(script, "{below} -a '{}'", operands.join(" "));
        }
        for flag in flags {
            let short = flag.short.map(|short| format!(" -s {short}")).unwrap_or_default();
            let value = match flag.long {
                _ if flag.switch => String::new(),
                "file" => " -r -F".to_owned(),
                _ => format!(" -x -a '{}'", flag_values(name, flag).join(" ")),
            };
            let _ = writeln!(script, "{below} -l {flag}{short}{value} -d {}", quote_word(flag.help));
        }
    }
    script
}

/// Quotes a text as one shell word.
fn quote_word(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
