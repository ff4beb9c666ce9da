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
