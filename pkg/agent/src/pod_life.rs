//! What the API shows of a pod's life.

use model::Pod;
use pod_status::PodLife;

/// Whether a pod runs, by its phase. The API does not show that a sandbox is gone.
pub fn life_from_phase(pod: &Pod) -> PodLife {
    if pod.status.phase == "Running" { PodLife::Running } else { PodLife::Starting }
}
