//! Rules as iptables text. The form is the one that both backends' `iptables-save` print, so that what we write
//! is what we read back.

use std::fmt::{self, Display, Write as _};

use crate::ir::{Chain, Is, Match, Rule, RuleSet, Table, TableRules, Target};

/// `! ` in front of the option when negated, as `iptables-save` places it.
fn option<T: Display>(f: &mut fmt::Formatter<'_>, name: &str, is: &Is<T>) -> fmt::Result {
    write!(f, " {}{name} {}", if is.negated { "! " } else { "" }, is.value)
}

/// The arguments of a rule behind `-A CHAIN`, without a leading blank.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(text, "{}", Conditions(self))?;
        write!(text, " -j {}", self.target)?;
        f.write_str(text.trim_start())
    }
}

struct Conditions<'a>(&'a Rule);

impl Display for Conditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        if let Some(net) = &rule.source {
            option(f, "-s", net)?;
        }
        if let Some(net) = &rule.dest {
            option(f, "-d", net)?;
        }
        if let Some(interface) = &rule.input {
            option(f, "-i", interface)?;
        }
        if let Some(interface) = &rule.output {
            option(f, "-o", interface)?;
        }
        if let Some(proto) = &rule.proto {
            option(f, "-p", &Is { negated: proto.negated, value: proto.value.name() })?;
        }
        for condition in &rule.matches {
            condition.print(f, rule.proto.as_ref().map_or("tcp", |proto| proto.value.name()))?;
        }
        Ok(())
    }
}

impl Match {
    fn print(&self, f: &mut fmt::Formatter<'_>, proto: &str) -> fmt::Result {
        match self {
            Match::SourcePort(port) => {
                write!(f, " -m {proto}")?;
                option(f, "--sport", port)
            }
            Match::DestPort(port) => {
                write!(f, " -m {proto}")?;
                option(f, "--dport", port)
            }
            Match::DestPorts(ports) => {
                let list = ports.value.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                f.write_str(" -m multiport")?;
                option(f, "--dports", &Is { negated: ports.negated, value: list })
            }
            Match::Uid(id) => {
                f.write_str(" -m owner")?;
                option(f, "--uid-owner", id)
            }
            Match::Gid(id) => {
                f.write_str(" -m owner")?;
                option(f, "--gid-owner", id)
            }
            Match::Mark(mark) => {
                f.write_str(" -m mark")?;
                option(f, "--mark", mark)
            }
            Match::ConnMark(mark) => {
                f.write_str(" -m connmark")?;
                option(f, "--mark", mark)
            }
            Match::CtState(states) => write!(f, " -m conntrack --ctstate {}", states.name()),
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Return => f.write_str("RETURN"),
            Target::Accept => f.write_str("ACCEPT"),
            Target::Drop => f.write_str("DROP"),
            Target::Jump(chain) => chain.fmt(f),
            Target::Redirect(port) => write!(f, "REDIRECT --to-ports {port}"),
            Target::Tproxy { port, mark } => {
                write!(f, "TPROXY --on-port {port} --tproxy-mark {:#x}/{:#x}", mark.value, mark.mask)
            }
            Target::SetMark(mark) => write!(f, "MARK --set-xmark {:#x}/{:#x}", mark.value, mark.mask),
            Target::SaveMark => f.write_str("CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"),
            Target::RestoreMark => {
                f.write_str("CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff")
            }
            Target::CtZone(zone) => write!(f, "CT --zone {zone}"),
            Target::Nflog { prefix, group, size } => {
                let quoted = prefix.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "NFLOG --nflog-prefix \"{quoted}\" --nflog-group {group} --nflog-size {size}")
            }
        }
    }
}

/// One table's section of a restore file, from `*table` to `COMMIT`. `edit` lines stand where they must: stale
/// rules are deleted before, stale chains after, our own rules are in place.
pub(crate) fn section(
    table: Table,
    rules: &TableRules,
    deletes: &[String],
    jumps: &[String],
    stale: &[Chain],
) -> String {
    let mut text = format!("*{}\n", table.name());
    let mut line = |words: &[&str]| {
        text.push_str(&words.join(" "));
        text.push('\n');
    };
    for (chain, _) in &rules.chains {
        line(&[&format!(":{chain}"), "-", "[0:0]"]);
    }
    for delete in deletes {
        line(&[delete]);
    }
    for (chain, rules) in &rules.chains {
        for rule in rules {
            line(&["-A", &chain.0, &rule.to_string()]);
        }
    }
    for jump in jumps {
        line(&[jump]);
    }
    for chain in stale {
        line(&["-F", &chain.0]);
    }
    for chain in stale {
        line(&["-X", &chain.0]);
    }
    text.push_str("COMMIT\n");
    text
}

/// The single `iptables` commands that make the same rule set, each without the program's name: for those who
/// ask for the command form (`--restore-format=false`), and for baselines.
#[must_use]
pub fn commands(rules: &RuleSet) -> Vec<String> {
    let mut commands = Vec::new();
    for (table, table_rules) in &rules.tables {
        let table = table.name();
        commands.extend(table_rules.chains.iter().map(|(chain, _)| format!("-t {table} -N {chain}")));
        for (chain, rules) in &table_rules.chains {
            commands.extend(rules.iter().map(|rule| format!("-t {table} -A {chain} {rule}")));
        }
        commands.extend(table_rules.jumps.iter().map(|jump| format!("-t {table} {}", jump.command())));
    }
    commands
}
