//! Removal of in-pod capture from the node and its pods, based on what the kernel shows.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use model::Family;
use netns::{Netns, NetnsId};
use pod_capture::{NodeProbes, captured_families, process_netns, release_pod};

use crate::{settings::CaptureConfig, settings::CaptureSettings};

/// Number of pods that are released at the same time. Each mostly waits for the kernel, which frees a table after a
/// grace period; with legacy tables also for a tool of each family.
const AT_A_TIME: usize = 16;

/// Removes in-pod capture. Returns a message for each object that could not be removed.
pub(crate) fn uninstall(settings: &CaptureSettings) -> Vec<String> {
    let config = settings.capture.in_pod().map_or_else(Default::default, |chosen| chosen.rules.clone());
    let mut problems = Vec::new();
    let mut probes = match NodeProbes::open(
        config.clone(),
        Family::BOTH.to_vec(),
        settings.tools.clone(),
        &settings.journal,
    ) {
        Ok(probes) => probes,
        Err(error) if error.is_without_sets() => return problems,
        Err(error) => return vec![error.to_string()],
    };
    // With node-level capture each start calls this: pods need no examination if there is nothing to remove.
    if settings.capture.in_pod().is_none() && matches!(probes.sets_exist(), Ok(false)) {
        return problems;
    }
    // Only in-pod capture requires a list of processes: without one, the runtime's directory has to suffice.
    let chosen = settings.capture.in_pod();
    let optional = !matches!(settings.capture, CaptureConfig::InPod(_));
    let proc = chosen.map(|chosen| chosen.proc.as_path()).filter(|proc| !optional || proc.exists());
    let directory = &settings.netns_directory;
    if proc.is_none() && !directory.is_dir() && !matches!(probes.sets_exist(), Ok(false)) {
        return vec![format!(
            "pods' rules: there is no list of processes here, and no {}",
            directory.display()
        )];
    }
    match pod_netns(proc, directory) {
        Ok(pods) => {
            let failed = side_by_side(pods.values(), |netns| match captured_families(netns, &config) {
                Ok(families) if families.is_empty() => None,
                Ok(_) => release_pod(netns, &config, &settings.tools).err(),
                Err(error) => Some(error),
            });
            problems.extend(failed.iter().map(|error| format!("a pod's rules: {error}")));
        }
        Err(error) => problems.push(error.to_string()),
    }
    // The sets are removed last, because they show the next attempt that something is left.
    if problems.is_empty() {
        problems.extend(probes.remove_all().err().map(|error| error.to_string()));
    }
    problems
}

/// Applies `act` to all items, several at the same time. Returns its results other than `None`, in no particular order.
fn side_by_side<T: Send, R: Send>(
    items: impl Iterator<Item = T> + Send,
    act: impl Fn(T) -> Option<R> + Sync,
) -> Vec<R> {
    let (items, results) = (Mutex::new(items), Mutex::new(Vec::new()));
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(item) = next() {
            let result = act(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).extend(result);
        }
    };
    thread::scope(|scope| {
        // The threads are in this thread's network namespace. If some or all cannot be started, the work only takes
        // longer.
        let spawn =
            |_: &usize| thread::Builder::new().name("in-pod".to_owned()).spawn_scoped(scope, work).is_ok();
        let _ = (1..AT_A_TIME).take_while(spawn).count();
        work();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all namespaces except the node's own.
fn pod_netns(proc: Option<&Path>, directory: &Path) -> Result<BTreeMap<NetnsId, Netns>, pod_capture::Error> {
    let own = Netns::current()?.id();
    let mut all = proc.map_or_else(|| Ok(BTreeMap::new()), process_netns)?;
    all.extend(Netns::list_directory(directory)?.into_iter().map(|(_, netns)| (netns.id(), netns)));
    all.remove(&own);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn pods_are_released_side_by_side() {
        let (began, begun) = mpsc::channel();
        let (proceed, waiting) = mpsc::channel::<()>();
        let waiting = Mutex::new(waiting);
        thread::scope(|scope| {
            let released = scope.spawn(|| {
                side_by_side(0..3 * AT_A_TIME, |pod| {
                    began.send(pod).unwrap();
                    // Each waits until the expected number of others waits.
                    let proceeds = waiting.lock().unwrap().recv_timeout(Duration::from_secs(20));
                    proceeds.is_err().then_some(pod)
                })
            });
            for _ in 0..3 {
                for _ in 0..AT_A_TIME {
                    begun.recv_timeout(Duration::from_secs(10)).unwrap();
                }
                (0..AT_A_TIME).for_each(|_| proceed.send(()).unwrap());
            }
            assert_eq!(released.join().unwrap(), [0; 0], "none waited in vain");
        });
    }
}
