//! Evidence about a pod, and the capture status derived from it.

use crate::state::{CaptureState, CaptureStatus, Redirection};

/// Membership of a pod in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeshMembership {
    /// The pod should be captured.
    Member,
    /// The pod should not be captured. `remains`: our rules or addresses for it still exist.
    Outside {
        /// Whether some of our objects for it still exist.
        remains: bool,
    },
    /// The pod should no longer be captured, and its release is not complete.
    Leaving,
    /// The pod should be captured, but this node's capture mode is not determined yet.
    Undetermined,
}

/// Phase of the pod's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodLife {
    /// The pod's containers do not run yet, or it has no address.
    Starting,
    /// The pod's containers run.
    Running,
    /// The pod's sandbox was deleted, and it has no other one: it has no traffic.
    Ending,
}

/// State of the redirection of a pod's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulesEvidence {
    /// The redirection could not be observed.
    Unobserved,
    /// The redirection is not known to be in place yet. `failing`: more than one attempt has failed.
    Absent {
        /// Whether more than one attempt has failed.
        failing: bool,
    },
    /// The redirection was observed, and parts are missing or changed. `holds`: the remaining ones keep the pod's traffic from
    /// bypassing the mesh.
    Incomplete {
        /// Whether no traffic leaks.
        holds: bool,
    },
    /// The redirection was applied, and not observed since.
    Applied,
    /// The redirection was applied, and observing or keeping it has failed more than once.
    Doubtful,
    /// The redirection was observed in place, but was removed repeatedly before: it may be removed again at any time.
    Unstable,
    /// The redirection was observed in place.
    Verified,
}

/// State of the proxy of a pod's traffic: the sidecar, or ztunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyEvidence {
    /// The proxy serves the pod. A sidecar is not queried, and is assumed to serve.
    Serves,
    /// The proxy served the pod, or would, but no ztunnel is available now.
    Unavailable,
    /// A previous agent announced the pod as captured; this one has no connection to ztunnel yet.
    Announced,
    /// The proxy has not acknowledged the pod, or has refused it.
    Absent,
}

/// Facts about a pod at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Membership in the mesh.
    pub membership: MeshMembership,
    /// Phase of its life.
    pub life: PodLife,
    /// State of the redirection of its traffic.
    pub rules: RulesEvidence,
    /// State of the proxy of its traffic.
    pub proxy: ProxyEvidence,
    /// Whether foreign rules or routes precede ours in its network namespace or on the node.
    pub overruled: bool,
    /// Whether its traffic bypasses the mesh without a proxy (`--no-ztunnel-policy=open`); otherwise it is held.
    pub fails_open: bool,
    /// Whether an ADD for it is unanswered: it does not run yet, whatever the API shows.
    pub awaited: bool,
}

impl Evidence {
    /// A pod that should be captured, without further evidence.
    pub const UNKNOWN: Evidence = Evidence {
        membership: MeshMembership::Member,
        life: PodLife::Running,
        rules: RulesEvidence::Unobserved,
        proxy: ProxyEvidence::Absent,
        overruled: false,
        fails_open: false,
        awaited: false,
    };

    /// A pod that should not be captured, and is not.
    pub const OUTSIDE: Evidence =
        Evidence { membership: MeshMembership::Outside { remains: false }, ..Evidence::UNKNOWN };

    /// A pod of which it is not known whether it should be captured.
    pub const UNDETERMINED: Evidence =
        Evidence { membership: MeshMembership::Undetermined, ..Evidence::UNKNOWN };

    /// Returns the capture status derived from the evidence.
    pub fn classify(&self) -> CaptureStatus {
        CaptureStatus { state: self.capture_state(), annotation: self.redirection_annotation() }
    }

    fn capture_state(&self) -> CaptureState {
        match self.membership {
            MeshMembership::Outside { remains: false } => CaptureState::Outside,
            MeshMembership::Outside { remains: true } | MeshMembership::Leaving => CaptureState::Leaving,
            MeshMembership::Undetermined => CaptureState::Unknown,
            MeshMembership::Member => match self.member_state() {
                // A pod at its end sends no traffic.
                CaptureState::Bypassing if self.life == PodLife::Ending => CaptureState::Pending,
                state => state,
            },
        }
    }

    fn member_state(&self) -> CaptureState {
        match self.rules {
            RulesEvidence::Unobserved | RulesEvidence::Doubtful => CaptureState::Unknown,
            RulesEvidence::Absent { .. } | RulesEvidence::Incomplete { .. }
                if self.awaited || self.life != PodLife::Running =>
            {
                CaptureState::Pending
            }
            RulesEvidence::Incomplete { holds: true } if !self.fails_open && !self.overruled => {
                CaptureState::Held
            }
            RulesEvidence::Absent { .. } | RulesEvidence::Incomplete { .. } => CaptureState::Bypassing,
            RulesEvidence::Unstable if !self.overruled => CaptureState::Pending,
            RulesEvidence::Unstable => CaptureState::Bypassing,
            RulesEvidence::Applied | RulesEvidence::Verified => match self.proxy {
                ProxyEvidence::Serves if self.overruled => CaptureState::Bypassing,
                ProxyEvidence::Serves => CaptureState::Captured,
                _ if self.awaited => CaptureState::Pending,
                _ if self.fails_open || self.overruled => CaptureState::Bypassing,
                _ => CaptureState::Held,
            },
        }
    }

    /// Returns the annotation. `Enabled` is kept while no ztunnel is available: a restart of ztunnel must not make istiod tell
    /// clients to use plaintext. Foreign rules do not change it either: otherwise anyone who may add them could make the pod's
    /// clients use plaintext.
    fn redirection_annotation(&self) -> Option<Redirection> {
        match self.membership {
            MeshMembership::Outside { .. } => Some(Redirection::None),
            MeshMembership::Leaving | MeshMembership::Undetermined => None,
            MeshMembership::Member => self.member_annotation(),
        }
    }

    fn member_annotation(&self) -> Option<Redirection> {
        let pending = (!self.awaited).then_some(Redirection::Pending);
        match (self.rules, self.proxy) {
            (RulesEvidence::Incomplete { .. }, _) => Some(Redirection::None),
            // Clients that use HBONE might not be able to connect.
            (
                RulesEvidence::Doubtful | RulesEvidence::Unstable | RulesEvidence::Absent { failing: true },
                _,
            ) => pending,
            (RulesEvidence::Absent { failing: false } | RulesEvidence::Unobserved, _) => None,
            (RulesEvidence::Applied | RulesEvidence::Verified, ProxyEvidence::Absent) => pending,
            (RulesEvidence::Verified, ProxyEvidence::Serves | ProxyEvidence::Unavailable) => {
                Some(Redirection::Enabled)
            }
            // Will be observed soon, or was by an earlier agent; no fault is known.
            (RulesEvidence::Applied, _) | (RulesEvidence::Verified, ProxyEvidence::Announced) => None,
        }
    }
}

#[cfg(test)]
mod tests;
