//! Owner of an address when the API reports late, a DEL arrives late, or the agent was restarted in between.

use kit::{Echo, Pod};
use report::CaptureState;
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer};

/// A pod's object as the API has it, with an annotation that `number` changes.
fn touched(peer: &Peer, number: u32) -> Value {
    let mut manifest = peer.sandbox.manifest();
    manifest["metadata"]["annotations"]["touched.istio.io/times"] = json!(number.to_string());
    manifest
}

fn newer(mut manifest: Value) -> Value {
    manifest["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:09Z");
    manifest
}

/// Asserts that the labels of the second pod's own namespace decide, whatever the state of the first one's object.
fn assert_second(fixture: &Ambient, second: &Peer, enrolled: bool) {
    if enrolled {
        fixture.assert_owned(second);
    } else {
        fixture.assert_free(second);
    }
    assert_eq!(fixture.is_captured(second), enrolled, "{}", fixture.log());
    second.sandbox.check().unwrap_or_else(|error| panic!("{error}\n{}", fixture.log()));
}

fn reuse(restart: bool, namespace: &str, enrolled: bool) {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let chain = fixture.one_address();
    let mut first = fixture.add(Pod::new(MESH, "first"), &chain).unwrap();
    fixture.manifests.put_pod(&first.sandbox.manifest());
    fixture.settle();
    fixture.assert_owned(&first);
    first.sandbox.delete().unwrap();
    fixture.assert_free(&first);
    if restart {
        fixture.daemon.take().unwrap().kill();
        fixture.start();
    }
    let second = fixture.add(Pod::new(namespace, "second"), &chain).unwrap();
    assert_eq!(second.sandbox.ips(), first.sandbox.ips());
    assert_second(&fixture, &second, enrolled);
    fixture.settle();
    assert_second(&fixture, &second, enrolled);
    first.sandbox.delete_again().unwrap();
    fixture.manifests.put_pod(&touched(&first, 1));
    fixture.settle();
    assert_second(&fixture, &second, enrolled);
    fixture.manifests.put_pod(&newer(second.sandbox.manifest()));
    fixture.settle();
    assert_second(&fixture, &second, enrolled);
    // DEL of the first sandbox once more, with everything that the runtime kept of it.
    let late = first.sandbox.single("DEL", "istio-cni");
    assert!(late.output.status.success());
    assert_second(&fixture, &second, enrolled);
    if restart {
        fixture.daemon.take().unwrap().kill();
        fixture.start();
        assert_second(&fixture, &second, enrolled);
    }
    let mut ended = touched(&first, 2);
    ended["status"]["phase"] = json!("Failed");
    fixture.manifests.put_pod(&ended);
    fixture.settle();
    assert_second(&fixture, &second, enrolled);
    fixture.manifests.remove_pod(MESH, "first");
    fixture.settle();
    assert_second(&fixture, &second, enrolled);
}

#[test]
fn a_pod_of_the_mesh_gets_the_address_of_one_that_the_api_still_shows() {
    reuse(false, MESH, true);
}

#[test]
fn a_pod_of_the_mesh_gets_it_and_the_agent_is_started_anew_in_between() {
    reuse(true, MESH, true);
}

#[test]
fn a_pod_outside_gets_the_address_of_one_of_the_mesh() {
    reuse(false, PLAIN, false);
}

#[test]
fn a_pod_outside_gets_it_and_the_agent_is_started_anew_in_between() {
    reuse(true, PLAIN, false);
}

#[test]
fn a_new_sandbox_of_the_same_pod_takes_over_whenever_the_old_one_is_deleted() {
    for overlap in [false, true] {
        let mut fixture = Ambient::new(&[]);
        let _ztunnel = fixture.ztunnel("ztunnel-a");
        let _outside = Echo::tcp(fixture.node.outside(), PORT);
        let mut old = fixture.pod(MESH, "web");
        fixture.settle();
        let pod = Pod::new(MESH, "web").uid(&old.sandbox.pod.uid);
        let chain = fixture.node.conflist(&[fixture.plugin()]);
        if !overlap {
            old.sandbox.delete().unwrap();
            fixture.assert_free(&old);
        }
        // The API shows the old addresses until the kubelet reports the new ones.
        let new = fixture.node.add_pod(&fixture.node.runtime(), &chain, pod).map(Peer::new).unwrap();
        assert!(fixture.is_captured(&new));
        if overlap {
            old.sandbox.delete().unwrap();
        }
        for _ in 0..2 {
            fixture.settle();
            fixture.assert_free(&old);
            fixture.assert_owned(&new);
            old.sandbox.delete_again().unwrap();
        }
        fixture.manifests.put_pod(&new.sandbox.manifest());
        fixture.settle();
        fixture.assert_free(&old);
        fixture.assert_owned(&new);
        assert!(fixture.is_captured(&new));
    }
}

/// As after a kubelet's loss of its pods: the same pod gets the address again.
#[test]
fn a_new_sandbox_of_the_same_pod_may_have_the_same_address() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let chain = fixture.one_address();
    let mut old = fixture.add(Pod::new(MESH, "web"), &chain).unwrap();
    fixture.manifests.put_pod(&old.sandbox.manifest());
    fixture.settle();
    for round in 0..3 {
        old.sandbox.delete().unwrap();
        let pod = Pod::new(MESH, "web").uid(&old.sandbox.pod.uid);
        let new = fixture.node.add_pod(&fixture.node.runtime(), &chain, pod).map(Peer::new).unwrap();
        assert!(fixture.is_captured(&new), "{round}");
        old.sandbox.delete_again().unwrap();
        fixture.settle();
        fixture.assert_owned(&new);
        assert!(fixture.is_captured(&new), "{round}");
        old = new;
    }
}

/// The API shows the address of an evicted ztunnel until its object is deleted, and that of any pod for a while after the node's
/// restart.
#[test]
fn a_pod_with_an_address_that_a_ztunnel_had_is_not_taken_for_it() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(MESH, "web");
    fixture.wait_enrolled(&pod, true);
    for phase in ["Failed", "Running"] {
        let name = format!("ztunnel-{}", phase.to_lowercase());
        let mut manifest = ztunnel.pod_manifest(false, "2026-06-01T00:00:00Z");
        manifest["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        manifest["metadata"]["name"] = json!(name);
        manifest["status"]["phase"] = json!(phase);
        set_addresses(&mut manifest, &pod.sandbox.ips());
        fixture.manifests.put_pod(&manifest);
    }
    fixture.settle();
    let links: Vec<Value> = serde_json::from_str(&pod.sandbox.netns.sh("ip -json link")).unwrap();
    assert_eq!(links.len(), 2, "lo and its own: {links:?}");
    assert!(fixture.is_captured(&pod));
}

/// As while a cluster becomes dual-stack.
#[test]
fn a_pod_is_held_whose_ztunnel_lacks_one_of_its_families() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "web");
    fixture.eventually("it is captured", |fixture| {
        fixture.explain("mesh/web").capture == Some(CaptureState::Captured)
    });
    let mut manifest = ztunnel.pod_manifest(true, "2026-06-01T00:00:00Z");
    set_addresses(&mut manifest, &[ztunnel.pod().ips()[0]]);
    fixture.manifests.put_pod(&manifest);
    fixture
        .eventually("it is held", |fixture| fixture.explain("mesh/web").capture == Some(CaptureState::Held));
    drop(pod);
}

/// The API shows only one address of each family.
#[test]
fn a_second_address_of_a_family_stays_enrolled_when_the_agent_restarts() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let mut chain = fixture.node.conflist(&[fixture.plugin()]);
    let ranges = &mut chain["plugins"][0]["ipam"]["ranges"];
    ranges.as_array_mut().unwrap().push(json!([{"subnet": "10.222.7.0/24"}]));
    let peer = fixture.add(Pod::new(MESH, "web"), &chain).unwrap();
    assert_eq!(peer.sandbox.ips().len(), 3);
    let mut manifest = peer.sandbox.manifest();
    set_addresses(&mut manifest, &[peer.ip(false), peer.ip(true)]);
    fixture.manifests.put_pod(&manifest);
    fixture.settle();
    fixture.assert_owned(&peer);
    fixture.restart();
    fixture.settle();
    fixture.assert_owned(&peer);
    peer.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

fn set_addresses(manifest: &mut Value, ips: &[std::net::IpAddr]) {
    manifest["status"]["podIP"] = json!(ips[0]);
    manifest["status"]["podIPs"] = ips.iter().map(|ip| json!({"ip": ip})).collect();
}
