//! What the daemon costs the API server: it is on every node.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use super::scene::{DAEMON_SET, Scene, template};

#[test]
fn an_idle_daemon_asks_nothing_beyond_its_watches() {
    let Some(scene) = Scene::start("idle") else { return };
    scene.configure(&template("info"));
    scene.create_daemon_set(DAEMON_SET);
    let _daemon = scene.daemon_that_knows(DAEMON_SET);
    scene.wait_until_watched("configmaps");
    scene.wait_until_watched("daemonsets");
    let before = scene.requests();
    thread::sleep(Duration::from_secs(4)); // the time in which nothing shall happen
    assert_eq!(scene.requests(), before);

    let mut counts = BTreeMap::new();
    for request in &before {
        *counts.entry((request.verb.as_str(), request.resource.as_str())).or_insert(0) += 1;
        assert!(request.user_agent.starts_with("install-cni/"), "{request:?}");
    }
    let expected = BTreeMap::from([
        (("get", "pods"), 1), // who our owner is
        (("list", "configmaps"), 1),
        (("list", "daemonsets"), 1),
        (("watch", "configmaps"), 1),
        (("watch", "daemonsets"), 1),
    ]);
    assert_eq!(counts, expected);
    let named = |uri: &str| uri.contains("fieldSelector=metadata.name%3D") || uri.contains("/pods/");
    assert!(before.iter().all(|request| named(&request.uri)), "one object each: {before:?}");
}
