//! Removal of all our objects from the node's network namespace, and from those of its ztunnels, based on what the
//! kernel shows.

use model::Reason;
use node_capture::NodePath;
use node_plan::{KernelSlots, ObservedState, Operation, ZtunnelInstance, ZtunnelSlot, plan_operations};
use tracing::warn;

use super::open_path;
use crate::settings::CaptureSettings;

/// Removes everything that an agent of any version of ours has created. Needs neither facts nor API server. Repeating
/// it changes nothing. Returns a message for each object that could not be removed.
pub(crate) fn uninstall(settings: &CaptureSettings) -> Vec<String> {
    let mut path = match open_path(settings) {
        Ok(path) => path,
        Err(error) if error.is_without_sets() => return Vec::new(),
        Err(error) => return vec![error.to_string()],
    };
    let mut problems = Vec::new();
    match removal_steps(settings, &mut path) {
        Ok(steps) => {
            problems.extend(path.remove_elsewhere().err().map(|error| error.to_string()));
            let failed = steps
                .iter()
                .filter_map(|step| path.apply_step(step).err().map(|error| format!("{step}: {error}")));
            problems.extend(failed.collect::<Vec<_>>());
        }
        Err(error) => problems.push(error.into()),
    }
    if let Err(error) = hostfs::remove(&settings.shared_config) {
        problems.push(error.to_string());
    }
    problems
}

fn removal_steps(settings: &CaptureSettings, path: &mut NodePath) -> Result<Vec<Operation>, Reason> {
    Ok(plan_operations(&settings.node, None, &observe_installed(settings, path)?))
}

/// Returns whether the node has policy rules or sets of the node path. If the kernel cannot be queried, the answer is
/// no: opening the path will fail, too.
pub(crate) fn is_installed(settings: &CaptureSettings) -> bool {
    let observed = open_path(settings).and_then(|mut path| path.observe_network());
    observed.is_ok_and(|observed| !observed.rules.is_empty() || !observed.sets.is_empty())
}

/// Returns all our objects on the node, and in those ztunnels to which its routes lead.
///
/// # Errors
/// The kernel cannot be queried.
pub fn observe_installed(settings: &CaptureSettings, path: &mut NodePath) -> Result<ObservedState, Reason> {
    let to_message = |error: node_capture::Error| error.to_string();
    let mut observed = path.observe_network().map_err(to_message)?;
    path.observe_firewall(&mut observed).map_err(to_message)?;
    let known = KernelSlots::from(&settings.node, &observed);
    let mut slots: [Option<ZtunnelInstance>; 2] = [None, None];
    for slot in ZtunnelSlot::BOTH {
        let ips = slot.select_from(&known.ips);
        // One ztunnel can be in both slots after an interrupted plan. It is cleared once.
        let is_same = |other: &ZtunnelInstance| other.ips.iter().any(|ip| ips.contains(ip));
        if ips.is_empty() || slots.iter().flatten().any(is_same) {
            continue;
        }
        match path.locate_ztunnel(&format!("slot {slot}").into(), ips, false) {
            Ok(generation) => *slot.part_mut(&mut slots) = Some(generation),
            // The namespace was removed, with everything that we created there.
            Err(error) => warn!(target: "ambient", %slot, %error, "ztunnel cannot be entered"),
        }
    }
    path.observe_slots(&mut observed, &slots).map_err(to_message)?;
    Ok(observed)
}
