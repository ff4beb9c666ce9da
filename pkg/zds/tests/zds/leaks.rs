//! File descriptors and threads of the whole process, which therefore must be idle otherwise.

use std::fs;
use std::os::fd::AsFd as _;

use super::*;

fn count(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn nothing_is_left_of_those_who_leave() {
    if has_run_alone("leaks::nothing_is_left_of_those_who_leave") {
        return;
    }
    let agent = Agent::with_workload();
    let sent = netns(1);
    let counts = || [count("/proc/self/fd"), count("/proc/self/task")];
    let before = counts();
    for round in 0..100 {
        match round % 4 {
            0 => drop(Ztunnel::dial(&agent.socket())),
            1 => {
                let ztunnel = agent.ztunnel();
                let _ = ztunnel.asked();
                ztunnel.try_send(ztunnel::ACK, &[sent.as_fd(); 16]).unwrap();
                ztunnel.is_closed();
            }
            2 => {
                let ztunnel = agent.ztunnel();
                ztunnel.try_send(b"junk", &[sent.as_fd()]).unwrap();
            }
            _ => drop(agent.ztunnel_with(&["a"])),
        }
        eventually(|| agent.hub.list_connections().is_empty());
    }
    // The last thread ends a moment after its last event.
    eventually(|| counts().iter().zip(before).all(|(now, before)| *now <= before));
}
