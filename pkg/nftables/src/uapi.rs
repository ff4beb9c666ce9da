//! Constants of the kernel's interface (`include/uapi/linux/netfilter/nf_tables.h`, `nfnetlink.h`,
//! `nf_tables_compat.h`), for all crates that use it.
#![allow(missing_docs, reason = "each group names the kernel's, whose documentation says the rest")]

use netlink::{MessageFlags, NetlinkRequest};
use rules::{Hook, Table};

/// `NFNL_SUBSYS_NFTABLES`.
pub const SUBSYSTEM: u16 = 10;

/// `NFNL_MSG_BATCH_*`.
pub const BATCH_BEGIN: u16 = 16;
pub const BATCH_END: u16 = 17;

/// `NFT_MSG_*`.
pub const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub const GET_TABLE: u16 = SUBSYSTEM << 8 | 1;
pub const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
pub const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
pub const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
pub const DELETE_CHAIN: u16 = SUBSYSTEM << 8 | 5;
pub const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
pub const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
pub const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;
pub const GET_SET: u16 = SUBSYSTEM << 8 | 10;
pub const GET_ELEMENTS: u16 = SUBSYSTEM << 8 | 13;
pub const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;

/// `NLM_F_NONREC`: a table or chain is only deleted if it is empty.
pub const ONLY_EMPTY: MessageFlags = MessageFlags(0x100);

/// `NFTA_GEN_ID`.
pub const GENERATION_ID: u16 = 1;

/// `NFTA_TABLE_*`.
pub const TABLE_NAME: u16 = 1;
pub const TABLE_FLAGS: u16 = 2;
pub const TABLE_USE: u16 = 3;

/// `NFT_TABLE_F_DORMANT`: the chains of the table are not evaluated.
pub const TABLE_DORMANT: u32 = 1;
/// `NFT_TABLE_F_OWNER`: only the process that created the table may change it, and the table is removed when the
/// process ends.
pub const TABLE_OWNED: u32 = 2;

/// `NFTA_CHAIN_*`, and `NFTA_HOOK_*` inside `NFTA_CHAIN_HOOK`.
pub const CHAIN_TABLE: u16 = 1;
pub const CHAIN_NAME: u16 = 3;
pub const CHAIN_HOOK: u16 = 4;
pub const CHAIN_POLICY: u16 = 5;
pub const CHAIN_USE: u16 = 6;
pub const CHAIN_TYPE: u16 = 7;
pub const CHAIN_FLAGS: u16 = 10;
/// `NFT_CHAIN_BINDING`: the chain belongs to one rule, which counts as one more use.
pub const CHAIN_BOUND: u32 = 4;
pub const HOOK_NUMBER: u16 = 1;
pub const HOOK_PRIORITY: u16 = 2;

/// `NFTA_RULE_*`, and `NFTA_RULE_COMPAT_*` inside `NFTA_RULE_COMPAT`.
pub const RULE_TABLE: u16 = 1;
pub const RULE_CHAIN: u16 = 2;
pub const RULE_HANDLE: u16 = 3;
pub const RULE_EXPRESSIONS: u16 = 4;
pub const RULE_COMPAT: u16 = 5;
pub const RULE_POSITION: u16 = 6;
pub const RULE_USERDATA: u16 = 7;
pub const COMPAT_PROTOCOL: u16 = 1;
pub const COMPAT_FLAGS: u16 = 2;
/// `NFT_RULE_COMPAT_F_INV`.
pub const COMPAT_INVERTED: u32 = 2;

/// `NFTA_SET_*`, and `NFT_DATA_VERDICT`.
pub const SET_TABLE: u16 = 1;
pub const SET_NAME: u16 = 2;
pub const SET_DATA_TYPE: u16 = 6;
pub const VERDICT_DATA: u32 = 0xffff_ff00;
/// `NFTA_SET_ELEM_LIST_*`, `NFTA_SET_ELEM_DATA`.
pub const ELEMENTS_TABLE: u16 = 1;
pub const ELEMENTS_SET: u16 = 2;
pub const ELEMENTS_LIST: u16 = 3;
pub const ELEMENT_DATA: u16 = 2;

/// `NFTA_LIST_ELEM`; `NFTA_EXPR_*`.
pub const ELEMENT: u16 = 1;
pub const EXPRESSION_NAME: u16 = 1;
pub const EXPRESSION_DATA: u16 = 2;

/// `NFTA_DATA_*`.
pub const DATA_VALUE: u16 = 1;
pub const DATA_VERDICT: u16 = 2;

/// `NFTA_META_*`, `enum nft_meta_keys`.
pub const META_REGISTER: u16 = 1;
pub const META_KEY: u16 = 2;
pub const META_SOURCE: u16 = 3;
pub const META_MARK: u32 = 3;
pub const META_INPUT_NAME: u32 = 6;
pub const META_OUTPUT_NAME: u32 = 7;
pub const META_SOCKET_UID: u32 = 10;
pub const META_SOCKET_GID: u32 = 11;
pub const META_NFPROTO: u32 = 15;
pub const META_L4PROTO: u32 = 16;

/// `NFTA_CT_*`, `enum nft_ct_keys`.
pub const CT_REGISTER: u16 = 1;
pub const CT_KEY: u16 = 2;
pub const CT_SOURCE: u16 = 4;
pub const CT_STATE: u32 = 0;
pub const CT_MARK: u32 = 3;
pub const CT_ZONE: u32 = 17;

/// `NFTA_LOOKUP_*`.
pub const LOOKUP_REGISTER: u16 = 3;

/// `NFTA_PAYLOAD_*`, `enum nft_payload_bases`.
pub const PAYLOAD_REGISTER: u16 = 1;
pub const PAYLOAD_BASE: u16 = 2;
pub const PAYLOAD_OFFSET: u16 = 3;
pub const PAYLOAD_LENGTH: u16 = 4;
pub const PAYLOAD_SOURCE: u16 = 5;
pub const NETWORK_HEADER: u32 = 1;
pub const TRANSPORT_HEADER: u32 = 2;

/// `NFTA_BITWISE_*`.
pub const BITWISE_SOURCE: u16 = 1;
pub const BITWISE_REGISTER: u16 = 2;
pub const BITWISE_LENGTH: u16 = 3;
pub const BITWISE_MASK: u16 = 4;
pub const BITWISE_XOR: u16 = 5;
pub const BITWISE_OPERATION: u16 = 6;

/// `NFTA_RANGE_*`; its operations have the numbers of the first two of `enum nft_cmp_ops`.
pub const RANGE_REGISTER: u16 = 1;
pub const RANGE_OPERATION: u16 = 2;
pub const RANGE_FROM: u16 = 3;
pub const RANGE_TO: u16 = 4;
/// `NFTA_CMP_*`, `enum nft_cmp_ops`.
pub const CMP_REGISTER: u16 = 1;
pub const CMP_OPERATION: u16 = 2;
pub const CMP_DATA: u16 = 3;
pub const CMP_EQUAL: u32 = 0;
pub const CMP_NOT_EQUAL: u32 = 1;
pub const CMP_AT_MOST: u32 = 3;
pub const CMP_AT_LEAST: u32 = 5;

/// `NFTA_COUNTER_*`.
pub const COUNTER_BYTES: u16 = 1;
pub const COUNTER_PACKETS: u16 = 2;

/// `NFTA_IMMEDIATE_*`, `NFTA_VERDICT_*`, `enum nft_registers`.
pub const IMMEDIATE_REGISTER: u16 = 1;
pub const IMMEDIATE_DATA: u16 = 2;
pub const VERDICT_CODE: u16 = 1;
pub const VERDICT_CHAIN: u16 = 2;
pub const REGISTER_VERDICT: u32 = 0;
pub const REGISTER_1: u32 = 1;

/// `NFTA_REDIR_*`, and `NF_NAT_RANGE_PROTO_SPECIFIED`.
pub const REDIR_PORT_MIN: u16 = 1;
pub const REDIR_PORT_MAX: u16 = 2;
pub const REDIR_FLAGS: u16 = 3;
pub const PORT_SPECIFIED: u32 = 2;

/// `NFTA_NAT_*`, `NFT_NAT_SNAT`, and `NF_NAT_RANGE_MAP_IPS`.
pub const NAT_TYPE: u16 = 1;
pub const NAT_FAMILY: u16 = 2;
pub const NAT_ADDRESS_MIN: u16 = 3;
pub const NAT_ADDRESS_MAX: u16 = 4;
pub const NAT_FLAGS: u16 = 7;
pub const NAT_SOURCE: u32 = 0;

/// `NFTA_TPROXY_*`; `NFPROTO_UNSPEC`: either family.
pub const TPROXY_FAMILY: u16 = 1;
pub const TPROXY_PORT: u16 = 3;
pub const ANY_FAMILY: u32 = 0;

/// `NF_DROP`, `NF_ACCEPT`, and `enum nft_verdicts`, which are negative.
pub const VERDICT_DROP: i32 = 0;
pub const VERDICT_ACCEPT: i32 = 1;
pub const VERDICT_CONTINUE: i32 = -1;
pub const VERDICT_JUMP: i32 = -3;
pub const VERDICT_GOTO: i32 = -4;
pub const VERDICT_RETURN: i32 = -5;

/// `NFTA_MATCH_*` and `NFTA_TARGET_*`, which are the same.
pub const XT_NAME: u16 = 1;
pub const XT_REVISION: u16 = 2;
pub const XT_INFO: u16 = 3;

/// `NFTA_LOG_*`.
pub const LOG_GROUP: u16 = 1;
pub const LOG_PREFIX: u16 = 2;
pub const LOG_LENGTH: u16 = 3;

/// `NFPROTO_*`; those of IPv4 and IPv6 are the numbers of `model::Family::address_family`.
pub const INET: u8 = 1;
pub const IPV4: u8 = 2;
pub const NETDEV: u8 = 5;
pub const IPV6: u8 = 10;

/// Returns a message about the objects of a family (`NFPROTO_*`; 0: any) with these names, each in its attribute.
pub fn object_message(kind: u16, flags: MessageFlags, family: u8, names: &[(u16, &str)]) -> NetlinkRequest {
    // struct nfgenmsg: family, version 0, resource 0
    let mut message = NetlinkRequest::new(kind, flags, &[family, 0, 0, 0]);
    for (attribute, name) in names {
        message.put_str(*attribute, name);
    }
    message
}

/// Returns a question for such objects; without names, for all.
pub fn query_message(kind: u16, family: u8, names: &[(u16, &str)]) -> NetlinkRequest {
    object_message(kind, MessageFlags::NONE, family, names)
}

/// `struct nfgenmsg` of a batch: no family, and the subsystem of the batch.
pub const fn batch_header() -> [u8; 4] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}

/// Returns the type, hook and priority (`NF_IP_PRI_*`) of the chain of nf_tables that is the built-in chain of an
/// iptables table. The priority orders it among foreign chains of the same table and hook.
pub const fn base_chain(table: Table, hook: Hook) -> (&'static str, u32, i32) {
    let number = hook as u32;
    match (table, hook) {
        (Table::Raw, _) => ("filter", number, -300),
        (Table::Mangle, Hook::Output) => ("route", number, -150),
        (Table::Mangle, _) => ("filter", number, -150),
        (Table::Filter, _) => ("filter", number, 0),
        (Table::Nat, Hook::Prerouting | Hook::Output) => ("nat", number, -100),
        (Table::Nat, _) => ("nat", number, 100),
    }
}
