//! The agent's ConfigMap, watched while it runs.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fixture::{ClusterFixture, template};

const APPLIED: &str = r#"istio_cni_config_updates_total{result="applied"}"#;
const REFUSED: &str = r#"istio_cni_config_updates_total{result="refused"}"#;

#[test]
fn an_edit_of_the_config_map_is_on_the_node_a_moment_later_without_a_restart() {
    let Some(fixture) = ClusterFixture::start("config-edit") else { return };
    let mut daemon = fixture.daemon();
    fixture.configure(&template("info")); // an update, as the variable is in force
    daemon.wait_for("the ConfigMap wins over the variable", |_| fixture.entry()["log_level"] == "info");
    let edits = ["warn", "error", "debug"].map(|level| {
        fixture.edit(&template(level));
        let edited = Instant::now();
        daemon.wait_for(level, |_| fixture.entry()["log_level"] == level);
        edited.elapsed()
    });
    // The machine may be busy; a delay by the agent itself would affect each of them.
    assert!(edits.iter().min().unwrap() < &Duration::from_secs(1), "{edits:?}");
    // It is counted when the file was written.
    daemon.wait_for("each is counted", |daemon| daemon.metric(APPLIED) == Some(4.0));
    assert_eq!(daemon.metric(r#"istio_cni_restores_total{cause="entry_changed"}"#), None, "nobody broke it");
    daemon.wait_until_ready();
    assert_eq!(fixture.events("CNIConfigRefused"), Vec::<Value>::new());
}

#[test]
fn a_value_that_cannot_be_used_is_refused_and_told_and_the_last_good_one_stays() {
    let Some(fixture) = ClusterFixture::start("config-refused") else { return };
    fixture.configure(&template("info"));
    let mut daemon = fixture.daemon();
    daemon.wait_for("the first value", |_| fixture.entry()["log_level"] == "info");
    let before = fs::read(fixture.conflist()).unwrap();
    fixture.edit("{\"type\": \"istio-cni\", ");
    let event = fixture.event("CNIConfigRefused");
    assert_eq!((daemon.metric(REFUSED), daemon.is_ready()), (Some(1.0), true));
    assert_eq!(fs::read(fixture.conflist()).unwrap(), before);
    let about = &event["involvedObject"];
    assert_eq!((&about["kind"], &about["name"]), (&json!("Node"), &json!(fixture.name)));
    assert_eq!((&event["type"], &event["source"]["component"]), (&json!("Warning"), &json!("istio-cni")));
    let why = "the plugin's configuration is not JSON: line 1, column 22: EOF while parsing an object";
    let invalid = "The new CNI network configuration is invalid; keeping the last good one";
    assert_eq!(event["message"], format!("{invalid}: {why}"));
    let refused = "new CNI network configuration refused; keeping the last good one";
    assert_eq!(daemon.logged(refused, ""), 1, "{}", daemon.log());
    assert!(daemon.has_logged(refused, &[("error", why)]), "{}", daemon.log());

    fixture.edit(&template("warn"));
    daemon.wait_for("the value that was put right", |_| fixture.entry()["log_level"] == "warn");
    daemon.wait_until_ready();
    assert_eq!((daemon.metric(REFUSED), fixture.events("CNIConfigRefused").len()), (Some(1.0), 1));
}

#[test]
fn a_config_map_that_is_deleted_or_loses_its_key_changes_nothing() {
    let Some(fixture) = ClusterFixture::start("config-gone") else { return };
    fixture.configure(&template("info"));
    let mut daemon = fixture.daemon();
    daemon.wait_for("the value", |_| fixture.entry()["log_level"] == "info");
    let stays = |what: &str, daemon: &mut kit::Daemon, count: usize| {
        let message = "ConfigMap or its key is missing; keeping the last configuration";
        daemon.wait_for(what, |daemon| daemon.logged(message, "config-gone/istio-cni-config") == count);
        assert_eq!((&fixture.entry()["log_level"], daemon.is_ready()), (&json!("info"), true), "{what}");
    };
    fixture.api.admin().patch(&fixture.config_map(), &json!({"data": {"cni_network_config": null}}));
    stays("no key", &mut daemon, 1);
    fixture.edit(&template("warn"));
    daemon.wait_for("the key again", |_| fixture.entry()["log_level"] == "warn");
    fixture.edit(&template("info"));
    daemon.wait_for("the first value again", |_| fixture.entry()["log_level"] == "info");
    fixture.api.admin().delete(&fixture.config_map());
    stays("no ConfigMap", &mut daemon, 2);
    fixture.configure(&template("error"));
    daemon.wait_for("the ConfigMap again", |_| fixture.entry()["log_level"] == "error");
}

#[test]
fn without_the_api_server_the_variable_counts_until_the_config_map_can_be_read() {
    let Some(fixture) = ClusterFixture::start("config-late") else { return };
    fixture.configure(&template("info"));
    fixture.cut_off("REJECT --reject-with tcp-reset");
    let mut daemon = fixture.daemon();
    daemon.wait_for("trouble is told", |daemon| {
        daemon.logged("cannot watch the ConfigMap", "config-late/istio-cni-config") > 0
    });
    assert_eq!((&fixture.entry()["log_level"], daemon.is_ready()), (&json!("debug"), true));
    fixture.connect();
    daemon.wait_for("the ConfigMap", |_| fixture.entry()["log_level"] == "info");
    daemon.wait_until_ready();
}

#[test]
fn without_the_api_server_and_any_other_template_it_waits_and_says_so() {
    let Some(fixture) = ClusterFixture::start("config-only") else { return };
    let fixture = fixture.without_env("CNI_NETWORK_CONFIG");
    fixture.configure(&template("info"));
    fixture.cut_off("REJECT --reject-with tcp-reset");
    let mut daemon = fixture.container.start();
    let answer = Some((503, "there is no CNI network configuration (template)\n".to_owned()));
    let missing = |daemon: &kit::Daemon| daemon.get(8000, "/readyz") == answer;
    daemon.wait_for("it says what is missing", missing);
    assert_eq!(fixture.plugins().len(), 1);
    fixture.connect();
    daemon.wait_until_ready();
    assert_eq!(fixture.entry()["log_level"], "info");
}

#[test]
fn an_edit_while_the_api_server_cannot_be_reached_is_caught_up_on() {
    let Some(fixture) = ClusterFixture::start("config-outage") else { return };
    fixture.configure(&template("info"));
    let mut daemon = fixture.daemon();
    daemon.wait_for("the value", |_| fixture.entry()["log_level"] == "info");
    fixture.wait_until_watched("configmaps");
    fixture.cut_off("REJECT --reject-with tcp-reset");
    fixture.node.netns().sh("ss --kill --tcp state established dport = :6443");
    fixture.edit(&template("warn"));
    daemon.wait_for("trouble is told", |daemon| daemon.logged("cannot watch the ConfigMap", "") > 0);
    assert_eq!((&fixture.entry()["log_level"], daemon.is_ready()), (&json!("info"), true));
    fixture.connect();
    daemon.wait_for("the new value", |_| fixture.entry()["log_level"] == "warn");
}
