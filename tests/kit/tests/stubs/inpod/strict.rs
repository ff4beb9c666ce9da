//! A protocol violation ends the stub with status 1, after an answer with the reason.

use std::os::fd::AsFd as _;

use kit::{InpodOptions, InpodZtunnel, Netns, Node, NodeOptions};

use super::agent::{Agent, Connection, DONE, SNAPSHOT, add, del, field, keep, open, refusal};

struct Case {
    /// Sent, and acknowledged, before the violation.
    before: &'static [&'static [u8]],
    bad: Vec<u8>,
    /// Number of descriptors sent with it.
    fds: usize,
    answer: &'static str,
}

fn case(bad: Vec<u8>, fds: usize, answer: &'static str) -> Case {
    Case { before: &[], bad, fds, answer }
}

fn cases() -> Vec<Case> {
    let process = "failure to process message : ";
    let read = "failure to read message : ";
    let after: &[&[u8]] = &[&SNAPSHOT];
    vec![
        Case { before: after, bad: keep("a"), fds: 0, answer: process },
        Case { before: after, bad: SNAPSHOT.to_vec(), fds: 0, answer: process },
        case(field(1, &field(1, b"a")), 1, process), // without workload_info
        case(add("a"), 0, read),
        case(add("a"), 2, read),
        case(keep("a"), 1, read),
        case(del("a"), 1, read),
        case(SNAPSHOT.to_vec(), 1, read),
        case(field(2, &field(1, b"a")), 0, read), // the uid of a Del is field 2
        case(field(2, b""), 0, read),
        case(field(4, b""), 0, read),
        case([del("a"), del("b")].concat(), 0, read),
        case(vec![0x0a], 0, read),
        case(vec![0x2a, 0x04, 0x0a, 0x02, b'a'], 0, read),
        case(keep("\u{e9}").replace_last(0xff), 0, read),
        // One byte more than ztunnel reads, and a field that would end validly.
        case([vec![0x0a, 0xfe, 0x07], vec![0; 1022]].concat(), 1, read),
    ]
}

trait ReplaceLast {
    fn replace_last(self, byte: u8) -> Self;
}

impl ReplaceLast for Vec<u8> {
    fn replace_last(mut self, byte: u8) -> Self {
        *self.last_mut().unwrap() = byte;
        self
    }
}

#[test]
fn an_agent_that_breaks_the_protocol_is_told_and_ztunnel_ends() {
    let agent = Agent::listening();
    let node = Node::new(NodeOptions::default());
    let mut ztunnel = InpodZtunnel::start(&node, "ztunnel-a", &agent.path(), InpodOptions::default());
    let pod = Netns::new("pod");
    for (number, case) in cases().into_iter().enumerate() {
        let connection = agent.accept();
        for message in case.before {
            assert_eq!(connection.ask(message), DONE, "case {number}");
        }
        let error = refusal(&send(&connection, &case, &pod));
        assert!(error.starts_with(case.answer), "case {number}: {error}");
        assert_eq!(ztunnel.wait_end().code(), Some(1), "case {number}");
        assert!(ztunnel.protocol_error().is_some_and(|told| told.contains(&error)), "case {number}");
        assert!(!ztunnel.alive() && connection.receive().is_empty(), "case {number}");
        ztunnel.restart();
    }
    agent.accept();
    assert_eq!((ztunnel.alive(), ztunnel.protocol_error()), (true, None), "a new one knows nothing of it");
}

fn send(connection: &Connection, case: &Case, pod: &Netns) -> Vec<u8> {
    let fds: Vec<_> = (0..case.fds).map(|_| open(pod)).collect();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    connection.send(&case.bad, &fds);
    connection.receive()
}
