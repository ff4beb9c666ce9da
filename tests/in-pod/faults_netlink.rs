//! The kernel has no memory for answers to the agent: every one on a socket is lost (`ENOBUFS`). Callers get an error in time, no
//! thread spins or exits, and when answers arrive again all pending work is done.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kit::{Daemon, Pod};

use crate::fixtures::ambient::MESH;
use crate::fixtures::inpod::InPod;

/// The plugin's timeout for the agent in total.
const ANSWER: Duration = Duration::from_secs(20);
const MINUTE: Duration = Duration::from_secs(60);

/// While this exists, no thread of the process receives anything by `recvfrom`: netlink, and with it HTTP.
struct NoBuffers(Child);

impl NoBuffers {
    fn begin(daemon: &Daemon) -> NoBuffers {
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-e",
            "trace=recvfrom",
            "-e",
            "inject=recvfrom:error=ENOBUFS",
            "-o",
            "/dev/null",
        ]);
        command.args(["-p", &daemon.pid().to_string()]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("strace is there: hack/setup");
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "{line}");
        // It prints a line for every new thread, and would block without a reader.
        std::thread::spawn(move || errors.read_to_end(&mut Vec::new()));
        NoBuffers(child)
    }
}

impl Drop for NoBuffers {
    /// Killing it detaches it from the process.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_whose_answers_from_the_kernel_are_lost_lives_and_catches_up() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let first = fixture.captured_pod("first");
    let chain = fixture.node.conflist(&[fixture.plugin()]);
    let daemon = fixture.daemon.as_ref().unwrap();
    let (before, began) = (daemon.cpu_time(), Instant::now());
    let lost = NoBuffers::begin(daemon);
    // A pod that joins without an ADD, and several whose ADDs must fail, because their rules cannot be applied.
    let sandbox = fixture.node.pod(Pod::new(MESH, "joining"), &[]);
    fixture.manifests.put_pod(&sandbox.manifest());
    fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
    for number in 0..3 {
        let refused = fixture.add(Pod::new(MESH, &format!("refused-{number}")), &chain);
        let error = refused.expect_err("nothing of it was captured");
        assert!(error.failed.output.wall < ANSWER, "{error}");
    }
    let daemon = fixture.daemon.as_ref().unwrap();
    let busy = (daemon.cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
    assert!(busy < 0.5, "it spins: {busy:.2} of a processor\n{}", daemon.log());
    assert!(daemon.log().contains("No buffer space available"), "{}", daemon.log());
    drop(lost);
    let mut number = 0;
    fixture.within(MINUTE, "an ADD succeeds again", |fixture| {
        number += 1;
        fixture.add(Pod::new(MESH, &format!("again-{number}")), &chain).is_ok()
    });
    let late = crate::fixtures::ambient::Peer::new(sandbox);
    fixture.within(MINUTE, "the late one is captured", |fixture| fixture.is_ruled(&late));
    let _ = ztunnel.wait_for_workload(&late.sandbox.pod.uid);
    assert_eq!(ztunnel.protocol_error(), None);
    assert!(fixture.is_ruled(&first));
    fixture.daemon().wait_until_ready();
}
