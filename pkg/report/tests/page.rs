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
use report::{CaptureState, PodState, StateReport, page};

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
    says(&StateReport::default(), "No agent runs on this node");
    says(&fixtures::well(), "All 11 pods that belong to the mesh are captured.");
    says(&fixtures::bypassing(), "2 of 11 pods that belong to the mesh bypass it.");
    says(&fixtures::bypassing(), "3 objects of the node's network are not as they should be.");
    says(&fixtures::rollout(), "1 of 10 pods that belong to the mesh is on the way into it.");
    says(&fixtures::rollout(), "1 pod has left the mesh and is not released yet.");
    says(
        &fixtures::in_pod(),
        "1 of 11 pods that belong to the mesh is held back, and can reach nothing through it.",
    );
    says(&fixtures::no_agent(), "It is not known whether 3 pods are captured.");
    says(&fixtures::no_agent(), "Could not be observed: one thing.");

    let mut one = fixtures::well();
    one.pods.truncate(1);
    says(&one, "The only pod that belongs to the mesh is captured.");
    one.pods[0].capture = CaptureState::Bypassing;
    says(&one, "The only pod that belongs to the mesh bypasses it.");
    one.node.active_slot = None;
    says(&one, "No ztunnel of this node is ready.");
}

#[test]
fn the_way_of_a_packet_is_told_in_words() {
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
    says(&fixtures::no_agent(), &["The node's rules: ? 1 not looked at"]);
    let mut none = fixtures::well();
    none.ztunnels.clear();
    says(&none, &["No ztunnel: connections wait for one"]);
    let mut down = fixtures::well();
    down.network.links.observed.as_mut().unwrap()[1].up = false;
    says(&down, &["Link istioout0: ≠ down"]);
    down.network.links.observed.as_mut().unwrap().truncate(1);
    says(&down, &["Link istioout0: ≠ missing"]);
}

#[test]
fn the_worst_pods_come_first() {
    let page = page(&fixtures::bypassing());
    let rows: Vec<_> = pieces(&page).into_iter().filter_map(|piece| piece.attribute("data-state")).collect();
    let worst_first = ["bypassing"; 2].into_iter().chain(["captured"; 9]).chain(["outside"]);
    assert_eq!(rows, worst_first.collect::<Vec<_>>());
    let at = |name: &str| page.find(&format!("id=\"pod/shop/{name}\"")).unwrap();
    assert!(at("web") < at("payments"), "the one that failed is before the other");
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
    pod.reason.words = words.to_owned();
    pod.reason.code = words.to_owned();
    pod.phase = words.to_owned();
    pod.since = Some(words.to_owned());
    pod.trouble = Some(words.to_owned());
    pod.kernel.differences = vec![words.to_owned()];
    pod.kernel.seen = vec![words.to_owned()];
    pod.ztunnel.as_mut().unwrap().refused = Some(words.to_owned());
    state.ztunnels[0].name = words.to_owned();
    state.node.name = words.to_owned();
    state.node.trouble = Some(words.to_owned());
    state.version = words.to_owned();
    state.seen.at = words.to_owned();
    state.health[0].why = words.to_owned();
    state.installation[0].path = words.to_owned();
    state.installation[0].detail = words.to_owned();
    state.history[0].cause = words.to_owned();
    state.history[0].what = words.to_owned();
    state.config[0].name = words.to_owned();
    state.config[0].value = words.to_owned();
    state.network.foreign = vec![words.to_owned()];
    state.network.firewall.desired[0].rule = words.to_owned();
    state.network.rules.difference = state.network.ipsets.difference.clone();
    state.network.rules.difference[0].what = words.to_owned();
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
