//! A node with 1,000 pods of the mesh whose records of ADDs were filled by pod authors: the agent's cost at rest, and the cost of
//! one change of one pod.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::crowd::{Crowd, address};

const PODS: usize = 1000;
const RECORDS: usize = 2000;
const REST: Duration = Duration::from_secs(60);
const CHANGES: u32 = 200;
/// Interval of changes: far shorter than on real nodes.
const PACE: Duration = Duration::from_millis(100);
const RECONCILER: &str = "agent";
const BOUNDS: &str = "bounds: 40 MiB, 5 % of one core at rest, 4 MiB of records";

pub(crate) fn run() {
    let mut crowd = Crowd::start(PODS);
    let records = crowd.fixture.node.run_dir().join("pods");
    fs::create_dir_all(&records).unwrap();
    for number in 0..RECORDS {
        fs::write(records.join(format!("failed_evil_x-{number}")), hostile(number)).unwrap();
    }
    crowd.restart();
    crowd.fixture.daemon.wait_until_ready();
    crowd.join();
    let rest = crowd.rest(REST);
    let (resident, peak) = (crowd.fixture.daemon.resident_kib(), crowd.fixture.daemon.peak_kib());
    let idle = crowd.rest(PACE * CHANGES);
    let times = |daemon: &kit::Daemon| [daemon.cpu_time(), daemon.thread_time(RECONCILER)];
    let (before, began) = (times(&crowd.fixture.daemon), Instant::now());
    for number in 0..CHANGES {
        let at = number as usize * 7 % PODS;
        let changed = crowd.pods[at].0.clone().label("version", &number.to_string());
        let changed = changed.annotation("ambient.istio.io/redirection", "enabled");
        crowd.fixture.manifests.put_pod(&changed.manifest(&[address(at)]));
        thread::sleep((PACE * (number + 1)).saturating_sub(began.elapsed())); // the load itself
    }
    let after = times(&crowd.fixture.daemon);
    let [spent, reconciler] = [0, 1].map(|of| (after[of] - before[of]).as_secs_f64() * 1e3);
    let of_rest = idle / 100.0 * began.elapsed().as_secs_f64() * 1e3;
    println!("install-cni with {PODS} pods and {RECORDS} records of hostile ADDs; {BOUNDS}.");
    println!(
        "  CPU {rest:.2} % of one core, resident {:.1} MiB, at most {:.1}; records of {:.2} MiB",
        resident as f64 / 1024.0,
        peak as f64 / 1024.0,
        bytes_of(&records) as f64 / f64::from(1 << 20)
    );
    println!(
        "  a change of a label of one pod: {:.2} ms of CPU, of it {:.2} ms of the thread that decides, its work at rest included;\n  \
         the rest is mostly the look at all files of the directory, which stands for the API server here\n",
        (spent - of_rest) / f64::from(CHANGES),
        reconciler / f64::from(CHANGES)
    );
}

/// A record of unlimited size, as before records were limited.
fn hostile(number: usize) -> String {
    let words = "\u{1}".repeat(10_000);
    let pod =
        json!({"metadata": {"name": "x", "namespace": "evil", "uid": "u", "annotations": {"a": words}}});
    json!({"namespace": "evil", "name": format!("x-{number}"), "uid": "u", "container": "c",
        "netns": "/var/run/netns/gone", "at": "2026-01-01T00:00:00Z", "decision": "", "words": words,
        "error": "no", "pod": pod})
    .to_string()
}

fn bytes_of(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| file.metadata().map_or(0, |found| found.len())).sum()
}
