//! Follows the pods of the node and repairs those that are broken.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use kubeio::{ApiErrorKind, Collection, KubeClient, ListEvent};
use model::{ExistingConnections, Pod, PodName, PodUid};
use planner::EnrolmentPolicy;
use retry::LastError;
use tokio::{
    sync::mpsc::Sender,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    InPlaceRepair, ObservedPod, RepairCriteria, RepairMetrics, RepairMode, RepairOutcome, RepairQueue,
    RepairTask,
    in_place::InPlaceReport,
    rule_keeper::{RecordedRules, RuleKeeper, RulesReport},
    sidecar_pods::{SidecarPod, SidecarPods},
};

/// The operator's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// What is done with a broken pod.
    pub mode: RepairMode,
    /// Which pods are broken.
    pub criteria: RepairCriteria,
    /// The node whose pods are repaired.
    pub node: String,
    /// Label selector of these pods; empty: all.
    pub label_selector: String,
    /// Field selector of these pods, beside their node; empty: all.
    pub field_selector: String,
    /// Nothing is changed; what would be done is logged and counted as skipped.
    pub dry_run: bool,
    /// What happens to connections of a pod that is repaired in place, unless its annotation requests otherwise.
    pub existing: ExistingConnections,
    /// The plugin's: a pod that it does not redirect is not redirected by a repair either.
    pub policy: EnrolmentPolicy,
}

impl RepairOptions {
    fn collection(&self) -> Collection {
        let node = format!("spec.nodeName={}", self.node);
        let more = self.field_selector.trim_matches(',');
        let fields = if more.is_empty() { node } else { format!("{more},{node}") };
        let labels = Some(self.label_selector.clone()).filter(|labels| !labels.is_empty());
        Collection {
            group: "",
            kind: "Pod",
            namespace: None,
            field_selector: Some(fields),
            label_selector: labels,
        }
    }
}

/// An Event of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairEvent {
    /// The pod.
    pub name: PodName,
    /// Its UID.
    pub uid: PodUid,
    /// The attempt failed, or none can succeed.
    pub is_warning: bool,
    /// The reason: one word in CamelCase.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// While the plugin is not installed, a pod that is replaced would be broken again: how often that is checked.
const GATE: Duration = Duration::from_secs(1);
/// Between two observations of the rules of running pods. One that finds no change costs a few requests to the kernel for
/// each pod, and reads each process of the node once.
const PASS: Duration = Duration::from_secs(30);
/// For one request.
const LIMIT: Duration = Duration::from_secs(10);

/// Repairs broken pods.
pub struct RepairController {
    client: KubeClient,
    options: RepairOptions,
    in_place: InPlaceRepair,
    recorded: RecordedRules,
    metrics: RepairMetrics,
    events: Sender<RepairEvent>,
    last: LastError,
    /// What is known of running pods; empty before the first pass, and after a panic.
    keeper: Option<RuleKeeper>,
    last_pass: LastError,
}

/// The result of an attempt.
enum Attempt {
    Done { reason: &'static str, message: String },
    Unchanged,
    Skipped { message: String },
    Failed { message: String },
    Gone,
}

impl RepairController {
    /// `in_place` and `recorded` are only used in that mode; `events` go to a publisher.
    #[must_use]
    pub fn new(
        client: KubeClient,
        options: RepairOptions,
        in_place: InPlaceRepair,
        recorded: RecordedRules,
        metrics: RepairMetrics,
        events: Sender<RepairEvent>,
    ) -> RepairController {
        let (last, last_pass) = (LastError::default(), LastError::default());
        RepairController {
            client,
            options,
            in_place,
            recorded,
            metrics,
            events,
            last,
            keeper: None,
            last_pass,
        }
    }

    /// Repairs for as long as it is polled, at most ten pods a second. `is_installed`: the plugin is; before that no broken
    /// pod
    /// is repaired.
    pub async fn run(&mut self, is_installed: impl Fn() -> bool) {
        let mut queue = RepairQueue::new(self.options.criteria.clone(), std::time::Instant::now());
        let mut sidecars = SidecarPods::new(self.options.policy.clone());
        let keeps_rules = self.options.mode == RepairMode::InPlace;
        let mut pass = Instant::now();
        let mut pods = Box::pin(self.client.watch_all::<ObservedPod>(&self.options.collection()));
        info!(target: "repair", mode = self.options.mode.code(), dry_run = self.options.dry_run, "repair of broken pods starts");
        loop {
            let due = queue.due().map(Instant::from_std);
            tokio::select! {
                biased;
                event = pods.next() => match event {
                    Some(Ok(mut event)) => {
                        sidecars.observe(&mut event);
                        self.observe(&mut queue, event);
                    }
                    Some(Err(error)) => if self.last.replace(&error) {
                        warn!(target: "repair", %error, "cannot watch pods");
                    },
                    None => return, // the stream does not end by itself
                },
                () = wait_until(due) => {
                    if !is_installed() {
                        sleep(GATE).await;
                    } else if let Some(task) = queue.take(std::time::Instant::now()) {
                        let outcome = self.handle(&task).await;
                        queue.finish(&task, outcome, std::time::Instant::now());
                    }
                }
                () = sleep_until(pass), if keeps_rules && sidecars.is_listed() => {
                    self.keep_rules(sidecars.all().clone()).await;
                    pass = Instant::now() + PASS;
                }
            }
            self.metrics.broken(queue.len());
        }
    }

    fn observe(&mut self, queue: &mut RepairQueue, event: ListEvent<ObservedPod>) {
        if self.last.clear() {
            info!(target: "repair", "pods watched again");
        }
        queue.observe(event, std::time::Instant::now());
    }

    /// Handles a pod: logs, counts and reports the result.
    async fn handle(&self, task: &RepairTask) -> RepairOutcome {
        let pod = &task.pod;
        let attempt = if self.options.dry_run {
            Attempt::Skipped { message: format!("dry run: {}", self.intent()) }
        } else {
            self.attempt(task).await
        };
        let mode = &self.options.mode;
        let (namespace, name) = (&pod.name.namespace, &pod.name.name);
        match attempt {
            Attempt::Done { reason, message } => {
                self.metrics.count(mode, "success");
                info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, action = mode.code(), done = message, "broken pod handled");
                self.tell(task, false, reason, message).await;
                RepairOutcome::Done
            }
            Attempt::Unchanged => {
                if !task.is_recheck {
                    self.metrics.count(mode, "skip");
                    info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, "broken pod needs no repair any more");
                }
                RepairOutcome::Skipped
            }
            Attempt::Skipped { message } => {
                if !task.is_recheck {
                    self.metrics.count(mode, "skip");
                    info!(target: "repair", %namespace, pod = %name, uid = %pod.uid, why = message, "broken pod skipped");
                    self.tell(task, true, "RepairSkipped", message).await;
                }
                RepairOutcome::Skipped
            }
            Attempt::Failed { message } => {
                self.metrics.count(mode, "fail");
                warn!(target: "repair", %namespace, pod = %name, uid = %pod.uid, error = message, "cannot repair broken pod");
                self.tell(task, true, "RepairFailed", message).await;
                RepairOutcome::Failed
            }
            Attempt::Gone => {
                debug!(target: "repair", %namespace, pod = %name, uid = %pod.uid, "broken pod is gone");
                RepairOutcome::Gone
            }
        }
    }

    fn intent(&self) -> &'static str {
        match self.options.mode {
            RepairMode::InPlace => "its rules would be applied",
            RepairMode::Delete => "it would be deleted",
            RepairMode::Label { .. } => "it would be labelled",
        }
    }

    async fn attempt(&self, task: &RepairTask) -> Attempt {
        match &self.options.mode {
            RepairMode::Label { key, value } => self.label(task, key, value).await,
            RepairMode::Delete => self.delete(task).await,
            RepairMode::InPlace => self.repair_in_place(task).await,
        }
    }

    async fn label(&self, task: &RepairTask, key: &str, value: &str) -> Attempt {
        let ObservedPod { name, uid, version, labels, .. } = &task.pod;
        if labels.iter().any(|label| label == key) {
            return Attempt::Unchanged;
        }
        match self.client.label_pod_status(name, uid, version, key, value).await {
            Ok(()) => Attempt::Done {
                reason: "BrokenPodLabelled",
                message: format!("{}; labelled {key}={value}", task.breakage),
            },
            Err(error) => failed(&error),
        }
    }

    async fn delete(&self, task: &RepairTask) -> Attempt {
        let ObservedPod { name, uid, version, .. } = &task.pod;
        if task.pod.is_finished && !task.pod.has_controller {
            let message = format!("{}; it has ended, and nothing would replace it", task.breakage);
            return Attempt::Skipped { message };
        }
        match self.client.delete_pod(name, uid, version).await {
            Ok(()) => Attempt::Done {
                reason: "BrokenPodDeleted",
                message: format!("{}; deleted, so that its controller replaces it", task.breakage),
            },
            Err(error) => failed(&error),
        }
    }

    async fn repair_in_place(&self, task: &RepairTask) -> Attempt {
        let ObservedPod { name, uid, .. } = &task.pod;
        if task.pod.is_finished {
            let message = format!("{}; it has ended and does not start again", task.breakage);
            return Attempt::Skipped { message };
        }
        let path = format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name);
        let pod = match self.client.get::<Pod>(&format!("pod {name}"), &path, LIMIT).await {
            Ok(pod) if pod.metadata.uid == *uid => pod,
            Ok(_) => return Attempt::Gone, // another pod has its name
            Err(error) => return failed(&error),
        };
        let in_place = self.in_place.clone();
        let done = tokio::task::spawn_blocking(move || in_place.repair(&pod)).await;
        match done {
            Ok(Ok(InPlaceReport::Repaired(differences))) => Attempt::Done {
                reason: "BrokenPodRepaired",
                message: format!(
                    "{}; the rules that redirect its traffic to its sidecar are in place now ({})",
                    task.breakage,
                    differences.join("; ")
                ),
            },
            Ok(Ok(InPlaceReport::Unchanged)) => Attempt::Unchanged,
            Ok(Ok(InPlaceReport::NotRedirected(reason))) => {
                Attempt::Skipped { message: format!("{}; not redirected: {reason}", task.breakage) }
            }
            Ok(Err(error)) => Attempt::Failed { message: format!("{}; {error}", task.breakage) },
            Err(error) => Attempt::Failed { message: format!("{}; defect: {error}", task.breakage) },
        }
    }

    /// Restores what is missing of the rules of running pods.
    async fn keep_rules(&mut self, pods: BTreeMap<PodUid, Arc<SidecarPod>>) {
        let mut keeper = self.keeper.take().unwrap_or_else(|| {
            RuleKeeper::new(self.in_place.clone(), self.recorded.clone(), self.options.dry_run)
        });
        let pass = tokio::task::spawn_blocking(move || {
            let reports = keeper.pass(&pods).map_err(|error| error.to_string());
            (keeper, reports)
        });
        let reports = match pass.await {
            Ok((keeper, reports)) => {
                self.keeper = Some(keeper);
                reports
            }
            Err(error) => Err(format!("defect: {error}")),
        };
        match reports {
            Ok(reports) => {
                self.last_pass.clear();
                for report in reports {
                    self.report_rules(report).await;
                }
            }
            Err(error) if self.last_pass.replace(&error) => {
                warn!(target: "repair", error, "cannot compare the rules of running pods");
            }
            Err(_) => {}
        }
    }

    async fn report_rules(&self, report: RulesReport) {
        let RulesReport { name, uid, result } = report;
        let (PodName { namespace, name: pod }, dry_run) = (&name, self.options.dry_run);
        let (code, reason, message) = match result {
            Ok(missing) if dry_run => {
                let missing = missing.join("; ");
                info!(target: "repair", %namespace, %pod, %uid, missing, "dry run: rules of a running pod would be restored");
                ("skip", "RepairSkipped", format!("dry run: its rules would be restored: {missing}"))
            }
            Ok(missing) => {
                let missing = missing.join("; ");
                warn!(target: "repair", %namespace, %pod, %uid, missing, "rules of a running pod were missing and are restored");
                let message = format!(
                    "Rules that redirect its traffic to its sidecar were missing and have been restored: {missing}"
                );
                ("success", "SidecarRulesRestored", message)
            }
            Err(error) => {
                warn!(target: "repair", %namespace, %pod, %uid, error, "cannot restore the rules of a running pod");
                ("fail", "RepairFailed", format!("its rules cannot be compared and restored: {error}"))
            }
        };
        self.metrics.rules(code);
        self.publish(RepairEvent { name, uid, is_warning: true, reason, message }).await;
    }

    async fn tell(&self, task: &RepairTask, is_warning: bool, reason: &'static str, message: String) {
        let ObservedPod { name, uid, .. } = task.pod.clone();
        self.publish(RepairEvent { name, uid, is_warning, reason, message }).await;
    }

    /// The publisher may lag behind; that slows repairs down, and no Event is lost.
    async fn publish(&self, event: RepairEvent) {
        drop(self.events.send(event).await); // nothing is published any more when the process ends
    }
}

fn failed(error: &kubeio::Error) -> Attempt {
    match error.kind() {
        ApiErrorKind::NotFound => Attempt::Gone,
        _ => Attempt::Failed { message: error.to_string() },
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
