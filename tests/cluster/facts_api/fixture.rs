//! A follower of an API server, and the facts that it has sent.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use enrolment::{Fact, FactIndex};
use kit::TempDir;
use kube_api::{ApiConnection, KubeClient};
use model::ApiServerTrust;

/// Time limit for everything that depends on this machine alone, including one back-off of the watch.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Files of a token and a CA certificate, as a pod has them.
pub(crate) struct Credential(TempDir);

impl Credential {
    pub(crate) fn new(token: &str, authority: &str) -> Self {
        let files = TempDir::new().unwrap();
        std::fs::write(files.path().join("token"), token).unwrap();
        std::fs::write(files.path().join("ca.crt"), authority).unwrap();
        Self(files)
    }

    pub(crate) fn connection(&self, server: &str) -> ApiConnection {
        let file = |name: &str| -> PathBuf { self.0.path().join(name) };
        ApiConnection {
            server: server.to_owned(),
            trust: ApiServerTrust::Authority(file("ca.crt")),
            token: file("token"),
            user_agent: "facts".to_owned(),
        }
    }
}

pub(crate) struct Follower {
    pub(crate) index: FactIndex,
    /// All facts received.
    pub(crate) told: Vec<Fact>,
    facts: Receiver<Fact>,
}

impl Follower {
    /// Starts to follow as this node. The follower ends with the test process, or when its receiver is dropped.
    pub(crate) fn start(connection: ApiConnection, node: &'static str) -> Self {
        let (sender, facts) = channel();
        thread::spawn(move || {
            run(async move {
                let client = KubeClient::new(&connection).unwrap();
                cluster_facts::follow_api(client, node, None, move |fact| drop(sender.send(fact))).await;
            });
        });
        Self { index: FactIndex::default(), told: Vec::new(), facts }
    }

    /// Receives facts until the index satisfies the condition.
    pub(crate) fn wait_until(&mut self, what: &str, is_so: impl Fn(&FactIndex) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_so(&self.index) {
            let left = deadline.saturating_duration_since(Instant::now());
            let fact = self.facts.recv_timeout(left);
            let fact = fact.unwrap_or_else(|e| panic!("never: {what} ({e}); told: {:#?}", self.told));
            self.told.push(fact.clone());
            self.index.apply(fact);
        }
    }

    /// Waits until these are the UIDs of all pods.
    pub(crate) fn wait_for_pods(&mut self, what: &str, uids: &[&str]) {
        self.wait_until(what, |index| {
            index.is_synced() && index.pods().map(|pod| pod.metadata.uid.as_str()).eq(uids.iter().copied())
        });
    }

    /// Number of lists of pods.
    pub(crate) fn lists(&self) -> usize {
        self.told.iter().filter(|fact| matches!(fact, Fact::Pods(_))).count()
    }
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
