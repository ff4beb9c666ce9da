//! Log of the plugin: lines are collected during the call, and sent to the agent in one POST at its end.
//!
//! While the agent is unavailable they are written to stderr, which the runtime logs, and to `log_file`, if configured.

use std::{
    collections::BTreeMap,
    fs::{self, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt as _, OpenOptionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime},
};

use agent_protocol::{LogLevel, LogRecord};
use enrolment::PodDecision;
use redirect::DesiredRules;

use crate::call::PluginCall;

/// Time limit of the whole exchange with the agent: a pod's start must not wait for a log.
const DEADLINE: Duration = Duration::from_millis(100);
/// Size in bytes at which `log_file` is renamed to `<name>.1`; so both together have at most about twice that.
const MAX_FILE: u64 = 10 * 1024 * 1024;

/// Log lines of one call.
#[derive(Debug)]
pub struct CallLog {
    least: LogLevel,
    socket: Option<PathBuf>,
    file: Option<PathBuf>,
    labels: BTreeMap<String, String>,
    records: Vec<LogRecord>,
    /// Decision on the pod, if one was made.
    pub(crate) decision: Option<PodDecision>,
    /// Applied rules; empty: none were applied.
    pub(crate) rules: DesiredRules,
}

impl CallLog {
    /// Returns a log whose lines have the call's pod, container and interface, from the configured level on.
    pub fn new(call: &PluginCall) -> CallLog {
        let environment = &call.environment;
        let labels = [
            ("pod", call.pod.as_ref().map(ToString::to_string)),
            ("container", environment.container_id.as_ref().map(|id| id.as_str().to_owned())),
            ("if", environment.ifname.as_ref().map(|name| name.as_str().to_owned())),
            ("command", Some(environment.command.to_string())),
        ];
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let level = call.conf.log_level.as_deref().unwrap_or_default();
        CallLog {
            least: LogLevel::from_setting(level),
            socket: call.conf.log_uds_address.as_ref().map(PathBuf::from),
            file: call.conf.log_file.as_ref().map(PathBuf::from),
            labels,
            records: Vec::new(),
            decision: None,
            rules: DesiredRules::default(),
        }
    }

    /// Records the decision on the pod, also as a label on the lines that follow.
    pub fn record_decision(&mut self, decision: &PodDecision) {
        self.labels.insert("decision".to_owned(), decision.code().to_owned());
        self.decision = Some(decision.clone());
    }

    /// Logs what an operator wants to know about every pod.
    pub fn info(&mut self, msg: String) {
        self.push_line(LogLevel::Info, msg);
    }

    /// Logs an anomaly that was handled.
    pub fn warn(&mut self, msg: String) {
        self.push_line(LogLevel::Warn, msg);
    }

    /// Logs a failure.
    pub fn error(&mut self, msg: String) {
        self.push_line(LogLevel::Error, msg);
    }

    fn push_line(&mut self, level: LogLevel, msg: String) {
        if level >= self.least {
            let labels = self.labels.clone();
            self.records.push(LogRecord { level, time: current_time(), scope: String::new(), msg, labels });
        }
    }

    /// Sends all lines to the agent; returns those that have to be written to stderr instead.
    pub fn send_lines(self) -> String {
        if self.records.is_empty() {
            return String::new();
        }
        if let Some(socket) = self.socket.clone()
            && post_in_time(socket, agent_protocol::post_body(&self.records))
        {
            return String::new();
        }
        let lines: String = self.records.iter().map(LogRecord::to_line).collect();
        match self.file.as_deref().map(|file| append_lines(file, &lines)) {
            Some(Err(error)) => format!("{lines}istio-cni: cannot write log_file: {error}\n"),
            _ => lines,
        }
    }
}

pub(crate) fn current_time() -> String {
    agent_protocol::rfc3339(SystemTime::now())
}

/// Posts on its own thread, and waits until the deadline at most. Timeouts of the socket would not suffice: connecting has none (a
/// stopped agent leaves a full backlog), and an occasional byte would restart the read timeout. A late thread ends with the
/// process.
fn post_in_time(socket: PathBuf, body: String) -> bool {
    let (done, outcome) = mpsc::channel();
    let posted = thread::Builder::new().spawn(move || done.send(post_lines(&socket, &body)));
    posted.is_ok() && outcome.recv_timeout(DEADLINE).is_ok_and(|posted| posted.is_ok())
}

/// Sends `POST /log`; any response means that the agent has read the lines.
fn post_lines(socket: &Path, body: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let head = "POST /log HTTP/1.1\r\nHost: unix\r\nContent-Type: application/json\r\nConnection: close\r\n";
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    let mut status = [0; 12]; // "HTTP/1.1 200"
    stream.read_exact(&mut status)?;
    if status.starts_with(b"HTTP/1.1 2") {
        Ok(())
    } else {
        Err(io::Error::other("the agent refused the lines"))
    }
}

/// Appends lines, after renaming a file that has grown too long: by one of concurrent calls, since another one would replace the
/// renamed file by the new one.
fn append_lines(path: &Path, lines: &str) -> io::Result<()> {
    let open = || fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let mut file = open()?;
    let opened = file.metadata()?;
    if opened.size() >= MAX_FILE
        && !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
        && fs::metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (opened.dev(), opened.ino()))
    {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        fs::rename(path, aside)?;
        file = open()?;
    }
    file.write_all(lines.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_renamed_by_one_of_concurrent_calls() {
        let directory = std::env::temp_dir().join(format!("log-file-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (log, aside) = (directory.join("cni.log"), directory.join("cni.log.1"));
        let another = fs::File::create(&log).unwrap();
        another.set_len(MAX_FILE).unwrap();
        another.lock().unwrap(); // as a call that is about to rename it
        append_lines(&log, "one\n").unwrap();
        assert!(!aside.exists());
        drop(another);
        append_lines(&log, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "two\n");
        assert_eq!(fs::metadata(&aside).unwrap().size(), MAX_FILE + 4);
        fs::remove_dir_all(directory).unwrap();
    }
}
