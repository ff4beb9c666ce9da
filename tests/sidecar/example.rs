//! The example of CONTRIBUTING.md.

use std::net::SocketAddr;

use kit::{Echo, Pod, Proto, istio};

use crate::fixtures::plugin::PluginFixture;

#[test]
fn what_an_application_sends_reaches_its_proxy() {
    let fixture = PluginFixture::new();
    let pod = fixture.node.pod(Pod::new("shop", "web"), &[]);
    let _outside = Echo::tcp(fixture.node.outside(), 80);
    let _proxy = Echo::tcp(&pod.netns, istio::OUTBOUND);
    fixture.call("ADD", &pod.netns).run().ok();
    let target = SocketAddr::new(fixture.node.outside_ip(false), 80);
    let seen = kit::connect(&pod.netns, Proto::Tcp, target).unwrap();
    assert_eq!((seen.listener, seen.original_dst), (istio::OUTBOUND, Some(target)));
}
