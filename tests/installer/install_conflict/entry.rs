//! A primary plugin's agent that removes our entry from its file.

use std::fs;
use std::time::{Duration, Instant};

use kit::Node;
use serde_json::{Value, json};

use super::rival::Rival;
use crate::install_heal::fixture::{HealFixture, OURS, replace};

const CONFLICTS: &str = r#"istio_cni_conflicts_total{file="network configuration"}"#;
/// Times for which a conflicting writer is left alone, at least.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

fn cilium(_: &Node) -> Value {
    let plugin = json!({"type": "cilium-cni", "enable-debug": false, "log-file": "/var/run/cilium/cni.log"});
    json!({"cniVersion": "0.3.1", "name": "cilium", "plugins": [plugin]})
}

fn against(fixture: &HealFixture) -> Rival {
    let (path, clean) = (fixture.files.holder(), fixture.files.network(&[]));
    let watched = path.clone();
    let is_there = move || fs::read_to_string(&watched).is_ok_and(|text| text.contains(OURS));
    Rival::start(is_there, move || replace(&path, &clean))
}

#[test]
fn a_rival_is_left_alone_for_longer_and_longer_and_named() {
    let mut fixture = HealFixture::with(cilium, |container| container);
    let rival = against(&fixture);
    let gaps = rival.watch(&fixture, |gaps| {
        gaps.last_chunk::<3>().is_some_and(|last| last.iter().zip(PAUSES).all(|(gap, pause)| *gap >= pause))
    });
    println!("undone {} times, with these times between: {gaps:.1?}", gaps.len() + 1);
    // Seven before it counts as a conflict; each is an answer within 250 ms if two intervals are.
    assert!(gaps.len() >= 9, "{gaps:?}");
    let quick = gaps.split(|gap| *gap > Duration::from_millis(125));
    assert!(quick.map(<[Duration]>::len).max() <= Some(7), "{gaps:?}");

    assert_eq!(fixture.daemon.metric(CONFLICTS), Some(1.0));
    let advice = "this looks like Cilium (cilium-cni): set its Helm value cni.exclusive=false";
    let why = format!("another program keeps reverting our network configuration: {advice}\n");
    let answer = Some((503, why));
    fixture.daemon.wait_for("/readyz says why", |daemon| daemon.get(8000, "/readyz") == answer);
    let log = fixture.daemon.log();
    let message = "another program keeps reverting the installation; backing off";
    assert!(kit::has_logged(&log, message, &[("rival", advice)]), "{log}");
    assert_eq!(fixture.daemon.logged(message, ""), 1, "{log}");
    assert_eq!(fixture.daemon.metric("istio_cni_install_ready"), Some(0.0));

    rival.stop();
    let took = fixture.healed(Instant::now());
    println!("healed {took:?} after the rival stopped");
    assert_eq!(fixture.daemon.metric(CONFLICTS), Some(1.0), "the same conflict");
    assert_eq!(fixture.daemon.metric("istio_cni_install_ready"), Some(1.0));
}
