//! Measures one command: a process of our own starts it, so that the kernel's accounting of ended children covers this command and
//! its children alone.

use std::{
    env,
    io::{self, Read, Write},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use kit::Netns;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

/// Cost of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// From exec to exit, in milliseconds.
    pub(crate) wall: f64,
    /// User and system time of the process and all its children, in milliseconds.
    pub(crate) cpu: f64,
    /// Peak resident memory of the largest of these processes, in KiB.
    pub(crate) memory: i64,
}

/// Runs `command` in `netns` with these variables and stdin; panics when it fails.
pub(crate) fn run(netns: &Netns, command: &[String], env: &[(String, String)], stdin: &str) -> Cost {
    let mut measuring = Command::new(env::current_exe().unwrap());
    measuring
        .arg("measure")
        .args(command)
        .envs(env.iter().cloned())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = netns.spawn(&mut measuring);
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let cost: Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command:?} in {}: {line}", netns.name()));
    assert_eq!(cost["status"], 0, "{command:?} failed: {line}");
    Cost {
        wall: cost["wall"].as_f64().unwrap(),
        cpu: cost["cpu"].as_f64().unwrap(),
        memory: cost["memory"].as_i64().unwrap(),
    }
}

/// Separates commands that run concurrently, as one program with several children would run them.
pub(crate) const BESIDE: &str = "&";

/// The measuring process: stdin is read before the clock starts.
pub(crate) fn inside(words: &[String]) -> ExitCode {
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input).unwrap();
    let mut commands: Vec<Command> = words.split(|word| word == BESIDE).map(prepared).collect();
    let start = Instant::now();
    let mut children: Vec<_> = commands.iter_mut().map(|timed| timed.spawn().unwrap()).collect();
    for child in &mut children {
        // A program that reads nothing may have ended by now.
        drop(child.stdin.take().unwrap().write_all(&input));
    }
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let wall = start.elapsed();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let millis =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1000.0 + time.tv_usec() as f64 / 1000.0;
    let failed: Vec<_> = outputs.iter().filter(|output| !output.status.success()).collect();
    let said: Vec<_> =
        failed.iter().flat_map(|output| [&output.stdout[..], &output.stderr].concat()).collect();
    println!(
        "{}",
        json!({
            "wall": wall.as_secs_f64() * 1000.0,
            "cpu": millis(usage.user_time()) + millis(usage.system_time()),
            "memory": usage.max_rss(),
            "status": failed.first().map_or(Some(0), |output| output.status.code()),
            "said": String::from_utf8_lossy(&said),
        })
    );
    ExitCode::SUCCESS
}

/// Words before the program of the form NAME=VALUE set its environment, as in a shell.
fn prepared(words: &[String]) -> Command {
    let program = words.iter().position(|word| word.starts_with('/') || !word.contains('=')).unwrap();
    let mut command = Command::new(&words[program]);
    command.envs(words[..program].iter().filter_map(|word| word.split_once('=')));
    command.args(&words[program + 1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
