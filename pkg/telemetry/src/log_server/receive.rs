//! Handling of one request: reads the body within limits, passes its lines to the logger.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent_protocol::{LogLevel, LogRecord};
use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::any;
use http_body_util::BodyExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

use super::budget::LogBudget;
use super::metrics::{LogMetrics, RequestOutcome};
use crate::logging::Logger;

/// Maximum length of a body, in bytes.
pub const MAX_BODY: usize = 1024 * 1024;
/// Maximum number of lines in a body. Lists of tiny strings would take many times the body's memory.
const MAX_LINES: usize = MAX_BODY / 64;
/// Maximum total size of all bodies being read, in bytes. Typical ones have a few hundred.
const MAX_BODIES: usize = 2 * MAX_BODY;
/// Bytes of a refused body that are read and discarded: a client that is still sending does not read the response.
const DRAIN: usize = 8 * MAX_BODY;
/// Timeout of reading the body.
const DEADLINE: Duration = Duration::from_secs(10);
/// Scope under which Istio prints the plugin's lines.
const SCOPE: &str = "cni";
/// Interval of the summary of dropped lines.
const SUMMARY: Duration = Duration::from_secs(10);

pub(super) fn build_router(logger: Logger, metrics: LogMetrics) -> Router {
    let quota =
        Arc::new(Mutex::new(LogQuota { budget: LogBudget::new(Instant::now()), dropped: 0, bytes: 0 }));
    let receiver = LogReceiver { logger, metrics, room: Semaphore::new(MAX_BODIES), quota };
    Router::new()
        .route(
            "/log",
            any(|State(receiver): State<Arc<LogReceiver>>, body: Body| receiver.receive_lines(body)),
        )
        .with_state(Arc::new(receiver))
}

struct LogReceiver {
    logger: Logger,
    metrics: LogMetrics,
    /// Bytes left for bodies.
    room: Semaphore,
    quota: Arc<Mutex<LogQuota>>,
}

/// Budget of lines that may be printed, and the number of lines and bytes dropped since the last summary.
struct LogQuota {
    budget: LogBudget,
    dropped: u64,
    bytes: u64,
}

impl LogReceiver {
    async fn receive_lines(self: Arc<Self>, body: Body) -> StatusCode {
        let outcome = match timeout(DEADLINE, self.read_body(body)).await {
            Ok(Ok(body)) => self.print_lines(body),
            Ok(Err(outcome)) => outcome,
            Err(_) => RequestOutcome::Timeout,
        };
        self.metrics.requests.get_or_create(&[("result", outcome.as_str())]).inc();
        match outcome {
            RequestOutcome::Ok | RequestOutcome::Malformed => StatusCode::OK,
            RequestOutcome::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RequestOutcome::Busy => StatusCode::SERVICE_UNAVAILABLE,
            RequestOutcome::Timeout => StatusCode::REQUEST_TIMEOUT,
        }
    }

    async fn read_body(&self, mut body: Body) -> Result<ReceivedBody<'_>, RequestOutcome> {
        let refusal = match self.read_within_bounds(&mut body).await {
            Err(refusal @ (RequestOutcome::TooLarge | RequestOutcome::Busy)) => refusal,
            result => return result,
        };
        let mut drained = 0;
        while drained < DRAIN
            && let Some(Ok(frame)) = body.frame().await
        {
            drained += frame.data_ref().map_or(0, |data| data.len());
        }
        Err(refusal)
    }

    async fn read_within_bounds(&self, body: &mut Body) -> Result<ReceivedBody<'_>, RequestOutcome> {
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if announced > MAX_BODY {
            return Err(RequestOutcome::TooLarge);
        }
        let mut received = ReceivedBody { bytes: Vec::with_capacity(announced), held: None };
        while let Some(frame) = body.frame().await {
            // The body is truncated.
            let frame = frame.map_err(|_| RequestOutcome::Malformed)?;
            let Some(data) = frame.data_ref() else { continue };
            if received.bytes.len() + data.len() > MAX_BODY {
                return Err(RequestOutcome::TooLarge);
            }
            received.append_data(data, &self.room)?;
        }
        Ok(received)
    }

    /// Prints the lines of one request contiguously.
    fn print_lines(&self, received: ReceivedBody<'_>) -> RequestOutcome {
        if count_quotes(&received.bytes) > 2 * MAX_LINES {
            return RequestOutcome::TooLarge;
        }
        let lines = agent_protocol::parse_post_body(&received.bytes);
        drop(received);
        match lines {
            Ok(lines) => {
                let now = Instant::now();
                self.logger.emit_all(
                    lines
                        .into_iter()
                        .filter_map(|line| self.admit_record(self.parse_line(&line), line.len(), now)),
                );
                RequestOutcome::Ok
            }
            Err(error) => {
                let msg = format!("a request to the log socket is not a list of lines: {error}");
                if let Some(record) = self.admit_record(own_record(LogLevel::Warn, msg), 100, Instant::now())
                {
                    self.logger.emit(&record);
                }
                RequestOutcome::Malformed
            }
        }
    }

    /// Returns the record if it may be printed; lines that its level suppresses do not use up the quota.
    fn admit_record(&self, record: LogRecord, bytes: usize, now: Instant) -> Option<LogRecord> {
        if !self.logger.scope_level(SCOPE).passes(record.level) {
            return None;
        }
        let about = ["container", "pod"].into_iter().find_map(|label| record.labels.get(label));
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        if quota.budget.try_admit(about.map_or("", String::as_str), bytes, now) {
            return Some(record);
        }
        self.metrics.dropped.inc();
        if quota.dropped == 0 {
            tokio::spawn(report_dropped(self.logger.clone(), Arc::clone(&self.quota)));
        }
        quota.dropped += 1;
        quota.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        None
    }

    /// Parses a line; an invalid one yields a record that reports so.
    fn parse_line(&self, line: &str) -> LogRecord {
        match LogRecord::parse(line) {
            Ok(record) => {
                self.metrics.records.get_or_create(&[("level", record.level.as_str())]).inc();
                relabel_record(record)
            }
            Err(error) => own_record(LogLevel::Debug, format!("dropped a line of a plugin: {error}")),
        }
    }
}

/// Logs one line for all that were dropped.
async fn report_dropped(logger: Logger, quota: Arc<Mutex<LogQuota>>) {
    sleep(SUMMARY).await;
    let (dropped, bytes) = {
        let mut quota = quota.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut quota.dropped), std::mem::take(&mut quota.bytes))
    };
    let seconds = SUMMARY.as_secs();
    let msg =
        format!("dropped {dropped} lines ({bytes} bytes) of plugins within {seconds} s: there were too many");
    logger.emit(&own_record(LogLevel::Warn, msg));
}

/// Counts quotes that no backslash precedes: two for each string of a list, or at least one, when it ends with a backslash.
fn count_quotes(json: &[u8]) -> usize {
    json.windows(2).filter(|pair| matches!(pair, [before, b'"'] if *before != b'\\')).count()
}

/// Converts the plugin's record to one of ours. Its time and scope are kept as labels.
fn relabel_record(record: LogRecord) -> LogRecord {
    let LogRecord { level, time, scope, msg, mut labels } = record;
    for (name, value) in [("plugin_time", time), ("plugin_scope", scope)] {
        if !value.is_empty() {
            labels.insert(name.to_owned(), value);
        }
    }
    let msg = msg.trim().to_owned();
    LogRecord { level, time: String::new(), scope: SCOPE.to_owned(), msg, labels }
}

fn own_record(level: LogLevel, msg: String) -> LogRecord {
    LogRecord { level, time: String::new(), scope: SCOPE.to_owned(), msg, labels: BTreeMap::new() }
}

/// A partially received body, with the memory reserved for it.
struct ReceivedBody<'a> {
    bytes: Vec<u8>,
    held: Option<SemaphorePermit<'a>>,
}

impl<'a> ReceivedBody<'a> {
    fn append_data(&mut self, data: &[u8], room: &'a Semaphore) -> Result<(), RequestOutcome> {
        let length = u32::try_from(data.len()).map_err(|_| RequestOutcome::TooLarge)?;
        let more = room.try_acquire_many(length).map_err(|_| RequestOutcome::Busy)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}
