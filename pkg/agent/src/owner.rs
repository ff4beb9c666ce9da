//! The thread that owns the node's network namespace: its inbox and its loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use model::{Namespace, Pod, PodName};
use nodepath::{Members, NodePath};
use planner::{
    facts::{Fact, Index},
    node::{Desired, Fallback, Observed},
};

use crate::{
    ledger::{Attachment, Ledger},
    metrics::Metrics,
    settings::{Settings, Tell},
    status::Status,
};

/// Without any event, everything is looked at this often.
const REGULAR: Duration = Duration::from_secs(30);
/// After a failure, the next try; twice as long after each further one, up to the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// What an answer is sent through. Nobody may wait for it any more.
pub(crate) type Reply<T> = Sender<T>;
/// A pod with its namespace.
pub(crate) type Known = (Box<Pod>, Option<Namespace>);

/// Somebody who asked for a pod that was not known, and when.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) name: PodName,
    pub(crate) uid: String,
    pub(crate) since: Instant,
    pub(crate) reply: Reply<Known>,
}

#[derive(Debug)]
pub(crate) enum Message {
    Fact(Box<Fact>, Instant),
    Pod(PodName, String, Reply<Known>),
    Enrol(String, Attachment, Reply<Result<(), String>>),
    PassBy(String, Attachment, Reply<Result<(), String>>),
    Release(String, Attachment, Reply<Result<(), String>>),
    Check(String, Vec<IpAddr>, Reply<Result<(), String>>),
    Collect(BTreeSet<String>, Reply<Result<(), String>>),
    Fallback(Fallback),
    Stop,
}

/// Sends to the owner; clones send to the same one. When the owner has ended, what is sent is lost, and questions get
/// no answer.
#[derive(Clone, Debug)]
pub struct Handle(Sender<Message>);

impl Handle {
    pub(crate) fn send(&self, message: Message) {
        drop(self.0.send(message)); // the process ends when the owner has
    }

    /// Tells a fact.
    pub fn tell(&self, fact: Fact) {
        self.send(Message::Fact(Box::new(fact), Instant::now()));
    }

    /// Changes what happens while no ztunnel is ready.
    pub fn set_fallback(&self, fallback: Fallback) {
        self.send(Message::Fallback(fallback));
    }

    /// Ends the loop after what it is doing. Nothing is taken away.
    pub fn stop(&self) {
        self.send(Message::Stop);
    }
}

/// How much there is to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Addresses, their sets and routes.
    Members,
    /// Everything.
    Whole,
}

/// What the kernel showed when it last was as desired.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) desired: Desired,
    pub(crate) seen: Observed,
}

/// The owner, and all that it knows.
pub struct Owner {
    pub(crate) settings: Arc<Settings>,
    pub(crate) path: NodePath,
    pub(crate) members: Members,
    pub(crate) index: Index,
    pub(crate) ledger: Ledger,
    pub(crate) fallback: Fallback,
    pub(crate) metrics: Metrics,
    pub(crate) status: Arc<Status>,
    pub(crate) tell: Tell,
    pub(crate) verified: Option<Verified>,
    pub(crate) told: BTreeMap<String, (bool, Instant)>,
    pub(crate) started: Instant,
    /// UIDs of all pods that were known at a turn soon after the start.
    pub(crate) seen: BTreeSet<String>,
    pub(crate) said: String,
    pub(crate) waiting: Vec<Waiting>,
    /// Pods that an ADD waits for, until the next turn has enrolled them.
    pub(crate) joining: Vec<Reply<Result<(), String>>>,
    pub(crate) dirty: Option<Level>,
    failures: u32,
    due: Instant,
    oldest: Option<Instant>,
    inbox: Receiver<Message>,
}

impl Owner {
    /// Opens everything for the calling thread's network namespace; the thread that runs it must be in the same.
    ///
    /// # Errors
    /// The kernel lacks what is needed, or refuses.
    pub fn open(
        settings: Arc<Settings>,
        metrics: Metrics,
        status: Arc<Status>,
        tell: Tell,
    ) -> Result<(Owner, Handle), nodepath::Error> {
        let (sender, inbox) = mpsc::channel();
        let path = NodePath::open(
            settings.node.clone(),
            settings.tools.clone(),
            &settings.netns_directory,
            &settings.journal,
        )?;
        let members = Members::open(settings.node.clone())?;
        let now = Instant::now();
        let owner = Owner {
            fallback: settings.fallback,
            settings,
            path,
            members,
            index: Index::default(),
            ledger: Ledger::default(),
            metrics,
            status,
            tell,
            verified: None,
            told: BTreeMap::new(),
            started: now,
            seen: BTreeSet::new(),
            said: String::new(),
            waiting: Vec::new(),
            joining: Vec::new(),
            dirty: Some(Level::Whole),
            failures: 0,
            due: now,
            oldest: None,
            inbox,
        };
        Ok((owner, Handle(sender)))
    }

    /// Works until it is stopped.
    pub fn run(&mut self) {
        loop {
            self.status.turned();
            let pause = self.due.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(pause) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => self.dirty = Some(Level::Whole),
            }
            // What came meanwhile is one change.
            while let Ok(message) = self.inbox.try_recv() {
                if matches!(message, Message::Stop) {
                    return;
                }
                self.take(message);
            }
            self.turn_if_due();
        }
    }

    fn turn_if_due(&mut self) {
        let now = Instant::now();
        let Some(level) = self.dirty else { return };
        // After a failure something new makes it work sooner, but not at once, except what is waited for.
        if self.failures > 0 && now < self.due && self.joining.is_empty() {
            return;
        }
        self.dirty = None;
        self.metrics.age(self.oldest.take().map(|oldest| now.duration_since(oldest)).unwrap_or_default());
        let pause = match self.turn(level) {
            Ok(()) => {
                self.failures = 0;
                REGULAR
            }
            Err(()) => {
                self.dirty = Some(Level::Whole);
                self.failures = self.failures.saturating_add(1);
                let doubled = FIRST_RETRY.saturating_mul(1 << self.failures.min(10).saturating_sub(1));
                doubled.min(LAST_RETRY)
            }
        };
        self.due = Instant::now() + pause;
    }

    pub(crate) fn is_dirty(&mut self, level: Level) {
        self.dirty = self.dirty.max(Some(level));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Fact(fact, came) => {
                self.oldest = self.oldest.or(Some(came));
                if self.index.apply(*fact) {
                    self.is_dirty(Level::Members);
                    // What failed may have failed for want of this.
                    self.due = self.due.min(Instant::now() + FIRST_RETRY);
                    self.answer_waiting();
                }
            }
            Message::Pod(name, uid, reply) => {
                self.waiting.push(Waiting { name, uid, since: Instant::now(), reply });
                self.answer_waiting();
            }
            Message::Enrol(container, attachment, reply) => self.enrol(&container, attachment, reply),
            Message::PassBy(container, attachment, reply) => self.pass_by(&container, attachment, reply),
            Message::Release(container, told, reply) => drop(reply.send(self.release(&container, told))),
            Message::Check(uid, ips, reply) => drop(reply.send(self.check(&uid, &ips))),
            Message::Collect(attachments, reply) => drop(reply.send(self.collect(&attachments))),
            Message::Fallback(fallback) => {
                if self.fallback != fallback {
                    self.fallback = fallback;
                    self.is_dirty(Level::Whole);
                }
            }
            Message::Stop => {}
        }
    }
}
