//! Labels of a namespace and of its pods that change many times a second: pods join and leave at a bounded rate, other pods are not
//! delayed, and the last labels win.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kit::{Echo, InpodOptions, NodeOptions, Pod};

use crate::fixtures::ambient::{MESH, PORT};
use crate::fixtures::inpod::InPod;

const FLAPPING: &str = "flapping";
const MODE: &str = "istio.io/dataplane-mode";
const PODS: usize = 20;
const ATTACK: Duration = Duration::from_secs(20);
/// Interval of changes that take effect, in seconds.
const PACE: f64 = 2.0;

#[test]
fn labels_that_flap_cost_a_bounded_amount_and_delay_nobody() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    fixture.manifests.put_namespace(FLAPPING, &[]);
    fixture.start();
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peers: Vec<_> = (0..PODS).map(|at| fixture.running_pod(FLAPPING, &format!("pod-{at}"))).collect();
    let began = Instant::now();
    fixture.manifests.put_namespace(FLAPPING, &[(MODE, "ambient")]);
    for peer in &peers {
        fixture.wait_served(&ztunnel, peer);
    }
    println!("{PODS} running pods joined within {:?}", began.elapsed());
    let counted = |fixture: &mut InPod| {
        let of = |kind: &str| format!("nodeagent_reconcile_events_total{{type=\"{kind}\"}}");
        ["add", "delete"]
            .map(|kind| fixture.daemon().metric(&of(kind)).unwrap_or_default())
            .iter()
            .sum::<f64>()
    };
    let (events, cpu, log) = (counted(&mut fixture), fixture.daemon().cpu_time(), fixture.log().len());
    let (ends, attacked) = (AtomicBool::new(false), Instant::now());
    let adds = thread::scope(|scope| {
        let (manifests, peers, ends) = (&fixture.manifests, &peers, &ends);
        scope.spawn(move || {
            for round in 0_usize.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let mode = if round % 2 == 0 { "none" } else { "ambient" };
                manifests.put_namespace(FLAPPING, &[(MODE, mode)]);
                let mut manifest = peers[round % PODS].sandbox.manifest();
                manifest["metadata"]["labels"][MODE] = ["none", "ambient"][round / PODS % 2].into();
                manifests.put_pod(&manifest);
                thread::sleep(Duration::from_millis(100)); // the attack itself
            }
        });
        let (began, mut adds) = (Instant::now(), Vec::new());
        while began.elapsed() < ATTACK {
            let one = Instant::now();
            let peer = fixture.starting(Pod::new(MESH, &format!("new-{}", adds.len())));
            adds.push((one.elapsed(), peer));
            thread::sleep(Duration::from_millis(500)); // as on a real node
        }
        ends.store(true, Ordering::Relaxed);
        adds
    });
    let events = counted(&mut fixture) - events - f64::from(u32::try_from(adds.len()).unwrap());
    let cpu = fixture.daemon().cpu_time() - cpu;
    let (log, seconds) = (fixture.log().len() - log, attacked.elapsed().as_secs_f64());
    let mut took: Vec<_> = adds.iter().map(|(took, _)| *took).collect();
    took.sort();
    println!(
        "{events} times joined or left in {seconds} s, {cpu:?} of CPU, {log} bytes of log, ADDs {took:?}"
    );
    // Most of them: none may take the plugin's 10 s, after which it fails, but the machine may stall.
    assert!(took[took.len() * 3 / 4] < Duration::from_secs(2), "{took:?}");
    // The first change is immediate, and the last one may be under way.
    assert!(events <= (seconds / PACE + 2.0) * PODS as f64, "{events} in {seconds} s");
    assert!(log as f64 / seconds < 8192.0, "{log} in {seconds} s\n{}", fixture.log());
    // The last labels win.
    for (at, peer) in peers.iter().enumerate() {
        let mut manifest = peer.sandbox.manifest();
        manifest["metadata"]["labels"][MODE] = if at % 2 == 0 { "ambient" } else { "none" }.into();
        fixture.manifests.put_pod(&manifest);
    }
    for (at, peer) in peers.iter().enumerate() {
        fixture.eventually("it is as its label has it", |_| {
            if at % 2 == 0 { fixture.is_ruled(peer) } else { fixture.is_bare(peer) }
        });
    }
    assert_eq!(ztunnel.protocol_error(), None);
}
