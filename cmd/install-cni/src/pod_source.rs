//! Sources of the agent's knowledge of pods: facts that it follows, pods that it fetches from the API server, and the policy for a
//! node without ztunnel, which may be in a file.

use std::{
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use agent::{AgentHandle, FetchedPod, PodFetcher};
use anyhow::{Result, ensure};
use cluster_facts::{find_in_dir, follow_api, follow_dir, follow_pods};
use daemon_settings::{DaemonSettings, PodSource};
use enrolment::Fact;
use hostfs::DirectoryWatcher;
use kube_api::ApiErrorKind;
use model::{Pod, PodName, PodUid};
use node_plan::ZtunnelFallback;
use retry::LastError;
use tokio::{runtime, time::sleep};
use tracing::{debug, info, warn};

use crate::{
    cluster::{ClusterAccess, REFUSED_DELAY, connect_to_api, look_up_limit},
    supervise::restart_on_panic,
};

/// Maximum length of a one-word file, in bytes.
const MAX_WORD: usize = 4096;
/// Delay before a list that could not be followed is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Interval at which the file is read even if its watch reports no change.
const REGULAR: Duration = Duration::from_secs(60);

/// Returns the agent's function for fetching a pod that no fact describes.
pub(crate) fn pod_fetcher(
    settings: &DaemonSettings,
    cluster: Arc<ClusterAccess>,
    runtime: runtime::Handle,
) -> PodFetcher {
    let is_ambient = settings.ambient.is_some();
    if let Some(PodSource::Directory(path)) = settings.ambient.as_ref().map(|ambient| &ambient.source) {
        let (path, node) = (path.clone(), settings.identity.node.clone());
        return Box::new(move |name, _, _| {
            let found = find_in_dir(&path, &node, name).map_err(|error| error.to_string())?;
            found.ok_or_else(|| format!("there is no pod {name} in {}", path.display()).into())
        });
    }
    Box::new(move |name, uid, deadline| {
        let fetched = runtime.block_on(fetch_pod(&cluster, name, uid, deadline, is_ambient));
        fetched.map_err(|error| model::describe_error(&*error).into())
    })
}

/// Fetches a pod, and in ambient mode its namespace. Ambient mode depends on labels, which can change at any time: neither object
/// may come from a cache. Otherwise admission decides, and a pod with the runtime's UID was made by that same admission: the API
/// server may serve it from its cache.
async fn fetch_pod(
    cluster: &ClusterAccess,
    name: &PodName,
    uid: &PodUid,
    deadline: Instant,
    is_ambient: bool,
) -> Result<FetchedPod> {
    let limit = || look_up_limit(deadline);
    let client = cluster.client_within(limit()).await?;
    let (what, path) = (format!("pod {name}"), name.api_path());
    if !is_ambient && !uid.is_empty() {
        match client.get::<Pod>(&what, &format!("{path}?resourceVersion=0"), limit()).await {
            Ok(pod) if pod.has_runtime_uid(uid) => return Ok((pod, None)),
            Err(error) if error.kind() != ApiErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let pod: Pod = client.get(&what, &path, limit()).await?;
    if !is_ambient {
        return Ok((pod, None));
    }
    ensure_same_pod(&pod, uid)?;
    let (what, path) =
        (format!("namespace {}", name.namespace), format!("/api/v1/namespaces/{}", name.namespace));
    Ok((pod, Some(client.get(&what, &path, limit()).await?)))
}

/// Ensures that a pod is the one that the runtime starts, not a successor with the same name, whose identity its network namespace
/// must not get.
fn ensure_same_pod(pod: &Pod, uid: &PodUid) -> Result<()> {
    let is_same = uid.is_empty() || pod.has_runtime_uid(uid);
    ensure!(is_same, "cannot use pod {}: its UID is {}, not {uid}", pod.name(), pod.metadata.uid);
    Ok(())
}

/// Follows pods, and in ambient mode namespaces, until it is dropped.
pub(crate) async fn follow_facts(settings: Arc<DaemonSettings>, handle: AgentHandle) {
    let follower = FactFollower { settings, handle, last: LastError::default() };
    restart_on_panic("the list of pods", follower, |follower| Box::pin(follower.follow_forever())).await;
}

/// Forwards facts, and remembers the last error of following them.
struct FactFollower {
    settings: Arc<DaemonSettings>,
    handle: AgentHandle,
    last: LastError,
}

impl FactFollower {
    async fn follow_forever(&mut self) {
        loop {
            let delay = self.follow_once().await;
            sleep(delay).await;
        }
    }

    /// Follows until an error. Returns the delay before the next attempt.
    async fn follow_once(&mut self) -> Duration {
        let handle = self.handle.clone();
        let send = move |fact: Fact| handle.send_fact(fact);
        let node = &self.settings.identity.node;
        let source = self.settings.ambient.as_ref().map(|ambient| &ambient.source);
        if let Some(PodSource::Directory(path)) = source {
            match follow_dir(path, node, send) {
                // The follower works until it is dropped.
                Ok(_follower) => pending().await,
                Err(error) => warn!(target: "ambient", path = %path.display(), %error, "cannot watch"),
            }
            return AGAIN;
        }
        let Some(connection) = &self.settings.api else { return pending().await };
        let (client, own) = (connect_to_api(connection).await, self.settings.identity.own_pod());
        if source.is_some() {
            follow_api(client, node, own, send).await;
            return AGAIN;
        }
        // If our role does not permit the list, each pod is fetched when it starts.
        let refusal = follow_pods(client, node, own, send).await;
        self.handle.send_fact(Fact::PodsUnknown);
        if self.last.replace(&refusal) {
            info!(target: "install", "no permission to watch the node's pods; getting each pod that starts");
            debug!(target: "install", error = %refusal, "watch of pods refused");
        }
        REFUSED_DELAY
    }
}

/// Reads the policy from a file, and again when it changes. An invalid value leaves the last policy in effect.
pub(crate) fn follow_fallback(file: &Path, handle: &AgentHandle) {
    let mut last = LastError::default();
    let mut watcher = match DirectoryWatcher::new() {
        Ok(watcher) => watcher,
        Err(error) => {
            warn!(target: "ambient", path = %file.display(), %error, "cannot watch");
            return;
        }
    };
    let directories: Vec<PathBuf> = file.parent().map(Path::to_owned).into_iter().collect();
    loop {
        watcher.set_directories(&directories);
        match read_fallback(file) {
            Ok(fallback) => {
                last.clear();
                handle.set_fallback(fallback);
            }
            Err(error) if last.replace(&error) => {
                warn!(target: "ambient", path = %file.display(), error, "invalid policy; keeping the last one");
            }
            Err(_) => {}
        }
        if let Err(error) = watcher.wait_for_change(REGULAR) {
            warn!(target: "ambient", path = %file.display(), %error, "cannot watch any more");
            return;
        }
    }
}

fn read_fallback(file: &Path) -> Result<ZtunnelFallback, String> {
    let bytes = hostfs::read(file, MAX_WORD).map_err(|error| error.to_string())?;
    String::from_utf8_lossy(&bytes).trim().parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_with_the_same_name_is_not_the_pod_that_starts() {
        let mut pod = Pod::default();
        pod.metadata.uid = "new".into();
        for (uid, is_same) in [("new", true), ("old", false), ("", true)] {
            assert_eq!(ensure_same_pod(&pod, &uid.into()).is_ok(), is_same, "{uid:?}");
        }
    }
}
