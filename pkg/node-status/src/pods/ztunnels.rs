//! ztunnels of the node, and the one that accepts new connections.

use agent::{AgentSnapshot, CaptureSnapshot};
use enrolment::ztunnel::ZtunnelCandidate;
use node_plan::ZtunnelSlot;
use report::ZtunnelState;
use zds::ConnectionState;

/// Returns the states of the node's ztunnels. `active`: the slot that the kernel sends new connections to.
pub(crate) fn ztunnel_states(snapshot: &AgentSnapshot, active: Option<u32>) -> Vec<ZtunnelState> {
    snapshot.ztunnels.iter().map(|one| show_ztunnel(one, snapshot, active)).collect()
}

fn show_ztunnel(one: &ZtunnelCandidate, snapshot: &AgentSnapshot, active: Option<u32>) -> ZtunnelState {
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
            let holds = |slot| desired.ztunnel_in(slot).filter(|generation| generation.uid == one.uid);
            let slot = ZtunnelSlot::BOTH.into_iter().find(|slot| holds(*slot).is_some());
            shown.slot = slot.map(ZtunnelSlot::number);
            shown.link = slot.and_then(holds).map(|generation| generation.veth.clone());
            shown.active = shown.slot.is_some() && shown.slot == active;
        }
        CaptureSnapshot::InPod { ztunnels, .. } => {
            add_connection(ztunnels, snapshot.ztunnels.len() == 1, &mut shown);
        }
        _ => {}
    }
    shown
}

/// Adds whether a ztunnel is connected. `only`: no other pod can be the origin of the connection.
fn add_connection(all: &[ConnectionState], only: bool, shown: &mut ZtunnelState) {
    let own = all.iter().find(|one| one.pod.as_ref() == Some(&shown.uid));
    let unknown = all.iter().find(|one| one.pod.is_none());
    let own = own.or(unknown.filter(|_| only));
    shown.connected = match (own, unknown) {
        (Some(_), _) => Some(true),
        (None, Some(_)) => None, // may be its own
        (None, None) => Some(false),
    };
    shown.synced = own.map(|own| own.in_sync);
    shown.active = own.is_some_and(|own| own.newest);
}
