//! A program that removes our plugin from the node's directory.

use std::fs;
use std::time::{Duration, Instant};

use super::rival::{Rival, gaps};
use crate::install_heal::fixture::HealFixture;

const TIME: Duration = Duration::from_secs(8);

#[test]
fn a_plugin_that_is_removed_each_time_does_not_keep_the_daemon_busy() {
    let fixture = HealFixture::new();
    let (plugin, path) = (fixture.files.plugin(), fixture.files.plugin());
    let rival = Rival::start(move || plugin.exists(), move || drop(fs::remove_file(&path)));
    rival.watch(&fixture, TIME);
    let gaps = gaps(&rival.undone());
    println!("removed {} times in {TIME:?}, with these times between: {gaps:.1?}", gaps.len() + 1);
    assert!((3..=40).contains(&gaps.len()), "{gaps:?}");
    assert!(gaps.iter().max().is_some_and(|longest| *longest > Duration::from_millis(900)), "{gaps:?}");
    rival.stop();
    fixture.healed(Instant::now());
    fixture.files.assert_whole();
}
