//! Under any events in any order: no ztunnel ever exits because of them, and in the end it serves the desired workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use proptest::prelude::*;
use rustix::net::Shutdown;

use super::*;
use crate::ztunnel::{ACK, nack};

/// More answers than can be pending for three ztunnels: three for each of five workloads, and one for the snapshot.
const ENDLESS: usize = 50;

/// A process that outlives its connections.
#[derive(Debug, Default)]
struct Process {
    /// Workloads that it serves.
    proxies: BTreeMap<String, NetnsId>,
    /// Workloads added or kept on this connection and not removed since.
    names: BTreeSet<String>,
    has_snapshot: bool,
    /// Reason of its exit.
    fatal: Option<String>,
}

impl Process {
    /// Handles a request as the protocol's description requires of ztunnel.
    fn answer(&mut self, asked: Asked, refuses: &BTreeSet<String>) -> Vec<u8> {
        match asked {
            Asked::Add { uid, netns, .. } => {
                self.names.insert(uid.clone());
                if self.proxies.get(&uid) != Some(&netns) {
                    self.proxies.remove(&uid);
                    if refuses.contains(&uid) {
                        return nack("failure to start proxy");
                    }
                    self.proxies.insert(uid, netns);
                }
            }
            Asked::Keep(uid) if self.has_snapshot => self.fatal = Some(format!("late Keep of {uid}")),
            Asked::Keep(uid) => drop(self.names.insert(uid)),
            Asked::Del(uid) => {
                self.names.remove(&uid);
                if self.has_snapshot {
                    self.proxies.remove(&uid);
                }
            }
            Asked::SnapshotSent if self.has_snapshot => self.fatal = Some("second snapshot".to_owned()),
            Asked::SnapshotSent => {
                self.has_snapshot = true;
                self.proxies.retain(|uid, _| self.names.contains(uid));
            }
        }
        ACK.to_vec()
    }
}

/// A place on the node, with a connected ztunnel or without.
#[derive(Default)]
struct Slot {
    process: Arc<Mutex<Process>>,
    connection: Option<Arc<Ztunnel>>,
}

#[derive(Clone, Debug)]
enum Op {
    Put(String, Option<usize>),
    Remove(String),
    Open,
    Connect(usize),
    Disconnect(usize),
    Refuse(String),
    Relent(String),
    Breathe,
}

struct World {
    agent: Agent,
    slots: [Slot; 3],
    /// Connected ones, the newest last.
    order: Vec<usize>,
    refuses: Arc<Mutex<BTreeSet<String>>>,
    wanted: BTreeMap<String, Option<usize>>,
    answered: (Sender<()>, Receiver<()>),
}

impl World {
    fn new() -> World {
        let first_retry = Duration::from_millis(2);
        let deadlines = ZdsDeadlines {
            first_retry,
            last_retry: first_retry,
            unknown_peer_delay: Duration::ZERO,
            ..patient_deadlines()
        };
        World {
            agent: Agent::with(deadlines),
            slots: Default::default(),
            order: Vec::new(),
            refuses: Arc::default(),
            wanted: BTreeMap::new(),
            answered: channel(),
        }
    }

    fn process(&self, slot: usize) -> MutexGuard<'_, Process> {
        self.slots[slot].process.lock().unwrap()
    }

    fn connect(&mut self, slot: usize) {
        if self.order.contains(&slot) {
            return;
        }
        // Once the agent has detected which one left, the order of the following ones is determined.
        eventually(|| self.agent.hub.list_connections().len() == self.order.len());
        // The previous connection's thread may still act on the previous state.
        let proxies = self.process(slot).proxies.clone();
        let process = Arc::new(Mutex::new(Process { proxies, ..Process::default() }));
        let ztunnel = Arc::new(Ztunnel::dial(&self.agent.socket()));
        let (shared, refuses) = (Arc::clone(&ztunnel), Arc::clone(&self.refuses));
        let (answering, answered) = (Arc::clone(&process), self.answered.0.clone());
        thread::spawn(move || {
            while let Some(asked) = shared.try_asked() {
                let answer = answering.lock().unwrap().answer(asked, &refuses.lock().unwrap());
                let _ = shared.try_send(&answer, &[]);
                let _ = answered.send(());
            }
        });
        ztunnel.hello();
        self.order.push(slot);
        eventually(|| self.agent.hub.list_connections().len() == self.order.len());
        self.slots[slot] = Slot { process, connection: Some(ztunnel) };
    }

    fn disconnect(&mut self, slot: usize) {
        if let Some(ztunnel) = self.slots[slot].connection.take() {
            rustix::net::shutdown(&ztunnel.socket, Shutdown::Both).unwrap();
            self.order.retain(|other| *other != slot);
            assert_eq!(self.process(slot).fatal, None);
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Put(uid, number) => {
                self.agent.hub.set_workload(workload(&uid, number));
                self.wanted.insert(uid, number);
            }
            Op::Remove(uid) => {
                self.agent.hub.remove_workload(&uid.as_str().into());
                self.wanted.remove(&uid);
            }
            Op::Open => self.agent.hub.start_snapshots(),
            Op::Connect(slot) => self.connect(slot),
            Op::Disconnect(slot) => self.disconnect(slot),
            Op::Refuse(uid) => drop(self.refuses.lock().unwrap().insert(uid)),
            Op::Relent(uid) => drop(self.refuses.lock().unwrap().remove(&uid)),
            // Otherwise everything would be over before the first ztunnel has sent a byte.
            Op::Breathe => drop(self.answered.1.recv_timeout(Duration::from_millis(1))),
        }
    }

    /// Returns a fault that persists.
    fn settle(&mut self) -> Result<(), String> {
        self.apply(Op::Open);
        self.refuses.lock().unwrap().clear();
        if self.order.is_empty() {
            self.connect(0);
        }
        let deadline = Instant::now() + PATIENCE;
        while let Err(wrong) = self.check_all() {
            if Instant::now() > deadline {
                return Err(wrong);
            }
            let _ = self.answered.1.recv_timeout(Duration::from_millis(2));
        }
        while self.answered.1.try_recv().is_ok() {}
        // Each of the older ones may still have to receive a change of each workload. That no request is left shows only over time;
        // a retry would be sent after 2 ms.
        let more =
            (0..ENDLESS).take_while(|_| self.answered.1.recv_timeout(Duration::from_millis(20)).is_ok());
        if more.count() == ENDLESS { Err("it never ends".to_owned()) } else { self.check_all() }
    }

    fn check_all(&self) -> Result<(), String> {
        self.order.iter().try_for_each(|slot| self.check(*slot))
    }

    fn check(&self, slot: usize) -> Result<(), String> {
        let process = self.process(slot);
        let wrong = |what: &str| Err(format!("{what}: {process:?}, wanted {:?}", self.wanted));
        if process.fatal.is_some() {
            return wrong("it ended");
        }
        if process.names.iter().any(|uid| !self.wanted.contains_key(uid)) {
            return wrong("it was not told of a removal");
        }
        if !process.has_snapshot {
            return wrong("it has no snapshot, so it is not ready");
        }
        if self.order.last() != Some(&slot) {
            return Ok(());
        }
        if !process.has_snapshot || process.proxies.keys().any(|uid| !self.wanted.contains_key(uid)) {
            return wrong("it serves what nobody wants");
        }
        for (uid, number) in &self.wanted {
            let Some(number) = number else { continue }; // whatever it serves, if anything
            if process.proxies.get(uid) != Some(&id(*number)) {
                return wrong("it does not serve what is wanted");
            }
            if !self.agent.is_served(uid) {
                return wrong("the agent does not know what it serves");
            }
        }
        Ok(())
    }
}

/// Ends the threads of its ztunnels.
impl Drop for World {
    fn drop(&mut self) {
        for ztunnel in self.slots.iter().filter_map(|slot| slot.connection.as_ref()) {
            let _ = rustix::net::shutdown(&ztunnel.socket, Shutdown::Both);
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let uid = || (0_u8..5).prop_map(|number| format!("u{number}"));
    let put = (uid(), prop::option::weighted(0.8, 0_usize..4)).prop_map(|(uid, number)| Op::Put(uid, number));
    prop_oneof![
        8 => put,
        4 => uid().prop_map(Op::Remove),
        1 => Just(Op::Open),
        3 => (0_usize..3).prop_map(Op::Connect),
        2 => (0_usize..3).prop_map(Op::Disconnect),
        2 => uid().prop_map(Op::Refuse),
        2 => uid().prop_map(Op::Relent),
        6 => Just(Op::Breathe),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_the_end_the_newest_serves_what_is_wanted(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        ops.into_iter().for_each(|op| world.apply(op));
        world.settle().map_err(TestCaseError::fail)?;
    }
}
