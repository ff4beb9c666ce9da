//! A repeated ADD after anything that an earlier attempt left.

use std::thread;

use kit::{FakeReply, Netns, istio};
use serde_json::Value;

use crate::fixtures::plugin::{
    DUAL, PluginFixture, V4, bare_pod, difference, expected, injected, routes, rules, saves,
};

/// An injected pod with every table in use.
fn everything(pod: Value) -> Value {
    let pod = istio::annotated(pod, "sidecar.istio.io/interceptionMode", "TPROXY");
    ["ISTIO_META_DNS_CAPTURE", "ISTIO_DUAL_STACK", "INVALID_DROP"]
        .into_iter()
        .fold(pod, |pod, name| istio::with_proxy_env(pod, name, "true"))
}

fn everything_stage() -> PluginFixture {
    PluginFixture::answering(|request| FakeReply::Json(200, everything(injected(request))))
}

fn state(pod: &Netns) -> String {
    saves(pod) + &routes(pod)
}

#[test]
fn add_makes_what_istio_makes_and_a_second_one_changes_nothing() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let first = fixture.call("ADD", &pod).run().ok();
    assert_eq!(rules_of(&pod, false), expected(false));
    assert_eq!(rules_of(&pod, true), "");
    // The kernel's own listing, with handles: a rule that was deleted and added again would have another.
    let before = pod.sh("nft -s -a list ruleset");
    for _ in 0..2 {
        assert_eq!(fixture.call("ADD", &pod).run().ok(), first);
    }
    assert_eq!(pod.sh("nft -s -a list ruleset"), before);
}

fn rules_of(pod: &Netns, v6: bool) -> String {
    rules(&pod.sh(if v6 { "ip6tables-save" } else { "iptables-save" }))
}

#[test]
fn a_second_add_with_every_table_in_use_changes_nothing() {
    let fixture = everything_stage();
    let pod = bare_pod(DUAL);
    fixture.call("ADD", &pod).run().ok();
    let (before, ruleset) = (state(&pod), pod.sh("nft -s -a list ruleset"));
    for table in ["*raw", "*mangle", "*nat"] {
        assert_eq!(before.matches(table).count(), 2, "{table} in both families: {before}");
    }
    fixture.call("ADD", &pod).run().ok();
    assert_eq!(state(&pod), before);
    assert_eq!(pod.sh("nft -s -a list ruleset"), ruleset);
}

#[test]
fn what_an_earlier_attempt_left_half_done_is_completed() {
    let fixture = everything_stage();
    let reference = bare_pod(DUAL);
    fixture.call("ADD", &reference).run().ok();
    let (want, v4) = (state(&reference), reference.sh("iptables-save"));
    let section = |table: &str| {
        let from = v4.find(&format!("*{table}\n")).unwrap();
        let end = v4[from..].find("COMMIT\n").unwrap() + "COMMIT\n".len();
        v4[from..from + end].to_owned()
    };
    let chains = |section: &str| {
        let lines = section.lines().filter(|line| line.starts_with(['*', ':']) || *line == "COMMIT");
        lines.collect::<Vec<_>>().join("\n") + "\n"
    };
    let jumps = |section: &str| {
        let ours = |line: &&str| !line.starts_with("-A ISTIO");
        section.lines().filter(ours).collect::<Vec<_>>().join("\n") + "\n"
    };
    let nat = section("nat");
    let doubled = nat.replace(
        "-A PREROUTING -p tcp -j ISTIO_INBOUND\n",
        "-A PREROUTING -p tcp -j ISTIO_INBOUND\n-A PREROUTING -p tcp -j ISTIO_INBOUND\n",
    );
    let leftovers = [
        ("only chains", chains(&nat)),
        ("only jumps", jumps(&nat)),
        ("only the mangle table", section("mangle")),
        ("only the raw table", section("raw")),
        ("IPv4 whole, IPv6 not at all", v4.clone()),
        ("a jump twice", doubled),
        ("a chain of another version", "*nat\n:ISTIO_INBOUND - [0:0]\n:ISTIO_REDIRECT - [0:0]\n-A PREROUTING -p tcp -j ISTIO_INBOUND\n-A ISTIO_INBOUND -p tcp -j RETURN\nCOMMIT\n".to_owned()),
    ];
    for (what, leftover) in leftovers {
        let pod = bare_pod(DUAL);
        pod.pipe("iptables-restore --noflush", &leftover);
        fixture.call("ADD", &pod).run().ok();
        assert_eq!(state(&pod), want, "{what}");
    }
    let pod = bare_pod(DUAL);
    pod.sh("ip rule add fwmark 1337 lookup 133");
    fixture.call("ADD", &pod).run().ok();
    assert_eq!(saves(&pod), saves(&reference), "only a policy rule");
    assert_eq!(routes(&pod).matches("fwmark").count(), 2, "one per family: {}", routes(&pod));
}

/// After its timeout, a runtime may call again while the first call still runs.
#[test]
fn several_adds_for_one_pod_at_once() {
    let fixture = everything_stage();
    let reference = bare_pod(DUAL);
    fixture.call("ADD", &reference).run().ok();
    for _ in 0..3 {
        let pod = bare_pod(DUAL);
        thread::scope(|scope| {
            let adds = [(); 4].map(|()| scope.spawn(|| fixture.call("ADD", &pod).run().ok()));
            adds.into_iter().for_each(|add| drop(add.join().unwrap()));
        });
        assert_eq!(difference(&state(&pod), &state(&reference)), Vec::<String>::new());
    }
}

#[test]
fn rules_of_others_in_the_pod_stay() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    pod.sh("iptables -t nat -A PREROUTING -p tcp --dport 81 -j REDIRECT --to-ports 8081");
    pod.sh("iptables -t filter -A INPUT -p tcp --dport 9 -j DROP");
    fixture.call("ADD", &pod).run().ok();
    let after = saves(&pod);
    assert!(
        after
            .lines()
            .any(|rule| rule == "-A PREROUTING -p tcp -m tcp --dport 81 -j REDIRECT --to-ports 8081"),
        "{after}"
    );
    assert!(after.lines().any(|rule| rule == "-A INPUT -p tcp -m tcp --dport 9 -j DROP"), "{after}");
    assert!(after.lines().any(|rule| rule == "-A PREROUTING -p tcp -j ISTIO_INBOUND"), "{after}");
}
