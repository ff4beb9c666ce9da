//! Decoding of expressions to a rule. Nothing is guessed: an expression, an attribute or a combination that we never
//! write makes a rule foreign.

use std::{borrow::Cow, net::IpAddr};

use model::{Family, IfName, IpNet, Mark, Port};
use netlink::Attributes;
use rules::{Chain, Match, MatchValue, PortRange, Rule, SavedRule, Target, TransportProtocol};

use crate::{
    encode::{address_size, source_offset},
    sets::SetNumbers,
    uapi::{
        BITWISE_MASK, BITWISE_OPERATION, BITWISE_REGISTER, BITWISE_SOURCE, BITWISE_XOR, CMP_DATA, CMP_EQUAL,
        CMP_NOT_EQUAL, CMP_OPERATION, CMP_REGISTER, DATA_VALUE, DATA_VERDICT, EXPRESSION_DATA,
        EXPRESSION_NAME, IMMEDIATE_DATA, IMMEDIATE_REGISTER, LOG_GROUP, LOG_LENGTH, LOG_PREFIX,
        META_INPUT_NAME, META_KEY, META_L4PROTO, META_MARK, META_OUTPUT_NAME, META_REGISTER, NETWORK_HEADER,
        PAYLOAD_BASE, PAYLOAD_LENGTH, PAYLOAD_OFFSET, PAYLOAD_REGISTER, RANGE_FROM, RANGE_OPERATION,
        RANGE_REGISTER, RANGE_TO, REGISTER_VERDICT, RULE_EXPRESSIONS, RULE_USERDATA, TRANSPORT_HEADER,
        VERDICT_ACCEPT, VERDICT_CHAIN, VERDICT_CODE, VERDICT_DROP, VERDICT_GOTO, VERDICT_JUMP,
        VERDICT_RETURN, XT_INFO, XT_NAME, XT_REVISION,
    },
    xt,
};

/// Returns a rule as in a save, without a handle. One that the model cannot express (`None`) has the `names` of its
/// expressions instead of its conditions, and `target`, the chain to which it jumps.
pub fn saved_rule(
    family: Family,
    chain: &str,
    rule: Option<Rule>,
    target: Option<&str>,
    names: &[&str],
) -> SavedRule {
    let text = match &rule {
        None => {
            let quoted = target.map(|chain| chain.replace('\\', "\\\\").replace('"', "\\\""));
            let jump = quoted.map(|chain| format!(" -j \"{chain}\"")).unwrap_or_default();
            format!("(foreign: {}){jump}", names.join(", "))
        }
        // Option that the tools add.
        Some(rule @ Rule { target: Target::Tproxy { .. }, .. }) => {
            let address = format!("--on-ip {} --tproxy-mark", family.unspecified_address());
            rule.to_string().replace("--tproxy-mark", &address)
        }
        Some(rule) => rule.to_string(),
    };
    SavedRule { chain: chain.to_owned(), text, rule, handle: None }
}

/// Returns the chains to which the verdicts of a rule lead, without decoding its conditions. The kernel evaluates the first one
/// alone, and counts each as a use of its chain.
pub(crate) fn target_chains<'a>(attributes: &Attributes<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    let expressions = attributes.find_nested(RULE_EXPRESSIONS).map_while(Result::ok);
    expressions.filter_map(|expression| {
        let parts = expression.nested_attributes();
        let is_verdict = find_text(&parts, EXPRESSION_NAME) == Some("immediate");
        find_text(&find_verdict(&parts.find_nested(EXPRESSION_DATA)), VERDICT_CHAIN).filter(|_| is_verdict)
    })
}

/// Reads the attributes of a rule of a chain. A truncated expression ends it, and makes it foreign.
pub(crate) fn read_rule(
    family: Family,
    chain: &str,
    attributes: &Attributes<'_>,
    sets: &mut dyn SetNumbers,
) -> SavedRule {
    let (mut decoder, mut names) = (RuleDecoder::new(family), Vec::new());
    // Comments of iptables itself, or other data that nft stores with a rule.
    let mut is_ours = attributes.find(RULE_USERDATA).is_none();
    for element in attributes.find_nested(RULE_EXPRESSIONS) {
        let Ok(element) = element else {
            is_ours = false;
            break;
        };
        let parts = element.nested_attributes();
        let name = find_text(&parts, EXPRESSION_NAME).unwrap_or_default();
        let data = parts.find_nested(EXPRESSION_DATA);
        is_ours = is_ours && decoder.read_expression(name, &data, sets).is_some();
        if name != "counter" {
            names.push(name);
        }
    }
    is_ours &= decoder.is_complete && decoder.loaded.is_none();
    saved_rule(family, chain, is_ours.then_some(decoder.rule), target_chains(attributes).next(), &names)
}

/// Content of a register.
#[derive(Clone, Debug)]
struct Loaded {
    what: Source,
    mask: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Meta(u32),
    Payload { base: u32, offset: u32, length: u32 },
}

struct RuleDecoder {
    family: Family,
    rule: Rule,
    /// The only register that is loaded, and not compared yet. Registers share memory, so that a second one may
    /// overwrite it; we never write that.
    loaded: Option<(u32, Loaded)>,
    /// Whether the verdict has been read.
    is_complete: bool,
}

impl RuleDecoder {
    fn new(family: Family) -> RuleDecoder {
        RuleDecoder { family, rule: Rule::new(Target::Return), loaded: None, is_complete: false }
    }

    /// Returns the protocol in the rule's conditions.
    fn named_protocol(&self) -> Option<TransportProtocol> {
        let proto = self.rule.proto.as_ref()?;
        (!proto.negated).then_some(proto.value)
    }

    /// Reads one expression; `None`: not understood.
    fn read_expression(
        &mut self,
        name: &str,
        data: &Attributes<'_>,
        sets: &mut dyn SetNumbers,
    ) -> Option<()> {
        match name {
            "counter" => Some(()),
            _ if self.is_complete => None,
            "meta" => self
                .load_register(find_number(data, META_REGISTER)?, Source::Meta(find_number(data, META_KEY)?)),
            "payload" => {
                let [base, offset, length] =
                    [PAYLOAD_BASE, PAYLOAD_OFFSET, PAYLOAD_LENGTH].map(|kind| find_number(data, kind));
                let what = Source::Payload { base: base?, offset: offset?, length: length? };
                self.load_register(find_number(data, PAYLOAD_REGISTER)?, what)
            }
            "bitwise" => self.read_bitwise(data),
            "cmp" => self.read_comparison(data),
            "range" => self.read_port_range(data),
            "match" => {
                let (name, revision, info) = read_extension(data)?;
                let condition = xt::decode_match(name, revision, info, self.named_protocol(), sets)?;
                self.rule.matches.push(condition);
                Some(())
            }
            "target" => {
                let (name, revision, info) = read_extension(data)?;
                let target = xt::decode_target(name, revision, info, self.family)?;
                self.set_target(target)
            }
            "log" => {
                let prefix = Cow::Owned(find_text(data, LOG_PREFIX)?.to_owned());
                let group = data.find(LOG_GROUP)?.read_be16().ok()?;
                self.set_target(Target::Nflog { prefix, group, size: find_number(data, LOG_LENGTH)? })
            }
            "immediate" => {
                let target = read_verdict(data)?;
                self.set_target(target)
            }
            _ => None,
        }
    }

    fn set_target(&mut self, target: Target) -> Option<()> {
        self.rule.target = target;
        self.is_complete = true;
        Some(())
    }

    fn load_register(&mut self, register: u32, what: Source) -> Option<()> {
        set_once(&mut self.loaded, (register, Loaded { what, mask: None }))
    }

    /// Takes what the register was loaded with.
    fn take_loaded(&mut self, register: u32) -> Option<Loaded> {
        self.loaded.take_if(|(loaded, _)| *loaded == register).map(|(_, loaded)| loaded)
    }

    fn read_bitwise(&mut self, data: &Attributes<'_>) -> Option<()> {
        let mask = find_value(data, BITWISE_MASK)?;
        let is_mask = find_number(data, BITWISE_OPERATION).unwrap_or_default() == 0
            && find_value(data, BITWISE_XOR)?.iter().all(|byte| *byte == 0);
        let loaded = self.take_loaded(find_number(data, BITWISE_SOURCE)?)?;
        if !is_mask || loaded.mask.is_some() {
            return None;
        }
        let masked = Loaded { mask: Some(mask.to_vec()), ..loaded };
        set_once(&mut self.loaded, (find_number(data, BITWISE_REGISTER)?, masked))
    }

    fn read_comparison(&mut self, data: &Attributes<'_>) -> Option<()> {
        let negated = match find_number(data, CMP_OPERATION)? {
            CMP_EQUAL => false,
            CMP_NOT_EQUAL => true,
            _ => return None,
        };
        let value = find_value(data, CMP_DATA)?;
        let loaded = self.take_loaded(find_number(data, CMP_REGISTER)?)?;
        match (loaded.what, loaded.mask) {
            (Source::Meta(META_INPUT_NAME), None) => {
                set_once(&mut self.rule.input, MatchValue { negated, value: interface_name(value)? })
            }
            (Source::Meta(META_OUTPUT_NAME), None) => {
                set_once(&mut self.rule.output, MatchValue { negated, value: interface_name(value)? })
            }
            (Source::Meta(META_L4PROTO), None) => self.set_protocol(negated, value),
            (Source::Meta(META_MARK), mask) => {
                let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
                let mask = mask.map_or(Some(u32::MAX), |mask| word(&mask))?;
                let mark = Mark { value: word(value)?, mask };
                self.rule.matches.push(Match::Mark(MatchValue { negated, value: mark }));
                Some(())
            }
            (Source::Payload { base: NETWORK_HEADER, offset, length }, mask) => {
                // Before iptables 1.8.3: the protocol in the IPv4 header.
                if self.family == Family::V4 && (offset, length, &mask) == (9, 1, &None) {
                    return self.set_protocol(negated, value);
                }
                let net = MatchValue { negated, value: self.decode_network(length, value, mask.as_deref())? };
                let (source, size) = (source_offset(self.family), address_size(self.family));
                match offset {
                    _ if offset == source => set_once(&mut self.rule.source, net),
                    _ if offset == source + size => set_once(&mut self.rule.dest, net),
                    _ => None,
                }
            }
            (Source::Payload { base: TRANSPORT_HEADER, offset, length: 2 }, None) => {
                let _ = self.named_protocol()?;
                let port = MatchValue { negated, value: Port(u16::from_be_bytes(value.try_into().ok()?)) };
                let condition = match offset {
                    0 => Match::SourcePort(port),
                    2 => Match::DestPort(port),
                    _ => return None,
                };
                self.rule.matches.push(condition);
                Some(())
            }
            _ => None,
        }
    }

    /// Reads a range of ports as iptables-nft writes it.
    fn read_port_range(&mut self, data: &Attributes<'_>) -> Option<()> {
        const DEST_PORT: Source = Source::Payload { base: TRANSPORT_HEADER, offset: 2, length: 2 };
        let _ = self.named_protocol()?;
        let port = |kind| Some(Port(u16::from_be_bytes(find_value(data, kind)?.try_into().ok()?)));
        let range = PortRange::new(port(RANGE_FROM)?, port(RANGE_TO)?)?;
        let loaded = self.take_loaded(find_number(data, RANGE_REGISTER)?)?;
        let is_range = find_number(data, RANGE_OPERATION)? == CMP_EQUAL;
        (is_range && loaded.what == DEST_PORT && loaded.mask.is_none()).then_some(())?;
        self.rule.matches.push(Match::DestPortRange(range));
        Some(())
    }

    fn set_protocol(&mut self, negated: bool, value: &[u8]) -> Option<()> {
        let value = TransportProtocol::ALL.into_iter().find(|proto| value == [proto.number()])?;
        set_once(&mut self.rule.proto, MatchValue { negated, value })
    }

    /// Returns the network of which the first `length` bytes are compared, after a mask if any.
    fn decode_network(&self, length: u32, value: &[u8], mask: Option<&[u8]>) -> Option<IpNet> {
        if u32::try_from(value.len()) != Ok(length) || length > address_size(self.family) {
            return None;
        }
        let prefix = match mask {
            None => length * 8,
            Some(mask) => prefix_length(mask).filter(|_| mask.len() == value.len())?,
        };
        decode_network(self.family, value, prefix)
    }
}

/// Returns the network with the first bytes of its address; `None`: the prefix is too long, or a bit beyond it is set,
/// which never matches.
pub fn decode_network(family: Family, address: &[u8], prefix: u32) -> Option<IpNet> {
    let mut octets = [0; 16];
    octets.iter_mut().zip(address).for_each(|(into, from)| *into = *from);
    let ip = match family {
        Family::V4 => IpAddr::from(*octets.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(octets),
    };
    let net = IpNet::new(ip, u8::try_from(prefix).ok()?).ok()?;
    (net.addr() == net.network()).then_some(net)
}

/// Sets a condition once; two conditions of the same kind are not ours.
fn set_once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

/// Returns the number of leading ones of a network mask; `None`: other bits are set, too.
pub fn prefix_length(mask: &[u8]) -> Option<u32> {
    let ones = mask.iter().take_while(|byte| **byte == 0xff).count();
    let (partial, rest) = mask.get(ones..)?.split_first().unwrap_or((&0, &[]));
    let is_prefix = partial.count_ones() == partial.leading_ones() && rest.iter().all(|byte| *byte == 0);
    is_prefix.then_some(u32::try_from(ones).ok()? * 8 + partial.leading_ones())
}

/// Reads an interface name: complete with a trailing NUL, otherwise a prefix.
fn interface_name(value: &[u8]) -> Option<IfName> {
    let text = std::str::from_utf8(value).ok()?;
    match text.trim_end_matches('\0') {
        full if full.len() < text.len() && !full.ends_with('+') => IfName::new(full).ok(),
        start if start.len() == text.len() => IfName::new(&format!("{start}+")).ok(),
        _ => None,
    }
}

fn find_number(data: &Attributes<'_>, kind: u16) -> Option<u32> {
    data.find(kind)?.read_be32().ok()
}

fn find_text<'a>(data: &Attributes<'a>, kind: u16) -> Option<&'a str> {
    data.find(kind)?.read_str().ok()
}

fn find_value<'a>(data: &Attributes<'a>, kind: u16) -> Option<&'a [u8]> {
    Some(data.find_nested(kind).find(DATA_VALUE)?.payload)
}

fn read_extension<'a>(data: &Attributes<'a>) -> Option<(&'a str, u32, &'a [u8])> {
    Some((find_text(data, XT_NAME)?, find_number(data, XT_REVISION)?, data.find(XT_INFO)?.payload))
}

fn find_verdict<'a>(data: &Attributes<'a>) -> Attributes<'a> {
    data.find_nested(IMMEDIATE_DATA).find_nested(DATA_VERDICT)
}

fn read_verdict(data: &Attributes<'_>) -> Option<Target> {
    (find_number(data, IMMEDIATE_REGISTER)? == REGISTER_VERDICT).then_some(())?;
    let verdict = find_verdict(data);
    let chain = find_text(&verdict, VERDICT_CHAIN).map(|name| Chain(Cow::Owned(name.to_owned())));
    let code = i32::from_be_bytes(verdict.find(VERDICT_CODE)?.read_array().ok()?);
    match (code, chain) {
        (VERDICT_DROP, None) => Some(Target::Drop),
        (VERDICT_ACCEPT, None) => Some(Target::Accept),
        (VERDICT_RETURN, None) => Some(Target::Return),
        (VERDICT_JUMP, Some(chain)) => Some(Target::Jump(chain)),
        (VERDICT_GOTO, Some(chain)) => Some(Target::Goto(chain)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink::{MessageFlags, NetlinkRequest};

    use super::*;
    use crate::{
        encode::{add_expression, set_verdict},
        fuzzing,
    };

    /// Reads a rule that loads these registers, compares one with TCP, and jumps.
    fn read_jump(loads: &[(u32, u32)], compared: u32) -> Option<String> {
        let mut request = NetlinkRequest::new(0, MessageFlags::NONE, &[]);
        request.put_nested(RULE_EXPRESSIONS, |list| {
            for (register, key) in loads {
                add_expression(list, "meta", &|data| {
                    data.put_be32(META_REGISTER, *register).put_be32(META_KEY, *key);
                });
            }
            add_expression(list, "cmp", &|data| {
                data.put_be32(CMP_REGISTER, compared).put_be32(CMP_OPERATION, CMP_EQUAL).put_nested(
                    CMP_DATA,
                    |data| {
                        data.put_bytes(DATA_VALUE, &[6]);
                    },
                );
            });
            set_verdict(list, &Target::Jump(Chain::named("ISTIO_OUTPUT")));
        });
        let message = request.finish(0, MessageFlags::NONE).unwrap();
        fuzzing::decode_rule(Family::V4, &message[16..]).map(|rule| rule.to_string())
    }

    /// Register 1 has 16 bytes, of which 8 to 11 are parts: the name of an interface overwrites register 9.
    #[test]
    fn a_rule_that_loads_a_register_before_another_was_compared_is_foreign() {
        let jump = Some("-p tcp -j ISTIO_OUTPUT".to_owned());
        assert_eq!(read_jump(&[(1, META_L4PROTO)], 1), jump);
        assert_eq!(read_jump(&[(9, META_L4PROTO)], 9), jump);
        assert_eq!(read_jump(&[(9, META_L4PROTO)], 1), None);
        assert_eq!(read_jump(&[(9, META_L4PROTO), (1, META_OUTPUT_NAME)], 9), None);
        assert_eq!(read_jump(&[(1, META_OUTPUT_NAME), (9, META_L4PROTO)], 9), None);
    }
}
