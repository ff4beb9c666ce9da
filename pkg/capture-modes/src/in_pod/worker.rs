//! Work that takes longer than a message: in pods' namespaces, and on the list of processes.

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use inpod::{
    CaptureReport, ConnectionsReport, EnsureReport, NetnsFinder, NetnsMatch, NetnsQuery, PodRulesSnapshot,
    PodRulesSpec, ProbeRules,
};
use model::{ExistingConnections, Family, PodUid, Reason};
use netfilter::FirewallOptions;
use netns::{Netns, NetnsId};

use super::{
    pod_records::{PodRecordStore, RecordedPod},
    queue::JobQueue,
};
use crate::{settings::CaptureSettings, settings::InPodConfig};
use agent::{AgentHandle, CaptureReply};

/// How many work at a time: children of two families run side by side already. Two are there for ADDs alone, however long
/// others take.
const WORKERS: usize = 6;
const OTHERS: usize = 4;
/// A look, a change and another look, each in both families and with a lock to wait for, take a minute at most.
const STANDSTILL: Duration = Duration::from_secs(180);

/// What is to be done.
#[derive(Debug)]
pub(super) enum CaptureJob {
    /// Put a pod's rules in place.
    Capture {
        uid: PodUid,
        netns: Arc<Netns>,
        pod: rules::inpod::PodOptions,
        existing: ExistingConnections,
        before: Option<Arc<PodRulesSnapshot>>,
    },
    /// Look at a pod's rules, and put back what is missing. With a glance from before, the tools are asked only if
    /// another glance tells a difference.
    Look {
        uid: PodUid,
        netns: Arc<Netns>,
        pod: rules::inpod::PodOptions,
        existing: ExistingConnections,
        before: Option<Arc<PodRulesSnapshot>>,
    },
    /// Take a pod's rules away.
    Release { uid: PodUid, netns: Arc<Netns> },
    /// Compare a pod's rules, and tell who asked.
    Check {
        netns: Arc<Netns>,
        pod: rules::inpod::PodOptions,
        before: Option<Arc<PodRulesSnapshot>>,
        reply: CaptureReply,
    },
    /// Put the rules for the node's probes in place; with what was seen of them the last time.
    Exempt { before: Option<netfilter::RulesSnapshot> },
    /// Find namespaces by processes, and by what the plugin noted.
    Search { processes: BTreeMap<PodUid, NetnsQuery>, records: BTreeMap<PodUid, NetnsQuery> },
}

/// What the reconciler is told if a job ends in nothing, with the reason.
type JobFallback = Box<dyn FnOnce(Reason) -> JobResult>;

impl CaptureJob {
    /// None: nobody but who asked wants to know, and hears that there is no answer.
    fn otherwise(&self) -> Option<JobFallback> {
        Some(match self {
            CaptureJob::Capture { uid, netns, .. } => {
                let (uid, netns) = (uid.clone(), netns.id());
                Box::new(move |why| JobResult::Captured { uid, netns, result: Err(why) })
            }
            CaptureJob::Look { uid, netns, .. } => {
                let (uid, netns) = (uid.clone(), netns.id());
                Box::new(move |why| JobResult::Looked { uid, netns, result: Err(why) })
            }
            CaptureJob::Release { uid, .. } => {
                let uid = uid.clone();
                Box::new(move |why| JobResult::Released { uid, result: Err(why) })
            }
            CaptureJob::Check { .. } => return None,
            CaptureJob::Exempt { .. } => {
                Box::new(|why| JobResult::Exempted { took: Duration::ZERO, result: Err(why) })
            }
            CaptureJob::Search { .. } => Box::new(|why| JobResult::Searched(Err(why))),
        })
    }
}

/// Runs a job. One that panics has failed: its pod is not busy for ever, and its worker goes on.
fn guarded(run: impl FnOnce() -> Option<JobResult>, otherwise: Option<JobFallback>) -> Option<JobResult> {
    // What a job leaves half done is in the kernel, where the next one looks first.
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done,
        Err(payload) => {
            otherwise.map(|done| done(format!("a defect of the agent: {}", words_of(&*payload)).into()))
        }
    }
}

/// What a panic said.
fn words_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

/// What was done, or said.
#[derive(Debug)]
pub(crate) enum JobResult {
    /// A pod's rules.
    Captured { uid: PodUid, netns: NetnsId, result: Result<CaptureReport, Reason> },
    /// What a look showed.
    Looked { uid: PodUid, netns: NetnsId, result: Result<RulesCheck, Reason> },
    /// A pod has no rules any more.
    Released { uid: PodUid, result: Result<Vec<String>, Reason> },
    /// The rules for the node's probes.
    Exempted { took: Duration, result: Result<EnsureReport, Reason> },
    /// Namespaces, by UID.
    Searched(Result<SearchResult, Reason>),
    /// What ztunnels did.
    Zds(zds::ZdsEvent),
}

/// Hands results to the capture mode, and wakes the reconciler once for each.
#[derive(Clone, Debug)]
pub(super) struct JobResultSender {
    results: Sender<JobResult>,
    agent: AgentHandle,
}

impl JobResultSender {
    /// Also returns the receiver, from which [`CaptureMode::work_completed`] takes one result at a time.
    ///
    /// [`CaptureMode::work_completed`]: crate::capture_mode::CaptureMode::work_completed
    pub(super) fn new(agent: AgentHandle) -> (JobResultSender, Receiver<JobResult>) {
        let (results, receiver) = mpsc::channel();
        (JobResultSender { results, agent }, receiver)
    }

    /// A result that nobody takes any more is lost: the process ends when the reconciler has.
    pub(super) fn send(&self, result: JobResult) {
        if self.results.send(result).is_ok() {
            self.agent.work_completed();
        }
    }
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    pub(super) processes: BTreeMap<PodUid, NetnsMatch>,
    pub(super) records: BTreeMap<PodUid, RecordedPod>,
}

/// What a look showed.
#[derive(Debug)]
pub(crate) struct RulesCheck {
    pub(super) glance: Arc<PodRulesSnapshot>,
    /// What was missing, and was put back; in words.
    pub(super) repaired: Vec<String>,
    /// What became of connections that were there before.
    pub(super) connections: Option<ConnectionsReport>,
}

/// The workers; they end when this does.
#[derive(Debug)]
pub(super) struct WorkerPool(Arc<JobQueue<CaptureJob>>);

impl WorkerPool {
    /// Starts them. `node`: the node's own namespace.
    pub(super) fn start(
        settings: &CaptureSettings,
        chosen: &InPodConfig,
        node: Netns,
        probes: &ProbeRules,
        results: &JobResultSender,
    ) -> io::Result<WorkerPool> {
        let queue = Arc::new(JobQueue::new(OTHERS));
        let workers = WorkerPool(Arc::clone(&queue)); // so that those that run end if another cannot be started
        let tools = WorkerContext {
            config: chosen.rules.clone(),
            families: chosen.families(),
            options: settings.tools.clone(),
            finder: NetnsFinder::new(&chosen.proc, node, chosen.rules.clone()),
            records: PodRecordStore::new(settings),
            probes: probes.clone(),
        };
        let tools = Arc::new(tools);
        for _ in 0..WORKERS {
            let (queue, tools, results) = (Arc::clone(&queue), Arc::clone(&tools), results.clone());
            let body = move || {
                while let Some((job, _running)) = queue.next() {
                    let otherwise = job.otherwise();
                    if let Some(done) = guarded(|| tools.run(job), otherwise) {
                        results.send(done);
                    }
                }
            };
            drop(thread::Builder::new().name("in-pod".to_owned()).stack_size(256 * 1024).spawn(body)?);
        }
        Ok(workers)
    }

    /// Has something done; what is urgent goes before all else.
    pub(super) fn send(&self, job: CaptureJob, urgent: bool) {
        self.0.push(job, urgent);
    }

    /// Those for all but ADDs are at their jobs longer than any of their tools may take.
    pub(super) fn stand_still(&self) -> bool {
        self.0.longer_than(STANDSTILL) >= OTHERS
    }

    /// Drops what was not begun, and waits for what was, which takes no longer than its tools may. Of all that has ended
    /// the reconciler has been told by then.
    pub(super) fn settle(&self) {
        self.0.settle();
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What all jobs need.
struct WorkerContext {
    config: rules::inpod::InPodRulesConfig,
    families: Vec<Family>,
    options: FirewallOptions,
    finder: NetnsFinder,
    records: PodRecordStore,
    probes: ProbeRules,
}

impl WorkerContext {
    /// None: nobody but who asked wants to know.
    fn run(&self, job: CaptureJob) -> Option<JobResult> {
        let words = |error: inpod::Error| Reason::from(error.to_string());
        Some(match job {
            CaptureJob::Capture { uid, netns, pod, existing, before } => {
                let wanted = self.wanted(&pod, existing);
                let result = inpod::capture(&netns, &wanted, before.as_deref(), &self.options).map_err(words);
                JobResult::Captured { uid, netns: netns.id(), result }
            }
            CaptureJob::Look { uid, netns, pod, existing, before } => {
                let wanted = self.wanted(&pod, existing);
                let result = self.look(&netns, &wanted, before.as_ref()).map_err(words);
                JobResult::Looked { uid, netns: netns.id(), result }
            }
            CaptureJob::Release { uid, netns } => {
                let result = inpod::release(&netns, &self.config, &self.options).map_err(words);
                JobResult::Released { uid, result }
            }
            CaptureJob::Check { netns, pod, before, reply } => {
                let wanted = self.wanted(&pod, ExistingConnections::default()); // nothing is changed
                let seen = inpod::verify(&netns, &wanted, before.as_deref(), &self.options).map_err(words);
                let fine = |seen: CaptureReport| match seen.differences.is_empty() {
                    true => Ok(()),
                    false => Err(seen.differences.join("; ").into()),
                };
                drop(reply.send(seen.and_then(fine))); // who has given up needs no answer
                return None;
            }
            CaptureJob::Exempt { before } => {
                let began = Instant::now();
                let result = self.probes.ensure(before.as_ref()).map_err(words);
                JobResult::Exempted { took: began.elapsed(), result }
            }
            CaptureJob::Search { processes, records } => {
                JobResult::Searched(self.search(&processes, &records).map_err(words))
            }
        })
    }

    fn search(
        &self,
        processes: &BTreeMap<PodUid, NetnsQuery>,
        records: &BTreeMap<PodUid, NetnsQuery>,
    ) -> Result<SearchResult, inpod::Error> {
        let mut finds = SearchResult::default();
        if !processes.is_empty() {
            finds.processes = self.finder.find(processes)?;
        }
        if !records.is_empty() {
            finds.records = self.records.find(&self.finder, records);
        }
        Ok(finds)
    }

    fn look(
        &self,
        netns: &Netns,
        wanted: &PodRulesSpec<'_>,
        before: Option<&Arc<PodRulesSnapshot>>,
    ) -> Result<RulesCheck, inpod::Error> {
        if let Some(before) = before {
            let glance = inpod::glance(netns, wanted, Some(before))?;
            if before.is_unchanged(&glance) {
                let glance = if **before == glance { Arc::clone(before) } else { Arc::new(glance) };
                return Ok(RulesCheck { glance, repaired: Vec::new(), connections: None });
            }
        }
        let before = before.map(|before| &**before);
        let seen = inpod::verify(netns, wanted, before, &self.options)?;
        if seen.differences.is_empty() {
            return Ok(RulesCheck { glance: Arc::new(seen.seen), repaired: Vec::new(), connections: None });
        }
        let made = inpod::capture(netns, wanted, before, &self.options)?;
        let after = inpod::verify(netns, wanted, Some(&made.seen), &self.options)?;
        match after.differences.into_iter().next() {
            None => Ok(RulesCheck {
                glance: Arc::new(after.seen),
                repaired: made.differences,
                connections: made.connections,
            }),
            Some(difference) => Err(inpod::Error::Unstable(difference)),
        }
    }

    fn wanted<'a>(
        &'a self,
        pod: &'a rules::inpod::PodOptions,
        existing: ExistingConnections,
    ) -> PodRulesSpec<'a> {
        PodRulesSpec { config: &self.config, pod, families: &self.families, existing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_panics_has_failed_with_a_reason() {
        let netns = Arc::new(Netns::current().unwrap());
        let job = CaptureJob::Release { uid: "u1".into(), netns };
        let done = guarded(|| panic!("out of {}", "bounds"), job.otherwise());
        let Some(JobResult::Released { uid, result: Err(why) }) = done else { panic!("{done:?}") };
        assert_eq!((uid.as_str(), why.as_str()), ("u1", "a defect of the agent: out of bounds"));
        let fine = guarded(|| Some(JobResult::Searched(Ok(SearchResult::default()))), None);
        assert!(matches!(fine, Some(JobResult::Searched(Ok(_)))));
    }
}
