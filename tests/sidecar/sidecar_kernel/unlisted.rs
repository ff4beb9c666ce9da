//! Rules that the kernel does not list: those behind one that is longer than a message of a list.

use firewall::{Backend, Firewall, FirewallOptions, NativeTables};
use kit::Netns;
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};
use nftables::uapi::{
    BATCH_BEGIN, BATCH_END, DATA_VERDICT, ELEMENT, EXPRESSION_DATA, EXPRESSION_NAME, IMMEDIATE_DATA,
    IMMEDIATE_REGISTER, INET, IPV4, NEW_RULE, REGISTER_VERDICT, RULE_CHAIN, RULE_EXPRESSIONS, RULE_TABLE,
    VERDICT_CODE, VERDICT_DROP, batch_header,
};
use rules::{ChainSet, sidecar};

use super::{cases, state::pod_netns};

fn with_expressions(place: (u8, &str, &str), fill: impl FnOnce(&mut NetlinkRequest)) -> NetlinkRequest {
    let (family, table, chain) = place;
    let flags = MessageFlags::CREATE | MessageFlags::APPEND;
    let mut rule = NetlinkRequest::new(NEW_RULE, flags, &[family, 0, 0, 0]);
    rule.put_str(RULE_TABLE, table).put_str(RULE_CHAIN, chain).put_nested(RULE_EXPRESSIONS, fill);
    rule
}

fn add_expression(list: &mut NetlinkRequest, name: &str, fill: impl FnOnce(&mut NetlinkRequest)) {
    list.put_nested(ELEMENT, |element| {
        element.put_str(EXPRESSION_NAME, name).put_nested(EXPRESSION_DATA, fill);
    });
}

/// Appends a rule that needs some 37 KiB in a list, and one behind it that drops packets. The kernel evaluates both: the first
/// only counts.
fn append_unlisted(netns: &Netns, place: (u8, &str, &str)) {
    /// `NFTA_OBJREF_IMM_TYPE`, `NFTA_OBJREF_IMM_NAME`, `NFT_OBJECT_COUNTER`
    const OBJECT_TYPE: u16 = 1;
    const OBJECT_NAME: u16 = 2;
    const COUNTER: u32 = 1;
    let (family, table, chain) = place;
    let long = "c".repeat(250);
    let name = if family == INET { "inet" } else { "ip" };
    netns.pipe("nft -f -", &format!("add counter {name} {table} {long}\n"));
    let add_count = |list: &mut NetlinkRequest| {
        add_expression(list, "objref", |data| {
            data.put_be32(OBJECT_TYPE, COUNTER).put_str(OBJECT_NAME, &long);
        });
    };
    let counts = with_expressions(place, |list| (0..127).for_each(|_| add_count(list)));
    let drops = with_expressions(place, |list| {
        add_expression(list, "immediate", |data| {
            data.put_be32(IMMEDIATE_REGISTER, REGISTER_VERDICT).put_nested(IMMEDIATE_DATA, |content| {
                content.put_nested(DATA_VERDICT, |verdict| {
                    verdict.put_bytes(VERDICT_CODE, &VERDICT_DROP.to_be_bytes());
                });
            });
        });
    });
    let limit = |kind| NetlinkRequest::new(kind, MessageFlags::NONE, &batch_header());
    netns.run(|| {
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).unwrap();
        socket.send_transaction(limit(BATCH_BEGIN), vec![counts, drops], limit(BATCH_END)).unwrap();
    });
    let listed = netns.sh(&format!("nft list chain {name} {table} {chain}"));
    assert!(!listed.split_whitespace().any(|word| word == "drop"), "the kernel lists it: {listed}");
}

/// Jumps of maps, and to the chain of a single rule, are no sign of rules that are not listed.
#[test]
fn rules_ahead_of_ours_that_the_kernel_does_not_list_are_reported() {
    let netns = pod_netns("unlisted");
    let harmless = "table ip raw {
        chain x { counter; }
        map unused { type ipv4_addr : verdict; elements = { 10.0.0.1 : jump x, 10.0.0.2 : drop }; }
        chain OUTPUT {
            type filter hook output priority raw;
            meta mark 1 jump { accept; }
            ip daddr vmap { 10.0.0.1 : jump x, 10.0.0.3 : goto x }
            ip daddr vmap { 10.0.0.4 : accept } jump x
            goto x
        }
    }";
    netns.pipe("nft -f -", harmless);
    let effects = || netns.run(|| firewall::foreign_effects(ChainSet::IN_POD, &[], Backend::Nft)).unwrap();
    assert_eq!(effects(), [""; 0]);
    append_unlisted(&netns, (IPV4, "raw", "OUTPUT"));
    assert_eq!(effects(), ["nf_tables ip raw has rules ahead of ours that cannot be examined"]);
}

#[test]
fn rules_in_chains_of_ours_that_the_kernel_does_not_list_are_removed() {
    let config = cases::injected();
    for (native, place) in [
        (NativeTables::Never, (IPV4, "nat", "ISTIO_OUTPUT")),
        (NativeTables::Preferred, (INET, "istio-proxy-nat", "istio-output")),
    ] {
        let netns = pod_netns("unlisted");
        let options = FirewallOptions { native, ..FirewallOptions::default() };
        let changes = || {
            netns.run(|| {
                let (firewall, observed) = Firewall::open(&options).unwrap();
                let desired = |family| sidecar::rule_set(&config, family);
                let changes = observed.plan_changes(ChainSet::SIDECAR, desired);
                firewall.apply(&changes, Vec::new()).unwrap();
                changes.reason_texts().len()
            })
        };
        assert!(changes() > 0 && changes() == 0, "{place:?}");
        append_unlisted(&netns, place);
        assert!(changes() > 0, "{place:?}");
        assert_eq!(changes(), 0, "{place:?}");
    }
}
