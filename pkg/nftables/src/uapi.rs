//! Numbers of the kernel's interface (`include/uapi/linux/netfilter/nf_tables.h`, `nfnetlink.h`, `nf_tables_compat.h`).

use model::Family;
use rules::{Hook, Table};

/// `NFNL_SUBSYS_NFTABLES`.
pub(crate) const SUBSYSTEM: u16 = 10;

/// `NFNL_MSG_BATCH_*`.
pub(crate) const BATCH_BEGIN: u16 = 16;
pub(crate) const BATCH_END: u16 = 17;

/// `NFT_MSG_*`.
pub(crate) const NEW_TABLE: u16 = SUBSYSTEM << 8;
pub(crate) const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
pub(crate) const GET_CHAIN: u16 = SUBSYSTEM << 8 | 4;
pub(crate) const DELETE_CHAIN: u16 = SUBSYSTEM << 8 | 5;
pub(crate) const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
pub(crate) const GET_RULE: u16 = SUBSYSTEM << 8 | 7;
pub(crate) const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;
pub(crate) const GET_GENERATION: u16 = SUBSYSTEM << 8 | 16;

/// `NFTA_GEN_ID`.
pub(crate) const GENERATION_ID: u16 = 1;

/// `NFTA_TABLE_NAME`.
pub(crate) const TABLE_NAME: u16 = 1;

/// `NFTA_CHAIN_*`, and `NFTA_HOOK_*` inside `NFTA_CHAIN_HOOK`.
pub(crate) const CHAIN_TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const CHAIN_HOOK: u16 = 4;
pub(crate) const CHAIN_TYPE: u16 = 7;
pub(crate) const HOOK_NUMBER: u16 = 1;
pub(crate) const HOOK_PRIORITY: u16 = 2;

/// `NFTA_RULE_*`, and `NFTA_RULE_COMPAT_*` inside `NFTA_RULE_COMPAT`.
pub(crate) const RULE_TABLE: u16 = 1;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_HANDLE: u16 = 3;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const RULE_COMPAT: u16 = 5;
pub(crate) const RULE_POSITION: u16 = 6;
pub(crate) const RULE_USERDATA: u16 = 7;
pub(crate) const COMPAT_PROTOCOL: u16 = 1;
pub(crate) const COMPAT_FLAGS: u16 = 2;
/// `NFT_RULE_COMPAT_F_INV`.
pub(crate) const COMPAT_INVERTED: u32 = 2;

/// `NFTA_LIST_ELEM`; `NFTA_EXPR_*`.
pub(crate) const ELEMENT: u16 = 1;
pub(crate) const EXPRESSION_NAME: u16 = 1;
pub(crate) const EXPRESSION_DATA: u16 = 2;

/// `NFTA_DATA_*`.
pub(crate) const DATA_VALUE: u16 = 1;
pub(crate) const DATA_VERDICT: u16 = 2;

/// `NFTA_META_*`, `enum nft_meta_keys`.
pub(crate) const META_REGISTER: u16 = 1;
pub(crate) const META_KEY: u16 = 2;
pub(crate) const META_MARK: u32 = 3;
pub(crate) const META_INPUT_NAME: u32 = 6;
pub(crate) const META_OUTPUT_NAME: u32 = 7;
pub(crate) const META_L4PROTO: u32 = 16;

/// `NFTA_PAYLOAD_*`, `enum nft_payload_bases`.
pub(crate) const PAYLOAD_REGISTER: u16 = 1;
pub(crate) const PAYLOAD_BASE: u16 = 2;
pub(crate) const PAYLOAD_OFFSET: u16 = 3;
pub(crate) const PAYLOAD_LENGTH: u16 = 4;
pub(crate) const NETWORK_HEADER: u32 = 1;
pub(crate) const TRANSPORT_HEADER: u32 = 2;

/// `NFTA_BITWISE_*`.
pub(crate) const BITWISE_SOURCE: u16 = 1;
pub(crate) const BITWISE_REGISTER: u16 = 2;
pub(crate) const BITWISE_LENGTH: u16 = 3;
pub(crate) const BITWISE_MASK: u16 = 4;
pub(crate) const BITWISE_XOR: u16 = 5;
pub(crate) const BITWISE_OPERATION: u16 = 6;

/// `NFTA_CMP_*`, `enum nft_cmp_ops`.
pub(crate) const CMP_REGISTER: u16 = 1;
pub(crate) const CMP_OPERATION: u16 = 2;
pub(crate) const CMP_DATA: u16 = 3;
pub(crate) const CMP_EQUAL: u32 = 0;
pub(crate) const CMP_NOT_EQUAL: u32 = 1;

/// `NFTA_COUNTER_*`.
pub(crate) const COUNTER_BYTES: u16 = 1;
pub(crate) const COUNTER_PACKETS: u16 = 2;

/// `NFTA_IMMEDIATE_*`, `NFTA_VERDICT_*`, `enum nft_registers`.
pub(crate) const IMMEDIATE_REGISTER: u16 = 1;
pub(crate) const IMMEDIATE_DATA: u16 = 2;
pub(crate) const VERDICT_CODE: u16 = 1;
pub(crate) const VERDICT_CHAIN: u16 = 2;
pub(crate) const REGISTER_VERDICT: u32 = 0;
pub(crate) const REGISTER_1: u32 = 1;

/// `NF_DROP`, `NF_ACCEPT`, and `enum nft_verdicts`, which are negative.
pub(crate) const VERDICT_DROP: i32 = 0;
pub(crate) const VERDICT_ACCEPT: i32 = 1;
pub(crate) const VERDICT_JUMP: i32 = -3;
pub(crate) const VERDICT_GOTO: i32 = -4;
pub(crate) const VERDICT_RETURN: i32 = -5;

/// `NFTA_MATCH_*` and `NFTA_TARGET_*`, which are the same.
pub(crate) const XT_NAME: u16 = 1;
pub(crate) const XT_REVISION: u16 = 2;
pub(crate) const XT_INFO: u16 = 3;

/// `NFTA_LOG_*`.
pub(crate) const LOG_GROUP: u16 = 1;
pub(crate) const LOG_PREFIX: u16 = 2;
pub(crate) const LOG_LENGTH: u16 = 3;

/// `struct nfgenmsg` of a family: `NFPROTO_IPV4` or `NFPROTO_IPV6`, version 0, resource 0.
pub(crate) const fn header(family: Family) -> [u8; 4] {
    match family {
        Family::V4 => [2, 0, 0, 0],
        Family::V6 => [10, 0, 0, 0],
    }
}

/// The same for a batch: no family, and whose batch it is.
pub(crate) const fn batch_header() -> [u8; 4] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}

/// What makes a chain of nf_tables the built-in chain of an iptables table: type, hook and priority
/// (`NF_IP_PRI_*`). Other programs' chains of the same table and hook are ordered by the priority.
pub(crate) const fn base_chain(table: Table, hook: Hook) -> (&'static str, u32, i32) {
    let number = match hook {
        Hook::Prerouting => 0,
        Hook::Input => 1,
        Hook::Forward => 2,
        Hook::Output => 3,
        Hook::Postrouting => 4,
    };
    match (table, hook) {
        (Table::Raw, _) => ("filter", number, -300),
        (Table::Mangle, Hook::Output) => ("route", number, -150),
        (Table::Mangle, _) => ("filter", number, -150),
        (Table::Filter, _) => ("filter", number, 0),
        (Table::Nat, Hook::Prerouting | Hook::Output) => ("nat", number, -100),
        (Table::Nat, _) => ("nat", number, 100),
    }
}
