//! The counters at the uplink distinguish a pod's packets from those that ztunnel sends with its address.

use kit::{Counts, Echo, FailureKind, Proto, UplinkWatch, connect};

use super::fixture::{CAPTURED, DIRECT, Fixture, INBOUND, fixture, outside};

fn watched(fixture: &Fixture) -> (UplinkWatch<'_>, UplinkWatch<'_>) {
    let ips = fixture.pod.ips();
    (UplinkWatch::start(&fixture.node, &ips), UplinkWatch::on(&fixture.pod.netns, "eth0", &ips))
}

#[test]
fn what_the_stub_sends_for_a_pod_is_not_taken_for_the_pods_own() {
    let fixture = fixture();
    let _echo = [Echo::tcp(fixture.node.outside(), CAPTURED), Echo::tcp(&fixture.pod.netns, INBOUND)];
    let (uplink, own) = watched(&fixture);
    for v6 in [false, true] {
        let (before, own_before) = (uplink.counts(fixture.pod.ip(v6)), own.counts(fixture.pod.ip(v6)));
        connect(&fixture.pod.netns, Proto::Tcp, outside(&fixture, v6, CAPTURED)).expect("outside answers");
        let out = uplink.counts(fixture.pod.ip(v6)) - before;
        assert!(out.relayed >= 3 && out.received >= 2, "{out:?}");
        connect(fixture.node.outside(), Proto::Tcp, (fixture.pod.ip(v6), INBOUND).into())
            .expect("the pod answers");
        // The last packets of a connection follow its client's end.
        let counted = |watch: &UplinkWatch<'_>, before| watch.counts(fixture.pod.ip(v6)) - before;
        let is_counted = || counted(&uplink, before).relayed >= out.relayed + 3;
        kit::until("SYN-ACKs and answers of ztunnel's listeners are counted", is_counted);
        let both = counted(&uplink, before);
        assert_eq!((both.direct, both.resets), (0, 0), "{both:?}");
        kit::until("the pod's own packets are counted", || counted(&own, own_before).direct >= 6);
        assert_eq!(counted(&own, own_before).relayed, 0);
    }
}

#[test]
fn what_a_pod_sends_itself_is_counted() {
    let fixture = fixture();
    let _echo = Echo::tcp(fixture.node.outside(), DIRECT);
    let (uplink, _own) = watched(&fixture);
    assert_eq!(uplink.total(), Counts::default());
    for v6 in [false, true] {
        connect(&fixture.pod.netns, Proto::Tcp, outside(&fixture, v6, DIRECT)).expect("outside answers");
        let counts = uplink.counts(fixture.pod.ip(v6));
        assert!(counts.direct >= 3 && counts.relayed == 0, "{counts:?}");
    }
    // The pod acknowledges the end of each connection when its server has closed it.
    let closing = "ss -Htn state fin-wait-1 state fin-wait-2";
    kit::until("all connections are closed", || fixture.pod.netns.sh(closing).is_empty());
    let before = uplink.total();
    // Neither captured nor served: the pod's kernel refuses.
    let refused =
        connect(fixture.node.outside(), Proto::Tcp, (fixture.pod.ip(false), DIRECT).into()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Refused);
    let after = uplink.total() - before;
    assert_eq!((after.direct, after.resets, after.received), (0, 1, 1), "{after:?}");
}
