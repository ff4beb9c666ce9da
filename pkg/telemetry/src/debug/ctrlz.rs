//! What Istio's ControlZ tells about the process, in its JSON shapes. Scopes are in [`super::levels`].

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;
use serde_json::{Value, json};

use super::process::{Memory, arguments, groups, host_name, local_ip, now, threads, variables};
use super::{Build, DebugHandler, both, compact};

pub(super) fn routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let version = get(async |State(desk): State<DebugHandler>| compact(&version(desk.0.build)));
    let router = both(router, "/versionj", version);
    let router = both(router, "/memj", get(async || compact(&memory(Memory::read()))));
    let router = both(router, "/procj", get(async || compact(&process())));
    let router = both(router, "/envj", get(async || compact(&environment())));
    let router = both(router, "/argj", get(async || compact(&arguments(std::env::args_os()))));
    both(router, "/homej", get(async || compact(&home())))
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    revision: &'static str,
    golang_version: &'static str,
    status: &'static str,
    tag: &'static str,
}

fn version(build: Build) -> Version {
    let Build { version, revision, status, tag } = build;
    Version { version, revision, golang_version: "", status, tag }
}

#[derive(Serialize)]
struct Variable {
    name: String,
    value: String,
}

fn environment() -> Vec<Variable> {
    variables(std::env::vars_os()).into_iter().map(|(name, value)| Variable { name, value }).collect()
}

#[derive(Serialize)]
struct Process {
    egid: u32,
    euid: u32,
    gid: u32,
    groups: Vec<u32>,
    pid: u32,
    ppid: i32,
    uid: u32,
    wd: String,
    hostname: String,
    tempdir: String,
    threads: u64,
    goroutines: u64,
}

fn process() -> Process {
    use rustix::process::{getegid, geteuid, getgid, getppid, getuid};
    let directory = std::env::current_dir().unwrap_or_default();
    Process {
        egid: getegid().as_raw(),
        euid: geteuid().as_raw(),
        gid: getgid().as_raw(),
        groups: groups(),
        pid: std::process::id(),
        ppid: getppid().map_or(0, |pid| pid.as_raw_nonzero().get()),
        uid: getuid().as_raw(),
        wd: directory.to_string_lossy().into_owned(),
        hostname: host_name(),
        tempdir: std::env::temp_dir().to_string_lossy().into_owned(),
        threads: threads(),
        goroutines: 0,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Home {
    process_name: String,
    heap_size: u64,
    #[serde(rename = "NumGC")]
    num_gc: u32,
    /// Nanoseconds since the epoch.
    current_time: u64,
    hostname: String,
    #[serde(rename = "IP")]
    ip: String,
}

fn home() -> Home {
    Home {
        process_name: std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned(),
        heap_size: Memory::read().heap,
        num_gc: 0,
        current_time: now(),
        hostname: host_name(),
        ip: local_ip(),
    }
}

/// Go's names. What only a garbage collector has is 0.
fn memory(memory: Memory) -> Value {
    let Memory { heap, data, stack, all } = memory;
    let idle = data.saturating_sub(heap);
    json!({
        "Alloc": heap, "TotalAlloc": 0, "Sys": all, "Lookups": 0, "Mallocs": 0, "Frees": 0,
        "HeapAlloc": heap, "HeapSys": data, "HeapIdle": idle, "HeapInuse": heap, "HeapReleased": idle,
        "HeapObjects": 0, "StackInuse": stack, "StackSys": stack, "MSpanInuse": 0, "MSpanSys": 0,
        "MCacheInuse": 0, "MCacheSys": 0, "BuckHashSys": 0, "GCSys": 0, "OtherSys": 0, "NextGC": 0,
        "LastGC": 0, "PauseTotalNs": 0, "PauseNs": [], "PauseEnd": [], "NumGC": 0, "NumForcedGC": 0,
        "GCCPUFraction": 0, "EnableGC": false, "DebugGC": false, "BySize": [],
    })
}
