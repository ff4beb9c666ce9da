//! Samples the node's network continuously, and counts the states in which something is missing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kit::Node;
use netlink::{MessageFlags, NetlinkProtocol, NetlinkRequest, ReplyMessages, Socket};

/// A sample of the node's capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    /// Number of routes in table 100, one for each enrolled pod.
    pub(crate) pods: usize,
    /// Whether table 101 has its default route.
    pub(crate) default: bool,
    /// Whether the rule that marks packets of enrolled pods, and the jump to it, exist.
    pub(crate) marking: bool,
    /// Number of policy rules.
    pub(crate) rules: usize,
}

/// Samples in a thread of its own.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

/// Result of sampling.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) samples: usize,
    /// Number of samples with something missing.
    pub(crate) incomplete: usize,
    /// Distinct states among those.
    pub(crate) states: BTreeMap<State, usize>,
    /// Longest time between two complete samples with incomplete ones in between; without such, the longest interval.
    pub(crate) hole: Duration,
    pub(crate) slowest: Duration,
    pub(crate) lasted: Duration,
}

impl Report {
    pub(crate) fn rate(&self) -> f64 {
        self.samples as f64 / self.lasted.as_secs_f64()
    }
}

impl Sampler {
    /// Starts sampling; the first sample is the expected state.
    pub(crate) fn start(node: &Arc<Node>) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, node) = (Arc::clone(&stop), Arc::clone(node));
        let thread = thread::spawn(move || {
            node.netns().enter();
            Eyes::open().watch(&stopped)
        });
        Sampler { stop, thread }
    }

    pub(crate) fn finish(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Sockets in the node's namespace.
pub(crate) struct Eyes {
    route: Socket,
    firewall: Socket,
}

const GET_ROUTE: u16 = 26;
const GET_RULE: u16 = 34;
/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE`.
const GET_NFT_RULE: u16 = 10 << 8 | 7;
const UNICAST: u8 = 1;

impl Eyes {
    pub(crate) fn open() -> Eyes {
        Eyes {
            route: Socket::open(NetlinkProtocol::Route).unwrap(),
            firewall: Socket::open(NetlinkProtocol::Netfilter).unwrap(),
        }
    }

    fn watch(mut self, stop: &AtomicBool) -> Report {
        let mut report = Report::default();
        let whole = self.look();
        let began = Instant::now();
        let (mut complete, mut last) = (began, began);
        while !stop.load(Ordering::Relaxed) {
            let state = self.look();
            let now = Instant::now();
            report.samples += 1;
            report.slowest = report.slowest.max(now - last);
            last = now;
            if state == whole {
                if report.incomplete > 0 {
                    report.hole = report.hole.max(now - complete);
                }
                complete = now;
            } else {
                report.incomplete += 1;
                *report.states.entry(state).or_default() += 1;
            }
            thread::yield_now(); // other threads need the CPU, too
        }
        report.lasted = began.elapsed();
        report
    }

    fn look(&mut self) -> State {
        State {
            pods: self.ways(100).iter().filter(|way| **way == 32).count(),
            default: self.ways(101).contains(&0),
            marking: self.contains("ztunnel-PREROUTING", &[b"set\0", b"MARK\0"])
                && self.contains("PREROUTING", &[b"ztunnel-PREROUTING\0"]),
            rules: self.dump_route(GET_RULE, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], None).len(),
        }
    }

    /// Prefix lengths of a table's routes.
    pub(crate) fn ways(&mut self, table: u32) -> Vec<u8> {
        let header = [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let replies = self.dump_route(GET_ROUTE, &header, Some(table));
        let headers = replies.iter().map(|reply| *reply.split_header::<12>().unwrap().0);
        headers.filter(|header| header[7] == UNICAST).map(|header| header[1]).collect()
    }

    pub(crate) fn has_any_route(&mut self, table: u32) -> bool {
        !self.ways(table).is_empty()
    }

    fn dump_route(&mut self, kind: u16, header: &[u8], table: Option<u32>) -> ReplyMessages {
        let mut message = NetlinkRequest::new(kind, MessageFlags::NONE, header);
        if let Some(table) = table {
            message.put_u32(15, table); // RTA_TABLE
        }
        dump(&mut self.route, &message)
    }

    /// Whether a rule of a chain of mangle contains all of these byte strings.
    fn contains(&mut self, chain: &str, words: &[&[u8]]) -> bool {
        let mut message = NetlinkRequest::new(GET_NFT_RULE, MessageFlags::NONE, &[2, 0, 0, 0]);
        message.put_str(1, "mangle").put_str(2, chain);
        let replies = dump(&mut self.firewall, &message);
        let has = |payload: &[u8], word: &[u8]| payload.windows(word.len()).any(|window| window == word);
        replies.iter().any(|rule| words.iter().all(|word| has(rule.payload, word)))
    }
}

/// Dumps objects; an empty table or chain may not exist. A list that changed during the dump is dumped again.
fn dump(socket: &mut Socket, message: &NetlinkRequest) -> ReplyMessages {
    loop {
        match socket.dump(message) {
            Ok(replies) => return replies,
            Err(netlink::Error::Interrupted(_)) => {}
            Err(_) => return ReplyMessages::default(),
        }
    }
}
