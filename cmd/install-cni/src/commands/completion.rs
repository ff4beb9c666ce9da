//! Scripts by which shells complete the commands and their flags.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use flags::Flag;

/// The text of `completion --help`.
pub(crate) const USAGE: &str =
    "install-cni completion prints a script by which a shell completes commands and their flags.

Usage: install-cni completion bash | zsh | fish

Examples:
  source <(install-cni completion bash)
  install-cni completion fish > ~/.config/fish/completions/install-cni.fish

Exit status 0: printed; 1: unknown shell.";

/// A command's name, one line about it, and its own flags; those of the agent are in its help.
pub(crate) type Subcommand = (&'static str, &'static str, Vec<Flag>);

/// Returns the script for a shell.
///
/// # Errors
/// There is none for this shell.
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

fn bash_script(commands: &[Subcommand]) -> String {
    let names: Vec<&str> = commands.iter().map(|(name, ..)| *name).collect();
    let mut cases = String::new();
    for (name, _, flags) in commands {
        let flags: Vec<String> = flags.iter().map(|flag| format!("--{flag}")).collect();
        let _ = writeln!(cases, "    {name}) words=\"{} --help\" ;;", flags.join(" ")); // into a String
    }
    format!(
        "_install_cni() {{
  local words=\"{} help --help\"
  ((COMP_CWORD == 1)) || case ${{COMP_WORDS[1]}} in
{cases}    help) words=\"{0}\" ;;
    *) words= ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\")
}}
complete -F _install_cni install-cni
",
        names.join(" ")
    )
}

fn fish_script(commands: &[Subcommand]) -> String {
    let mut script = String::from("complete -c install-cni -f\n");
    for (name, summary, flags) in commands {
        let quoted = quote_word(summary);
        let _ = writeln!(script, "complete -c install-cni -n __fish_use_subcommand -a {name} -d {quoted}");
        for flag in flags {
            let short = flag.short.map(|short| format!(" -s {short}")).unwrap_or_default();
            let (value, help) = (if flag.switch { "" } else { " -r" }, quote_word(flag.help));
            let _ = writeln!(
                script,
                "complete -c install-cni -n '__fish_seen_subcommand_from {name}' -l {flag}{short}{value} -d {help}"
            );
        }
    }
    script
}

/// A text as one word of a shell.
fn quote_word(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
