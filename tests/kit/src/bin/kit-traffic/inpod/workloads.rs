//! The pods that are served, and the changes that the agent's messages make to them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::json;

use super::proxy::{Proxy, Settings, netns_id};
use super::zds::{Info, Request};
use crate::tell;

/// Interval at which a failed start is retried.
const RETRY: Duration = Duration::from_secs(5);

/// Reason why a request failed.
pub(crate) enum Refusal {
    /// The proxy cannot be started at present.
    Start(String),
    /// The request violates the protocol.
    Protocol(String),
}

struct Pending {
    info: Info,
    netns: OwnedFd,
}

pub(crate) struct Workloads {
    settings: Arc<Settings>,
    refused: BTreeSet<String>,
    /// Pods added or kept on this connection.
    known: BTreeSet<String>,
    /// The snapshot of this connection is complete.
    snapshot: bool,
    pending: BTreeMap<String, Pending>,
    retry_at: Option<Instant>,
    proxies: BTreeMap<String, (Info, Proxy)>,
    /// Every proxy holds a sender until it ends.
    ends: (mpsc::Sender<()>, mpsc::Receiver<()>),
}

impl Workloads {
    pub(crate) fn new(settings: Settings, refused: BTreeSet<String>) -> Self {
        Self {
            settings: Arc::new(settings),
            refused,
            known: BTreeSet::new(),
            snapshot: false,
            pending: BTreeMap::new(),
            retry_at: None,
            proxies: BTreeMap::new(),
            ends: mpsc::channel(),
        }
    }

    /// Handles a new connection: proxies continue, and the agent has to send everything again.
    pub(crate) fn begin(&mut self) {
        self.known.clear();
        self.snapshot = false;
        self.retry_at = None;
        for (uid, pending) in std::mem::take(&mut self.pending) {
            tell_state(&uid, &pending.info, "gone", None);
        }
    }

    pub(crate) fn handle(&mut self, request: Request) -> Result<(), Refusal> {
        match request {
            Request::Add { uid, info: None, .. } => {
                Err(Refusal::Protocol(format!("pod {uid} comes without workload_info")))
            }
            Request::Add { uid, info: Some(info), netns } => self.add(&uid, info, netns),
            Request::Keep { uid } if self.snapshot => {
                Err(Refusal::Protocol(format!("pod {uid} is to be kept after the snapshot")))
            }
            Request::Keep { uid } => {
                self.known.insert(uid);
                Ok(())
            }
            Request::SnapshotSent if self.snapshot => {
                Err(Refusal::Protocol("a second snapshot on one connection".to_owned()))
            }
            Request::SnapshotSent => {
                self.purge();
                Ok(())
            }
            Request::Del { uid } => {
                self.del(&uid);
                Ok(())
            }
        }
    }

    fn add(&mut self, uid: &str, info: Info, netns: OwnedFd) -> Result<(), Refusal> {
        self.known.insert(uid.to_owned());
        self.pending.remove(uid);
        let id = netns_id(&netns).map_err(|error| Refusal::Start(error.to_string()))?;
        match self.proxies.get(uid) {
            // The pod's stored information is not updated either.
            Some((_, proxy)) if proxy.netns == id => return Ok(()),
            Some(_) => self.end(uid),
            None => {}
        }
        self.start(uid, info, netns).map_err(Refusal::Start)
    }

    fn start(&mut self, uid: &str, info: Info, netns: OwnedFd) -> Result<(), String> {
        let started = if self.refused.contains(uid) {
            Err("the test wants it so".to_owned())
        } else {
            Proxy::start(&self.settings, uid, &netns, self.ends.0.clone())
        };
        match started {
            Ok(proxy) => {
                tell_state(uid, &info, "up", None);
                self.proxies.insert(uid.to_owned(), (info, proxy));
                Ok(())
            }
            Err(error) => {
                tell_state(uid, &info, "refused", Some(&error));
                self.pending.insert(uid.to_owned(), Pending { info, netns });
                self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
                Err(error)
            }
        }
    }

    fn del(&mut self, uid: &str) {
        self.known.remove(uid);
        if let Some(pending) = self.pending.remove(uid) {
            tell_state(uid, &pending.info, "gone", None);
        }
        // Before the end of the snapshot, `purge` ends the proxy.
        if self.snapshot {
            self.end(uid);
        }
    }

    fn purge(&mut self) {
        self.snapshot = true;
        let gone: Vec<_> = self.proxies.keys().filter(|uid| !self.known.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.end(uid));
        tell(&json!({"event": "snapshot"}));
    }

    fn end(&mut self, uid: &str) {
        if let Some((info, proxy)) = self.proxies.remove(uid) {
            proxy.stop();
            tell_state(uid, &info, "gone", None);
        }
    }

    /// Time at which [`Workloads::retry_if_due`] is due.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    pub(crate) fn retry_if_due(&mut self) {
        if self.retry_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        let uids: Vec<_> = self.pending.keys().cloned().collect();
        uids.iter().for_each(|uid| self.retry(uid));
    }

    fn retry(&mut self, uid: &str) {
        if let Some(pending) = self.pending.remove(uid) {
            let _ = self.start(uid, pending.info, pending.netns); // the agent no longer waits for the result
        }
    }

    /// Makes further starts of this pod fail.
    pub(crate) fn refuse(&mut self, uid: &str) {
        self.refused.insert(uid.to_owned());
    }

    /// Allows starts of this pod again, and retries a pending one immediately.
    pub(crate) fn accept(&mut self, uid: &str) {
        self.refused.remove(uid);
        self.retry(uid);
    }

    /// Closes all listeners and waits for all connections to end, at most `limit`.
    pub(crate) fn drain(self, limit: Duration) {
        for (_, proxy) in self.proxies.values() {
            proxy.drain();
        }
        drop(self.ends.0);
        // Nothing is ever sent: this returns when the last sender is dropped.
        let _ = self.ends.1.recv_timeout(limit);
    }
}

fn tell_state(uid: &str, info: &Info, state: &str, error: Option<&str>) {
    tell(&json!({
        "event": "workload", "uid": uid, "name": info.name, "namespace": info.namespace,
        "service_account": info.service_account, "state": state, "error": error,
    }));
}
