//! A headless Chromium with one tab, controlled by its DevTools protocol over a pipe.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use kit::TempDir;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// Time limit of one answer. Chromium takes seconds to start beside other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Disables requests to its vendor, and shared memory, of which a container has little.
const ARGUMENTS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox", // with a sandbox it refuses to run as root
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
];

/// A browser with one tab. Drop ends it.
pub(crate) struct Browser {
    child: Child,
    commands: RefCell<ChildStdin>,
    messages: Receiver<Value>,
    /// Events received while waiting for an answer.
    events: RefCell<Vec<Value>>,
    last: RefCell<u64>,
    tab: Option<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser; `None` means that Chromium is not installed, and the test is skipped.
    pub(crate) fn start() -> Option<Self> {
        let Some(program) = program() else {
            kit::skip("no chromium: run hack/setup");
            return None;
        };
        let profile = TempDir::new().unwrap();
        let (mut child, messages) = spawn(&program, profile.path());
        let commands = RefCell::new(child.stdin.take().unwrap());
        let (events, last) = (RefCell::default(), RefCell::default());
        let mut browser = Self { child, commands, messages, events, last, tab: None, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let tab = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.tab = Some(tab["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Sends a command and returns its result.
    pub(crate) fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.last.replace_with(|last| *last + 1) + 1;
        let mut command = json!({"id": id, "method": method});
        command["params"] = parameters;
        if let Some(tab) = &self.tab {
            command["sessionId"] = json!(tab);
        }
        self.commands.borrow_mut().write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message = self.message();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.borrow_mut().push(message);
        }
    }

    fn message(&self) -> Value {
        self.messages.recv_timeout(PATIENCE).expect("Chromium answers")
    }

    /// Waits for an event, or returns if it was received before.
    pub(crate) fn wait(&self, method: &str) {
        while !self.events.borrow().iter().any(|event| event["method"] == method) {
            let message = self.message();
            self.events.borrow_mut().push(message);
        }
    }

    /// Parameters of all events of that name so far.
    pub(crate) fn events(&self, method: &str) -> Vec<Value> {
        self.eval("0"); // events sent before the answer have been received by then
        let events = self.events.borrow();
        events.iter().filter(|event| event["method"] == method).map(|event| event["params"].clone()).collect()
    }

    pub(crate) fn forget_events(&self) {
        self.events.borrow_mut().clear();
    }

    /// Loads a page, up to its load event.
    pub(crate) fn open(&self, url: &str) {
        self.events.borrow_mut().retain(|event| event["method"] != "Page.loadEventFired");
        self.call("Page.navigate", json!({"url": url}));
        self.wait("Page.loadEventFired");
    }

    /// CPU time of all its processes so far, in steps of 10 ms.
    pub(crate) fn cpu_time(&self) -> Duration {
        let group = self.child.id().to_string();
        let all = fs::read_dir("/proc").unwrap();
        let ticks = all.filter_map(|entry| {
            let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            // Indexes start at the state: the process group, then the process's own times and those of its ended children.
            (fields[2] == group)
                .then(|| fields[11..15].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
        });
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// Value of an expression, awaited if it is a promise.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let how = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", how);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        self.until_while(expression, || ());
    }

    /// As [`Browser::until`], but repeats an action before each poll, as another component undoes it.
    pub(crate) fn until_while(&self, expression: &str, again: impl Fn()) {
        kit::until_within(PATIENCE, expression, || {
            again();
            self.eval(expression) == json!(true)
        });
    }

    /// Presses a key that types nothing.
    pub(crate) fn press(&self, key: &str, code: u32) {
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let how =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", how);
        }
    }

    /// Types into the focused element.
    pub(crate) fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Sets `prefers-color-scheme`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Sets the size of the window.
    pub(crate) fn resize(&self, width: u32, height: u32, mobile: bool) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Also its own children: they are in its process group.
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("chromium")).find(|program| program.is_file())
}

/// Starts the process, and returns its messages. It reads commands from descriptor 3 and answers on 4, which a shell sets up.
fn spawn(program: &Path, profile: &Path) -> (Child, Receiver<Value>) {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]).arg(program).args(ARGUMENTS);
    command.arg(format!("--user-data-dir={}", profile.display())).arg("about:blank").env("HOME", profile);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().unwrap();
    let answers = BufReader::new(child.stdout.take().unwrap());
    let (sender, messages) = channel();
    thread::spawn(move || {
        for message in answers.split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else { return };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    (child, messages)
}
