//! Leader election: Istio's Lease and its durations.

use std::{future::Future, time::Duration};

use kube_api::{ApiErrorKind, LeaseElector, LeaseOptions, LeaseStanding};
use retry::LastError;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{info, warn};

/// Namespace of the Lease.
pub const LEASE_NAMESPACE: &str = "kube-system";
/// Time that other replicas wait after the leader's last renewal of the Lease.
const LEASE: Duration = Duration::from_secs(60);
/// A leader that has not renewed the Lease for this long stops: long before another replica may begin.
const RENEW_DEADLINE: Duration = Duration::from_secs(15);
/// Interval between two attempts to acquire or renew it.
const RETRY: Duration = Duration::from_secs(5);

/// Returns a replica's options for the election.
pub fn lease_options(name: &str, identity: &str) -> LeaseOptions {
    LeaseOptions {
        namespace: LEASE_NAMESPACE.to_owned(),
        name: name.to_owned(),
        identity: identity.to_owned(),
        duration: LEASE,
    }
}

/// Runs `work` while this replica is the leader. Never returns. After it is dropped, the caller releases the Lease.
pub async fn run_while_leading<W: Future<Output = ()>>(elector: &mut LeaseElector, work: impl Fn() -> W) {
    loop {
        let since = acquire_lease(elector).await;
        info!(target: "taint", "this replica leads");
        tokio::select! {
            () = work() => {}
            () = hold_lease(elector, since) => {}
        }
    }
}

/// Waits until this replica holds the Lease. Returns the time at which the attempt began.
async fn acquire_lease(elector: &mut LeaseElector) -> Instant {
    let (mut last_error, mut leader) = (LastError::default(), String::new());
    loop {
        let began = Instant::now();
        match elector.attempt().await {
            Ok(LeaseStanding::Held) => return began,
            Ok(LeaseStanding::HeldByOther(other)) => {
                last_error.clear();
                if other != leader {
                    info!(target: "taint", leader = other, "another replica leads");
                    leader = other;
                }
            }
            Err(error) if error.kind() == ApiErrorKind::Conflict => {} // another replica was faster
            Err(error) if last_error.replace(&error) => {
                warn!(target: "taint", %error, "cannot take the Lease; trying again");
            }
            Err(_) => {}
        }
        sleep(RETRY).await;
    }
}

/// Renews the Lease until it is lost.
async fn hold_lease(elector: &mut LeaseElector, mut renewed: Instant) {
    let mut last_error = LastError::default();
    loop {
        let deadline = renewed + RENEW_DEADLINE;
        sleep_until(deadline.min(Instant::now() + RETRY)).await;
        let began = Instant::now();
        match timeout_at(deadline, elector.attempt()).await {
            Ok(Ok(LeaseStanding::Held)) => {
                last_error.clear();
                renewed = began;
            }
            Ok(Ok(LeaseStanding::HeldByOther(leader))) => {
                warn!(target: "taint", leader, "another replica has taken the Lease; this one stops");
                return;
            }
            Ok(Err(error)) => {
                if last_error.replace(&error) {
                    warn!(target: "taint", %error, "cannot renew the Lease; trying again");
                }
            }
            Err(_) => {
                warn!(target: "taint", seconds = RENEW_DEADLINE.as_secs(), "cannot renew the Lease in time; this replica stops");
                return;
            }
        }
    }
}
