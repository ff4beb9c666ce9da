//! Rules that are almost ours.

use rules::{SavedTables, Table};

const MISSES: [&str; 43] = [
    "-j CONNMARK --save-mark --nfmask 0xff --ctmask 0xffffffff",
    "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xfffffffe",
    "-j CONNMARK --restore-mark --nfmask 0x3000",
    "-j CONNMARK --and-mark 0x539",
    "-p udp -j DNAT --to-destination 10.0.0.1",
    "-p tcp -j SNAT --to-source 10.0.0.1:53",
    "-p tcp -j SNAT --to-source 10.0.0.1 --random",
    "-p tcp -j SNAT",
    "-p udp -j DNAT --to-destination 10.0.0.1-10.0.0.2:53",
    "-p udp -j DNAT --to-destination 10.0.0.1:53-54",
    "-p udp -j DNAT --to-destination 10.0.0.1:53 --random",
    "-p udp -j DNAT --to-destination fd00::1",
    "-p udp -j DNAT --to-destination [fe80::1%2]:53",
    "-m set --match-set pods src,dst -j RETURN",
    "-m set --match-set \"the pods\" src -j RETURN",
    "-m set --match-set pods src --return-nomatch -j RETURN",
    "-m set --match-set pods -j RETURN",
    "-p tcp -j TPROXY --on-port 15006 --on-ip 127.0.0.1 --tproxy-mark 0x539/0xffffffff",
    "-p tcp -j TPROXY --on-port 15006",
    "-p tcp -j REDIRECT --to-ports 15001 --random",
    "-p tcp -j REDIRECT --to-ports 15001-15002",
    "-p tcp -m tcp ! --dport 80:90 -j RETURN",
    "-p tcp -m tcp --dport 90:80 -j RETURN",
    "-p tcp -m tcp --sport 80:90 -j RETURN",
    "-p udp -m tcp --dport 80 -j RETURN",
    "! -p tcp -m tcp --dport 80 -j RETURN",
    "-p tcp -m tcp --dport 65536 -j RETURN",
    "-p icmp -j RETURN",
    "-s 10.0.0.1/8 -j RETURN",
    "-d 10.0.0.0/8 -d 10.0.0.0/8 -j RETURN",
    "-m conntrack ! --ctstate INVALID -j DROP",
    "-m conntrack --ctstate NEW,RELATED -j DROP",
    "-m conntrack ! --ctstate NEW -j DROP",
    "-m owner --uid-owner 0-1337 -j RETURN",
    "-m mark --mark 0x539/0x1/0x1 -j RETURN",
    "-g \"a chain\"",
    "-g",
    "-j \"a chain\"",
    "-j \"\"",
    "-j MASQUERADE",
    "-j",
    "-p tcp",
    "",
];

/// Almost ours, but different: kept as text, so that a chain with such a rule is recreated.
#[test]
fn near_misses_are_foreign() {
    for text in MISSES {
        let saved = SavedTables::parse(&format!("*nat\n-A OUTPUT {text}\nCOMMIT\n")).unwrap();
        assert_eq!(saved.tables[&Table::Nat].rules[0].rule, None, "{text:?}");
    }
}
