//! The arguments of one rule.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
    slice::Iter,
    str::FromStr,
};

use model::{IfName, IpNet, Mark, Port};

use crate::ir::{
    AddressSide, Chain, CtStates, Match, MatchValue, PortRange, Rule, Target, TransportProtocol, host_net,
};

/// Understands the words behind `-A CHAIN`, or gives up.
pub(super) fn parse(words: &[String]) -> Option<Rule> {
    let mut reader = RuleWords { rest: words.iter() };
    let mut rule = Rule::new(Target::Return);
    let mut negated = false;
    while let Some(word) = reader.next() {
        match word {
            "!" if !negated => {
                negated = true;
                continue;
            }
            "-j" if !negated => {
                rule.target = target(&mut reader)?;
                return reader.next().is_none().then_some(rule);
            }
            "-g" if !negated => {
                let chain = reader.next().filter(|chain| is_plain(chain))?.to_owned();
                rule.target = Target::Goto(Chain(Cow::Owned(chain)));
                return reader.next().is_none().then_some(rule);
            }
            "-m" if !negated => rule.matches.push(condition(&mut reader, rule.proto.as_ref())?),
            option => endpoint(&mut rule, option, negated, &mut reader)?,
        }
        negated = false;
    }
    None // a rule without a verdict only counts; we make none
}

struct RuleWords<'a> {
    rest: Iter<'a, String>,
}

impl<'a> RuleWords<'a> {
    fn next(&mut self) -> Option<&'a str> {
        self.rest.next().map(String::as_str)
    }

    fn peek(&self) -> Option<&'a str> {
        self.rest.as_slice().first().map(String::as_str)
    }

    fn parse<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    /// Consumes `word` when it is next.
    fn accept(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.rest.next();
        }
        found
    }

    /// Consumes `word`, which has to be next.
    fn expect(&mut self, word: &str) -> Option<()> {
        self.accept(word).then_some(())
    }
}

fn endpoint(rule: &mut Rule, option: &str, negated: bool, words: &mut RuleWords<'_>) -> Option<()> {
    match option {
        "-s" => once(&mut rule.source, negated, net(words.next()?)?),
        "-d" => once(&mut rule.dest, negated, net(words.next()?)?),
        "-i" => once(&mut rule.input, negated, IfName::new(words.next()?).ok()?),
        "-o" => once(&mut rule.output, negated, IfName::new(words.next()?).ok()?),
        "-p" => once(&mut rule.proto, negated, proto(words.next()?)?),
        _ => None,
    }
}

fn once<T>(slot: &mut Option<MatchValue<T>>, negated: bool, value: T) -> Option<()> {
    slot.replace(MatchValue { negated, value }).is_none().then_some(())
}

/// A network as the tools print it: host bits cleared, the length present (a bare address counts as a host).
fn net(text: &str) -> Option<IpNet> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => host_net(text.parse::<IpAddr>().ok()?),
    };
    (net.trunc() == net).then_some(net)
}

fn proto(text: &str) -> Option<TransportProtocol> {
    match text {
        "tcp" | "6" => Some(TransportProtocol::Tcp),
        "udp" | "17" => Some(TransportProtocol::Udp),
        _ => None,
    }
}

fn condition(words: &mut RuleWords<'_>, rule_proto: Option<&MatchValue<TransportProtocol>>) -> Option<Match> {
    let module = words.next()?;
    let negated = words.accept("!");
    let option = words.next()?;
    match (module, option) {
        ("tcp" | "udp", "--dport" | "--sport") => {
            let names_it = rule_proto.is_some_and(|is| !is.negated && is.value.name() == module);
            let value = words.next()?;
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
            let ports = words
                .next()?
                .split(',')
                .map(|port| port.parse().ok().map(Port))
                .collect::<Option<Vec<_>>>()?;
            Some(Match::DestPorts(MatchValue { negated, value: ports }))
        }
        ("owner", "--uid-owner") => Some(Match::Uid(MatchValue { negated, value: words.parse()? })),
        ("owner", "--gid-owner") => Some(Match::Gid(MatchValue { negated, value: words.parse()? })),
        ("mark", "--mark") => Some(Match::Mark(MatchValue { negated, value: mark(words.next()?)? })),
        ("connmark", "--mark") => Some(Match::ConnMark(MatchValue { negated, value: mark(words.next()?)? })),
        ("conntrack", "--ctstate") if !negated => {
            let states = words.next()?;
            CtStates::ALL.into_iter().find(|known| known.name() == states).map(Match::CtState)
        }
        ("owner", "--socket-exists") => Some(Match::SocketExists { negated }),
        ("set", "--match-set") => set(words, negated),
        _ => None,
    }
}

fn set(words: &mut RuleWords<'_>, negated: bool) -> Option<Match> {
    let name = words.next().filter(|name| is_plain(name))?;
    let side = words.next()?;
    let side = AddressSide::ALL.into_iter().find(|known| known.name() == side)?;
    Some(Match::Set { name: Cow::Owned(name.to_owned()), side, negated })
}

/// `0x539`, `1337` or `0x200/0x200`.
fn mark(text: &str) -> Option<Mark> {
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some(Mark { value: number(value)?, mask: number(mask)? })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn target(words: &mut RuleWords<'_>) -> Option<Target> {
    match words.next()? {
        "RETURN" => Some(Target::Return),
        "ACCEPT" => Some(Target::Accept),
        "DROP" => Some(Target::Drop),
        "REDIRECT" => {
            words.expect("--to-ports")?;
            Some(Target::Redirect(Port(words.parse()?)))
        }
        "DNAT" => dnat(words),
        "SNAT" => {
            words.expect("--to-source")?;
            Some(Target::Snat(words.parse()?))
        }
        "TPROXY" => tproxy(words),
        "MARK" => {
            words.expect("--set-xmark")?;
            Some(Target::SetMark(mark(words.next()?)?))
        }
        "CONNMARK" => connmark(words),
        "CT" => {
            words.expect("--zone")?;
            Some(Target::CtZone(words.parse()?))
        }
        "NFLOG" => nflog(words),
        chain if KNOWN_TARGETS.contains(&chain) || !is_plain(chain) => None,
        chain => Some(Target::Jump(Chain(Cow::Owned(chain.to_owned())))),
    }
}

/// Whether the tools accept this as the name of a chain or a set, and print it without quotes.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['-', '!'])
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '\\'))
}

/// Targets of iptables that this model does not speak; they are no chains.
const KNOWN_TARGETS: [&str; 20] = [
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNSECMARK",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "LED",
    "LOG",
    "MASQUERADE",
    "NETMAP",
    "NFQUEUE",
    "QUEUE",
    "REJECT",
    "SECMARK",
    "SET",
    "TCPMSS",
    "TRACE",
];

/// `10.0.0.1:53`, `[fd00::1]:53`; no range, no zone, never without a port.
fn dnat(words: &mut RuleWords<'_>) -> Option<Target> {
    words.expect("--to-destination")?;
    let to: SocketAddr = words.parse()?;
    let plain = SocketAddr::new(to.ip(), to.port()) == to;
    plain.then_some(Target::Dnat { ip: to.ip(), port: Port(to.port()) })
}

fn tproxy(words: &mut RuleWords<'_>) -> Option<Target> {
    words.expect("--on-port")?;
    let port = Port(words.parse()?);
    if words.accept("--on-ip") && !words.parse::<IpAddr>()?.is_unspecified() {
        return None;
    }
    words.expect("--tproxy-mark")?;
    Some(Target::Tproxy { port, mark: mark(words.next()?)? })
}

/// A copy is understood when it takes the same bits on both sides; saving, when it takes all.
fn connmark(words: &mut RuleWords<'_>) -> Option<Target> {
    let verb = words.next()?;
    if verb == "--set-xmark" {
        return Some(Target::SetConnMark(mark(words.next()?)?));
    }
    let nfmask = mask(words, "--nfmask")?;
    let ctmask = mask(words, "--ctmask")?;
    match verb {
        "--save-mark" => (nfmask == u32::MAX && ctmask == u32::MAX).then_some(Target::SaveMark),
        "--restore-mark" => (nfmask == ctmask).then_some(Target::RestoreMark(nfmask)),
        _ => None,
    }
}

/// All bits, unless the option says otherwise.
fn mask(words: &mut RuleWords<'_>, option: &str) -> Option<u32> {
    if words.accept(option) { number(words.next()?) } else { Some(u32::MAX) }
}

fn nflog(words: &mut RuleWords<'_>) -> Option<Target> {
    words.expect("--nflog-prefix")?;
    let prefix = Cow::Owned(words.next()?.to_owned());
    words.expect("--nflog-group")?;
    let group = words.parse()?;
    words.expect("--nflog-size")?;
    Some(Target::Nflog { prefix, group, size: words.parse()? })
}
