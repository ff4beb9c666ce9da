//! In-pod capture: rules in each pod's own network namespace, which is passed to ztunnel.
//!
//! The reconciler decides. Everything that takes time runs elsewhere and returns as [`JobResult`]: workers act in pods'
//! namespaces, and the threads of ztunnel's connections receive its answers. So neither a refused pod nor a tool that
//! hangs delays other pods. A pod joins the mesh in this order: its addresses in the probe sets, its rules, ztunnel,
//! the answer to an ADD, the verification of its rules, its annotation. It leaves in this order: rules, ztunnel, probe
//! sets, annotation.

mod bypass;
mod done;
mod enrolled_pod;
mod exempt;
mod netns_discovery;
mod pod_records;
mod pods;
mod probe_exemption;
mod queue;
mod reconcile;
mod recorded;
mod search_schedule;
mod uninstall;
mod worker;
mod ztunnel_netns;
mod ztunnel_presence;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use model::{ContainerId, PodUid, Reason};
use netns::{Netns, NetnsId};
use netns_changes::ChangeReporter;
use pod_capture::{NodeProbes, netns_addresses};
use pod_identity::Witness;
use pod_status::lifecycle::PodEvent;
use rules::ChainSet;
use zds::{Hub, ZdsDeadlines, ZdsServer};

use crate::{
    error::Error,
    node_watch::{NodeObjects, NodeWatch},
    settings::CaptureSettings,
    settings::InPodConfig,
};
use agent::{
    AgentHandle, AgentMetrics, AgentState, CaptureMode, CaptureReply, CaptureResult, CaptureSnapshot,
    PodAttachment, PodEnrolment, ReconcileScope,
};

use enrolled_pod::EnrolledPod;
use netns_discovery::NetnsDiscovery;
use probe_exemption::ProbeExemption;
use worker::{CaptureJob, JobResult, JobResultSender, WorkerPool};
use ztunnel_presence::ZtunnelPresence;

pub(crate) use uninstall::uninstall;

/// Time that an ADD waits for ztunnel. The plugin and its caller wait a little longer.
const PATIENCE: Duration = Duration::from_secs(7);

/// Pods that are captured in-pod.
pub(crate) struct InPodCapture {
    chosen: InPodConfig,
    hub: Hub,
    workers: WorkerPool,
    /// Reports changes of pods' namespaces until it is dropped.
    changes: ChangeReporter<PodUid>,
    /// Results of workers and of the threads of ztunnels' connections.
    results: Receiver<JobResult>,
    metrics: AgentMetrics,
    /// The node's own namespace.
    node: NetnsId,
    enrolled: BTreeMap<PodUid, EnrolledPod>,
    /// The search for namespaces of running pods.
    discovery: NetnsDiscovery,
    presence: ZtunnelPresence,
    started: Instant,
    exemption: ProbeExemption,
    due: Option<Instant>,
    /// Whether pods are taken over from node-level capture. Their connections through the node-level ztunnel are then
    /// closed, because they would otherwise continue in plaintext.
    pub(crate) takes_over: bool,
}

impl InPodCapture {
    /// Opens in-pod capture for the calling thread's network namespace, and serves ztunnels.
    pub(crate) fn open(
        settings: &CaptureSettings,
        chosen: &InPodConfig,
        owner: &AgentHandle,
        metrics: AgentMetrics,
    ) -> Result<InPodCapture, Error> {
        let chosen = &chosen.within_kernel();
        let probes = NodeProbes::open(
            chosen.rules.clone(),
            chosen.captured_families(),
            settings.tools.clone(),
            &settings.journal,
        )?;
        match probes.remove_stale_branches() {
            Ok(rules) if rules.is_empty() => {}
            Ok(rules) => {
                tracing::info!(target: "ambient", rules = rules.join("; "), "removed rules for branch interfaces, which are disabled");
            }
            Err(error) => {
                tracing::warn!(target: "ambient", %error, "cannot remove rules for branch interfaces, which are disabled");
            }
        }
        let (sender, results) = JobResultSender::new(owner.clone());
        let zds_sender = sender.clone();
        let send_event = move |event| zds_sender.send(JobResult::Zds(event));
        // The file belongs to node-level capture: the plugin would use it to enrol pods by itself while no agent runs.
        if let Err(error) = hostfs::remove(&settings.shared_config) {
            tracing::warn!(target: "ambient", %error, "cannot remove the shared configuration of node-level capture");
        }
        let locate = |netns: &Netns| netns_addresses(netns).map_err(|error| Reason::from(error.to_string()));
        let hub = Hub::new(ZdsDeadlines::default(), Box::new(send_event), Box::new(locate));
        let server = ZdsServer::bind(&chosen.socket)?;
        let node = Netns::current()?;
        let id = node.id();
        let changes = report_changes(sender.clone())?;
        let watcher = changes.watcher();
        let node_watch = watch_node(&probes, settings.drift_attribution, sender.clone())?;
        let workers = WorkerPool::start(settings, chosen, node, &probes.rules, watcher, &sender)
            .map_err(Error::Thread)?;
        // After everything that may fail: a server cannot be stopped, and would keep the next attempt from its socket.
        server.serve(hub.clone()).map_err(Error::Thread)?;
        let now = Instant::now();
        Ok(InPodCapture {
            chosen: chosen.clone(),
            hub,
            workers,
            changes,
            results,
            metrics,
            node: id,
            enrolled: BTreeMap::new(),
            discovery: NetnsDiscovery::default(),
            presence: ZtunnelPresence::new(now),
            started: now,
            exemption: ProbeExemption::new(probes, node_watch, now),
            due: None,
            takes_over: false,
        })
    }

    /// Returns when a ztunnel was last connected: now, if one is.
    pub(crate) fn last_connected(&self) -> Option<Instant> {
        self.presence.last_connected()
    }

    /// Returns the pods of the mesh whose rules are in place: all of their traffic is redirected to ztunnel or dropped.
    pub(crate) fn pods_with_rules(&self) -> impl Iterator<Item = PodAttachment> {
        let ruled = self.enrolled.iter().filter(|(_, enrolled_pod)| {
            enrolled_pod.lifecycle.is_ruled() && !enrolled_pod.lifecycle.is_leaving()
        });
        ruled.map(|(uid, enrolled_pod)| PodAttachment {
            uid: uid.clone(),
            ips: enrolled_pod.ips.clone(),
            ..PodAttachment::default()
        })
    }

    /// Returns the number of pods of the mesh whose rules are not in place yet; `None`: unknown. Pods that wait for
    /// their ADD do not run, and are not counted.
    pub(crate) fn count_without_rules(&self) -> Option<usize> {
        let lifecycles = self.enrolled.values().map(|enrolled_pod| &enrolled_pod.lifecycle);
        let bare = lifecycles.filter(|one| !one.is_awaited() && !one.is_leaving() && !one.is_ruled());
        self.discovery.is_complete.then(|| bare.count())
    }

    /// Takes the network namespace out of a request that can be fulfilled.
    fn take_netns(&self, enrolment: &mut PodEnrolment) -> Result<Netns, Reason> {
        let Some(netns) = enrolment.netns.take() else {
            return Err("the request has no network namespace: the plugin is of another version".into());
        };
        if netns.id() == self.node {
            return Err("its network namespace is the node's own".into());
        }
        if !enrolment.attachment.ips.iter().any(|ip| self.chosen.captures(*ip)) {
            return Err("it has no address of a family that is captured".into());
        }
        Ok(netns)
    }
}

/// Starts the thread that sends each change of a watched namespace as [`JobResult::Changed`].
fn report_changes(results: JobResultSender) -> Result<ChangeReporter<PodUid>, Error> {
    let report = move |change| results.send(JobResult::Changed(change));
    let mut reporter = ChangeReporter::new("netns-changes", report).map_err(Error::Changes)?;
    ensure_reporting(&mut reporter);
    Ok(reporter)
}

/// Starts that thread again if it has ended. Without it, observations are triggered by the clock only.
fn ensure_reporting(reporter: &mut ChangeReporter<PodUid>) {
    if let Some(error) = reporter.ensure_running() {
        let is_running = reporter.is_running();
        tracing::warn!(target: "ambient", %error, is_running, "changes of pods' network namespaces were not reported; observed at intervals meanwhile");
    }
}

/// Starts the thread that sends each change of the node's sets and rules as [`JobResult::NodeChanged`].
fn watch_node(probes: &NodeProbes, attributed: bool, results: JobResultSender) -> Result<NodeWatch, Error> {
    let objects = NodeObjects {
        sets: probes.rules.set_names()?,
        rules: ChainSet::PROBES,
        network: probes.has_branches,
        ztunnels: None,
        attributed,
    };
    Ok(NodeWatch::start(objects, move |change| results.send(JobResult::NodeChanged(change))))
}

impl CaptureMode for InPodCapture {
    fn reconcile(&mut self, state: &mut AgentState, scope: ReconcileScope) -> Result<Option<Reason>, Reason> {
        if scope == ReconcileScope::Full {
            self.exemption.watch.ensure_running();
            ensure_reporting(&mut self.changes);
        }
        self.reconcile_pods(state, scope)
    }

    fn is_awaited(&self) -> bool {
        self.enrolled.values().any(|enrolled_pod| enrolled_pod.lifecycle.is_awaited())
    }

    fn enrol_pod(&mut self, state: &mut AgentState, mut enrolment: PodEnrolment, reply: CaptureReply) {
        let netns = match self.take_netns(&mut enrolment) {
            Ok(netns) => netns,
            Err(why) => return drop(reply.send(Err(why))),
        };
        // A probe that arrives before its exemption would be treated as traffic of the mesh.
        let PodAttachment { uid, ips, .. } = enrolment.attachment.clone();
        let probes = &mut self.exemption.probes;
        let exempted = probes.add_addresses(&ips, &uid).or_else(|_| {
            // On a node that was just booted, a pod may arrive before the first pass.
            probes.create_sets()?;
            probes.add_addresses(&ips, &uid)
        });
        if let Err(error) = exempted {
            drop(reply.send(Err(error.to_string().into())));
            return;
        }
        let captured = ips.iter().filter(|ip| self.chosen.captures(**ip));
        self.exemption.addresses.extend(captured.map(|ip| (*ip, uid.clone())));
        let (latest, is_unavailable) = (Instant::now() + PATIENCE, self.presence.is_unavailable());
        let deadline = enrolment.deadline.min(latest);
        let enrolled_pod = self.enrolled_pod_mut(state, &enrolment.pod, "add");
        enrolled_pod.container.clone_from(&enrolment.container);
        enrolled_pod.ips = ips;
        enrolled_pod.waiting.push(reply);
        let opens = enrolled_pod.open_or_close(is_unavailable);
        let netns = enrolled_pod.set_netns(netns, Witness::Add);
        state.ledger.record_add(&enrolment.container, enrolment.attachment);
        if opens {
            self.handle_pod_event(&uid, PodEvent::Opened(is_unavailable));
        }
        let until = deadline.saturating_duration_since(self.started);
        self.handle_pod_event(&uid, PodEvent::Added { netns, deadline: until });
        // Nothing else can be done until ztunnel has answered or the time has expired.
        self.due = Some(self.due.map_or(deadline, |due| due.min(deadline)));
    }

    fn skip_pod(
        &mut self,
        state: &mut AgentState,
        container: &ContainerId,
        attachment: PodAttachment,
        reply: CaptureReply,
    ) {
        // The probe sets follow in the next pass; nothing else identifies pods by their addresses.
        let uid = attachment.uid.clone();
        state.ledger.record_skip(container, attachment);
        state.mark_pod(&uid, &[]);
        // Rules that an earlier agent made ended with the previous sandbox.
        self.discovery.suspects.remove(&uid);
        if self.enrolled.get(&uid).is_some_and(|pod| pod.lifecycle.is_leaving() && pod.netns.is_none()) {
            self.forget_pod(&uid, "it has a new sandbox");
        }
        drop(reply.send(Ok(())));
    }

    fn release_pod(
        &mut self,
        _core: &mut AgentState,
        container: &ContainerId,
        gone: PodAttachment,
        is_last: bool,
    ) -> CaptureResult {
        // A successor with the same UID has another container.
        let ended = self
            .enrolled
            .get(&gone.uid)
            .is_some_and(|enrolled_pod| enrolled_pod.ends_with(container, is_last));
        if ended {
            self.forget_pod(&gone.uid, "its container has ended");
        }
        Ok(())
    }

    fn may_have_netns(&self, uid: &PodUid, netns: NetnsId) -> bool {
        let own = self.enrolled.get(uid).and_then(EnrolledPod::netns_id);
        own.is_none_or(|own| own == netns)
    }

    fn check_pod(&mut self, _: &mut AgentState, uid: &PodUid, _ips: &[IpAddr], reply: CaptureReply) {
        let enrolled_pod = self.enrolled.get(uid).ok_or_else(|| Reason::from("it is not enrolled"));
        // A pod's rules hold its traffic while no ztunnel serves it.
        let ruled = enrolled_pod.and_then(|enrolled_pod| {
            let pod = enrolled_pod.to_job_pod(uid).filter(|_| enrolled_pod.lifecycle.is_ruled());
            pod.ok_or_else(|| "its rules are not in place".into())
        });
        match ruled {
            // A worker compares the rules: reading them can take seconds, for which no other request should wait.
            Ok(pod) => self.workers.send_job(CaptureJob::Check { pod, reply }, false),
            Err(why) => drop(reply.send(Err(why))),
        }
    }

    fn finish_work(&mut self) {
        self.workers.drain();
        self.discovery.is_running = false; // the search may be one of the dropped jobs
        self.exemption.busy = false;
    }

    fn work_completed(&mut self, state: &mut AgentState) {
        if let Ok(result) = self.results.try_recv() {
            self.handle_result(state, result);
        }
    }

    fn capture_snapshot(&self) -> CaptureSnapshot {
        CaptureSnapshot::InPod {
            members: self.exemption.addresses.clone(),
            enrolled: self
                .enrolled
                .iter()
                .map(|(uid, enrolled_pod)| (uid.clone(), enrolled_pod.to_view(self.hub.is_served(uid))))
                .collect(),
            ztunnels: self.hub.list_connections(),
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.due
    }
}
