//! A node whose pods are captured in-pod: two pods of the mesh, one outside of it, a host outside, and stubs of
//! ztunnel that speak the real protocol.

mod join;
mod lab;
mod outage;
mod rollout;
mod ways;

use crate::show::Show;
use lab::Lab;

/// All of it; pods are read from a directory of manifests.
pub(crate) fn play(show: &mut Show, stay: impl FnOnce(&[&str])) {
    let mut lab = Lab::start(show);
    let mut actors = ways::cast(&mut lab, show);
    ways::ways(&lab, &actors, show);
    join::join_and_leave(&mut lab, &actors, show);
    rollout::rollout(&mut lab, &mut actors, show);
    outage::without_ztunnel(&mut lab, &mut actors, show);
    outage::restart(&mut lab, &actors, show);
    stay(&[lab.node.netns().name(), actors.one.sandbox.netns.name()]);
    outage::end(lab, actors, show);
}
