//! Every fuzz target on its seeds and some thousand mutations of them, the same ones each time, for at most two seconds each. The
//! stable compiler suffices. With `MILLRACE_FUZZ_SECONDS` (hack/fuzz), different ones each time, for that long.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test: a panic is its failure"
)]

#[path = "smoke/limits.rs"]
mod limits;
#[path = "smoke/mutation.rs"]
mod mutation;

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use limits::within_limits;
use mutation::{XorShift, mutated};

const MUTATIONS: usize = 4000;
const LIMIT: Duration = Duration::from_secs(2);

/// One test for each target, of the same name.
macro_rules! targets {
    ($($target:ident),* $(,)?) => {$(
        #[test]
        fn $target() {
            smoke(stringify!($target), fuzz_targets::$target);
        }
    )*};
}

targets! {
    agent_messages,
    annotations,
    cni_args,
    cni_stdin,
    conflist,
    connection_replies,
    dns_answer,
    http_response,
    kubeconfig,
    legacy_tables,
    log_post,
    nft_replies,
    notifications,
    plugin_event,
    pod_object,
    route_replies,
    saved_rules,
    set_replies,
    taint_config,
    zds_messages,
}

/// Duration, number and start of the mutations.
struct Run {
    limit: Duration,
    inputs: usize,
    random: XorShift,
}

impl Run {
    fn asked_for() -> Run {
        let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
        let Some(seconds) = number("MILLRACE_FUZZ_SECONDS") else {
            return Run { limit: LIMIT, inputs: MUTATIONS, random: XorShift(0x9e37_79b9_7f4a_7c15) };
        };
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        let begin = number("MILLRACE_FUZZ_BEGIN").unwrap_or_else(now);
        Run { limit: Duration::from_secs(seconds), inputs: usize::MAX, random: XorShift(begin.max(1)) }
    }
}

fn smoke(target: &str, run: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(seeds.len() >= 3, "{target} has {} seeds", seeds.len());
    let (start, Run { limit, inputs, mut random }) = (Instant::now(), Run::asked_for());
    let (begin, mut count) = (random.0, 0);
    for input in seeds.iter().map(Vec::as_slice).chain([&b""[..], b"\0", &[0xff; 64], &[b'"'; 9]]) {
        one(Report { target, begin, count, input }, run);
    }
    while count < inputs && start.elapsed() < limit {
        count += 1;
        one(Report { target, begin, count, input: &mutated(&seeds, &mut random) }, run);
    }
    println!("{target}: {count} inputs in {:.0?}, from {begin} on: none fails", start.elapsed());
}

/// A panic shows the input: nothing but the message remains of a failing run.
fn one(report: Report<'_>, run: fn(&[u8])) {
    within_limits(run, report.input);
    drop(report);
}

/// Maximum length of an input in the message; a longer one is identified by its number since the start of the run.
const SHOWN: usize = 4096;

/// Prints the input when dropped in a panic.
struct Report<'a> {
    target: &'a str,
    begin: u64,
    count: usize,
    input: &'a [u8],
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Report { target, begin, count, input } = self;
            let shown = input[..input.len().min(SHOWN)].escape_ascii();
            #[expect(clippy::print_stderr, reason = "a failing test says what it was given")]
            {
                eprintln!("{target}, input {count} from {begin} on, {} bytes: b\"{shown}\"", input.len());
            }
        }
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}
