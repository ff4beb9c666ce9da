//! A running pod joins the mesh, and leaves it.

use kit::{Live, LiveConnections, Via};

use super::{
    fixture::{Fixture, LABEL, dump, is_ruled},
    ways::{Actors, Way},
};
use crate::show::Show;

const LATE: &str = "late";

/// Adds the label to its namespace, and removes it.
pub(crate) fn join_and_leave(fixture: &mut Fixture, actors: &Actors, show: &mut Show) {
    show.chapter("a pod that runs joins the mesh by its namespace's label, and leaves it");
    fixture.manifests.put_namespace(LATE, &[]);
    let three = fixture.pod(LATE, "three");
    let (netns, outside) = (&three.sandbox.netns, fixture.outside(false));
    let before = dump(netns);
    Way::new(netns, "late/three", outside, &[]).check(&actors.ztunnel, "", show);
    let mut old = LiveConnections::start(netns, Live::default());
    old.open(outside, 2);
    fixture.manifests.put_namespace(LATE, &[LABEL]);
    fixture.wait_logged("pod captured", "pod=three", 1);
    let remark = " (labelled, and not restarted)";
    Way::new(netns, "late/three", outside, &[Via::Outbound]).check(&actors.ztunnel, remark, show);
    // Its packets are new to the kernel's connection tracking, which starts with the rules.
    old.wait_round();
    let broken = old.broken().len();
    show.note(format!(
        "of its 2 connections from before, {broken} broke: their packets are taken for new connections"
    ));
    fixture.manifests.put_namespace(LATE, &[]);
    fixture.wait_logged("pod released", "pod=three", 1);
    Way::new(netns, "late/three", outside, &[]).check(&actors.ztunnel, " (the label is gone)", show);
    show.check(
        !is_ruled(&three.sandbox) && dump(netns) == before,
        "its namespace is as it was, to the letter",
    );
    fixture.manifests.remove_pod(LATE, "three");
}
