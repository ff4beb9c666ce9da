//! Work that takes longer than a message: in pods' namespaces, and on the list of processes.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use inpod::{Ensured, Finder, Found, Glance, ProbeRules, Report, Sought, Wanted};
use model::Family;
use netfilter::Options;
use netns::{Netns, NetnsId};

use super::{
    queue::Queue,
    recorded::{Recorded, Records},
};
use crate::{
    owner::{Handle, Message, Reply},
    settings::{InPod, Settings},
};

/// How many work at a time: children of two families run side by side already.
const WORKERS: usize = 4;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Put a pod's rules in place.
    Capture { uid: String, netns: Arc<Netns>, pod: rules::inpod::Pod, before: Option<Glance> },
    /// Look at a pod's rules, and put back what is missing. With a glance from before, the tools are asked only if
    /// another glance tells a difference.
    Look { uid: String, netns: Arc<Netns>, pod: rules::inpod::Pod, before: Option<Glance> },
    /// Take a pod's rules away.
    Release { uid: String, netns: Arc<Netns> },
    /// Compare a pod's rules, and tell who asked.
    Check {
        netns: Arc<Netns>,
        pod: rules::inpod::Pod,
        before: Option<Glance>,
        reply: Reply<Result<(), String>>,
    },
    /// Put the rules for the node's probes in place; with what was seen of them the last time.
    Exempt { before: Option<netfilter::Glance> },
    /// Find namespaces by processes, and by what the plugin noted.
    Search { processes: BTreeMap<String, Sought>, records: BTreeMap<String, Sought> },
}

/// What was done, or said.
#[derive(Debug)]
pub(crate) enum Done {
    /// A pod's rules.
    Captured { uid: String, netns: NetnsId, result: Result<Report, String> },
    /// What a look showed.
    Looked { uid: String, netns: NetnsId, result: Result<Look, String> },
    /// A pod has no rules any more.
    Released { uid: String, result: Result<Vec<String>, String> },
    /// The rules for the node's probes.
    Exempted { took: Duration, result: Result<Ensured, String> },
    /// Namespaces, by UID.
    Searched(Result<Finds, String>),
    /// What ztunnels did.
    Zds(zds::Event),
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    pub(super) processes: BTreeMap<String, Found>,
    pub(super) records: BTreeMap<String, Recorded>,
}

/// What a look showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(super) glance: Glance,
    /// What was missing, and was put back; in words.
    pub(super) repaired: Vec<String>,
}

/// The workers; they end when this does.
#[derive(Debug)]
pub(super) struct Workers(Arc<Queue<Job>>);

impl Workers {
    /// Starts them. `node`: the node's own namespace.
    pub(super) fn start(
        settings: &Settings,
        chosen: &InPod,
        node: Netns,
        probes: &ProbeRules,
        owner: &Handle,
    ) -> io::Result<Workers> {
        let queue = Arc::new(Queue::default());
        let workers = Workers(Arc::clone(&queue)); // so that those that run end if another cannot be started
        let tools = Tools {
            config: chosen.rules.clone(),
            families: chosen.families(),
            options: settings.tools.clone(),
            finder: Finder::new(&chosen.proc, node, chosen.rules.clone()),
            records: Records::new(settings),
            probes: probes.clone(),
        };
        let tools = Arc::new(tools);
        for _ in 0..WORKERS {
            let (queue, tools, owner) = (Arc::clone(&queue), Arc::clone(&tools), owner.clone());
            let body = move || {
                while let Some((job, _running)) = queue.next() {
                    if let Some(done) = tools.run(job) {
                        owner.send(Message::Done(Box::new(done)));
                    }
                }
            };
            drop(thread::Builder::new().name("in-pod".to_owned()).stack_size(256 * 1024).spawn(body)?);
        }
        Ok(workers)
    }

    /// Has something done; what is urgent goes before all else.
    pub(super) fn send(&self, job: Job, urgent: bool) {
        self.0.push(job, urgent);
    }

    /// Drops what was not begun, and waits for what was, which takes no longer than its tools may. Of all that has ended
    /// the owner has been told by then.
    pub(super) fn settle(&self) {
        self.0.settle();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What all jobs need.
struct Tools {
    config: rules::inpod::Config,
    families: Vec<Family>,
    options: Options,
    finder: Finder,
    records: Records,
    probes: ProbeRules,
}

impl Tools {
    /// None: nobody but who asked wants to know.
    fn run(&self, job: Job) -> Option<Done> {
        let words = |error: inpod::Error| error.to_string();
        Some(match job {
            Job::Capture { uid, netns, pod, before } => {
                let wanted = self.wanted(&pod);
                let result = inpod::capture(&netns, &wanted, before.as_ref(), &self.options).map_err(words);
                Done::Captured { uid, netns: netns.id(), result }
            }
            Job::Look { uid, netns, pod, before } => {
                let result = self.look(&netns, &pod, before.as_ref()).map_err(words);
                Done::Looked { uid, netns: netns.id(), result }
            }
            Job::Release { uid, netns } => {
                let result = inpod::release(&netns, &self.config, &self.options).map_err(words);
                Done::Released { uid, result }
            }
            Job::Check { netns, pod, before, reply } => {
                let wanted = self.wanted(&pod);
                let seen = inpod::verify(&netns, &wanted, before.as_ref(), &self.options).map_err(words);
                let fine = |seen: Report| match seen.differences.is_empty() {
                    true => Ok(()),
                    false => Err(seen.differences.join("; ")),
                };
                drop(reply.send(seen.and_then(fine))); // who has given up needs no answer
                return None;
            }
            Job::Exempt { before } => {
                let began = Instant::now();
                let result = self.probes.ensure(before.as_ref()).map_err(words);
                Done::Exempted { took: began.elapsed(), result }
            }
            Job::Search { processes, records } => {
                Done::Searched(self.search(&processes, &records).map_err(words))
            }
        })
    }

    fn search(
        &self,
        processes: &BTreeMap<String, Sought>,
        records: &BTreeMap<String, Sought>,
    ) -> Result<Finds, inpod::Error> {
        let mut finds = Finds::default();
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
        pod: &rules::inpod::Pod,
        before: Option<&Glance>,
    ) -> Result<Look, inpod::Error> {
        let wanted = self.wanted(pod);
        if let Some(before) = before {
            let glance = inpod::glance(netns, &wanted, Some(before))?;
            if before.is_still(&glance) {
                return Ok(Look { glance: before.clone(), repaired: Vec::new() });
            }
        }
        let seen = inpod::verify(netns, &wanted, before, &self.options)?;
        if seen.differences.is_empty() {
            return Ok(Look { glance: seen.seen, repaired: Vec::new() });
        }
        let made = inpod::capture(netns, &wanted, before, &self.options)?;
        let after = inpod::verify(netns, &wanted, Some(&made.seen), &self.options)?;
        match after.differences.into_iter().next() {
            None => Ok(Look { glance: after.seen, repaired: made.differences }),
            Some(difference) => Err(inpod::Error::Unstable(difference)),
        }
    }

    fn wanted<'a>(&'a self, pod: &'a rules::inpod::Pod) -> Wanted<'a> {
        Wanted { config: &self.config, pod, families: &self.families }
    }
}
