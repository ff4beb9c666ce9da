//! Addresses reported to a previous agent.

use super::*;

#[test]
fn what_an_agent_before_was_told_counts_least() {
    let inherit = |node: &mut Node| node.ledger.record_inherited(&"c1".into(), attached("u1", &[X, Y]));
    let node = || Node::new(vec![shown("u1", &[])]);
    // Until its end, whose report may lack the address.
    let mut alone = node();
    assert_eq!(inherit(&mut alone), [X, Y]);
    alone.are(&[(X, "u1"), (Y, "u1")]);
    assert_eq!(alone.del("c1", "u1", &[]), [X, Y]);
    alone.are(&[]);
    assert!(inherit(&mut alone).is_empty(), "it has ended");
    let mut gone = node();
    assert_eq!(inherit(&mut gone), [X, Y]);
    gone.gone("u1");
    gone.are(&[]);
    // The API shows another pod with one of the addresses; or another ADD has reported it.
    let mut shared = node();
    shared.api(shown("u2", &[X]));
    assert_eq!(inherit(&mut shared), [X, Y]);
    shared.are(&[(X, "u2"), (Y, "u1")]);
    let mut taken = node();
    taken.add("c2", "u2", &[X]);
    assert_eq!(inherit(&mut taken), [Y]);
    taken.are(&[(X, "u2"), (Y, "u1")]);
    // A later ADD of the pod itself is newer.
    let mut again = node();
    again.add("c2", "u1", &[Y]);
    assert!(inherit(&mut again).is_empty());
    again.are(&[(Y, "u1")]);
    assert_eq!(again.del("c2", "u1", &[Y]), [Y]);
}

#[test]
fn a_new_agent_keeps_addresses_of_a_member_that_the_api_does_not_show_until_another_pod_has_them() {
    let restarted = || {
        let mut node = Node::new(vec![shown("u1", &[X])]);
        node.add("c1", "u1", &[X, Y]);
        node.are(&[(X, "u1"), (Y, "u1")]);
        node.restart();
        node.are(&[(X, "u1"), (Y, "u1")]);
        node
    };
    let mut ended = restarted();
    assert_eq!(ended.del("c1", "u1", &[X, Y]), [X, Y]);
    ended.are(&[]);
    let mut gone = restarted();
    gone.gone("u1");
    gone.are(&[]);
    // The API shows another pod with the address, in the mesh or not; or another ADD has reported it.
    let mut shared = restarted();
    shared.api(shown("u0", &[Y]));
    shared.are(&[(X, "u1"), (Y, "u0")]);
    let mut outside = shown("u0", &[Y]);
    outside.metadata.labels.insert("istio.io/dataplane-mode".to_owned(), "none".to_owned());
    let mut left = restarted();
    left.api(outside);
    left.are(&[(X, "u1")]);
    let mut taken = restarted();
    taken.add("c2", "u2", &[Y]);
    taken.are(&[(X, "u1"), (Y, "u2")]);
}
