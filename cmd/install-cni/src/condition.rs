//! Node condition `IstioCNIReady`, which node readiness tools can turn into taints.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube_api::{KubeClient, NodeCondition};
use model::Reason;
use retry::{Attempts, Backoff, LastError};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::{cluster::ClusterAccess, health::HealthProbe};

/// Type of the condition.
const KIND: &str = "IstioCNIReady";
/// Reason for `False`: the plugin's files differ from the desired state.
pub(crate) const NOT_INSTALLED: &str = "NotInstalled";
/// Reason for `False`: the node's network differs from the desired state.
pub(crate) const NETWORK_NOT_READY: &str = "NetworkNotReady";
/// Grace period of a starting agent: `False` is not reported before, because parts may not have been observed yet.
const START: Duration = Duration::from_secs(10);
/// Interval at which our health is checked: a change shall be on the Node within a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which an unchanged condition is reported again.
const HEARTBEAT: Duration = Duration::from_secs(300);
/// Minimum interval between updates that change only the message.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Back-off after a failed update, doubled after each further failure up to the last.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(60);
/// Timeout of the last update: the kubelet grants five seconds in all.
const UNINSTALL_UPDATE: Duration = Duration::from_secs(1);

fn decide_condition(installer: Result<(), Reason>, agent: Result<(), Reason>) -> NodeCondition {
    let (holds, reason, message) = match (installer, agent) {
        (Err(why), _) => (false, NOT_INSTALLED, why.into()),
        (_, Err(why)) => (false, NETWORK_NOT_READY, why.into()),
        (Ok(()), Ok(())) => {
            let message = "the plugin is installed, and the node's network matches the desired state";
            (true, "Ready", message.to_owned())
        }
    };
    NodeCondition { kind: KIND, holds, reason, message }
}

/// Condition last reported, and when.
#[derive(Debug)]
struct LastReported {
    started: Instant,
    last: Option<(NodeCondition, Instant)>,
    attempts: Attempts,
    not_before: Option<Instant>,
}

impl LastReported {
    fn new(started: Instant) -> LastReported {
        let attempts = Backoff::new(FIRST_BACKOFF, LAST_BACKOFF).start_attempts();
        LastReported { started, last: None, attempts, not_before: None }
    }

    /// Whether to report the condition now.
    fn is_due(&self, condition: &NodeCondition, now: Instant) -> bool {
        if self.not_before.is_some_and(|not_before| now < not_before) {
            return false;
        }
        let Some((last, when)) = &self.last else {
            let is_starting = now.saturating_duration_since(self.started) < START;
            return condition.holds || !is_starting;
        };
        let since = now.saturating_duration_since(*when);
        match (last.holds == condition.holds, last == condition) {
            (false, _) => true,
            (true, false) => since >= MESSAGE_INTERVAL,
            (true, true) => since >= HEARTBEAT,
        }
    }

    fn record_success(&mut self, condition: NodeCondition, now: Instant) {
        *self = LastReported { last: Some((condition, now)), ..LastReported::new(self.started) };
    }

    fn record_failure(&mut self, now: Instant) {
        self.not_before = Some(now + self.attempts.record_failure());
    }
}

/// Keeps the node's condition up to date with our health, until it is dropped.
pub(crate) async fn keep_updated(probe: HealthProbe, cluster: Arc<ClusterAccess>, node: String) {
    let (mut last_report, mut last_error) = (LastReported::new(Instant::now()), LastError::default());
    loop {
        let condition = decide_condition(probe.installer_health(), probe.agent_readiness());
        if let Some(client) = cluster.client()
            && last_report.is_due(&condition, Instant::now())
        {
            match client.set_node_condition(&node, &condition, None).await {
                Ok(()) => {
                    if last_error.clear() {
                        info!(target: "install", "node condition updated again");
                    }
                    last_report.record_success(condition, Instant::now());
                }
                Err(error) => {
                    if last_error.replace(&error) {
                        warn!(target: "install", %error, "cannot update the node condition");
                    }
                    last_report.record_failure(Instant::now());
                }
            }
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Reports that nothing of ours is on the node any more; returns an error as a message.
pub(crate) async fn publish_uninstalled(client: &KubeClient, node: &str) -> Result<(), String> {
    let condition = NodeCondition {
        kind: KIND,
        holds: false,
        reason: "Uninstalled",
        message: "the plugin was removed from the node".to_owned(),
    };
    match timeout(UNINSTALL_UPDATE, client.set_node_condition(node, &condition, Some(true))).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "cannot set the condition {KIND} of node {node}: no answer within {UNINSTALL_UPDATE:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> NodeCondition {
        decide_condition(Ok(()), Ok(()))
    }

    fn not_ready(why: &str) -> NodeCondition {
        decide_condition(Ok(()), Err(why.into()))
    }

    #[test]
    fn the_installation_comes_before_the_network() {
        let no = |why: &str| Err(Reason::from(why));
        for (installer, agent, reason, message) in [
            (no("a"), no("b"), "NotInstalled", "a"),
            (no("a"), Ok(()), "NotInstalled", "a"),
            (Ok(()), no("b"), "NetworkNotReady", "b"),
        ] {
            let made = decide_condition(installer, agent);
            assert_eq!((made.holds, made.reason, made.message.as_str()), (false, reason, message));
        }
        assert_eq!((ready().kind, ready().holds, ready().reason), (KIND, true, "Ready"));
    }

    #[test]
    fn changes_are_told_at_once_and_the_rest_seldom() {
        let start = Instant::now();
        let mut told = LastReported::new(start);
        let table = [
            (0, ready(), true),
            (1, ready(), false),
            (2, not_ready("a"), true),
            (3, not_ready("b"), false),
            (11, not_ready("b"), false),
            (12, not_ready("b"), true),
            (13, ready(), true),
            (312, ready(), false),
            (313, ready(), true),
        ];
        for (second, condition, expected) in table {
            let now = start + Duration::from_secs(second);
            assert_eq!(told.is_due(&condition, now), expected, "{second}: {condition:?}");
            if expected {
                told.record_success(condition, now);
            }
        }
    }

    #[test]
    fn an_agent_that_starts_has_a_moment_to_be_ready_and_says_so_at_once() {
        let start = Instant::now();
        let told = LastReported::new(start);
        for (second, condition, expected) in [
            (0, not_ready("the first pass of the installer has not ended yet"), false),
            (9, not_ready("the first pass of the installer has not ended yet"), false),
            (0, ready(), true),
            (10, not_ready("a"), true),
        ] {
            let now = start + Duration::from_secs(second);
            assert_eq!(told.is_due(&condition, now), expected, "{second}: {condition:?}");
        }
    }

    #[test]
    fn after_failures_the_pauses_grow_to_a_minute() {
        let start = Instant::now();
        let mut told = LastReported::new(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            told.record_failure(now);
            let is_due = |seconds: &u64| told.is_due(&ready(), now + Duration::from_secs(*seconds));
            let pause = (0..100).find(is_due).unwrap();
            pauses.push(pause);
            now += Duration::from_secs(pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        told.record_success(ready(), now);
        assert!(told.is_due(&not_ready("a"), now), "what succeeded is over");
    }
}
