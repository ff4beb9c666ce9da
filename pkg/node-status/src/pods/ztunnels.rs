//! The node's ztunnels, and which of them takes new connections.

use agent::{AgentSnapshot, CaptureSnapshot};
use enrolment::ztunnel::ZtunnelCandidate;
use node_plan::ZtunnelSlot;
use report::ZtunnelState;
use zds::ConnectionState;

/// The node's ztunnels. `active`: the slot that the kernel sends new connections to.
pub(crate) fn ztunnel_states(snapshot: &AgentSnapshot, active: Option<u32>) -> Vec<ZtunnelState> {
    let only = snapshot.ztunnels.len() == 1;
    let show = |one: &ZtunnelCandidate| {
        let mut shown = ZtunnelState {
            namespace: one.name.namespace.clone(),
            name: one.name.name.clone(),
            uid: one.uid.clone(),
            ips: one.ips.clone(),
            ready: one.ready,
            terminating: one.terminating,
            dns_proxy: one.dns_capture,
            ..ZtunnelState::default()
        };
        match &snapshot.capture {
            CaptureSnapshot::Node { desired: Some(desired), .. } => {
                let slot = ZtunnelSlot::BOTH.into_iter().find(|slot| {
                    desired.ztunnel_in(*slot).is_some_and(|generation| generation.uid == one.uid)
                });
                shown.slot = slot.map(ZtunnelSlot::number);
                shown.link =
                    slot.and_then(|slot| desired.ztunnel_in(slot)).map(|generation| generation.veth.clone());
                shown.active = shown.slot.is_some() && shown.slot == active;
            }
            CaptureSnapshot::InPod { ztunnels, .. } => add_connection(ztunnels, only, &mut shown),
            _ => {}
        }
        shown
    };
    snapshot.ztunnels.iter().map(show).collect()
}

/// Whether a ztunnel is connected. `only`: there is no other pod whose connection it could be.
fn add_connection(all: &[ConnectionState], only: bool, shown: &mut ZtunnelState) {
    let own = all.iter().find(|one| one.pod.as_ref() == Some(&shown.uid));
    let unknown = all.iter().find(|one| one.pod.is_none());
    let own = own.or(unknown.filter(|_| only));
    shown.connected = match (own, unknown) {
        (Some(_), _) => Some(true),
        (None, Some(_)) => None, // it may be this one's
        (None, None) => Some(false),
    };
    shown.synced = own.map(|own| own.in_sync);
    shown.active = own.is_some_and(|own| own.newest);
}
