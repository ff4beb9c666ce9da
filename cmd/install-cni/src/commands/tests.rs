use std::collections::BTreeSet;

use super::*;
use daemon_settings::options;

const ALL: [&str; 9] =
    ["state", "explain", "list", "verify", "plan", "bundle", "watch", "history", "log-level"];

#[test]
fn each_has_a_name_an_explanation_and_flags_that_mean_one_thing() {
    for word in ALL {
        let command = CliCommand::from_word(word).unwrap();
        assert!(command.usage().starts_with(&format!("install-cni {word} ")), "{word}");
        assert!(command.usage().contains("Exit status 0: "), "{word}");
        let all = [command.flags(), options::ALL.as_slice()].concat();
        let names: BTreeSet<&str> = all.iter().map(|flag| flag.long).collect();
        assert_eq!(names.len(), all.len(), "{word}: a flag is there twice");
    }
    assert!(CliCommand::from_word("install").is_none() && CliCommand::from_word("uninstall").is_none());
}
