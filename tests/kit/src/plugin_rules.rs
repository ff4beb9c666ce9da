//! Rule sets of several versions of Istio's plugin, by structure: their chains, the jumps to them, and where traffic is redirected.

use crate::netns::Netns;

/// Whether this tool lists exactly the jumps of an IPv4 pod with a sidecar.
#[must_use]
pub fn is_redirected(netns: &Netns, save: &str) -> bool {
    [INBOUND, OUTBOUND].iter().all(|rule| netns.has_rule(save, &format!("-A {rule}")))
}

/// Whether a namespace has no chain of a sidecar in this tool's output, not even a part of what redirects a pod.
#[must_use]
pub fn is_bare(netns: &Netns, save: &str) -> bool {
    !netns.sh(save).lines().any(|line| line.starts_with(":ISTIO_"))
}

/// Chains and rules of `nat` that iptables has in every version from 1.18 to 1.31, plus those that differ.
fn nat(chains: &[&str], hooks: &[&str], rules: &[&str]) -> String {
    let declared = ["ISTIO_INBOUND", "ISTIO_REDIRECT", "ISTIO_IN_REDIRECT", "ISTIO_OUTPUT"];
    let declared = declared.iter().chain(chains).map(|chain| format!(":{chain} - [0:0]\n"));
    let same = [
        "ISTIO_INBOUND -p tcp --dport 15008 -j RETURN",
        "ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001",
        "ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006",
        "ISTIO_OUTPUT -s 127.0.0.6/32 -o lo -j RETURN",
        "ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT",
        "ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN",
    ];
    let rules = same.iter().chain(rules).chain(hooks).map(|rule| format!("-A {rule}\n"));
    format!("*nat\n{}{}COMMIT\n", declared.collect::<String>(), rules.collect::<String>())
}

const INBOUND: &str = "PREROUTING -p tcp -j ISTIO_INBOUND";
const OUTBOUND: &str = "OUTPUT -p tcp -j ISTIO_OUTPUT";
/// Since DNS has its own chain, the jump matches every protocol.
const ANY_OUTBOUND: &str = "OUTPUT -j ISTIO_OUTPUT";
const IN_REDIRECT: &str = "ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT";
const TO_PROXY: &str = "ISTIO_OUTPUT -j ISTIO_REDIRECT";

/// Each version with its setting, and the input of `iptables-restore`.
#[must_use]
pub fn iptables() -> Vec<(&'static str, String)> {
    let tproxy = "*mangle\n:ISTIO_DIVERT - [0:0]\n:ISTIO_TPROXY - [0:0]\n:ISTIO_INBOUND - [0:0]\n\
        -A ISTIO_DIVERT -j MARK --set-mark 1337\n-A ISTIO_DIVERT -j ACCEPT\n\
        -A ISTIO_TPROXY ! -d 127.0.0.1/32 -p tcp -j TPROXY --tproxy-mark 1337/0xffffffff --on-port 15006\n\
        -A PREROUTING -p tcp -j ISTIO_INBOUND\n\
        -A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ISTIO_DIVERT\n\
        -A ISTIO_INBOUND -p tcp -j ISTIO_TPROXY\n\
        -A OUTPUT -p tcp -m connmark --mark 1337 -j CONNMARK --restore-mark\nCOMMIT\n";
    let invalid = "*mangle\n-A PREROUTING -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n";
    let invalid_chain = "*mangle\n:ISTIO_DROP - [0:0]\n-A PREROUTING -j ISTIO_DROP\n\
        -A ISTIO_DROP -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n";
    let zones = "*raw\n:ISTIO_OUTPUT_DNS - [0:0]\n:ISTIO_INBOUND - [0:0]\n-A OUTPUT -j ISTIO_OUTPUT_DNS\n\
        -A ISTIO_OUTPUT_DNS -p udp --dport 53 -m owner --uid-owner 1337 -j CT --zone 1\n\
        -A PREROUTING -j ISTIO_INBOUND\n-A ISTIO_INBOUND -p udp --sport 53 -j CT --zone 1\nCOMMIT\n";
    let dns_in_hook = [
        "OUTPUT -p udp --dport 53 -m owner --uid-owner 1337 -j RETURN",
        "OUTPUT -p udp --dport 53 -d 10.96.0.10/32 -j REDIRECT --to-ports 15053",
    ];
    let dns_in_chain = [
        "ISTIO_OUTPUT -j ISTIO_OUTPUT_DNS",
        "ISTIO_OUTPUT_DNS -p tcp --dport 53 -d 10.96.0.10/32 -j REDIRECT --to-ports 15053",
        "ISTIO_OUTPUT_DNS -p udp --dport 53 -d 10.96.0.10/32 -j REDIRECT --to-ports 15053",
        TO_PROXY,
    ];
    vec![
        ("1.18", nat(&[], &[INBOUND, OUTBOUND], &[IN_REDIRECT, TO_PROXY])),
        ("1.18, DNS", nat(&[], &[&[INBOUND, OUTBOUND], &dns_in_hook[..]].concat(), &[IN_REDIRECT, TO_PROXY])),
        ("1.18, TPROXY", format!("{tproxy}{}", nat(&[], &[OUTBOUND], &[TO_PROXY]))),
        (
            "1.22, drop invalid",
            format!("{invalid}{}", nat(&[], &[INBOUND, OUTBOUND], &[IN_REDIRECT, TO_PROXY])),
        ),
        ("1.24, no inbound ports", nat(&[], &[OUTBOUND], &[TO_PROXY])),
        ("1.24, no outbound networks", nat(&[], &[INBOUND, OUTBOUND], &[IN_REDIRECT])),
        (
            "1.27, DNS",
            format!(
                "{zones}{}",
                nat(
                    &["ISTIO_OUTPUT_DNS"],
                    &[INBOUND, ANY_OUTBOUND],
                    &[&[IN_REDIRECT], &dns_in_chain[..]].concat()
                )
            ),
        ),
        (
            "1.29, drop invalid in a chain",
            format!("{invalid_chain}{}", nat(&[], &[INBOUND, OUTBOUND], &[IN_REDIRECT, TO_PROXY])),
        ),
        (
            "HEAD, excluded interface",
            nat(
                &[],
                &["PREROUTING -i eth9 -j RETURN", "OUTPUT -o eth9 -j RETURN", INBOUND, OUTBOUND],
                &[IN_REDIRECT, "ISTIO_OUTPUT -d 10.0.0.0/8 -j ISTIO_REDIRECT"],
            ),
        ),
    ]
}

/// The native tables of 1.28 and newer, as input of `nft`.
pub const NATIVE: &str = "add table inet istio-proxy-nat
add chain inet istio-proxy-nat prerouting { type nat hook prerouting priority -100 ; }
add chain inet istio-proxy-nat output { type nat hook output priority -100 ; }
add chain inet istio-proxy-nat istio-inbound
add chain inet istio-proxy-nat istio-redirect
add chain inet istio-proxy-nat istio-in-redirect
add chain inet istio-proxy-nat istio-output
add rule inet istio-proxy-nat istio-inbound tcp dport 15008 return
add rule inet istio-proxy-nat istio-redirect meta l4proto tcp redirect to :15001
add rule inet istio-proxy-nat istio-in-redirect meta l4proto tcp redirect to :15006
add rule inet istio-proxy-nat prerouting meta l4proto tcp jump istio-inbound
add rule inet istio-proxy-nat istio-inbound meta l4proto tcp jump istio-in-redirect
add rule inet istio-proxy-nat output jump istio-output
add rule inet istio-proxy-nat istio-output oifname lo meta l4proto tcp ip daddr != 127.0.0.1 tcp dport != { 53, 15008 } skuid 1337 jump istio-in-redirect
add rule inet istio-proxy-nat istio-output skuid 1337 return
add rule inet istio-proxy-nat istio-output jump istio-redirect
";
