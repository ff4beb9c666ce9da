//! A token that expires with its agent's pod, and its successor.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kit::{Auth, FakeReply, FakeRequest};
use serde_json::json;

use super::successor::{ambient, outside_of_the_mesh};
use crate::fixtures::plugin::{Call, PluginFixture, V4, bare_pod, injected, undetermined};

/// The API server accepts the successor's token alone.
fn fixture(reply: fn(&FakeRequest) -> FakeReply) -> PluginFixture {
    PluginFixture::answering(move |request| {
        match request.headers.iter().any(|line| line.ends_with("Bearer new")) {
            true => reply(request),
            false => FakeReply::Json(401, json!({"kind": "Status", "code": 401, "message": "Unauthorized"})),
        }
    })
}

fn sidecar(request: &FakeRequest) -> FakeReply {
    FakeReply::Json(200, injected(request))
}

/// Installs the successor's kubeconfig as the installer does.
fn renew(fixture: &PluginFixture, path: &Path) {
    let new = path.with_extension("new");
    fs::write(&new, fixture.api.kubeconfig(&Auth::Token("new".into()))).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Runs the call with a refused token, with which it cannot succeed, replaces the token after `late`, and expects the call to end
/// soon after, compared with one that need not wait. A stalled machine takes longer, but not each time.
fn add_renewed(fixture: &PluginFixture, call: &Call<'_>, late: Duration) {
    let before = fs::read(&fixture.kubeconfig).ok();
    let is_prompt = (0..3).any(|_| {
        match &before {
            Some(text) => fs::write(&fixture.kubeconfig, text).unwrap(),
            None => drop(fs::remove_file(&fixture.kubeconfig)),
        }
        let took = thread::scope(|scope| {
            let add = scope.spawn(|| (call.run(), Instant::now()));
            thread::sleep(late); // a waiting call shows no sign
            let renewed = Instant::now();
            renew(fixture, &fixture.kubeconfig);
            let (outcome, ended) = add.join().unwrap();
            println!("{late:?}: {:?} after the change: {outcome}", ended - renewed);
            outcome.0.status.success().then(|| ended - renewed)
        });
        let usual = call.run();
        usual.ok();
        took.is_some_and(|took| took < usual.wall() + Duration::from_millis(700))
    });
    assert!(is_prompt, "it does not use the new credential soon");
}

#[test]
fn a_pod_with_a_sidecar_starts_as_soon_as_there_is_another_credential() {
    // 6 s: longer than a refusal was tolerated in any version.
    for late in [Duration::from_secs(1), Duration::from_secs(6)] {
        let fixture = fixture(sidecar);
        let pod = bare_pod(V4);
        add_renewed(&fixture, &fixture.call("ADD", &pod), late);
        assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"));
    }
}

#[test]
fn with_ambient_mode_too_a_new_credential_is_used_before_there_is_an_agent() {
    let fixture = fixture(outside_of_the_mesh);
    add_renewed(&fixture, &ambient(&fixture, &bare_pod(V4)), Duration::from_secs(1));
}

#[test]
fn with_ambient_mode_a_credential_that_comes_late_is_used() {
    let fixture = fixture(outside_of_the_mesh);
    fs::remove_file(&fixture.kubeconfig).unwrap();
    add_renewed(&fixture, &ambient(&fixture, &bare_pod(V4)), Duration::from_secs(1));
}

#[test]
fn a_refusal_is_reported_when_the_time_is_up_and_not_before() {
    let fixture = fixture(sidecar);
    let outcome = fixture.call("ADD", &bare_pod(V4)).run();
    let error = outcome.refused();
    let cause = format!(
        "{}:6443: it does not accept our credential (401): Unauthorized",
        fixture.node.outside_ip(false)
    );
    assert_eq!((error.code, error.cause()), (11, undetermined(&cause)));
    // The last interval would have ended after the timeout; other errors are retried for thirty seconds.
    let wall = outcome.wall();
    assert!(wall > Duration::from_secs(6) && wall < Duration::from_secs(20), "{wall:?}");
}
