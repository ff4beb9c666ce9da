//! Workers for jobs that take longer than a message: in pods' namespaces, and on the list of processes.

mod job;

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    net::IpAddr,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use firewall::FirewallOptions;
use model::{Family, PodUid, Reason};
use netns::{Netns, NetnsId};
use netns_changes::{ChangeWatcher, NetnsWatch};
use pod_capture::{NetnsFinder, NetnsQuery, PodRulesSnapshot, PodRulesSpec, ProbeRules, recorded_netns};
use pod_identity::{KnownPods, PodIds, newest_by_pod};
use retry::LastError;

use super::{
    pod_records::PodRecordStore,
    queue::{JobLane, JobQueue, SLOW},
};
use crate::{settings::CaptureSettings, settings::InPodConfig};

pub(super) use job::{CaptureJob, JobPod, JobResultSender};
pub(crate) use job::{DiscoveryResult, JobResult, RulesCheck};

/// Number of workers: the tools of the two families already run in parallel. Two workers serve ADDs only, however long
/// other jobs take.
const WORKERS: usize = 6;
const OTHERS: usize = 4;
/// Age of a job that counts as stalled. Observing, applying and verifying, each in both families and with a lock to
/// wait for, take a minute at most.
const STANDSTILL: Duration = Duration::from_secs(180);

/// Runs a job. A job that panics has failed: its pod does not stay busy, and its worker continues.
fn catch_job_panic(job: CaptureJob, run: impl FnOnce(&CaptureJob) -> Option<JobResult>) -> Option<JobResult> {
    // A job's partial changes are in the kernel, and the next job observes them first.
    let done = panic::catch_unwind(AssertUnwindSafe(|| run(&job)));
    done.unwrap_or_else(|payload| {
        job.into_failure(format!("a defect of the agent: {}", panic_message(&*payload)).into())
    })
}

/// Returns the message of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// The workers; they end when this is dropped.
#[derive(Debug)]
pub(super) struct WorkerPool(Arc<JobQueue<CaptureJob>>);

impl WorkerPool {
    /// Starts the workers. `node`: the node's own namespace.
    pub(super) fn start(
        settings: &CaptureSettings,
        chosen: &InPodConfig,
        node: Netns,
        probes: &ProbeRules,
        watcher: ChangeWatcher<PodUid>,
        results: &JobResultSender,
    ) -> io::Result<WorkerPool> {
        let queue = Arc::new(JobQueue::new(OTHERS));
        let workers = WorkerPool(Arc::clone(&queue)); // stops the running workers if another one cannot be started
        let (index, netns_directory) = (Arc::clone(&settings.records), settings.netns_directory.clone());
        let records = PodRecordStore { index, netns_directory };
        let tools = WorkerContext {
            config: chosen.rules.clone(),
            families: chosen.captured_families(),
            options: settings.tools.clone(),
            finder: NetnsFinder::new(&chosen.proc, node, chosen.rules.clone()),
            records,
            probes: probes.clone(),
            watcher,
            unwatched: Mutex::default(),
        };
        let tools = Arc::new(tools);
        for _ in 0..WORKERS {
            let (queue, tools, results) = (Arc::clone(&queue), Arc::clone(&tools), results.clone());
            let body = move || tools.run_jobs(&queue, &results);
            drop(thread::Builder::new().name("in-pod".to_owned()).stack_size(256 * 1024).spawn(body)?);
        }
        Ok(workers)
    }

    /// Queues a job; urgent jobs precede all others.
    pub(super) fn send_job(&self, job: CaptureJob, urgent: bool) {
        let is_slow = job.slow_flag().is_some_and(|slow| slow.load(Ordering::Relaxed));
        let other = if is_slow { JobLane::Slow } else { JobLane::Other };
        self.0.push(job, if urgent { JobLane::Urgent } else { other });
    }

    /// Returns whether all workers that do not serve only ADDs have been busy with one job for longer than its tools
    /// may take.
    pub(super) fn stand_still(&self) -> bool {
        self.0.longer_than(STANDSTILL) >= OTHERS
    }

    /// Drops waiting jobs, and waits for running ones, which takes no longer than their tools may. The reconciler then
    /// has the results of all that have ended.
    pub(super) fn drain(&self) {
        self.0.drain();
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.0.stop_workers();
    }
}

/// Data that all jobs need.
struct WorkerContext {
    config: rules::inpod::InPodRulesConfig,
    families: Vec<Family>,
    options: FirewallOptions,
    finder: NetnsFinder,
    records: PodRecordStore,
    probes: ProbeRules,
    watcher: ChangeWatcher<PodUid>,
    /// Last error of watching a pod.
    unwatched: Mutex<LastError>,
}

impl WorkerContext {
    /// Runs jobs until the pool stops its workers.
    fn run_jobs(&self, queue: &JobQueue<CaptureJob>, results: &JobResultSender) {
        while let Some((job, _running)) = queue.next_job() {
            let (began, slow) = (Instant::now(), job.slow_flag().cloned());
            let done = catch_job_panic(job, |job| self.run_job(job));
            if let Some(slow) = slow {
                slow.store(began.elapsed() >= SLOW, Ordering::Relaxed);
            }
            if let Some(done) = done {
                results.send(done);
            }
        }
    }

    /// Watches a pod's namespace. `None`, with a log message for the first of a series: observations are triggered by
    /// the clock only.
    fn watch_netns(&self, uid: &PodUid, netns: &Netns) -> Option<NetnsWatch<PodUid>> {
        let watch = self.watcher.watch(uid.clone(), netns);
        let mut last = self.unwatched.lock().unwrap_or_else(PoisonError::into_inner);
        match watch {
            Ok(watch) => {
                last.clear();
                Some(watch)
            }
            Err(error) => {
                if last.replace(&error) {
                    tracing::warn!(target: "ambient", %uid, %error, "network namespaces of pods cannot be watched for changes; observing their rules at intervals");
                }
                None
            }
        }
    }

    /// Runs a job. `None`: only the requester gets the result.
    fn run_job(&self, job: &CaptureJob) -> Option<JobResult> {
        let to_reason = |error: pod_capture::Error| Reason::from(error.to_string());
        Some(match job {
            CaptureJob::Capture(pod) => {
                let result = pod_capture::capture_pod(&pod.netns, &self.desired_rules(pod), &self.options);
                let (uid, netns) = (pod.uid.clone(), pod.netns.id());
                JobResult::Captured { uid, netns, result: result.map_err(to_reason) }
            }
            CaptureJob::Verify { pod, watch } => {
                // Later changes are reported by the watch, and earlier ones are observed.
                let watch = if *watch { self.watch_netns(&pod.uid, &pod.netns) } else { None };
                let (netns, result) = (pod.netns.id(), self.check_rules(pod).map_err(to_reason));
                JobResult::Verified { uid: pod.uid.clone(), netns, watch, result }
            }
            CaptureJob::ObserveEach(pods) => JobResult::ObservedEach(self.observe_each(pods)),
            CaptureJob::Release(pod) => {
                let result =
                    pod_capture::release_pod(&pod.netns, &self.config, &self.options).map_err(to_reason);
                JobResult::Released { uid: pod.uid.clone(), netns: pod.netns.id(), result }
            }
            CaptureJob::Check { pod, reply } => {
                let observed = self.observe_rules(pod).map_err(to_reason);
                let result = observed.and_then(|observed| match observed.is_complete() {
                    true => Ok(()),
                    false => Err(observed.differences().collect::<Vec<_>>().join("; ").into()),
                });
                drop(reply.send(result)); // a requester that has given up needs no answer
                return None;
            }
            CaptureJob::Exempt => {
                let began = Instant::now();
                let result = self.probes.ensure_rules().map_err(to_reason);
                JobResult::Exempted { took: began.elapsed(), result }
            }
            CaptureJob::DiscoverNetns { pods, processes, records } => {
                let found = self.discover_netns(pods, processes.clone(), records);
                JobResult::NetnsDiscovered(found.map_err(to_reason))
            }
        })
    }

    /// Searches among processes, and among the records of the pods in `recorded`, each with its addresses.
    fn discover_netns(
        &self,
        pods: &KnownPods,
        mut processes: BTreeMap<PodUid, NetnsQuery>,
        recorded: &[(PodIds, Vec<IpAddr>)],
    ) -> Result<DiscoveryResult, pod_capture::Error> {
        let mut finds = DiscoveryResult::default();
        if !recorded.is_empty() {
            let ips: BTreeMap<&PodUid, &Vec<IpAddr>> =
                recorded.iter().map(|(pod, ips)| (&pod.uid, ips)).collect();
            let records = self.records.index.read_records();
            for (uid, record) in newest_by_pod(&records, recorded.iter().map(|(pod, _)| pod.clone())) {
                // Where the runtime's directory is not mounted, the record still counts for a process in that
                // namespace.
                if let Some(query) = processes.get_mut(&uid) {
                    query.recorded = recorded_netns(record);
                }
                let ips = ips.get(&uid).map(|ips| ips.as_slice()).unwrap_or_default();
                let confirmed = self.records.confirm_record(&self.finder, record, ips);
                finds.records.extend(confirmed.map(|recorded| (uid, recorded)));
            }
        }
        if !processes.is_empty() {
            finds.processes = self.finder.find_netns(pods, &processes)?;
        }
        Ok(finds)
    }

    /// Observes whether the rules of pods are in place. Pods for which this cannot be determined are left to a
    /// verification.
    fn observe_each(&self, pods: &[JobPod]) -> Vec<(PodUid, NetnsId, Option<Arc<PodRulesSnapshot>>)> {
        let requests: Vec<_> =
            pods.iter().map(|pod| (&*pod.netns, self.desired_rules(pod), pod.before.as_deref())).collect();
        // Empty if no thread could be started.
        let mut observed =
            pod_capture::observe_each(&requests, &self.options, Instant::now() + SLOW).into_iter();
        let results = pods.iter().map(|pod| {
            let in_place = observed.next().flatten().filter(PodRulesSnapshot::is_complete);
            (pod.uid.clone(), pod.netns.id(), in_place.map(|now| pod.reuse_snapshot(now)))
        });
        results.collect()
    }

    fn observe_rules(&self, pod: &JobPod) -> Result<PodRulesSnapshot, pod_capture::Error> {
        pod_capture::observe_pod(&pod.netns, &self.desired_rules(pod), pod.before.as_deref(), &self.options)
    }

    fn check_rules(&self, pod: &JobPod) -> Result<RulesCheck, pod_capture::Error> {
        // Rules that cannot be observed are restored all the same, as far as possible.
        if let Some(found) = self.observe_rules(pod).ok().filter(PodRulesSnapshot::is_complete) {
            let observed = pod.reuse_snapshot(found);
            return Ok(RulesCheck { observed, repaired: Vec::new(), connections: None });
        }
        let desired = self.desired_rules(pod);
        let made = pod_capture::capture_pod(&pod.netns, &desired, &self.options)?;
        let after = pod_capture::observe_pod(&pod.netns, &desired, None, &self.options)?;
        let (repaired, connections) = (made.differences, made.connections);
        Ok(RulesCheck { observed: Arc::new(after), repaired, connections })
    }

    fn desired_rules<'a>(&'a self, pod: &'a JobPod) -> PodRulesSpec<'a> {
        let JobPod { options: pod, existing, .. } = pod;
        PodRulesSpec { config: &self.config, pod, families: &self.families, existing: *existing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_panics_has_failed_with_a_reason() {
        let netns = Arc::new(Netns::current().unwrap());
        let (uid, (options, existing, slow)) = ("u1".into(), Default::default());
        let job = CaptureJob::Release(JobPod { uid, netns, options, existing, before: None, slow });
        let done = catch_job_panic(job, |_| panic!("out of {}", "bounds"));
        let Some(JobResult::Released { uid, result: Err(why), .. }) = done else { panic!("{done:?}") };
        assert_eq!((uid.as_str(), why.as_str()), ("u1", "a defect of the agent: out of bounds"));
        let done = JobResult::NetnsDiscovered(Ok(DiscoveryResult::default()));
        let fine = catch_job_panic(CaptureJob::Exempt, |_| Some(done));
        assert!(matches!(fine, Some(JobResult::NetnsDiscovered(Ok(_)))));
    }
}
