//! Standard process metrics of Prometheus clients, collected at each scrape.

use std::fmt;
use std::fs;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Registers `process_cpu_seconds_total`, `process_resident_memory_bytes` and so on. Unreadable values are omitted.
pub fn register_process(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector { started: start_time() }));
}

#[derive(Debug)]
struct ProcessCollector {
    /// Start in seconds since the epoch. Computed once: changes indicate restarts, so setting the clock must not change it.
    started: Option<f64>,
}

/// Fields of `/proc/self/stat`.
#[derive(Debug, PartialEq)]
struct ProcStat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcStat {
    fn read() -> Option<ProcStat> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Parses fields from the third, the state, on: the process name before it may contain blanks and parentheses.
    fn parse(text: &str) -> Option<ProcStat> {
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(ProcStat {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

#[expect(clippy::cast_precision_loss)] // ticks of one process lifetime fit
fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

fn start_time() -> Option<f64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let since_boot = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    Some(now.as_secs_f64() - since_boot.as_secs_f64() + ticks_to_seconds(ProcStat::read()?.start_ticks))
}

/// Counts open file descriptors, without the one used for counting.
fn open_fds() -> Option<u64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(count.saturating_sub(1)).ok()
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        if let Some(stat) = ProcStat::read() {
            let seconds = ConstCounter::new(ticks_to_seconds(stat.cpu_ticks));
            let help = "User and system CPU time spent in seconds.";
            encode_metric(encoder, "process_cpu_seconds", help, &seconds)?;
            let resident = stat.resident_pages.saturating_mul(page_size() as u64);
            let help = "Resident memory size in bytes.";
            encode_gauge(encoder, "process_resident_memory_bytes", help, resident)?;
            let help = "Virtual memory size in bytes.";
            encode_gauge(encoder, "process_virtual_memory_bytes", help, stat.virtual_bytes)?;
            encode_gauge(encoder, "process_threads", "Number of threads.", stat.threads)?;
        }
        if let Some(open) = open_fds() {
            encode_gauge(encoder, "process_open_fds", "Number of open file descriptors.", open)?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            encode_gauge(encoder, "process_max_fds", "Maximum number of open file descriptors.", most)?;
        }
        if let Some(started) = self.started {
            let help = "Start time of the process since unix epoch in seconds.";
            encode_metric(encoder, "process_start_time_seconds", help, &ConstGauge::new(started))?;
        }
        Ok(())
    }
}

fn encode_gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    encode_metric(encoder, name, help, &ConstGauge::new(value))
}

fn encode_metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_hides_no_field() {
        let text =
            "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 500 70 0 0 20 0 3 0 9000 8192 25 18446744073709551615 1";
        let stat = ProcStat {
            cpu_ticks: 570,
            threads: 3,
            start_ticks: 9000,
            virtual_bytes: 8192,
            resident_pages: 25,
        };
        assert_eq!(ProcStat::parse(text), Some(stat));
        for short in ["", "7 (a) S 1", "7 (a"] {
            assert_eq!(ProcStat::parse(short), None);
        }
    }
}
