//! The commands of `install-cni` that show the node, as they are called, against an agent that is played by the test.

mod fixture;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use report::{CaptureState, DifferenceKind, PlanStep, StateDifference, StatePart, StateReport, Unobserved};
use serde_json::{Value, json};

use fixture::{Fixture, bypassing, document, full, pod};

#[test]
fn explain_answers_with_sentences_and_a_status() {
    let fixture = Fixture::new(&bypassing());
    let text = fixture.said(0, &["explain", "shop/cart"]);
    assert!(
        text.starts_with(
            "shop/cart: captured, mode sidecar [captured-sidecar]\n\nThe pod shop/cart is captured"
        ),
        "{text}"
    );
    assert!(text.contains("\nThis has been so since 2026-11-21T01:00:00.5Z.\n"), "{text}");
    assert_eq!(fixture.said(0, &["explain", "shop", "cart"]), text);
    assert_eq!(fixture.said(0, &["explain", "cart"]), text, "only one has this name");
    assert_eq!(fixture.said(0, &["explain", "-n", "shop", "cart"]), text);
    assert_eq!(fixture.json(0, &["explain", "shop/web"])["code"], "opted-out");
    let absent = fixture.said(3, &["explain", "shop/car"]);
    assert!(absent.contains("Similar names: shop/cart."), "{absent}");
    assert_eq!(fixture.json(3, &["explain", "shop/car"])["code"], "no-such-pod");
    assert_eq!(fixture.json(1, &["explain", "store/web"])["code"], "sidecar-rules-missing");
    let yaml = fixture.said(1, &["explain", "store/web", "-o", "yaml"]);
    assert!(
        yaml.contains("\ncode: sidecar-rules-missing\n") && yaml.contains("\npod: store/web\n"),
        "{yaml}"
    );
}

#[test]
fn wrong_calls_end_with_two_and_say_why() {
    let fixture = Fixture::new(&bypassing());
    for (arguments, words) in [
        (&["explain"][..], "which pod?"),
        (&["explain", "web"], "several pods have this name: shop/web, store/web"),
        (&["explain", "a/b/c"], "names no pod"),
        (
            &["list", "--state", "lost"],
            "none of bypassing, held, unknown, leaving, pending, captured, outside",
        ),
        (&["list", "--bypassing", "--state", "held"], "cannot be used together"),
        (&["list", "word"], "unexpected argument \"word\""),
        (&["state", "-o", "xml"], "none of table, wide, json and yaml"),
        (&["watch", "--for", "soon"], "no time such as"),
        (&["verify", "--nonsense"], "unknown flag: --nonsense"),
        (&["prove"], "which pod?"),
        (&["prove", "web"], "names no pod"),
        (&["prove", "--all", "shop/web"], "cannot be used together"),
        (&["log-level", "cni:debug", "cni"], "\"cni\" is not SCOPE:LEVEL"),
    ] {
        let (status, said, complaint) = fixture.call(arguments);
        assert_eq!((status, said.as_str()), (2, ""), "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("install-cni: ") && complaint.contains(words), "{words}: {complaint}");
    }
}

#[test]
fn help_names_exit_statuses_and_flags() {
    let fixture = Fixture::without_agent();
    for word in ["state", "explain", "prove", "list", "verify", "plan", "bundle", "watch", "log-level"] {
        let help = fixture.said(0, &[word, "--help"]);
        let own = if word == "bundle" { "--file" } else { "--output" };
        assert!(help.contains("Exit status 0: ") && help.contains(own), "{help}");
        assert!(
            !help.contains("--cni-net-dir") && help.contains("see install-cni --help"),
            "the agent's: {help}"
        );
    }
    assert!(fixture.said(0, &["uninstall", "--help"]).contains("--dry-run"));
}

#[test]
fn pods_are_listed_as_asked() {
    let fixture = Fixture::new(&bypassing());
    let names = |value: Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
    };
    let text = fixture.said(0, &["list"]);
    let first: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["POD", "store/web", "shop/cart", "shop/web"], "{text}");
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    assert_eq!(names(fixture.json(0, &["list", "-n", "shop"])), ["cart", "web"]);
    assert_eq!(names(fixture.json(0, &["list", "--state", "outside"])), ["web"]);
    assert!(fixture.said(1, &["list", "--bypassing"]).contains("store/web"));
    assert_eq!(fixture.said(0, &["list", "--bypassing", "-n", "shop"]), "No pods.\n");
    let mut unknown = document();
    unknown.pods[0].capture = CaptureState::Unknown;
    fixture.set(&unknown);
    let (status, _, complaint) = fixture.call(&["list", "--bypassing"]);
    assert!(status == 2 && complaint.contains("not known: Pod shop/cart"), "{status}: {complaint}");
}

#[test]
fn verify_is_content_only_when_all_was_seen_and_is_right() {
    let fixture = Fixture::new(&document());
    assert_eq!(fixture.said(0, &["verify"]), "The kernel and the files are as they should be.\n");
    assert_eq!(fixture.json(0, &["verify"])["equal"], true);
    let mut blind = document();
    blind.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "no iptables-save")];
    fixture.set(&blind);
    assert!(fixture.said(2, &["verify"]).contains("Not known: The node's firewall: no iptables-save."));
    let what = "ip -4 rule priority 100 lookup 100".into();
    blind.network.rules.differences =
        vec![StateDifference { kind: DifferenceKind::Missing, family: None, object: what }];
    fixture.set(&blind);
    let text = fixture.said(1, &["verify"]);
    assert!(text.contains("missing     rules  ip -4 rule priority 100 lookup 100\n"), "{text}");
    let json = fixture.json(1, &["verify"]);
    assert_eq!((&json["equal"], json["differences"].as_array().unwrap().len()), (&Value::Bool(false), 1));
    // An error is one, whatever else is as it should be.
    let mut refused = document();
    let check = json!({"code": "pod-rules", "severity": "error", "message": "refused", "link": "docs/preflight.md#pod-rules"});
    refused.preflight = serde_json::from_value(json!([check])).unwrap();
    fixture.set(&refused);
    let expected = json!(["error: pod-rules: refused, see docs/preflight.md#pod-rules"]);
    assert_eq!(fixture.json(1, &["verify"])["differences"], expected);
}

#[test]
fn state_and_plan_are_shown_in_three_forms() {
    let fixture = Fixture::new(&document());
    let text = fixture.said(0, &["state"]);
    assert!(text.contains("node-1") && text.contains("1 captured, 1 outside"), "{text}");
    let json = serde_json::from_value::<StateReport>(fixture.json(0, &["state"])).unwrap();
    assert_eq!(json, document());
    assert!(fixture.said(0, &["state", "-o", "yaml"]).contains("\nschema: millrace.state/v1\n"));
    assert_eq!(fixture.said(0, &["plan"]), "Nothing is to be done.\n");
    let mut planned = document();
    let operations = vec!["ipset add s 10.0.0.7".into()];
    planned.plan = vec![PlanStep { kind: "members".into(), message: "adds 10.0.0.7".into(), operations }];
    fixture.set(&planned);
    assert_eq!(fixture.said(1, &["plan"]), "1. adds 10.0.0.7 [members]\n     ipset add s 10.0.0.7\n");
    assert_eq!(fixture.json(1, &["plan"])[0]["kind"], "members");
}

#[test]
fn without_an_agent_the_last_record_is_shown_and_nothing_is_promised() {
    let fixture = Fixture::without_agent();
    let netns = fixture.directory.join("netns");
    let netns = netns.to_str().unwrap();
    let (status, said, _) = fixture.call(&["list", "--bypassing", "--netns-dir", netns]);
    assert_eq!(
        (status, said.as_str()),
        (2, "Unknown: the node could not be observed completely.\n"),
        "nobody knows of pods without a record"
    );
    let ambient = ["--ambient-enabled", "--netns-dir", netns];
    let with = |command: &[&'static str]| [command, &ambient].concat();
    assert!(fixture.said(2, &with(&["verify"])).contains("there is no record of it"), "and nothing else");
    assert_eq!(fixture.json(2, &with(&["explain", "shop/cart"]))["code"], "agent-down");
    let mut record = document();
    record.observation.observed_at = "2026-11-21T03:00:00Z".into();
    let record = serde_json::to_vec(&record).unwrap();
    fs::write(fixture.directory.join("last-state.json"), record).unwrap();
    let text = fixture.said(2, &with(&["explain", "shop/cart"]));
    for part in ["The agent does not run", "its last record, of 2026-11-21T03:00:00Z"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Half a file, or one of another version: the desired state is unknown then, and everything else is observed.
#[test]
fn a_record_that_cannot_be_read_is_one_thing_unknown() {
    let fixture = Fixture::without_agent();
    let netns = fixture.directory.join("netns");
    let path = fixture.directory.join("last-state.json");
    let of_the_future = r#"{"schema": "millrace.state/v9", "seen": "by an agent"}"#;
    for (record, why) in [("{", "EOF"), ("", "EOF"), (of_the_future, "millrace.state/v9")] {
        fs::write(&path, record).unwrap();
        for ambient in [&["--ambient-enabled"][..], &[]] {
            let with = |command: &[&'static str]| {
                [command, ambient, &["--netns-dir", netns.to_str().unwrap()]].concat()
            };
            let state = fixture.json(0, &with(&["state"]));
            let blind = state["observation"]["unobserved"].as_array().unwrap();
            let desired: Vec<_> = blind.iter().filter(|one| one["part"] == "desired").collect();
            let [desired] = desired[..] else { panic!("{record}: {blind:?}") };
            let said = desired["message"].as_str().unwrap();
            assert!(said.contains("last-state.json") && said.contains(why), "{said}");
            assert!(fixture.said(2, &with(&["verify"])).contains(why), "{record}");
            assert_eq!(fixture.json(2, &with(&["explain", "shop/cart"]))["code"], "agent-down", "{record}");
            let (status, _, complaint) = fixture.call(&with(&["list"]));
            assert_eq!((status, complaint.contains("cannot read")), (2, false), "{complaint}");
        }
    }
}

/// An agent of another version serves its document.
#[test]
fn documents_of_agents_of_other_versions_are_read() {
    let mut older = serde_json::to_value(document()).unwrap();
    older.as_object_mut().unwrap().remove("history");
    older["ofTheFuture"] = true.into();
    let fixture = Fixture::new(&document());
    fixture.set_raw(older.to_string());
    assert!(fixture.said(0, &["state"]).contains("1 captured, 1 outside"));
    fixture.set_raw(r#"{"schema": "millrace.state/v9", "pods": {}}"#.to_owned());
    let (status, _, complaint) = fixture.call(&["state"]);
    assert_eq!(status, 2);
    assert!(
        complaint.contains("millrace.state/v9") && complaint.contains("use the version of the agent"),
        "{complaint}"
    );
}

#[test]
fn a_dry_run_shows_what_would_go_and_changes_nothing() {
    let fixture = Fixture::new(&full());
    let text = fixture.said(0, &["uninstall", "--dry-run"]);
    for part in [
        "  entry /net.d/10.conflist: as it should be\n",
        "  iptables -t nat -A X -j RETURN\n",
        "  net/ipv4/ip_forward = 1, set back to 0\n",
        "  rules and the policy route in the network namespace of shop/inside\n",
        "Nothing was changed.\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("store/web"), "rules of sidecars stay: {text}");
    let json = fixture.json(0, &["uninstall", "--dry-run"]);
    assert_eq!(json["files"].as_array().unwrap().len(), 1);
}

/// The archive's files by their names below its directory.
fn unpacked(archive: &Path) -> Vec<(String, String)> {
    let list = Command::new("tar").arg("tzf").arg(archive).output().unwrap();
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    let read = |name: &str| {
        let text = Command::new("tar").arg("xzOf").arg(archive).arg(name).output().unwrap();
        (name.split_once('/').unwrap().1.to_owned(), String::from_utf8(text.stdout).unwrap())
    };
    list.lines().map(read).collect()
}

#[test]
fn a_bundle_has_everything_but_secrets() {
    let fixture = Fixture::new(&full());
    fs::write(fixture.directory.join("istio-cni.log"), "refused: Bearer abcdef012345\n").unwrap();
    let path = fixture.directory.join("b.tar.gz");
    assert_eq!(fixture.said(0, &["bundle", "-f", "b.tar.gz"]), "b.tar.gz\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let files = unpacked(&path);
    let text =
        |name: &str| &files.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1;
    assert_eq!(text("firewall/node-v4.save"), "*nat\n-A X -j RETURN\nCOMMIT\n");
    assert_eq!(text("logs/plugin.log"), "refused: Bearer [removed]\n");
    assert!(text("config.txt").contains("cni-network-config=") && text("pods.txt").contains("store/web"));
    assert!(text("explanations.txt").contains("[sidecar-rules-missing]"));
    assert!(text("versions.txt").contains(fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim()));
    let mut back: StateReport = serde_json::from_str(text("state.json")).unwrap();
    back.config.clone_from(&full().config);
    let mut full = full();
    full.conclude();
    assert_eq!(back, full, "nothing else is lost");
    for (name, text) in &files {
        assert!(!text.contains("hunter2secret") && !text.contains("abcdef012345"), "{name}: {text}");
    }
    let (status, _, complaint) = fixture.call(&["bundle", "-f", "b.tar.gz"]);
    assert!(status == 2 && complaint.contains("cannot write b.tar.gz"), "never over a file: {complaint}");
    for arguments in [&["bundle"][..], &["bundle", "-f", "-"]] {
        let piped = fixture.command(arguments).output().unwrap();
        fs::write(fixture.directory.join("piped"), piped.stdout).unwrap();
        assert_eq!(unpacked(&fixture.directory.join("piped")).len(), files.len());
    }
}

#[test]
fn watch_prints_what_changes() {
    let fixture = Fixture::new(&document());
    let mut child =
        fixture.command(&["watch", "--for", "20s", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["message"], "watching node-1: 2 pods, 1 captured");
    let mut changed = document();
    changed.pods[0].capture = CaptureState::Bypassing;
    fixture.set(&changed);
    let event = next();
    assert_eq!((&event["kind"], &event["pod"]), (&"pod".into(), &"shop/cart".into()));
    assert!(event["message"].as_str().unwrap().starts_with("captured -> bypassing (sidecar): "), "{event}");
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fixture.said(0, &["watch", "--for", "10ms"]);
    assert!(text.contains("watching node-1") && text.contains("bypassing"), "{text}");
    let text = Fixture::without_agent().said(2, &["watch", "--for", "10ms"]);
    assert!(text.contains("the agent does not answer: no agent runs here"), "{text}");
}

#[test]
fn a_reader_that_goes_is_no_error() {
    let mut many = document();
    many.pods =
        (0..5000).map(|number| pod("shop", &format!("web-{number}"), CaptureState::Captured)).collect();
    let fixture = Fixture::new(&many);
    let mut child = fixture.command(&["list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!((child.wait().unwrap().code(), complaint.as_str()), (Some(0), ""));
}
