//! Rules as iptables text, in the form that the `iptables-save` of both backends prints, so that rules read back as
//! they were written.

use std::{
    fmt::{self, Display, Write as _},
    net::SocketAddr,
};

use crate::ir::{Match, MatchValue, Rule, Target};

/// The match's module, and its option.
fn write_module<T: Display>(
    f: &mut fmt::Formatter<'_>,
    module: &str,
    name: &str,
    is: &MatchValue<T>,
) -> fmt::Result {
    write!(f, " -m {module}")?;
    write_option(f, name, is)
}

/// Writes an option, with `! ` before it if negated, as `iptables-save` does.
fn write_option<T: Display>(f: &mut fmt::Formatter<'_>, name: &str, is: &MatchValue<T>) -> fmt::Result {
    write!(f, " {}{name} {}", negation_prefix(is.negated), is.value)
}

fn negation_prefix(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

/// Formats the arguments of a rule after `-A CHAIN`, without a leading blank.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write!(text, "{}", RuleConditions(self))?;
        let verdict = if matches!(self.target, Target::Goto(_)) { "-g" } else { "-j" };
        write!(text, " {verdict} {}", self.target)?;
        f.write_str(text.trim_start())
    }
}

struct RuleConditions<'a>(&'a Rule);

impl Display for RuleConditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        if let Some(net) = &rule.source {
            write_option(f, "-s", net)?;
        }
        if let Some(net) = &rule.dest {
            write_option(f, "-d", net)?;
        }
        if let Some(interface) = &rule.input {
            write_option(f, "-i", interface)?;
        }
        if let Some(interface) = &rule.output {
            write_option(f, "-o", interface)?;
        }
        if let Some(proto) = &rule.proto {
            write_option(f, "-p", &MatchValue { negated: proto.negated, value: proto.value.as_str() })?;
        }
        for condition in &rule.matches {
            condition.write_match(f, rule.proto.as_ref().map_or("tcp", |proto| proto.value.as_str()))?;
        }
        Ok(())
    }
}

impl Match {
    fn write_match(&self, f: &mut fmt::Formatter<'_>, proto: &str) -> fmt::Result {
        match self {
            Match::SourcePort(port) => write_module(f, proto, "--sport", port),
            Match::DestPort(port) => write_module(f, proto, "--dport", port),
            Match::DestPortRange(range) => write_module(f, proto, "--dport", &MatchValue::eq(range)),
            Match::DestPorts(ports) => {
                let list = ports.value.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                write_module(f, "multiport", "--dports", &MatchValue { negated: ports.negated, value: list })
            }
            Match::Uid(id) => write_module(f, "owner", "--uid-owner", id),
            Match::Gid(id) => write_module(f, "owner", "--gid-owner", id),
            Match::SocketExists { negated } => {
                write!(f, " -m owner {}--socket-exists", negation_prefix(*negated))
            }
            Match::Mark(mark) => write_module(f, "mark", "--mark", mark),
            Match::ConnMark(mark) => write_module(f, "connmark", "--mark", mark),
            Match::CtState(states) => write!(f, " -m conntrack --ctstate {}", states.as_str()),
            Match::Set { name, side, negated } => {
                write!(f, " -m set {}--match-set {name} {}", negation_prefix(*negated), side.as_str())
            }
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Return => f.write_str("RETURN"),
            Target::Accept => f.write_str("ACCEPT"),
            Target::Drop => f.write_str("DROP"),
            Target::Jump(chain) | Target::Goto(chain) => chain.fmt(f),
            Target::Redirect(port) => write!(f, "REDIRECT --to-ports {port}"),
            Target::Dnat { ip, port } => {
                write!(f, "DNAT --to-destination {}", SocketAddr::new(*ip, port.0))
            }
            Target::Snat(ip) => write!(f, "SNAT --to-source {ip}"),
            Target::Tproxy { port, mark } => {
                write!(f, "TPROXY --on-port {port} --tproxy-mark {:#x}/{:#x}", mark.value, mark.mask)
            }
            Target::SetMark(mark) => write!(f, "MARK --set-xmark {:#x}/{:#x}", mark.value, mark.mask),
            Target::SaveMark => f.write_str("CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"),
            Target::RestoreMark(mask) => {
                write!(f, "CONNMARK --restore-mark --nfmask {mask:#x} --ctmask {mask:#x}")
            }
            Target::SetConnMark(mark) => {
                write!(f, "CONNMARK --set-xmark {:#x}/{:#x}", mark.value, mark.mask)
            }
            Target::CtZone(zone) => write!(f, "CT --zone {zone}"),
            Target::Nflog { prefix, group, size } => {
                let quoted = prefix.replace('\\', "\\\\").replace('"', "\\\"");
                write!(f, "NFLOG --nflog-prefix \"{quoted}\" --nflog-group {group} --nflog-size {size}")
            }
        }
    }
}
