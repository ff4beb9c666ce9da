//! Life cycle of a pod as shown by the API.

use model::Pod;
use pod_status::PodLife;

/// Returns whether a pod runs, by its phase. The API does not show the removal of a sandbox.
pub fn life_from_phase(pod: &Pod) -> PodLife {
    if pod.status.phase == "Running" { PodLife::Running } else { PodLife::Starting }
}
