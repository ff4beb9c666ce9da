//! A node with in-pod capture: two pods of the mesh, one outside it, an external host, and stubs of ztunnel that implement the
//! real protocol.

mod fixture;
mod join;
mod outage;
mod rollout;
mod ways;

use crate::show::Show;
use fixture::Fixture;

/// Runs all scenes; pods are read from a directory of manifests.
pub(crate) fn play(show: &mut Show, stay: impl FnOnce(&[&str])) {
    let mut fixture = Fixture::start(show);
    let mut actors = ways::cast(&mut fixture, show);
    ways::ways(&fixture, &actors, show);
    join::join_and_leave(&mut fixture, &actors, show);
    rollout::rollout(&mut fixture, &mut actors, show);
    outage::without_ztunnel(&mut fixture, &mut actors, show);
    outage::restart(&mut fixture, &actors, show);
    stay(&[fixture.node.netns().name(), actors.one.sandbox.netns.name()]);
    outage::end(fixture, actors, show);
}
