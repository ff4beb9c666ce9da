//! Controller that watches the pods of the node and repairs broken ones.

mod attempt;
mod running_pods;

use std::{collections::BTreeMap, time::Duration};

use enrolment::EnrolmentPolicy;
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, OptionFuture},
};
use kube_api::{Collection, KubeClient};
use metrics::gauge_value;
use model::{EventLevel, EventSubject, ExistingConnections, Notice, Pod, PodName, PodUid};
use pod_identity::KnownPods;
use retry::LastError;
use tokio::{
    sync::{mpsc::Sender, watch},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    InPlaceRepair, ObservedPod, RepairCriteria, RepairMetrics, RepairMode, RepairOutcome, RepairQueue,
    RepairTask, sidecar_pods::SidecarPods, sidecar_watch::SidecarWatch,
};

use attempt::Attempt;
use running_pods::KeptRules;

/// The operator's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Action on a broken pod.
    pub mode: RepairMode,
    /// Criteria for broken pods.
    pub criteria: RepairCriteria,
    /// The node whose pods are repaired.
    pub node: String,
    /// Label selector of these pods; empty: all.
    pub label_selector: String,
    /// Field selector of these pods, besides their node; empty: all.
    pub field_selector: String,
    /// Whether nothing is changed; intended actions are logged and counted as skipped.
    pub dry_run: bool,
    /// Treatment of the connections of a pod that is repaired in place, unless its annotation requests otherwise.
    pub existing: ExistingConnections,
    /// The plugin's policy: a pod that the plugin does not redirect is not redirected by a repair, either.
    pub policy: EnrolmentPolicy,
}

impl RepairOptions {
    fn pod_collection(&self) -> Collection {
        let node = format!("spec.nodeName={}", self.node);
        let more = self.field_selector.trim_matches(',');
        let fields = if more.is_empty() { node } else { format!("{more},{node}") };
        let labels = Some(self.label_selector.clone()).filter(|labels| !labels.is_empty());
        let fields = Some(fields);
        Collection { kind: "Pod", field_selector: fields, label_selector: labels, ..Collection::default() }
    }
}

/// A report on a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairReport {
    /// Event for users.
    Event(Notice),
    /// Entry for the history of changes. An Event may cover several of these.
    Change(RepairedPod),
}

/// A pod that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedPod {
    /// The pod.
    pub name: PodName,
    /// Cause of the change.
    pub cause: &'static str,
    /// Description of the change.
    pub what: String,
    /// Time from noticing a change of rules to their repair; zero if it was not noticed, or the pod was broken.
    pub took: Duration,
    /// Why the change did not last; `None`: it did.
    pub undone: Option<&'static str>,
}

/// Interval of checks whether the plugin is installed: before that, a replaced pod would be broken again.
const GATE: Duration = Duration::from_secs(1);
/// Interval between observations of the rules of running pods. One without changes costs a few requests to the kernel
/// for each pod, and reads each process of the node once.
const PASS: Duration = Duration::from_secs(30);
/// Interval between searches for pods that have just started, and ratio of the pause to the duration of a search, at
/// least.
const SEARCH: Duration = Duration::from_secs(1);
const SEARCH_RELIEF: u32 = 50;

/// Repairs broken pods.
pub struct RepairController {
    /// The API server.
    pub client: KubeClient,
    /// The operator's choices.
    pub options: RepairOptions,
    /// Used in that mode only.
    pub in_place: InPlaceRepair,
    /// Metrics of repair.
    pub metrics: RepairMetrics,
    /// For publisher and history.
    pub reports: Sender<RepairReport>,
    /// Pods whose rules are removed repeatedly, each with how many times in a row they were restored.
    pub unstable: watch::Sender<BTreeMap<PodUid, u32>>,
}

impl RepairController {
    /// Repairs until it is dropped, at most ten pods a second. `is_installed`: whether the plugin is installed; before
    /// that no broken pod is repaired, while running ones are. `excluded`: the namespaces that the plugin's entry
    /// excludes; while unknown, no rules of running pods are restored.
    pub async fn run(&self, is_installed: impl Fn() -> bool, excluded: impl Fn() -> Option<Vec<String>>) {
        let mut queue = RepairQueue::new(self.options.criteria.clone(), std::time::Instant::now());
        let mut sidecars = SidecarPods::new(self.options.policy.clone());
        let keeps_rules = self.options.mode == RepairMode::InPlace;
        let mut pass = Instant::now();
        // When the next search is allowed, and whether there is a pod to search for.
        let (mut search, mut has_new) = (pass, false);
        let (mut rules, mut last) = (KeptRules::default(), LastError::default());
        // The current attempt, which may wait for the API server: running pods do not wait for it.
        let mut attempt: Option<BoxFuture<'_, (RepairTask, RepairOutcome)>> = None;
        let (mut watch, mut unwatched) = (None::<SidecarWatch>, LastError::default());
        let mut pods = Box::pin(self.client.watch_all::<Pod, ObservedPod>(&self.options.pod_collection()));
        info!(target: "repair", mode = self.options.mode.code(), dry_run = self.options.dry_run, "repair of broken pods starts");
        loop {
            sidecars.set_excluded(excluded());
            rules.start_comparisons(&sidecars);
            let (due, recheck) = (queue.next_due().map(Instant::from_std), rules.next_recheck());
            tokio::select! {
                biased;
                event = pods.next() => match event {
                    Some(Ok(mut event)) => {
                        has_new |= sidecars.observe_event(&mut event);
                        if last.clear() {
                            info!(target: "repair", "pods watched again");
                        }
                        queue.apply_event(event, std::time::Instant::now());
                    }
                    Some(Err(error)) => {
                        self.metrics.watch_failures.inc();
                        if last.replace(&error) {
                            warn!(target: "repair", %error, "cannot watch pods");
                        }
                    }
                    None => return, // the stream does not end by itself
                },
                () = sleep_until(pass), if keeps_rules && sidecars.is_complete() => {
                    sidecars.set_excluded(excluded());
                    watch = watch.or_else(|| start_watch(&mut unwatched));
                    let watcher = watch.as_ref().map(SidecarWatch::watcher);
                    self.keep_rules(&mut rules, &sidecars, watcher, false).await;
                    let kept = sidecars.all_pods();
                    if let Some(watch) = &mut watch {
                        watch.retain(|uid| kept.contains_key(uid));
                        watch.ensure_running();
                    }
                    pass = Instant::now() + PASS;
                    (search, has_new) = (Instant::now() + SEARCH, false);
                }
                () = sleep_until(search), if keeps_rules && has_new && sidecars.is_complete() => {
                    let began = Instant::now();
                    sidecars.set_excluded(excluded());
                    let watcher = watch.as_ref().map(SidecarWatch::watcher);
                    self.keep_rules(&mut rules, &sidecars, watcher, true).await;
                    (search, has_new) = (Instant::now() + SEARCH.max(began.elapsed() * SEARCH_RELIEF), false);
                }
                Some(changed) = OptionFuture::from(watch.as_mut().map(SidecarWatch::next_disturbances)) => {
                    rules.compare_changed(changed);
                }
                Some(()) = OptionFuture::from(recheck.map(sleep_until)) => rules.compare_changed(BTreeMap::new()),
                Some(compared) = rules.running.next() => self.finish_comparison(&mut rules, compared).await,
                () = sleep(GATE), if keeps_rules && !sidecars.is_complete() => {}
                (task, outcome) = finish_attempt(&mut attempt) => {
                    queue.finish_task(&task, outcome, std::time::Instant::now());
                }
                // Last branch: a running pod does not wait for all broken ones.
                Some(()) = OptionFuture::from(due.map(sleep_until)), if attempt.is_none() => {
                    let now = std::time::Instant::now();
                    if !is_installed() {
                        queue.pause_until(now + GATE);
                    } else if let Some(task) = queue.take_due(now) {
                        sidecars.set_excluded(excluded());
                        let (known, is_excluded) = (sidecars.known_pods(), sidecars.is_excluded(&task.pod.name));
                        attempt = Some(Box::pin(async move {
                            let outcome = self.handle_task(&task, known, is_excluded).await;
                            (task, outcome)
                        }));
                    }
                }
            }
            self.metrics.broken.set(gauge_value(queue.len()));
        }
    }

    /// Handles a pod: logs, counts and reports the result. See [`RepairController::attempt_repair`].
    async fn handle_task(&self, task: &RepairTask, known: KnownPods, is_excluded: bool) -> RepairOutcome {
        let pod = &task.pod;
        let attempt = if self.options.dry_run {
            Attempt::Skipped(format!("dry run: {}", self.intended_action()))
        } else {
            self.attempt_repair(task, known, is_excluded).await
        };
        let mode = &self.options.mode;
        let (namespace, name) = (&pod.name.namespace, &pod.name.name);
        match attempt {
            Attempt::Done { level, reason, message } => {
                self.metrics.count_repair(mode, "success");
                info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, action = mode.code(), done = message, "broken pod handled");
                let (name, what, took) = (pod.name.clone(), message.clone(), Duration::ZERO);
                let change = RepairedPod { name, cause: "repair", what, took, undone: None };
                self.send_report(RepairReport::Change(change)).await;
                self.publish_event(&pod.name, &pod.uid, level, reason, message).await;
                RepairOutcome::Done
            }
            Attempt::Unchanged => {
                if !task.is_recheck {
                    self.metrics.count_repair(mode, "skip");
                    info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, "broken pod needs no repair any more");
                }
                RepairOutcome::Skipped
            }
            Attempt::Skipped(message) => {
                if !task.is_recheck {
                    self.metrics.count_repair(mode, "skip");
                    info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, reason = message, "broken pod skipped");
                    self.publish_event(&pod.name, &pod.uid, EventLevel::Warning, "RepairSkipped", message)
                        .await;
                }
                RepairOutcome::Skipped
            }
            Attempt::Failed(message) => {
                self.metrics.count_repair(mode, "fail");
                warn!(target: "repair", %namespace, pod = %name, uid = %pod.uid, error = message, "cannot repair broken pod");
                self.publish_event(&pod.name, &pod.uid, EventLevel::Warning, "RepairFailed", message).await;
                RepairOutcome::Failed
            }
            Attempt::Outdated => {
                debug!(target: "repair", %namespace, pod = %name, uid = %pod.uid, "broken pod has changed; trying again");
                RepairOutcome::Outdated
            }
            Attempt::Gone => {
                debug!(target: "repair", %namespace, pod = %name, uid = %pod.uid, "broken pod is gone");
                RepairOutcome::Gone
            }
        }
    }

    fn intended_action(&self) -> &'static str {
        match self.options.mode {
            RepairMode::InPlace => "its rules would be applied",
            RepairMode::Delete => "it would be deleted",
            RepairMode::Label { .. } => "it would be labelled",
        }
    }

    async fn publish_event(
        &self,
        name: &PodName,
        uid: &PodUid,
        level: EventLevel,
        reason: &'static str,
        message: String,
    ) {
        let about = EventSubject::Pod { name: name.clone(), uid: uid.clone() };
        self.send_report(RepairReport::Event(Notice { about, level, reason, message })).await;
    }

    /// Sends a report. A slow publisher delays repairs, and no report is lost.
    async fn send_report(&self, report: RepairReport) {
        drop(self.reports.send(report).await); // nothing is published any longer when the process ends
    }
}

/// Starts the watch. `None`, after a log message for an error other than the `last`: only the clock triggers comparisons.
fn start_watch(last: &mut LastError) -> Option<SidecarWatch> {
    let started = SidecarWatch::start();
    if let Err(error) = &started
        && last.replace(error)
    {
        warn!(target: "repair", %error, "pods' network namespaces cannot be watched; comparing rules at intervals");
    }
    started.ok()
}

/// Waits for the end of the current attempt; forever if there is none.
async fn finish_attempt<T>(attempt: &mut Option<BoxFuture<'_, T>>) -> T {
    let Some(running) = attempt else { return std::future::pending().await };
    let done = running.await;
    *attempt = None;
    done
}
