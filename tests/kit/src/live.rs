//! Long-lived connections, which show how clients are affected by changes to the network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::helper::Helper;
use crate::netns::Netns;
use crate::traffic::{Failure, Seen, outcome};
use crate::wait::{LIMIT, found_within};

/// Load on connections.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Interval of messages on each connection; none is sent while an echo is pending.
    pub every: Duration,
    /// Timeout of an echo, after which the connection counts as broken.
    pub stall: Duration,
}

impl Default for Live {
    fn default() -> Self {
        Self { every: Duration::from_millis(20), stall: Duration::from_secs(30) }
    }
}

/// A client process in one namespace with any number of connections to [`Echo`](crate::Echo) servers. On each it exchanges numbered
/// messages. Drop ends it.
#[derive(Debug)]
pub struct LiveConnections {
    helper: Helper,
    next: u64,
    reports: u64,
    stall: Duration,
}

/// An established connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Number of the connection in this [`LiveConnections`].
    pub id: u64,
    /// Local address of the client.
    pub local: SocketAddr,
    /// The connection as the server sees it.
    pub seen: Seen,
}

/// An established connection that broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Number of the connection.
    pub id: u64,
    /// The operating system's message, or the fault of an echo.
    pub error: String,
    /// Time at which it broke.
    pub at: SystemTime,
    /// Exchanges until then.
    pub exchanges: u64,
}

/// Figures of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveReport {
    /// Connections established, broken ones included.
    pub connections: usize,
    /// Exchanges on all connections together.
    pub exchanges: u64,
    /// Exchanges on the connection with the fewest.
    pub fewest: u64,
    /// The slowest exchange; a pending one counts with its time so far.
    pub slowest: Duration,
    /// Connections that broke.
    pub broken: Vec<Broken>,
}

impl LiveConnections {
    /// Starts a client in this namespace, without connections.
    #[must_use]
    pub fn start(netns: &Netns, live: Live) -> Self {
        let millis = |duration: Duration| duration.as_millis().to_string();
        let (every, stall) = (millis(live.every), millis(live.stall));
        let helper = Helper::start(netns, &["live", "--every-ms", &every, "--stall-ms", &stall]);
        Self { helper, next: 1, reports: 0, stall: live.stall }
    }

    /// Opens connections to a server, and waits until it has answered on each.
    ///
    /// # Panics
    /// If one of them fails.
    pub fn open(&mut self, target: SocketAddr, count: usize) -> Vec<Opened> {
        let ids = self.begin(target, count, Duration::from_secs(50));
        let opened = ids.into_iter().map(|id| self.outcome(id));
        opened.map(|one| one.unwrap_or_else(|e| panic!("cannot connect to {target}: {e}"))).collect()
    }

    /// Starts to open connections, each of which times out after `timeout`; returns their numbers.
    pub fn begin(&mut self, target: SocketAddr, count: usize, timeout: Duration) -> Vec<u64> {
        let ids = self.next..self.next + count as u64;
        self.next = ids.end;
        for id in ids.clone() {
            self.helper.command(&format!("open {id} {target} {}", timeout.as_millis()));
        }
        ids.collect()
    }

    /// Waits for the result of a connection that [`LiveConnections::begin`] started.
    ///
    /// # Panics
    /// If there is none within a minute.
    pub fn outcome(&self, id: u64) -> Result<Opened, Failure> {
        let found = self.helper.wait(Duration::from_secs(60), |lines| found(lines, "id", &id.into()));
        let line = found.unwrap_or_else(|| panic!("nothing became of connection {id}"));
        if line["seen"].is_null() {
            return Err(outcome(&line).expect_err("it has an error"));
        }
        let local = line["local"].as_str().and_then(|text| text.parse().ok()).expect("an address");
        Ok(Opened { id, local, seen: outcome(&line["seen"])? })
    }

    /// Connections broken so far.
    #[must_use]
    pub fn broken(&self) -> Vec<Broken> {
        self.helper.look(|lines| lines.iter().filter_map(broken).collect())
    }

    /// Waits until at least `count` connections are broken and returns all broken ones.
    ///
    /// # Panics
    /// If fewer break within 20 seconds, or within the time that [`Live::stall`] allows.
    #[must_use]
    pub fn wait_broken(&self, count: usize) -> Vec<Broken> {
        let enough = |lines: &[Value]| {
            let all: Vec<_> = lines.iter().filter_map(broken).collect();
            (all.len() >= count).then_some(all)
        };
        let limit = LIMIT.max(self.stall * 2);
        self.helper.wait(limit, enough).unwrap_or_else(|| panic!("not {count} broken: {:?}", self.broken()))
    }

    /// Waits until every unbroken connection has completed an exchange that began after this call.
    ///
    /// # Panics
    /// If one has not within 20 seconds, or within the time that [`Live::stall`] allows.
    pub fn wait_round(&mut self) {
        let start = exchanges(&self.figures());
        let mut hanging = None;
        let passed = found_within(LIMIT.max(self.stall * 2), || {
            let (now, broken) = (exchanges(&self.figures()), self.broken());
            // One that was in flight at the call, and one more.
            let behind = |id: &u64| now.get(id).is_none_or(|done| *done < start[id] + 2);
            let mut rest = start.keys().filter(|id| broken.iter().all(|one| one.id != **id));
            hanging = rest.find(|id| behind(id)).copied();
            hanging.is_none()
        });
        assert!(passed.is_some(), "connection {hanging:?} hangs: {:?}", self.report());
    }

    /// Figures up to now, while the connections continue.
    pub fn report(&mut self) -> LiveReport {
        let line = self.figures();
        report(&line, self.broken())
    }

    fn figures(&mut self) -> Value {
        self.reports += 1;
        let tag = self.reports.to_string();
        self.helper.command(&format!("report {tag}"));
        let line = self.helper.wait(LIMIT, |lines| found(lines, "report", &tag.clone().into()));
        line.expect("kit-traffic reports")
    }

    /// Stops sending, waits for pending echoes (a connection whose echo never arrives breaks at its timeout), and reports.
    #[must_use]
    pub fn finish(mut self) -> LiveReport {
        self.helper.command("pause");
        let paused = self.helper.wait(LIMIT + self.stall, |lines| found(lines, "paused", &true.into()));
        assert!(paused.is_some(), "kit-traffic ends");
        self.report()
    }

    /// Process ID of the client, for measurements.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }
}

impl LiveReport {
    /// # Panics
    /// If a connection broke, or did nothing.
    pub fn assert_unbroken(&self) {
        assert!(self.broken.is_empty(), "{} of {} broken: {self:?}", self.broken.len(), self.connections);
        assert!(self.fewest > 0, "a connection without an exchange: {self:?}");
    }
}

fn found(lines: &[Value], key: &str, value: &Value) -> Option<Value> {
    lines.iter().rev().find(|line| line[key] == *value).cloned()
}

fn broken(line: &Value) -> Option<Broken> {
    let id = line["broken"].as_u64()?;
    let error = line["error"].as_str().expect("an error").to_owned();
    let at = UNIX_EPOCH + Duration::from_micros(line["at_us"].as_u64().expect("a time"));
    Some(Broken { id, error, at, exchanges: line["exchanges"].as_u64().expect("a number") })
}

/// Number of exchanges by connection.
fn exchanges(figures: &Value) -> BTreeMap<u64, u64> {
    let each = figures["connections"].as_array().into_iter().flatten();
    each.map(|one| (one["id"].as_u64().expect("an id"), one["exchanges"].as_u64().expect("a number")))
        .collect()
}

fn report(line: &Value, broken: Vec<Broken>) -> LiveReport {
    let figures = line["connections"].as_array().expect("a list");
    let all = |key: &str| figures.iter().map(|one| one[key].as_u64().expect("a number")).collect::<Vec<_>>();
    let exchanges = all("exchanges");
    LiveReport {
        connections: figures.len(),
        exchanges: exchanges.iter().sum(),
        fewest: exchanges.into_iter().min().unwrap_or(0),
        slowest: Duration::from_micros(all("slowest_us").into_iter().max().unwrap_or(0)),
        broken,
    }
}
