//! Effects on well-behaved pods, the kubelet and the node's memory.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kit::{Netns, Pod};

use super::attackers::{PORT, Target, starting};

/// Timeout of the kubelet's liveness probe in our manifests.
const PATIENCE: Duration = Duration::from_secs(5);

/// ADDs of well-behaved pods, one after another.
pub(crate) struct Adds {
    /// Durations of the plugin in ascending order, failed calls included.
    took: Vec<Duration>,
    /// Errors of the plugin.
    pub(crate) failed: Vec<String>,
}

impl Adds {
    /// Measures `count` ADDs, or as many as end within `limit`, at least one.
    pub(crate) fn measure(target: &Target<'_>, count: usize, limit: Duration) -> Adds {
        let (began, mut adds) = (Instant::now(), Adds { took: Vec::new(), failed: Vec::new() });
        while adds.took.is_empty() || (adds.took.len() < count && began.elapsed() < limit) {
            adds.one(target);
        }
        adds.took.sort();
        adds
    }

    /// Starts a pod of the mesh through the plugin, and ends it.
    fn one(&mut self, target: &Target<'_>) {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let pod = Pod::new(target.namespace, &format!("good-{}", STARTED.fetch_add(1, Ordering::Relaxed)));
        let name = pod.name.clone();
        target.manifests.put_pod(&starting(&pod));
        match target.node.add_pod(&target.node.runtime(), &target.conflist, pod) {
            Ok(sandbox) => {
                let call = sandbox.calls.iter().find(|call| call.plugin == "istio-cni").unwrap();
                self.took.push(call.output.wall);
            }
            Err(error) => {
                self.took.push(error.failed.output.wall);
                self.failed.push(error.to_string());
            }
        }
        target.manifests.remove_pod(target.namespace, &name);
    }

    pub(crate) fn median(&self) -> Duration {
        self.took[self.took.len() / 2]
    }

    /// The 99th percentile.
    pub(crate) fn p99(&self) -> Duration {
        self.took[(self.took.len() * 99).div_ceil(100) - 1]
    }

    pub(crate) fn count(&self) -> usize {
        self.took.len()
    }
}

/// Samples an agent and its children until drop, and probes it as the kubelet does.
pub(crate) struct Watch {
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    threads: Vec<JoinHandle<()>>,
}

/// Maximum of all samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Anonymous memory of the agent, in KiB.
    pub(crate) agent_kib: u64,
    /// Anonymous memory of all its children together.
    pub(crate) children_kib: u64,
    /// Number of answers of `/healthz`, and the slowest one.
    pub(crate) probes: usize,
    pub(crate) slowest_probe: Duration,
    /// Probes without status 200 within the kubelet's timeout.
    pub(crate) failed_probes: usize,
}

impl Watch {
    pub(crate) fn start(agent: u32, node: &Arc<Netns>) -> Watch {
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Seen>>::default());
        let watched = (Arc::clone(&over), Arc::clone(&seen));
        let memory = thread::spawn(move || {
            while !watched.0.load(Ordering::Relaxed) {
                let children = descendants(agent).into_iter().map(anonymous_kib).sum::<u64>();
                let mut seen = watched.1.lock().unwrap_or_else(PoisonError::into_inner);
                seen.agent_kib = seen.agent_kib.max(anonymous_kib(agent));
                seen.children_kib = seen.children_kib.max(children);
                drop(seen);
                thread::sleep(Duration::from_millis(50)); // a sample
            }
        });
        let (node, watched) = (Arc::clone(node), (Arc::clone(&over), Arc::clone(&seen)));
        let probes = thread::spawn(move || {
            node.enter();
            while !watched.0.load(Ordering::Relaxed) {
                let (began, answer) = (Instant::now(), probe());
                let mut seen = watched.1.lock().unwrap_or_else(PoisonError::into_inner);
                seen.probes += 1;
                seen.slowest_probe = seen.slowest_probe.max(began.elapsed());
                seen.failed_probes += usize::from(!answer.is_ok_and(|healthy| healthy));
                drop(seen);
                thread::sleep(Duration::from_millis(250)); // more often than any kubelet
            }
        });
        Watch { over, seen, threads: vec![memory, probes] }
    }

    /// Maximum since the last call.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether `/healthz` returns 200 within the kubelet's timeout.
fn probe() -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.starts_with("HTTP/1.1 200 "))
}

/// Anonymous memory of a process; 0 if it has ended.
fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// All children and grandchildren of a process.
fn descendants(of: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: BTreeMap<u32, u32> = pids
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let leads = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == of {
                return true;
            }
            pid = *parent;
        }
        false
    };
    parents.keys().copied().filter(|pid| leads(*pid)).collect()
}
