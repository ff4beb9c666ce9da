//! Removes everything of in-pod redirection from the node and its pods, by what the kernel shows.

use std::{collections::BTreeMap, path::Path};

use inpod::{NodeProbes, is_captured, namespaces, release};
use model::Family;
use netns::{Netns, NetnsId};

use crate::{settings::CaptureConfig, settings::CaptureSettings};

/// Removes it. Returns what could not be removed, as sentences.
pub(crate) fn uninstall(settings: &CaptureSettings) -> Vec<String> {
    let config = settings.capture.in_pod().map_or_else(Default::default, |chosen| chosen.rules.clone());
    let mut troubles = Vec::new();
    let mut probes = match NodeProbes::open(
        config.clone(),
        Family::BOTH.to_vec(),
        settings.tools.clone(),
        &settings.journal,
    ) {
        Ok(probes) => probes,
        Err(error) => return vec![error.to_string()],
    };
    // With node-level capture each start calls this: it must not examine every pod in vain.
    if settings.capture.in_pod().is_none() && matches!(probes.are_there(), Ok(false)) {
        return troubles;
    }
    // Only in-pod redirection needs a list of processes: without one, the runtime's directory has to suffice.
    let chosen = settings.capture.in_pod();
    let optional = !matches!(settings.capture, CaptureConfig::InPod(_));
    let proc = chosen.map(|chosen| chosen.proc.as_path()).filter(|proc| !optional || proc.exists());
    match pods(proc, &settings.netns_directory) {
        Ok(pods) => {
            for netns in pods.values() {
                let done = is_captured(netns, &config).and_then(|captured| match captured {
                    true => release(netns, &config, &settings.tools).map(drop),
                    false => Ok(()),
                });
                troubles.extend(done.err().map(|error| format!("a pod's rules: {error}")));
            }
        }
        Err(error) => troubles.push(error.to_string()),
    }
    // Last: they show the next attempt that something is left.
    if let Err(error) = probes.remove() {
        troubles.push(error.to_string());
    }
    troubles
}

/// All namespaces except the node's own.
fn pods(proc: Option<&Path>, directory: &Path) -> Result<BTreeMap<NetnsId, Netns>, inpod::Error> {
    let own = Netns::current()?.id();
    let mut all = proc.map_or_else(|| Ok(BTreeMap::new()), namespaces)?;
    all.extend(Netns::list(directory)?.into_iter().map(|(_, netns)| (netns.id(), netns)));
    all.remove(&own);
    Ok(all)
}
