use std::collections::BTreeSet;

use super::*;
use daemon_settings::options;

#[test]
fn each_has_a_name_an_explanation_and_flags_that_mean_one_thing() {
    for command in CliCommand::ALL {
        let (word, (usage, own_flags, _)) = (command.code(), command.parts());
        assert_eq!(CliCommand::from_name(word), Some(command));
        assert!(usage.starts_with(&format!("install-cni {word} ")), "{word}");
        assert!(usage.contains("\n\nExit status 0: "), "{word}");
        assert!(usage.contains(&format!("\n\nExamples:\n  install-cni {word}")), "{word}");
        let all = [own_flags, options::ALL.as_slice()].concat();
        let names: BTreeSet<&str> = all.iter().map(|flag| flag.long).collect();
        assert_eq!(names.len(), all.len(), "{word}: a flag is there twice");
    }
    assert!(CliCommand::from_name("install").is_none() && CliCommand::from_name("uninstall").is_none());
}

fn offers_in_fish(script: &str, command: &str, offer: &str) -> bool {
    let line = format!("complete -c install-cni -n '__fish_seen_subcommand_from {command}' {offer}");
    script.lines().any(|one| one == line)
}

/// Each installed shell accepts its script, and completes the beginning of a word.
#[test]
fn shells_complete_commands_and_flags() {
    let flag = |long| Flag::new_switch("what's \\ it").long(long);
    let commands = [("state", "show", vec![flag("output"), flag("no-color")]), ("stop", "it", vec![])];
    let bash = completion::shell_script("bash", &commands).unwrap();
    let offers = |bash: &str, words: &str, at: usize| {
        let ask =
            format!("{bash}\nCOMP_WORDS=({words}) COMP_CWORD={at}; _install_cni; echo \"${{COMPREPLY[*]}}\"");
        let output = std::process::Command::new("bash").args(["-euc", &ask]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(offers(&bash, "install-cni st", 1), "state stop");
    assert_eq!(offers(&bash, "install-cni state --o", 2), "--output");
    assert_eq!(offers(&bash, "install-cni help sta", 2), "state");
    assert_eq!(offers(&bash, "install-cni explode x", 2), "");
    assert!(completion::shell_script("zsh", &commands).unwrap().ends_with(&bash));
    let fish = completion::shell_script("fish", &commands).unwrap();
    assert!(offers_in_fish(&fish, "state", "-l output -d 'what\\'s \\\\ it'"), "{fish}");
    assert!(completion::shell_script("tcsh", &commands).is_err());
    let check = ("check", "it", vec![FAIL_ON, CHECK_OUTPUT, FILE]);
    let others = [("list", "them", vec![WITH_STATE, OUTPUT, NAMESPACE]), ("completion", "it", vec![])];
    let commands = [&[check][..], &others].concat();
    let bash = completion::shell_script("bash", &commands).unwrap();
    let offers = |words: &str, at: usize| offers(&bash, words, at);
    assert_eq!(offers("install-cni check -o ''", 3), "table wide json yaml junit sarif");
    assert_eq!(offers("install-cni check --fail-on = e", 4), "error");
    assert_eq!(offers("install-cni check --fail-on =", 3), "warning unknown error");
    assert_eq!(offers("install-cni check -f /et", 3), "/etc");
    assert_eq!(offers("install-cni list --output ''", 3), "table wide json yaml");
    assert_eq!(offers("install-cni list --state b", 3), "bypassing");
    assert_eq!(offers("install-cni list -n ''", 3), "");
    assert_eq!(offers("install-cni completion ''", 2), "bash zsh fish --help");
    let fish = completion::shell_script("fish", &commands).unwrap();
    assert!(fish.contains("-l output -s o -x -a 'table wide json yaml' -d"), "{fish}");
    assert!(offers_in_fish(&fish, "completion", "-a 'bash zsh fish'"), "{fish}");
    assert!(offers_in_fish(&fish, "help", "-a 'check list completion'"), "{fish}");
}
