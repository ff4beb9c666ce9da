//! A primary plugin's agent that removes our entry from its file.

use std::fs;
use std::time::{Duration, Instant};

use kit::Node;
use serde_json::{Value, json};

use super::rival::{Rival, gaps};
use crate::install_heal::fixture::{HealFixture, OURS, replace};

const CONFLICTS: &str = r#"istio_cni_conflicts_total{file="network configuration"}"#;
const TIME: Duration = Duration::from_secs(8);

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
    rival.watch(&fixture, TIME);
    let gaps = gaps(&rival.undone());
    println!("undone {} times in {TIME:?}, with these times between: {gaps:.1?}", gaps.len() + 1);
    // Seven before it counts as a conflict, then after one, two and four seconds.
    assert!((8..=13).contains(&gaps.len()), "{gaps:?}");
    let pauses: Vec<_> = gaps.iter().filter(|gap| **gap > Duration::from_millis(900)).collect();
    assert!(pauses.len() >= 2 && pauses.windows(2).all(|two| *two[1] > *two[0] * 3 / 2), "{gaps:?}");

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
