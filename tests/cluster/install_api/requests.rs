//! The agent's load on the API server: it runs on every node.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fixture::{ClusterFixture, DAEMON_SET, template};

#[test]
fn an_idle_daemon_asks_nothing_beyond_its_watches() {
    let Some(fixture) = ClusterFixture::start("idle") else { return };
    fixture.configure(&template("info"));
    fixture.create_daemon_set(DAEMON_SET);
    let _daemon = fixture.daemon_that_knows(DAEMON_SET);
    // A server that does not stream lists gets that request, then one for a list, and another watch.
    let lists = usize::from(!fixture.api.streams_lists());
    let mut expected = BTreeMap::from([
        (("get", "pods"), 2), // our owner, and whether a list that lacks our pod is stale
        (("list", "configmaps"), 1),
        (("list", "daemonsets"), 1),
        (("list", "pods"), lists),
        (("watch", "configmaps"), 1),
        (("watch", "daemonsets"), 1),
        (("watch", "pods"), 1 + lists),
    ]);
    expected.retain(|_, count| *count > 0);
    let is_complete = |requests: &[kit::Request]| {
        let mut counts = BTreeMap::new();
        for request in requests {
            *counts.entry((request.verb.as_str(), request.resource.as_str())).or_insert(0) += 1;
        }
        counts == expected
    };
    let sent = std::fmt::from_fn(|f| write!(f, "it sends these requests alone: {:?}", fixture.requests()));
    kit::until(&sent, || is_complete(&fixture.requests()));
    let before = fixture.requests();
    kit::holds_for(Duration::from_secs(4), &sent, || fixture.requests() == before);

    assert!(before.iter().all(|request| request.user_agent.starts_with("install-cni/")), "{before:?}");
    let is_narrow = |request: &kit::Request| match request.parameter("fieldSelector") {
        Some(selector) => selector.starts_with("metadata.name=") || selector == "spec.nodeName=idle",
        None => request.verb == "get" && request.resource == "pods",
    };
    assert!(before.iter().all(is_narrow), "one object each, or the pods of one node: {before:?}");
}
