//! Parser of the arguments of one rule.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    slice::Iter,
    str::FromStr,
};

use model::{IfName, IpNet, Mark, Port};

use crate::ir::{
    AddressSide, Chain, CtStates, Match, MatchValue, PortRange, Rule, Target, TransportProtocol,
};

/// Parses the words after `-A CHAIN`; `None`: not understood.
pub(super) fn parse(arguments: &[String]) -> Option<Rule> {
    let mut reader = RuleArguments { remaining: arguments.iter() };
    let mut rule = Rule::new(Target::Return);
    let mut negated = false;
    while let Some(word) = reader.next_argument() {
        match word {
            "!" if !negated => {
                negated = true;
                continue;
            }
            "-j" if !negated => {
                rule.target = read_target(&mut reader)?;
                return reader.next_argument().is_none().then_some(rule);
            }
            "-g" if !negated => {
                let chain = reader.next_argument().filter(|chain| is_plain(chain))?.to_owned();
                rule.target = Target::Goto(Chain(Cow::Owned(chain)));
                return reader.next_argument().is_none().then_some(rule);
            }
            "-m" if !negated => rule.matches.push(read_match(&mut reader, rule.proto.as_ref())?),
            option => read_endpoint(&mut rule, option, negated, &mut reader)?,
        }
        negated = false;
    }
    None // a rule without a verdict only counts; we create none
}

struct RuleArguments<'a> {
    remaining: Iter<'a, String>,
}

impl<'a> RuleArguments<'a> {
    fn next_argument(&mut self) -> Option<&'a str> {
        self.remaining.next().map(String::as_str)
    }

    fn peek_word(&self) -> Option<&'a str> {
        self.remaining.as_slice().first().map(String::as_str)
    }

    fn parse_next<T: FromStr>(&mut self) -> Option<T> {
        self.next_argument()?.parse().ok()
    }

    /// Reads `0x539`, `1337` or `0x200/0x200`.
    fn parse_mark(&mut self) -> Option<Mark> {
        let text = self.next_argument()?;
        let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
        Some(Mark { value: parse_number(value)?, mask: parse_number(mask)? })
    }

    /// Consumes `word` if it is next.
    fn accept_argument(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        if found {
            self.remaining.next();
        }
        found
    }

    /// Consumes `word`, which must be next.
    fn expect_argument(&mut self, word: &str) -> Option<()> {
        self.accept_argument(word).then_some(())
    }
}

fn read_endpoint(
    rule: &mut Rule,
    option: &str,
    negated: bool,
    arguments: &mut RuleArguments<'_>,
) -> Option<()> {
    match option {
        "-s" => set_once(&mut rule.source, negated, parse_net(arguments.next_argument()?)?),
        "-d" => set_once(&mut rule.dest, negated, parse_net(arguments.next_argument()?)?),
        "-i" => set_once(&mut rule.input, negated, IfName::new(arguments.next_argument()?).ok()?),
        "-o" => set_once(&mut rule.output, negated, IfName::new(arguments.next_argument()?).ok()?),
        "-p" => set_once(&mut rule.proto, negated, parse_proto(arguments.next_argument()?)?),
        _ => None,
    }
}

fn set_once<T>(slot: &mut Option<MatchValue<T>>, negated: bool, value: T) -> Option<()> {
    slot.replace(MatchValue { negated, value }).is_none().then_some(())
}

/// Parses a network in the tools' format: host bits cleared, the length present (a bare address counts as a host).
fn parse_net(text: &str) -> Option<IpNet> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => IpNet::from(text.parse::<IpAddr>().ok()?),
    };
    (net.trunc() == net).then_some(net)
}

fn parse_proto(text: &str) -> Option<TransportProtocol> {
    match text {
        "tcp" | "6" => Some(TransportProtocol::Tcp),
        "udp" | "17" => Some(TransportProtocol::Udp),
        _ => None,
    }
}

fn read_match(
    arguments: &mut RuleArguments<'_>,
    rule_proto: Option<&MatchValue<TransportProtocol>>,
) -> Option<Match> {
    let module = arguments.next_argument()?;
    let negated = arguments.accept_argument("!");
    let option = arguments.next_argument()?;
    match (module, option) {
        ("tcp" | "udp", "--dport" | "--sport") => {
            let names_it = rule_proto.is_some_and(|is| !is.negated && is.value.as_str() == module);
            let value = arguments.next_argument()?;
            let condition = match (option, value.split_once(':')) {
                ("--dport", Some((first, last))) if !negated => {
                    let [first, last] = [first, last].map(|port| port.parse().ok().map(Port));
                    Match::DestPortRange(PortRange::new(first?, last?)?)
                }
                ("--dport", _) => Match::DestPort(MatchValue { negated, value: Port(value.parse().ok()?) }),
                _ => Match::SourcePort(MatchValue { negated, value: Port(value.parse().ok()?) }),
            };
            names_it.then_some(condition)
        }
        ("multiport", "--dports") => {
            let ports = arguments
                .next_argument()?
                .split(',')
                .map(|port| port.parse().ok().map(Port))
                .collect::<Option<Vec<_>>>()?;
            Some(Match::DestPorts(MatchValue { negated, value: ports }))
        }
        ("owner", "--uid-owner") => Some(Match::Uid(MatchValue { negated, value: arguments.parse_next()? })),
        ("owner", "--gid-owner") => Some(Match::Gid(MatchValue { negated, value: arguments.parse_next()? })),
        ("mark", "--mark") => Some(Match::Mark(MatchValue { negated, value: arguments.parse_mark()? })),
        ("connmark", "--mark") => {
            Some(Match::ConnMark(MatchValue { negated, value: arguments.parse_mark()? }))
        }
        ("conntrack", "--ctstate") if !negated => {
            CtStates::from_name(arguments.next_argument()?).map(Match::CtState)
        }
        ("owner", "--socket-exists") => Some(Match::SocketExists { negated }),
        ("set", "--match-set") => read_set_match(arguments, negated),
        _ => None,
    }
}

fn read_set_match(arguments: &mut RuleArguments<'_>, negated: bool) -> Option<Match> {
    let name = arguments.next_argument().filter(|name| is_plain(name))?;
    let side = AddressSide::from_name(arguments.next_argument()?)?;
    Some(Match::Set { name: Cow::Owned(name.to_owned()), side, negated })
}

fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn read_target(arguments: &mut RuleArguments<'_>) -> Option<Target> {
    match arguments.next_argument()? {
        "RETURN" => Some(Target::Return),
        "ACCEPT" => Some(Target::Accept),
        "DROP" => Some(Target::Drop),
        "REDIRECT" => {
            arguments.expect_argument("--to-ports")?;
            Some(Target::Redirect(Port(arguments.parse_next()?)))
        }
        "DNAT" => read_dnat(arguments),
        "SNAT" => {
            arguments.expect_argument("--to-source")?;
            Some(Target::Snat(arguments.parse_next()?))
        }
        "TPROXY" => read_tproxy(arguments),
        "MARK" => {
            arguments.expect_argument("--set-xmark")?;
            Some(Target::SetMark(arguments.parse_mark()?))
        }
        "CONNMARK" => read_connmark(arguments),
        "CT" => {
            arguments.expect_argument("--zone")?;
            Some(Target::CtZone(arguments.parse_next()?))
        }
        "NFLOG" => read_nflog(arguments),
        // Targets that the model does not have; these are no chains.
        "AUDIT" | "CHECKSUM" | "CLASSIFY" | "CLUSTERIP" | "CONNSECMARK" | "DNPT" | "DSCP" | "ECN" | "HL"
        | "LED" | "LOG" | "MASQUERADE" | "NETMAP" | "NFQUEUE" | "QUEUE" | "REJECT" | "SECMARK" | "SET"
        | "TCPMSS" | "TRACE" => None,
        chain if !is_plain(chain) => None,
        chain => Some(Target::Jump(Chain(Cow::Owned(chain.to_owned())))),
    }
}

/// Returns whether the tools accept this as the name of a chain or a set, and print it without quotes.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['-', '!'])
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '\\'))
}

/// Reads `10.0.0.1:53`, `[fd00::1]:53`; no range, no zone, never without a port.
fn read_dnat(arguments: &mut RuleArguments<'_>) -> Option<Target> {
    arguments.expect_argument("--to-destination")?;
    let to: SocketAddr = arguments.parse_next()?;
    let plain = SocketAddr::new(to.ip(), to.port()) == to;
    plain.then_some(Target::Dnat { ip: to.ip(), port: Port(to.port()) })
}

fn read_tproxy(arguments: &mut RuleArguments<'_>) -> Option<Target> {
    arguments.expect_argument("--on-port")?;
    let port = Port(arguments.parse_next()?);
    if arguments.accept_argument("--on-ip") && !arguments.parse_next::<IpAddr>()?.is_unspecified() {
        return None;
    }
    arguments.expect_argument("--tproxy-mark")?;
    Some(Target::Tproxy { port, mark: arguments.parse_mark()? })
}

/// Reads the target: copying a mark is supported for equal bits on both sides, saving for all bits.
fn read_connmark(arguments: &mut RuleArguments<'_>) -> Option<Target> {
    let verb = arguments.next_argument()?;
    if verb == "--set-xmark" {
        return Some(Target::SetConnMark(arguments.parse_mark()?));
    }
    let nfmask = read_mask(arguments, "--nfmask")?;
    let ctmask = read_mask(arguments, "--ctmask")?;
    match verb {
        "--save-mark" => (nfmask == u32::MAX && ctmask == u32::MAX).then_some(Target::SaveMark),
        "--restore-mark" => (nfmask == ctmask).then_some(Target::RestoreMark(nfmask)),
        _ => None,
    }
}

/// Reads a mask; all bits if the option is missing.
fn read_mask(arguments: &mut RuleArguments<'_>, option: &str) -> Option<u32> {
    if arguments.accept_argument(option) { parse_number(arguments.next_argument()?) } else { Some(u32::MAX) }
}

fn read_nflog(arguments: &mut RuleArguments<'_>) -> Option<Target> {
    arguments.expect_argument("--nflog-prefix")?;
    let prefix = Cow::Owned(arguments.next_argument()?.to_owned());
    arguments.expect_argument("--nflog-group")?;
    let group = arguments.parse_next()?;
    arguments.expect_argument("--nflog-size")?;
    Some(Target::Nflog { prefix, group, size: arguments.parse_next()? })
}
