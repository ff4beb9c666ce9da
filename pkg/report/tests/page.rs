//! The page of every fixture: its text, its structure, and that no text of others becomes markup. After an intended change:
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p report --test page`, then read the diff.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read its golden files")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

#[path = "page/fixtures.rs"]
mod fixtures;
#[path = "page/markup.rs"]
mod markup;
#[path = "page/picture.rs"]
mod picture;

use std::{collections::BTreeSet, fs, path::Path};

use markup::{Piece, pieces, text};
use proptest::prelude::*;
use report::{CaptureState, PodState, StateReport, ZtunnelState, page, tables};

/// The part that tells of the node; styles and scripts are reviewed where they stand.
fn main_of(page: &str) -> &str {
    let from = page.find("<main").expect("there is a main part");
    let to = page.find("</main>").expect("it ends");
    &page[from..to]
}

#[test]
fn every_fixture_has_its_golden_page() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/golden");
    for (name, state) in fixtures::all() {
        let page = page(&state);
        let path = dir.join(name).with_extension("html");
        if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
            fs::write(&path, main_of(&page)).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert!(main_of(&page) == golden, "{name} differs from its golden page");
    }
}

#[test]
fn the_picture_in_the_documentation_is_of_this_page() {
    let digest = fs::read_to_string(picture::digest_path()).unwrap_or_default();
    assert!(
        digest == picture::digest(&page(&picture::pictured())),
        "{} is of another page; after hack/setup, make it anew by MILLRACE_UPDATE_SCREENSHOT=1 cargo test --workspace \
         --test node-level -- a_screenshot_can_be_taken",
        picture::path().display()
    );
}

#[test]
fn the_headline_says_how_the_node_is() {
    let says = |state: &StateReport, words: &str| {
        let text = text(main_of(&page(state)));
        assert!(text.contains(words), "{words}: {}", text.chars().take(600).collect::<String>());
    };
    says(&StateReport::default(), "No pod of this node belongs to the mesh.");
    says(&fixtures::well(), "All 11 pods that belong to the mesh are captured.");
    says(
        &fixtures::bypassing(),
        "2 of 11 pods that belong to the mesh are bypassing it: the address of the pod is missing in the set of captured addresses.",
    );
    says(&fixtures::bypassing(), "The node's network differs from the desired state in 3 places");
    says(&fixtures::rollout(), "1 of 10 pods that belong to the mesh is pending.");
    says(&fixtures::rollout(), "1 pod is leaving.");
    says(
        &fixtures::in_pod(),
        "1 of 11 pods that belong to the mesh is held: ztunnel refused the pod: no identity for this pod.",
    );
    says(&fixtures::no_agent(), "✗The agent does not run on this node");
    says(
        &fixtures::no_agent(),
        "!It is unknown whether 3 pods are captured: the kernel could not be queried",
    );
    says(&fixtures::no_agent(), "Unknown: firewall rules, because: iptables-save is not installed here.");
    says(&fixtures::unknown(), "!It is unknown whether 11 pods are captured");
    says(
        &fixtures::two_causes(),
        "5 of 11 pods that belong to the mesh are bypassing it, for 2 different causes.",
    );

    let mut one = fixtures::well();
    one.pods.truncate(1);
    says(&one, "The only pod that belongs to the mesh is captured.");
    one.pods[0].capture = CaptureState::Bypassing;
    says(&one, "The only pod that belongs to the mesh is bypassing it.");
    one.pods.clear();
    one.ztunnels.clear();
    one.node.active_slot = None;
    says(&one, "✗No ztunnel is ready on this node.");
    one.node.mode = None;
    says(&one, "✗There is no ztunnel on this node.");
    one.node.ambient_enabled = false;
    says(&one, "✓No pod of this node belongs to the mesh.");
    says(&one, "Node and ztunnel: ambient mode is off");
}

#[test]
fn the_packet_flow_is_told_in_words() {
    let says = |state: &StateReport, words: &[&str]| {
        let text = text(main_of(&page(state)));
        assert!(words.iter().all(|words| text.contains(words)), "{words:?}: {text}");
    };
    says(&fixtures::well(), &["Link istioout0: ✓ up", "ztunnel-7x2kq: slot 0: new connections"]);
    says(&fixtures::bypassing(), &["The node's rules: ≠ 3 differences", "Pods: 2 bypassing, 9 captured"]);
    says(
        &fixtures::rollout(),
        &["ztunnel-7x2kq: slot 0: earlier ones; ztunnel-m9p4d: slot 1: new connections"],
    );
    says(
        &fixtures::in_pod(),
        &["Sockets of ztunnel-7x2kq: 15001, 15006, 15008", "istio-proxy: 15001 out, 15006 in"],
    );
    says(&fixtures::no_agent(), &["The node's rules: ? 1 not observed"]);
    let mut down = fixtures::well();
    down.network.links.observed.as_mut().unwrap()[1].up = false;
    says(&down, &["Link istioout0: ≠ down"]);
    down.network.links.observed.as_mut().unwrap().truncate(1);
    says(&down, &["Link istioout0: ≠ missing"]);
}

#[test]
fn a_missing_ztunnel_is_shown_in_every_mode() {
    let mut reject = fixtures::no_ztunnel_hold();
    reject.node.no_ztunnel_policy = Some("reject".into());
    let mut silent = fixtures::no_ztunnel_in_pod();
    silent.ztunnels = vec![ZtunnelState { connected: Some(false), ..ZtunnelState::default() }];
    for (state, missing, then, others) in [
        (
            fixtures::no_ztunnel_hold(),
            "no ztunnel is ready on this node",
            "connections are held back",
            "bypass",
        ),
        (reject, "no ztunnel is ready on this node", "connections are refused", "bypass"),
        (
            fixtures::no_ztunnel_open(),
            "no ztunnel is ready on this node",
            "connections bypass the mesh",
            "held back",
        ),
        (
            fixtures::no_ztunnel_in_pod(),
            "there is no ztunnel on this node",
            "connections bypass the mesh",
            "refused",
        ),
        (silent, "no ztunnel is connected to the agent", "connections bypass the mesh", "held back"),
    ] {
        let page = page(&state);
        let (headline, rest) = main_of(&page).split_once("<ul id=\"lamps\"").unwrap();
        let (picture, _) = rest.split_once("<section id=\"pods\"").unwrap();
        let (headline, picture) = (text(headline), text(picture));
        assert!(headline.contains(&format!("mesh are {}", state.pods[0].capture)), "{headline}");
        assert!(headline.contains(&format!(": {missing}.")), "{headline}");
        assert!(headline.contains("What to do:") && headline.contains("app=ztunnel"), "{headline}");
        assert!(picture.to_lowercase().contains(&format!("{missing}: {then}")), "{picture}");
        assert!(!picture.contains(others) && !headline.contains('✓'), "{picture}");
    }
}

/// The pods' part of a page: each group's head and its rows.
fn grouped(page: &str) -> Vec<(&str, Vec<&str>)> {
    let groups = main_of(page).split("<tr data-key=\"cause/").skip(1);
    groups
        .map(|group| {
            let (head, rows) = group.split_once("</tr>").unwrap();
            (head, rows.split("<tr id=\"pod/").skip(1).collect())
        })
        .collect()
}

/// A pod's row and the head of its group.
fn has_the_words_of_the_command_line(state: &StateReport, head: &str, row: &str) {
    let is_of = |pod: &&PodState| row.starts_with(&format!("{}\"", pod.title()));
    let pod = state.pods.iter().find(is_of).unwrap();
    let listed = tables::pods(state, &[pod], false);
    let line = listed.lines().nth(1).unwrap();
    let columns: Vec<_> = line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
    let [title, capture, way, _, why] = columns.as_slice() else { panic!("{columns:?}") };
    let (own, explained) = row.split_once("<summary>").unwrap();
    let own = text(&format!("<tr id=\"{own}"));
    let way = if *way == "-" { "–" } else { way };
    assert!([title, *capture, way].iter().all(|word| own.contains(word)), "{line}: {own}");
    assert!(
        [head, row].iter().all(|html| html.contains(&format!("</span>{capture}</span>"))),
        "{line}: {head}"
    );
    assert!(head.contains(&format!("<code>{}</code>", report::cause(state, pod).1)), "{head}");

    let ip = pod.ips[0];
    let names = [(format!(" {title}"), ""), (format!(" {ip}"), ""), (ip.to_string(), "its address")];
    let shared = names.iter().fold(why.to_string(), |why, (name, by)| why.replace(name, by)).to_lowercase();
    let said = text(&format!("<tr id=\"{head}")).to_lowercase();
    assert!(own.contains(why) || said.contains(&shared), "{line}: {said} {own}");
    let explanation = report::explain(state, &pod.namespace, &pod.name).to_string();
    assert!(text(explained).contains(explanation.trim_end()), "{explained}");
}

#[test]
fn pods_have_the_words_and_causes_of_the_command_line() {
    let mut states: Vec<_> = fixtures::all().into_iter().map(|(_, state)| state).collect();
    for capture in CaptureState::ALL {
        for mut state in [fixtures::well(), fixtures::in_pod(), fixtures::no_ztunnel_in_pod()] {
            state.pods[..6].iter_mut().for_each(|pod| pod.capture = capture);
            states.push(state);
        }
    }
    for state in states {
        let page = page(&state);
        let mut shown = 0;
        for (head, rows) in grouped(&page) {
            assert!(text(head).contains(&format!("{} pod", rows.len())), "{head}");
            shown += rows.len();
            rows.iter().for_each(|row| has_the_words_of_the_command_line(&state, head, row));
        }
        assert_eq!(shown, state.pods.len());
    }
}

#[test]
fn the_worst_pods_come_first_grouped_by_cause() {
    let page = page(&fixtures::two_causes());
    let heads =
        grouped(&page).into_iter().map(|(head, _)| text(&format!("<tr id=\"{head}"))).collect::<Vec<_>>();
    let expected = [
        "✗bypassing4 pods: the address of the pod is missing in the set of captured addresses, so its traffic bypasses the mesh",
        "✗bypassing1 pod: the pod could not be enrolled: its link is a bridge's, not a veth of its own",
        "✓captured6 pods: its namespace is labelled",
        "○outside1 pod: it lives in the node's network namespace",
    ];
    assert_eq!(heads.len(), expected.len(), "{heads:?}");
    for (head, expected) in heads.iter().zip(expected) {
        assert!(head.starts_with(expected), "{head}");
    }
}

#[test]
fn pages_are_well_formed() {
    for (name, state) in fixtures::all() {
        let page = page(&state);
        let mut open = Vec::new();
        let mut ids = BTreeSet::new();
        for piece in pieces(&page) {
            match piece {
                Piece::Open { name, .. } if markup::is_void(name) => {}
                Piece::Open { name, .. } => open.push(name),
                Piece::Close(name) => assert_eq!(open.pop(), Some(name)),
                Piece::Text(_) => {}
            }
            if let Some(id) = piece.attribute("id") {
                assert!(ids.insert(id.to_owned()), "{name} has two elements {id}");
            }
        }
        assert!(open.is_empty(), "{name}: {open:?}");
        let points_to =
            |attribute| pieces(&page).into_iter().filter_map(move |piece| piece.attribute(attribute));
        for named in points_to("aria-labelledby").flat_map(str::split_whitespace) {
            assert!(ids.contains(named), "{name}: nothing is {named}");
        }
        for target in points_to("href").filter_map(|href| href.strip_prefix('#')) {
            assert!(ids.contains(target), "{name}: nothing is #{target}");
        }
    }
}

#[test]
fn the_page_is_small() {
    let empty = page(&StateReport { pods: Vec::new(), ..fixtures::well() }).len();
    assert!(empty < 60_000, "{empty} bytes without pods");
    let full = page(&fixtures::crowd(250)).len();
    assert!(full - empty < 250 * 1600, "{} bytes for 250 pods", full - empty);
    let mut held = fixtures::crowd(250);
    held.ztunnels.clear();
    held.node.active_slot = None;
    held.pods.iter_mut().for_each(|pod| pod.capture = CaptureState::Held);
    let full = page(&held).len();
    assert!(full - empty < 250 * 2000, "{} bytes for 250 pods with advice", full - empty);
}

/// The elements of a page and their attributes' names, which no text may change.
fn structure(page: &str) -> Vec<String> {
    let shape = |piece| match piece {
        Piece::Open { name, attributes } => {
            Some(format!("{name} {:?}", attributes.iter().map(|(name, _)| *name).collect::<Vec<_>>()))
        }
        Piece::Close(name) => Some(format!("/{name}")),
        Piece::Text(_) => None,
    };
    pieces(page).into_iter().filter_map(shape).collect()
}

/// A node on which everything that others write says `words`.
fn saying(words: &str) -> StateReport {
    let mut state = fixtures::in_pod();
    state.network = fixtures::bypassing().network;
    let pod: &mut PodState = &mut state.pods[4];
    pod.name = words.to_owned();
    pod.namespace = words.to_owned();
    pod.reason.message = words.to_owned();
    pod.reason.code = words.to_owned();
    pod.phase = words.to_owned();
    pod.last_transition_time = Some(words.to_owned());
    pod.problem = Some(words.to_owned());
    pod.kernel.differences = vec![words.to_owned()];
    pod.kernel.observed = vec![words.to_owned()];
    pod.ztunnel.as_mut().unwrap().error = Some(words.to_owned());
    state.ztunnels[0].name = words.to_owned();
    state.node.name = words.to_owned();
    state.node.problem = Some(words.to_owned());
    state.version = words.to_owned();
    state.observation.observed_at = words.to_owned();
    state.health[0].message = words.to_owned();
    state.installation[0].path = words.to_owned();
    state.installation[0].message = words.to_owned();
    state.history[0].cause = words.to_owned();
    state.history[0].action = words.to_owned();
    state.config[0].name = words.to_owned();
    state.config[0].value = words.to_owned();
    state.network.foreign = vec![words.to_owned()];
    state.network.firewall.desired[0].rule = words.to_owned();
    state.network.rules.differences = state.network.ipsets.differences.clone();
    state.network.rules.differences[0].object = words.to_owned();
    state
}

/// Text that means something in HTML, and other text.
fn hostile() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "<", ">", "\"", "'", "&", "</", "-->", "<!--", "<script>", "</main>", " onload=", "\0", "\u{202e}",
        "a",
    ];
    let known =
        proptest::collection::vec(proptest::sample::select(PIECES), 1..8).prop_map(|parts| parts.concat());
    prop_oneof![known, ".{1,12}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn text_never_becomes_markup(words in hostile()) {
        let hostile = page(&saying(&words));
        prop_assert_eq!(structure(&hostile), structure(&page(&saying("harmless"))));
        let misleads = |c: char| c == '\0' || ('\u{202a}'..='\u{202e}').contains(&c);
        prop_assert!(!hostile.contains(misleads));
        if !words.contains(|c: char| c.is_control() || !c.is_ascii()) {
            prop_assert!(text(main_of(&hostile)).contains(&words), "it is shown as it is");
        }
    }
}
