//! Commands of `install-cni` that show the node, run as programs, with an agent that the test simulates.

mod fixture;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use report::{
    CaptureState, DifferenceKind, PartHealth, PlanStep, RedirectionMode, StateDifference, StatePart,
    StateReport, Unobserved,
};
use serde_json::{Value, json};

use fixture::{Fixture, bypassing, document, full, pod};

fn from_yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

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
    assert!(kit::has_line(&text, "In this state since 2026-11-21T01:00:00.5Z."), "{text}");
    assert_eq!(fixture.said(0, &["explain", "shop", "cart"]), text);
    assert_eq!(fixture.said(0, &["explain", "cart"]), text, "only one has this name");
    assert_eq!(fixture.said(0, &["explain", "-n", "shop", "cart"]), text);
    assert_eq!(fixture.json(0, &["explain", "shop/web"])["code"], "opted-out");
    let absent = fixture.said(3, &["explain", "shop/car"]);
    assert!(kit::has_line(&absent, "Similar names: shop/cart."), "{absent}");
    assert_eq!(fixture.json(3, &["explain", "shop/car"])["code"], "no-such-pod");
    assert_eq!(fixture.json(1, &["explain", "store/web"])["code"], "sidecar-rules-missing");
    let yaml = fixture.said(1, &["explain", "store/web", "-o", "yaml"]);
    assert_eq!(from_yaml(&yaml), fixture.json(1, &["explain", "store/web"]));
}

#[test]
fn wrong_calls_end_with_two_and_say_why() {
    let fixture = Fixture::new(&bypassing());
    for (arguments, words) in [
        (&["explain"][..], "which pod?"),
        (&["explain", "web"], "several pods have this name: shop/web, store/web"),
        (&["explain", "a/b/c"], "expected NAMESPACE/POD"),
        (
            &["list", "--state", "lost"],
            "must be one of bypassing, held, unknown, leaving, pending, captured, outside",
        ),
        (&["list", "--bypassing", "--state", "held"], "cannot be used together"),
        (&["list", "word"], "unexpected argument \"word\"; see --help\n"),
        (&["state", "-o", "xml"], "\"xml\" is not one of table, wide, json, yaml\n"),
        (&["state", "-o", "sarif"], "\"sarif\" is not one of table, wide, json, yaml\n"),
        (&["check", "-o", "jsn"], "\"jsn\" is not one of table, wide, json, yaml, junit, sarif\n"),
        (&["watch", "--for", "soon"], "not a duration such as"),
        (&["verify", "--nonsense"], "unknown flag: --nonsense; see --help\n"),
        (&["state", "--cni-net-dir"], "; see --help\n"),
        (&["prove"], "which pod?"),
        (&["prove", "web"], "expected NAMESPACE/POD"),
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
        let own = if word == "bundle" { "  -f, --file string" } else { "  -o, --output string" };
        assert!(help.lines().any(|line| line.starts_with("Exit status 0: ")), "{help}");
        assert!(kit::has_line(&help, own), "{help}");
        let is_agents = |line: &str| line.trim_start().starts_with("--cni-net-dir");
        assert!(!help.lines().any(is_agents), "the agent's: {help}");
        let agents = "The flags and variables of the agent are accepted, too, and locate its sockets and files: see install-cni --help.";
        assert!(kit::has_line(&help, agents), "{help}");
    }
    let help = fixture.said(0, &["uninstall", "--help"]);
    assert!(kit::has_line(&help, "      --dry-run"), "{help}");
}

/// A field of each entry of a list.
fn names(list: &Value, member: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[member].as_str().unwrap().to_owned()).collect()
}

#[test]
fn pods_are_listed_as_asked() {
    let fixture = Fixture::new(&bypassing());
    let text = fixture.said(0, &["list"]);
    let first: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["POD", "store/web", "shop/cart", "shop/web"], "{text}");
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    assert_eq!(names(&fixture.json(0, &["list", "-n", "shop"]), "name"), ["cart", "web"]);
    assert_eq!(names(&fixture.json(0, &["list", "--state", "outside"]), "name"), ["web"]);
    let bypassing = fixture.said(1, &["list", "--bypassing"]);
    let pods: Vec<_> = bypassing.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(pods, ["store/web"], "{bypassing}");
    assert_eq!(fixture.said(0, &["list", "--bypassing", "-n", "shop"]), "No pods.\n");
    let mut unknown = document();
    unknown.pods[0].capture = CaptureState::Unknown;
    fixture.set(&unknown);
    let (status, _, complaint) = fixture.call(&["list", "--bypassing"]);
    let expected = "install-cni: unknown: Pod shop/cart: not observed yet.\n";
    assert_eq!((status, complaint.as_str()), (2, expected));
    assert_eq!(fixture.said(0, &["list", "--bypassing", "-n", "other"]), "No pods.\n");
}

/// An agent that knows several pods need not know all of them.
#[test]
fn no_pod_is_no_answer_while_some_may_be_missing() {
    let unrecorded = |document: &mut StateReport| {
        document.node.ambient_enabled = false;
        let why = "3 network namespaces have no record of an ADD";
        document.observation.unobserved = vec![Unobserved::new(StatePart::UnrecordedPods, why)];
    };
    let unsynced = |document: &mut StateReport| {
        document.node.synced = false;
        let message = report::NOT_SYNCED.into();
        document.health = vec![PartHealth { component: "agent".into(), healthy: false, message }];
    };
    let unread = |document: &mut StateReport| {
        document.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "no iptables-save")];
    };
    let stale = |document: &mut StateReport| {
        document.observation.unobserved = vec![Unobserved::new(StatePart::ApiObjects, "403")];
    };
    let missing =
        "Pods that started before the plugin was installed: 3 network namespaces have no record of an ADD.";
    for (change, why, unproven) in [
        (&unrecorded as &dyn Fn(&mut StateReport), missing, &["node node-1"][..]),
        (&unsynced, "Pods and namespaces are not known yet.", &["node node-1"]),
        (&unread, "The node's firewall: no iptables-save.", &[]),
        (&stale, "Pods and namespaces as they are now: 403.", &["node node-1"]),
    ] {
        let mut document = document();
        change(&mut document);
        let fixture = Fixture::new(&document);
        for arguments in [&["list", "--bypassing"][..], &["list", "-n", "other"], &["plan"]] {
            let (status, text, complaint) = fixture.call(arguments);
            assert_eq!(
                (status, text.as_str()),
                (2, "Unknown: the node could not be observed completely.\n"),
                "{why}"
            );
            assert_eq!(complaint, format!("install-cni: unknown: {why}\n"));
        }
        assert_eq!(names(&fixture.json(0, &["list"]), "name"), ["cart", "web"], "it has pods to show");
        let status = if unproven.is_empty() { 0 } else { 2 };
        assert_eq!(
            names(&fixture.json(status, &["prove", "--all", "-n", "other"]), "pod"),
            unproven,
            "{why}"
        );
    }
}

/// No packet shows that the node redirects such a pod, or a pod whose capture mode is unknown yet.
#[test]
fn pods_that_no_packet_can_prove_are_not_left_out() {
    let mut document = document();
    document.pods[0].mode = Some(RedirectionMode::Node);
    let mut undecided = pod("shop", "db", CaptureState::Unknown);
    undecided.mode = None;
    document.pods.push(undecided);
    let fixture = Fixture::new(&document);
    let proofs = fixture.json(2, &["prove", "--all"]);
    assert_eq!(names(&proofs, "pod"), ["shop/cart", "shop/db"], "{proofs}");
    let text = fixture.said(2, &["prove", "--all"]);
    assert!(
        kit::has_line(
            &text,
            "shop/cart  not-testable  0 of 0  the node redirects its traffic: nothing in its own namespace shows that"
        ),
        "{text}"
    );
}

#[test]
fn verify_is_content_only_when_all_was_seen_and_is_right() {
    let fixture = Fixture::new(&document());
    assert_eq!(fixture.said(0, &["verify"]), "The kernel and the files match the desired state.\n");
    assert_eq!(fixture.json(0, &["verify"])["equal"], true);
    let mut blind = document();
    blind.observation.unobserved = vec![Unobserved::new(StatePart::Firewall, "no iptables-save")];
    fixture.set(&blind);
    let unseen = "Unknown: The node's firewall: no iptables-save.\n";
    let first = "No difference was found, but not everything could be observed.\n";
    assert_eq!(fixture.said(2, &["verify"]), format!("{first}{unseen}"));
    let what = "ip -4 rule priority 100 lookup 100".into();
    blind.network.rules.differences =
        vec![StateDifference { kind: DifferenceKind::Missing, family: None, object: what }];
    fixture.set(&blind);
    let text = fixture.said(1, &["verify"]);
    let row = "missing     rules  ip -4 rule priority 100 lookup 100";
    assert_eq!(text, format!("DIFFERENCE  OF     WHAT\n{row}\n{unseen}"));
    let json = fixture.json(1, &["verify"]);
    assert_eq!((&json["equal"], json["differences"].as_array().unwrap().len()), (&Value::Bool(false), 1));
    // One error suffices, even if everything else is correct.
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
    for line in ["Node          node-1", "Pods          1 captured, 1 outside"] {
        assert!(kit::has_line(&text, line), "{text}");
    }
    let json = serde_json::from_value::<StateReport>(fixture.json(0, &["state"])).unwrap();
    assert_eq!(json, document());
    let yaml = from_yaml(&fixture.said(0, &["state", "-o", "yaml"]));
    assert_eq!(serde_json::from_value::<StateReport>(yaml).unwrap(), document());
    assert_eq!(fixture.said(0, &["plan"]), "Nothing to do.\n");
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
    let record = fixture.directory.join("last-state.json");
    let why = format!("the agent does not answer, and there is no record of it ({})", record.display());
    let text = fixture.said(2, &with(&["verify"]));
    assert!(kit::has_line(&text, &format!("Unknown: The desired state: {why}.")), "{text}");
    assert_eq!(fixture.json(2, &with(&["explain", "shop/cart"]))["code"], "agent-down");
    let path = record;
    let mut record = document();
    record.observation.observed_at = "2026-11-21T03:00:00Z".into();
    fs::write(path, serde_json::to_vec(&record).unwrap()).unwrap();
    let text = fixture.said(2, &with(&["explain", "shop/cart"]));
    for part in ["The agent does not run", "its last record, of 2026-11-21T03:00:00Z"] {
        assert!(text.contains(part), "{text}");
    }
}

/// One that runs, but does not answer, is among the conclusions.
#[test]
fn an_agent_that_does_not_answer_is_a_finding() {
    let fixture = Fixture::without_agent();
    let listener = UnixListener::bind(fixture.directory.join("debug.sock")).unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let netns = fixture.directory.join("netns");
    let state = fixture.json(0, &["state", "--netns-dir", netns.to_str().unwrap()]);
    let parts = names(&state["observation"]["unobserved"], "part");
    let codes = names(&state["findings"], "code");
    let unobserved = codes.iter().filter(|code| *code == "unobserved").count();
    assert!(parts.iter().any(|part| part == "agent") && unobserved == parts.len(), "{state}");
}

/// An incomplete file, or one of another version: the desired state is unknown then, and everything else is observed.
#[test]
fn a_record_that_cannot_be_read_is_one_thing_unknown() {
    let fixture = Fixture::without_agent();
    let netns = fixture.directory.join("netns");
    let path = fixture.directory.join("last-state.json");
    let of_the_future = r#"{"schema": "millrace.state/v9", "seen": "by an agent"}"#;
    let unreadable = "the document of the node's state cannot be read: EOF while parsing";
    let future = "the document is \"millrace.state/v9\", and this program knows millrace.state/v1: use the version of the agent";
    for (record, why) in [
        ("{", format!("{unreadable} an object at line 1 column 1")),
        ("", format!("{unreadable} a value at line 1 column 0")),
        (of_the_future, future.to_owned()),
    ] {
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
            let expected = format!(
                "the agent does not answer, and its last record, {}, cannot be used: {why}",
                path.display()
            );
            assert_eq!(said, expected);
            let text = fixture.said(2, &with(&["verify"]));
            assert!(kit::has_line(&text, &format!("Unknown: The desired state: {expected}.")), "{text}");
            assert_eq!(fixture.json(2, &with(&["explain", "shop/cart"]))["code"], "agent-down", "{record}");
            let (status, _, complaint) = fixture.call(&with(&["list"]));
            assert_eq!(status, 2, "{complaint}");
            assert!(complaint.lines().all(|line| line.starts_with("install-cni: unknown: ")), "{complaint}");
            let line = format!("install-cni: unknown: The desired state: {expected}.");
            assert!(kit::has_line(&complaint, &line), "{complaint}");
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
    let text = fixture.said(0, &["state"]);
    assert!(kit::has_line(&text, "Pods          1 captured, 1 outside"), "{text}");
    fixture.set_raw(r#"{"schema": "millrace.state/v9", "pods": {}}"#.to_owned());
    let (status, _, complaint) = fixture.call(&["state"]);
    let expected = "install-cni: the document is \"millrace.state/v9\", and this program knows millrace.state/v1: use the \
                    version of the agent\n";
    assert_eq!((status, complaint.as_str()), (2, expected));
}

#[test]
fn a_dry_run_shows_what_would_go_and_changes_nothing() {
    let fixture = Fixture::new(&full());
    let text = fixture.said(0, &["uninstall", "--dry-run"]);
    for line in [
        "  entry /net.d/10.conflist: as it should be",
        "  iptables -t nat -A X -j RETURN",
        "  net/ipv4/ip_forward = 1, set back to 0",
        "  rules and the policy route in the network namespace of shop/inside",
        "Nothing was changed.",
    ] {
        assert!(kit::has_line(&text, line), "{line}: {text}");
    }
    let pods = text.lines().filter_map(|line| line.rsplit_once(" in the network namespace of "));
    assert_eq!(
        pods.map(|(_, pod)| pod).collect::<Vec<_>>(),
        ["shop/inside"],
        "rules of sidecars stay: {text}"
    );
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
    assert_eq!(text("config.txt"), "cni-network-config=\"{\\\"token\\\": \\\"[removed]\\\"}\" (flag)\n");
    let pods = text("pods.txt").lines().skip(1).map(|line| line.split(' ').next().unwrap());
    assert_eq!(pods.collect::<Vec<_>>(), ["store/web", "shop/cart", "shop/inside", "shop/web"]);
    let explained = "store/web: bypassing, mode sidecar [sidecar-rules-missing]";
    assert!(kit::has_line(text("explanations.txt"), explained));
    assert!(text("versions.txt").contains(fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim()));
    let mut back: StateReport = serde_json::from_str(text("state.json")).unwrap();
    back.config.clone_from(&full().config);
    let mut full = full();
    full.fill_conclusions();
    assert_eq!(back, full, "nothing else is lost");
    for (name, text) in &files {
        assert!(!text.contains("hunter2secret") && !text.contains("abcdef012345"), "{name}: {text}");
    }
    let (status, _, complaint) = fixture.call(&["bundle", "-f", "b.tar.gz"]);
    let expected = "install-cni: cannot write b.tar.gz: File exists (os error 17)\n";
    assert_eq!((status, complaint.as_str()), (2, expected), "never over a file");
    // As on a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" bundle -f half.tar.gz"]);
    limited.arg(kit::binary("install-cni")).env("CNI_AGENT_RUN_DIR", &fixture.directory);
    assert_eq!(limited.current_dir(&fixture.directory).output().unwrap().status.code(), Some(2));
    assert!(!fixture.directory.join("half.tar.gz").exists());
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
    let events: Vec<_> = text.lines().map(|line| line.split_once("  ").unwrap().1).collect();
    let pod = "pod         shop/cart: bypassing (sidecar): The network namespace of the pod was not found";
    assert_eq!(events, ["node        watching node-1: 2 pods, 0 captured", pod]);
    let ending = Fixture::without_agent();
    ending.set(&document());
    ending.answer_once();
    let text = ending.said(2, &["watch", "--for", "2s", "-o", "json"]);
    assert_eq!(text.lines().count(), 2, "nothing is known of the node at the end: {text}");
    let absent = Fixture::without_agent();
    let text = absent.said(2, &["watch", "--for", "10ms"]);
    let why = format!(
        "no agent runs here: nothing serves {}/debug.sock; run this in the agent's container on the pod's node, or name its \
         directory by --cni-agent-run-dir: No such file or directory (os error 2)",
        absent.directory.display()
    );
    let (_, event) = text.trim_end().split_once("  ").unwrap();
    assert_eq!(event, format!("agent       the agent does not answer: {why}"));
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
