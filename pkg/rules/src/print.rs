//! Rules as iptables text, in the form that the `iptables-save` of both backends prints, so that rules read back as
//! they were written.

use std::{
    fmt::{self, Display, Write as _},
    net::SocketAddr,
};

use crate::ir::{Match, MatchValue, Rule, Target};

/// The match's module, and its option.
fn write_module<T: Display>(text: &mut String, module: &str, name: &str, is: &MatchValue<T>) -> fmt::Result {
    write!(text, " -m {module}")?;
    write_option(text, name, is)
}

/// Writes an option, with `! ` before it if negated, as `iptables-save` does.
fn write_option<T: Display>(text: &mut String, name: &str, is: &MatchValue<T>) -> fmt::Result {
    write!(text, " {}{name} {}", negation_prefix(is.negated), is.value)
}

fn negation_prefix(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

/// Formats the arguments of a rule after `-A CHAIN`, without a leading blank.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write_conditions(&mut text)?;
        let verdict = if matches!(self.target, Target::Goto(_)) { "-g" } else { "-j" };
        write!(text, " {verdict} {}", self.target)?;
        f.write_str(text.trim_start())
    }
}

impl Rule {
    fn write_conditions(&self, text: &mut String) -> fmt::Result {
        if let Some(net) = &self.source {
            write_option(text, "-s", net)?;
        }
        if let Some(net) = &self.dest {
            write_option(text, "-d", net)?;
        }
        if let Some(interface) = &self.input {
            write_option(text, "-i", interface)?;
        }
        if let Some(interface) = &self.output {
            write_option(text, "-o", interface)?;
        }
        if let Some(proto) = &self.proto {
            write_option(text, "-p", proto)?;
        }
        let proto = self.proto.as_ref().map_or("tcp", |proto| proto.value.as_str());
        self.matches.iter().try_for_each(|condition| condition.write_match(text, proto))
    }
}

impl Match {
    fn write_match(&self, text: &mut String, proto: &str) -> fmt::Result {
        match self {
            Match::SourcePort(port) => write_module(text, proto, "--sport", port),
            Match::DestPort(port) => write_module(text, proto, "--dport", port),
            Match::DestPortRange(range) => write_module(text, proto, "--dport", &MatchValue::eq(range)),
            Match::DestPorts(ports) => {
                let value = ports.value.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                let list = MatchValue { negated: ports.negated, value };
                write_module(text, "multiport", "--dports", &list)
            }
            Match::Uid(id) => write_module(text, "owner", "--uid-owner", id),
            Match::Gid(id) => write_module(text, "owner", "--gid-owner", id),
            Match::SocketExists { negated } => {
                write!(text, " -m owner {}--socket-exists", negation_prefix(*negated))
            }
            Match::Mark(mark) => write_module(text, "mark", "--mark", mark),
            Match::ConnMark(mark) => write_module(text, "connmark", "--mark", mark),
            Match::CtState(states) => write!(text, " -m conntrack --ctstate {}", states.as_str()),
            Match::Set { name, side, negated } => {
                write!(text, " -m set {}--match-set {name} {}", negation_prefix(*negated), side.as_str())
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
