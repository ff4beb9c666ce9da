//! A program that removes our plugin from the node's directory.

use std::fs;
use std::time::{Duration, Instant};

use super::rival::Rival;
use crate::install_heal::fixture::HealFixture;

/// Time between the first and the last removal.
const TIME: Duration = Duration::from_secs(5);

#[test]
fn a_plugin_that_is_removed_each_time_does_not_keep_the_daemon_busy() {
    let fixture = HealFixture::new();
    let (plugin, path) = (fixture.files.plugin(), fixture.files.plugin());
    let rival = Rival::start(move || plugin.exists(), move || drop(fs::remove_file(&path)));
    let has_paused = |gaps: &[Duration]| gaps.iter().any(|gap| *gap > Duration::from_millis(900));
    let gaps = rival
        .watch(&fixture, |gaps| gaps.len() >= 3 && has_paused(gaps) && gaps.iter().sum::<Duration>() >= TIME);
    println!("removed {} times, with these times between: {gaps:.1?}", gaps.len() + 1);
    assert!(gaps.iter().sum::<Duration>() >= Duration::from_millis(200) * gaps.len() as u32, "{gaps:?}");
    rival.stop();
    fixture.healed(Instant::now());
    fixture.files.assert_whole();
}
