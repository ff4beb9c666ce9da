//! Repaired state is removed at the end, too.

use std::fs;
use std::time::Instant;

use super::damage::{earlier_appears, earlier_goes};
use super::fixture::{HOLDER, HealFixture, names, primary_of};

#[test]
fn an_earlier_network_that_came_and_went_leaves_nothing_behind() {
    let fixture = HealFixture::with(primary_of, |container| container.with_env("CLEANUP_ON_EXIT", "always"));
    earlier_appears(&fixture.files, 0);
    fixture.healed(Instant::now());
    earlier_goes(&fixture.files, 0);
    fixture.healed(Instant::now());
    let HealFixture { daemon, files, container: _container, node: _node } = fixture;
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{status}:\n{log}");
    assert_eq!(names(&files.net_d), [HOLDER], "{log}");
    assert_eq!(fs::read(files.holder()).unwrap(), files.network(&[]), "to the byte");
}
