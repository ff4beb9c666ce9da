//! Encoding of a rule as expressions, in the order of iptables-nft: interfaces, protocol, addresses, matches, a
//! counter, the verdict.

use model::{Family, IfName, IpNet};
use netlink::NetlinkRequest;
use rules::{MatchValue, Rule, Target, TransportProtocol};

use crate::{
    sets::SetNumbers,
    uapi::{
        BITWISE_LENGTH, BITWISE_MASK, BITWISE_OPERATION, BITWISE_REGISTER, BITWISE_SOURCE, BITWISE_XOR,
        CMP_DATA, CMP_EQUAL, CMP_NOT_EQUAL, CMP_OPERATION, CMP_REGISTER, COMPAT_FLAGS, COMPAT_INVERTED,
        COMPAT_PROTOCOL, COUNTER_BYTES, COUNTER_PACKETS, DATA_VALUE, DATA_VERDICT, ELEMENT, EXPRESSION_DATA,
        EXPRESSION_NAME, IMMEDIATE_DATA, IMMEDIATE_REGISTER, META_INPUT_NAME, META_KEY, META_L4PROTO,
        META_OUTPUT_NAME, META_REGISTER, NETWORK_HEADER, PAYLOAD_BASE, PAYLOAD_LENGTH, PAYLOAD_OFFSET,
        PAYLOAD_REGISTER, REGISTER_1, REGISTER_VERDICT, RULE_COMPAT, RULE_EXPRESSIONS, VERDICT_ACCEPT,
        VERDICT_CHAIN, VERDICT_CODE, VERDICT_DROP, VERDICT_GOTO, VERDICT_JUMP, VERDICT_RETURN, XT_INFO,
        XT_NAME, XT_REVISION,
    },
    xt::{self, XtInfo},
};

/// Offset of the source address in the header of IPv4 (RFC 791) and IPv6 (RFC 8200); the destination follows.
pub(crate) const fn source_offset(family: Family) -> u32 {
    match family {
        Family::V4 => 12,
        Family::V6 => 8,
    }
}

/// Size of an address in bytes.
pub(crate) const fn address_size(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

/// Adds the attributes `NFTA_RULE_EXPRESSIONS` and, where x_tables needs it, `NFTA_RULE_COMPAT`. Returns false if the
/// rule has a condition that cannot be expressed.
pub(crate) fn write_rule(
    request: &mut NetlinkRequest,
    family: Family,
    rule: &Rule,
    sets: &mut dyn SetNumbers,
) -> bool {
    let proto = rule.proto.as_ref().filter(|proto| !proto.negated).map(|proto| proto.value);
    let matches: Option<Vec<XtInfo>> =
        rule.matches.iter().map(|condition| xt::encode_match(condition, proto, sets)).collect();
    let Some(matches) = matches else { return false };
    let target = xt::encode_target(&rule.target, family);
    request.put_nested(RULE_EXPRESSIONS, |list| {
        if let Some(name) = &rule.input {
            match_interface(list, META_INPUT_NAME, name);
        }
        if let Some(name) = &rule.output {
            match_interface(list, META_OUTPUT_NAME, name);
        }
        if let Some(proto) = &rule.proto {
            load_meta(list, META_L4PROTO);
            compare_register(list, proto.negated, &[proto.value.number()]);
        }
        match_addresses(list, family, rule);
        matches.iter().for_each(|info| add_extension(list, "match", info));
        add_counter(list);
        match &target {
            Some(info) => add_extension(list, "target", info),
            None => set_verdict(list, &rule.target),
        }
    });
    if target.is_some() || !matches.is_empty() {
        add_compatibility(request, rule.proto.as_ref());
    }
    true
}

/// Adds the protocol of the whole rule, which extensions of x_tables may need.
fn add_compatibility(request: &mut NetlinkRequest, proto: Option<&MatchValue<TransportProtocol>>) {
    let number = proto.map_or(0, |proto| u32::from(proto.value.number()));
    let flags = if proto.is_some_and(|proto| proto.negated) { COMPAT_INVERTED } else { 0 };
    request.put_nested(RULE_COMPAT, |compat| {
        compat.put_be32(COMPAT_PROTOCOL, number).put_be32(COMPAT_FLAGS, flags);
    });
}

pub(crate) fn add_expression(list: &mut NetlinkRequest, name: &str, data: &dyn Fn(&mut NetlinkRequest)) {
    list.put_nested(ELEMENT, |element| {
        element.put_str(EXPRESSION_NAME, name).put_nested(EXPRESSION_DATA, data);
    });
}

fn add_extension(list: &mut NetlinkRequest, kind: &str, (name, revision, info): &XtInfo) {
    add_expression(list, kind, &|data| {
        data.put_str(XT_NAME, name).put_be32(XT_REVISION, *revision).put_bytes(XT_INFO, info);
    });
}

pub(crate) fn add_counter(list: &mut NetlinkRequest) {
    add_expression(list, "counter", &|data| {
        data.put_bytes(COUNTER_BYTES, &[0; 8]).put_bytes(COUNTER_PACKETS, &[0; 8]);
    });
}

pub(crate) fn load_meta(list: &mut NetlinkRequest, key: u32) {
    add_expression(list, "meta", &|data| {
        data.put_be32(META_KEY, key).put_be32(META_REGISTER, REGISTER_1);
    });
}

pub(crate) fn compare_register(list: &mut NetlinkRequest, negated: bool, value: &[u8]) {
    compare_by(list, if negated { CMP_NOT_EQUAL } else { CMP_EQUAL }, value);
}

pub(crate) fn compare_by(list: &mut NetlinkRequest, operation: u32, value: &[u8]) {
    add_expression(list, "cmp", &|data| {
        data.put_be32(CMP_REGISTER, REGISTER_1).put_be32(CMP_OPERATION, operation).put_nested(
            CMP_DATA,
            |data| {
                data.put_bytes(DATA_VALUE, value);
            },
        );
    });
}

/// Compares an interface name: complete with its trailing NUL, a prefix without.
fn match_interface(list: &mut NetlinkRequest, key: u32, name: &MatchValue<IfName>) {
    let text = name.value.as_str();
    load_meta(list, key);
    match text.strip_suffix('+') {
        // No interface has an empty name: this is iptables' name that none can have.
        Some("") => compare_register(list, false, b"INVAL/D\0"),
        Some(start) => compare_register(list, name.negated, start.as_bytes()),
        None => compare_register(list, name.negated, format!("{text}\0").as_bytes()),
    }
}

pub(crate) fn load_payload(list: &mut NetlinkRequest, base: u32, offset: u32, length: u32) {
    add_expression(list, "payload", &|data| {
        data.put_be32(PAYLOAD_REGISTER, REGISTER_1)
            .put_be32(PAYLOAD_BASE, base)
            .put_be32(PAYLOAD_OFFSET, offset)
            .put_be32(PAYLOAD_LENGTH, length);
    });
}

pub(crate) fn match_addresses(list: &mut NetlinkRequest, family: Family, rule: &Rule) {
    let source = source_offset(family);
    for (offset, net) in [(source, &rule.source), (source + address_size(family), &rule.dest)] {
        if let Some(net) = net {
            match_address(list, family, offset, net);
        }
    }
}

fn match_address(list: &mut NetlinkRequest, family: Family, offset: u32, net: &MatchValue<IpNet>) {
    let size = address_size(family);
    load_payload(list, NETWORK_HEADER, offset, size);
    let (value, mask) = match net.value {
        IpNet::V4(net) => (net.network().octets().to_vec(), net.netmask().octets().to_vec()),
        IpNet::V6(net) => (net.network().octets().to_vec(), net.netmask().octets().to_vec()),
    };
    if net.value.prefix_len() < net.value.max_prefix_len() {
        // iptables since 1.8.6 loads fewer bytes where possible; all versions read this form.
        apply_bitwise(list, &mask, &vec![0; mask.len()]);
    }
    compare_register(list, net.negated, &value);
}

/// Computes `(register & mask) ^ xor`; both have the same length.
pub(crate) fn apply_bitwise(list: &mut NetlinkRequest, mask: &[u8], xor: &[u8]) {
    let length = u32::try_from(mask.len()).unwrap_or_default(); // at most the length of an address
    add_expression(list, "bitwise", &|data| {
        data.put_be32(BITWISE_SOURCE, REGISTER_1)
            .put_be32(BITWISE_REGISTER, REGISTER_1)
            .put_be32(BITWISE_LENGTH, length)
            .put_be32(BITWISE_OPERATION, 0)
            .put_nested(BITWISE_MASK, |data| {
                data.put_bytes(DATA_VALUE, mask);
            })
            .put_nested(BITWISE_XOR, |data| {
                data.put_bytes(DATA_VALUE, xor);
            });
    });
}

pub(crate) fn set_verdict(list: &mut NetlinkRequest, target: &Target) {
    let (code, chain) = match target {
        Target::Accept => (VERDICT_ACCEPT, None),
        Target::Drop => (VERDICT_DROP, None),
        Target::Jump(chain) => (VERDICT_JUMP, Some(chain)),
        Target::Goto(chain) => (VERDICT_GOTO, Some(chain)),
        _ => (VERDICT_RETURN, None), // the others are targets of x_tables
    };
    add_expression(list, "immediate", &|data| {
        data.put_be32(IMMEDIATE_REGISTER, REGISTER_VERDICT).put_nested(IMMEDIATE_DATA, |data| {
            data.put_nested(DATA_VERDICT, |verdict| {
                verdict.put_bytes(VERDICT_CODE, &code.to_be_bytes());
                if let Some(chain) = chain {
                    verdict.put_str(VERDICT_CHAIN, &chain.0);
                }
            });
        });
    });
}
