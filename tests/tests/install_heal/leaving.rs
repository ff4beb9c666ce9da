//! What was repaired is taken back at the end, too.

use std::fs;
use std::time::Instant;

use super::damage::{earlier_appears, earlier_goes};
use super::scene::{HOLDER, Scene, names, primary_of};

#[test]
fn an_earlier_network_that_came_and_went_leaves_nothing_behind() {
    let scene = Scene::with(primary_of, |container| container.with_env("CLEANUP_ON_EXIT", "always"));
    earlier_appears(&scene.files, 0);
    scene.healed(Instant::now());
    earlier_goes(&scene.files, 0);
    scene.healed(Instant::now());
    let Scene { daemon, files, container: _container, node: _node } = scene;
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{status}:\n{log}");
    assert_eq!(names(&files.net_d), [HOLDER], "{log}");
    assert_eq!(fs::read(files.holder()).unwrap(), files.network(&[]), "to the byte");
}
