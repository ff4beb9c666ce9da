//! Text of `--dry-run`: all commands of a run in an empty namespace, in order.

use std::fmt::Write as _;

use model::Family;
use rules::{ChainSet, SavedTables, sidecar};

use crate::settings::IptablesSettings;

/// Returns the commands of a run, for a shell.
pub fn shell_commands(settings: &IptablesSettings, families: &[Family]) -> String {
    let mut text = route_commands(settings, families);
    // Writing to a String cannot fail.
    for family in families {
        let tool = if *family == Family::V4 { "iptables" } else { "ip6tables" };
        if settings.restore_format {
            let _ = writeln!(
                text,
                "{tool}-restore --noflush <<'EOF'\n{}EOF",
                sidecar::restore_text(&settings.config, *family)
            );
            continue;
        }
        let change =
            ChainSet::SIDECAR.apply(&sidecar::rule_set(&settings.config, *family), &SavedTables::default());
        for call in change.iptables_calls() {
            let call: Vec<String> = call.iter().map(|argument| quote_argument(argument)).collect();
            let _ = writeln!(text, "{tool} {}", call.join(" "));
        }
    }
    text
}

/// Quotes an argument for a shell, if needed: names of interfaces may have characters that a shell expands.
fn quote_argument(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+!".contains(c);
    match argument.chars().all(is_plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

fn route_commands(settings: &IptablesSettings, families: &[Family]) -> String {
    let mut text = String::new();
    if families.contains(&Family::V6) {
        let _ = writeln!(text, "ip -6 addr add {}/128 dev lo nodad", sidecar::passthrough_source(Family::V6));
    }
    let Some(local) = settings.config.local_route() else { return text };
    for family in families {
        let ip = if *family == Family::V4 { "ip -4" } else { "ip -6" };
        let _ = writeln!(text, "{ip} route add local default dev lo table {}", local.table);
        let _ = writeln!(text, "{ip} rule add fwmark {} lookup {}", local.mark, local.table);
    }
    text
}
