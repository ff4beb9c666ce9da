//! The operations of Istio 1.20's agent when another ztunnel becomes active, as a script of single commands: the whole clean-up,
//! then the node's rules, then the ztunnel's namespace, then the pods. IPv4 only, as there.
//!
//! The script costs less than the original: links are created by one command each, where it sends several messages; all pods are
//! added again by two commands, where the original starts four processes for each. The links are of kind vxlan.

use std::fmt::Write as _;

use kit::Ztunnel;

use super::fixture::fake_ip;

const CHAINS: [(&str, &str); 8] = [
    ("nat", "PREROUTING"),
    ("nat", "POSTROUTING"),
    ("mangle", "PREROUTING"),
    ("mangle", "POSTROUTING"),
    ("mangle", "FORWARD"),
    ("mangle", "INPUT"),
    ("mangle", "OUTPUT"),
    ("filter", "FORWARD"),
];

/// The script, and its number of commands.
pub(crate) fn script(host: &str, veth: &str, ztunnel: &Ztunnel, pods: u32) -> (String, usize) {
    let ip = ztunnel.ip(false).to_string();
    let mut script = tear_down();
    script += &build(host, veth, &ip);
    script += &inside(host, ztunnel.pod().netns.name(), &ip);
    script += &enrol(host, pods);
    let commands = script.lines().filter(|line| !line.starts_with('#')).count();
    (script.replace("EOL", "\n"), commands)
}

fn tear_down() -> String {
    let mut script = String::new();
    for (table, hook) in CHAINS {
        writeln!(script, "iptables-nft -t {table} -F ztunnel-{hook}").unwrap();
    }
    for (table, hook) in CHAINS {
        writeln!(script, "iptables-nft -t {table} -D {hook} -j ztunnel-{hook}").unwrap();
        writeln!(script, "iptables-nft -t {table} -X ztunnel-{hook}").unwrap();
    }
    for table in [100, 101, 102] {
        writeln!(script, "ip route flush table {table}").unwrap();
    }
    for priority in 100..104 {
        writeln!(script, "ip rule del priority {priority}").unwrap();
    }
    script + "ip link del istioin\nip link del istioout\nipset destroy ztunnel-pods-ips\n"
}

fn build(host: &str, veth: &str, ip: &str) -> String {
    let mut script = String::from("iptables-nft -t mangle -C OUTPUT -j ztunnel-OUTPUT\n");
    for (table, hook) in CHAINS {
        writeln!(script, "iptables-nft -t {table} -N ztunnel-{hook}").unwrap();
        writeln!(script, "iptables-nft -t {table} -I {hook} -j ztunnel-{hook}").unwrap();
    }
    script += "ipset create ztunnel-pods-ips hash:ip comment\n";
    for rule in rules(host, veth, ip) {
        writeln!(script, "iptables-nft -t {rule}").unwrap();
    }
    for (link, id, address) in [("istioin", 1000, "192.168.126.1/30"), ("istioout", 1001, "192.168.127.1/30")]
    {
        writeln!(script, "ip link add {link} up type vxlan id {id} remote {ip} dstport 6081").unwrap();
        writeln!(script, "ip address add {address} dev {link}").unwrap();
    }
    for (table, route) in [
        (101, format!("{ip} dev {veth} scope link")),
        (101, "default via 192.168.127.2 dev istioout".to_owned()),
        (102, format!("{ip} dev {veth} scope link")),
        (102, format!("default via {ip} dev {veth} onlink")),
        (100, format!("{ip} dev {veth} scope link")),
    ] {
        writeln!(script, "ip route add table {table} {route}").unwrap();
    }
    script
        + "ip rule add priority 100 fwmark 0x200/0x200 lookup main\n\
           ip rule add priority 101 fwmark 0x100/0x100 lookup 101\n\
           ip rule add priority 102 fwmark 0x40/0x40 lookup 102\n\
           ip rule add priority 103 lookup 100\n"
}

fn rules(host: &str, veth: &str, ip: &str) -> Vec<String> {
    let set = "-m set --match-set ztunnel-pods-ips";
    let mark = |mark: &str| format!("-j MARK --set-mark {mark}");
    let save = |mark: &str| {
        format!("-m mark --mark {mark}/{mark} -j CONNMARK --save-mark --nfmask {mark} --ctmask {mark}")
    };
    let prerouting = [
        format!("-i istioin {}", mark("0x200/0x200")),
        "-i istioin -j RETURN".to_owned(),
        format!("-i istioout {}", mark("0x200/0x200")),
        "-i istioout -j RETURN".to_owned(),
        "-p udp -m udp --dport 6081 -j RETURN".to_owned(),
        format!("-m connmark --mark 0x220/0x220 {}", mark("0x200/0x200")),
        "-m mark --mark 0x200/0x200 -j RETURN".to_owned(),
        format!("! -i {veth} -m connmark --mark 0x210/0x210 {}", mark("0x40/0x40")),
        "-m mark --mark 0x40/0x40 -j RETURN".to_owned(),
        format!("-i {veth} ! -s {ip} {}", mark("0x210/0x210")),
        "-m mark --mark 0x200/0x200 -j RETURN".to_owned(),
        format!("-i {veth} {}", mark("0x220/0x220")),
        format!("-p udp {}", mark("0x220/0x220")),
        "-m mark --mark 0x200/0x200 -j RETURN".to_owned(),
        format!("-p tcp {set} src {}", mark("0x100/0x100")),
    ];
    let mut rules: Vec<String> =
        prerouting.into_iter().map(|rule| format!("mangle -A ztunnel-PREROUTING {rule}")).collect();
    for hook in ["FORWARD", "INPUT"] {
        rules.extend(["0x220", "0x210"].map(|mark| format!("mangle -A ztunnel-{hook} {}", save(mark))));
    }
    rules.extend([
        format!(
            "mangle -A ztunnel-OUTPUT -s {host} -m owner --socket-exists -p tcp {set} dst {}",
            mark("0x220")
        ),
        "nat -A ztunnel-PREROUTING -m mark --mark 0x100/0x100 -j ACCEPT".to_owned(),
        "nat -A ztunnel-POSTROUTING -m mark --mark 0x100/0x100 -j ACCEPT".to_owned(),
        "filter -A ztunnel-FORWARD -m mark --mark 0x100/0x100 -j ACCEPT".to_owned(),
    ]);
    rules
}

fn inside(host: &str, netns: &str, ip: &str) -> String {
    let mut script = String::new();
    let mut ip_tool = |words: &str| writeln!(script, "ip -n {netns} {words}").unwrap();
    for table in [100, 101, 102] {
        ip_tool(&format!("route flush table {table}"));
    }
    for priority in 20000..20004 {
        ip_tool(&format!("rule del priority {priority}"));
    }
    for (link, id, address) in
        [("pistioin", 1000, "192.168.126.2/30"), ("pistioout", 1001, "192.168.127.2/30")]
    {
        ip_tool(&format!("link del {link}"));
        ip_tool(&format!("link add {link} up type vxlan id {id} remote {host} dstport 6081"));
        ip_tool(&format!("address add {address} dev {link}"));
    }
    ip_tool("rule add priority 20000 fwmark 0x400/0xfff lookup 100");
    ip_tool("rule add priority 20003 fwmark 0x4d3/0xfff lookup 100");
    ip_tool("route add table 100 local default dev lo");
    ip_tool("route add table 101 default via 192.168.127.1 dev pistioout");
    ip_tool("route add table 102 default via 192.168.126.1 dev pistioin");
    for table in [101, 102] {
        ip_tool(&format!("route add table {table} {host} dev eth0 scope link"));
    }
    let tproxy =
        |port: u16| format!("-j TPROXY --on-port {port} --on-ip 127.0.0.1 --tproxy-mark 0x400/0xfff");
    for rule in [
        "mangle -F PREROUTING".to_owned(),
        "nat -F OUTPUT".to_owned(),
        format!("mangle -A PREROUTING -i pistioin -p tcp --dport 15008 {}", tproxy(15008)),
        format!("mangle -A PREROUTING -i pistioout -p tcp {}", tproxy(15001)),
        format!("mangle -A PREROUTING -i pistioin -p tcp {}", tproxy(15006)),
        format!("mangle -A PREROUTING -i eth0 -p tcp ! -d {ip} -j MARK --set-mark 0x4d3/0xfff"),
    ] {
        writeln!(script, "nsenter --net=/run/netns/{netns} iptables-nft -t {rule}").unwrap();
    }
    script
}

fn enrol(host: &str, pods: u32) -> String {
    let (mut members, mut routes) = (String::new(), String::new());
    for ip in (0..pods).map(fake_ip) {
        write!(members, "add ztunnel-pods-ips {ip}EOL").unwrap();
        write!(routes, "route add table 100 {ip}/32 via 192.168.126.2 dev istioin src {host}EOL").unwrap();
    }
    format!("ipset restore <<<'{members}'\nip -batch - <<<'{routes}'\n")
}
