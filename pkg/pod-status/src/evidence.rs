//! What is known of a pod, and what follows from it.

use crate::state::{CaptureState, CaptureStatus, Redirection};

/// Whether the pod belongs to the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeshMembership {
    /// The pod should be captured.
    Member,
    /// The pod should not be captured. `remains`: our rules or addresses for it still exist.
    Outside {
        /// Something of ours is still there.
        remains: bool,
    },
    /// The pod should not be captured any more, and its release has not ended.
    Leaving,
    /// The pod should be captured, but it is not known yet how this node captures pods.
    Undetermined,
}

/// How far the pod's life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodLife {
    /// The pod's containers do not run yet, or it has no address.
    Starting,
    /// The pod's containers run.
    Running,
    /// The pod's sandbox is gone, and the API object is about to be: it has no traffic.
    Ending,
}

/// State of the redirect of a pod's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RulesEvidence {
    /// The redirect could not be observed.
    Unobserved,
    /// The redirect was not put in place yet, as far as is known. `failing`: more than one attempt has failed.
    Absent {
        /// More than one attempt has failed.
        failing: bool,
    },
    /// The redirect was observed, and something is missing or changed. `holds`: what is left keeps the pod's traffic from
    /// bypassing the mesh.
    Incomplete {
        /// Nothing leaks.
        holds: bool,
    },
    /// The redirect was put in place, and not observed since.
    Applied,
    /// The redirect was put in place, and observing it, or keeping it, has failed more than once.
    Doubtful,
    /// The redirect was observed in place, but was removed repeatedly before: it may be removed again at any time.
    Unstable,
    /// The redirect was observed in place.
    Verified,
}

/// State of the proxy that serves a pod's traffic: the sidecar, or ztunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyEvidence {
    /// The proxy serves the pod. A sidecar is not asked, and counts as serving.
    Serves,
    /// The proxy served the pod, or would, but no ztunnel is available now.
    Unavailable,
    /// Another agent, before this one, announced the pod as captured; this one has not heard of ztunnel yet.
    Announced,
    /// The proxy has not acknowledged the pod, or has refused it.
    Absent,
}

/// Facts about a pod at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Whether it belongs to the mesh.
    pub membership: MeshMembership,
    /// How far its life is.
    pub life: PodLife,
    /// State of the redirect of its traffic.
    pub rules: RulesEvidence,
    /// State of the proxy that serves its traffic.
    pub proxy: ProxyEvidence,
    /// Rules of another component, or routes, precede ours in its network namespace or on the node.
    pub overruled: bool,
    /// Without a proxy its traffic bypasses the mesh (`--no-ztunnel-policy=open`); else it is held back.
    pub fails_open: bool,
    /// An ADD for it has not been answered: it does not run yet, whatever the API shows.
    pub awaited: bool,
}

impl Evidence {
    /// A pod that should be captured and of which nothing else is known.
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

    /// Returns the capture status that follows from the evidence.
    pub fn classify(&self) -> CaptureStatus {
        CaptureStatus { state: self.capture_state(), annotation: self.redirection_annotation() }
    }

    fn capture_state(&self) -> CaptureState {
        match self.membership {
            MeshMembership::Outside { remains: false } => CaptureState::Outside,
            MeshMembership::Outside { remains: true } | MeshMembership::Leaving => CaptureState::Leaving,
            MeshMembership::Undetermined => CaptureState::Unknown,
            MeshMembership::Member => match self.member_state() {
                // It sends nothing any more.
                CaptureState::Bypassing if self.life == PodLife::Ending => CaptureState::Pending,
                state => state,
            },
        }
    }

    fn member_state(&self) -> CaptureState {
        match (self.rules, self.proxy) {
            (RulesEvidence::Unobserved | RulesEvidence::Doubtful, _) => CaptureState::Unknown,
            (RulesEvidence::Absent { .. } | RulesEvidence::Incomplete { .. }, _)
                if self.awaited || self.life != PodLife::Running =>
            {
                CaptureState::Pending
            }
            (RulesEvidence::Incomplete { holds: true }, _) if !self.fails_open && !self.overruled => {
                CaptureState::Held
            }
            (RulesEvidence::Absent { .. } | RulesEvidence::Incomplete { .. }, _) => CaptureState::Bypassing,
            (RulesEvidence::Unstable, _) if !self.overruled => CaptureState::Pending,
            (RulesEvidence::Unstable, _) => CaptureState::Bypassing,
            (RulesEvidence::Applied | RulesEvidence::Verified, ProxyEvidence::Serves) if self.overruled => {
                CaptureState::Bypassing
            }
            (RulesEvidence::Applied | RulesEvidence::Verified, ProxyEvidence::Serves) => {
                CaptureState::Captured
            }
            (RulesEvidence::Applied | RulesEvidence::Verified, _) if self.awaited => CaptureState::Pending,
            (RulesEvidence::Applied | RulesEvidence::Verified, _) if self.fails_open || self.overruled => {
                CaptureState::Bypassing
            }
            (RulesEvidence::Applied | RulesEvidence::Verified, _) => CaptureState::Held,
        }
    }

    /// `Enabled` stays while no ztunnel is available: a restart of ztunnel must not make istiod tell clients to use
    /// plaintext. Rules of another component do not change it either: whoever may add some would choose plaintext for
    /// the pod's clients.
    fn redirection_annotation(&self) -> Option<Redirection> {
        match (self.membership, self.rules, self.proxy) {
            (MeshMembership::Outside { .. }, ..) => Some(Redirection::None),
            (MeshMembership::Leaving | MeshMembership::Undetermined, ..) => None,
            (MeshMembership::Member, RulesEvidence::Incomplete { .. }, _) => Some(Redirection::None),
            // Clients that use HBONE might reach nothing.
            (
                MeshMembership::Member,
                RulesEvidence::Doubtful | RulesEvidence::Unstable | RulesEvidence::Absent { failing: true },
                _,
            ) => (!self.awaited).then_some(Redirection::Pending),
            (
                MeshMembership::Member,
                RulesEvidence::Absent { failing: false } | RulesEvidence::Unobserved,
                _,
            ) => None,
            (
                MeshMembership::Member,
                RulesEvidence::Verified,
                ProxyEvidence::Serves | ProxyEvidence::Unavailable,
            ) => Some(Redirection::Enabled),
            // It is about to be observed, or an earlier agent has done so; nothing is known to be wrong.
            (
                MeshMembership::Member,
                RulesEvidence::Applied,
                ProxyEvidence::Serves | ProxyEvidence::Unavailable,
            )
            | (
                MeshMembership::Member,
                RulesEvidence::Applied | RulesEvidence::Verified,
                ProxyEvidence::Announced,
            ) => None,
            (
                MeshMembership::Member,
                RulesEvidence::Applied | RulesEvidence::Verified,
                ProxyEvidence::Absent,
            ) => (!self.awaited).then_some(Redirection::Pending),
        }
    }
}

#[cfg(test)]
mod tests;
