//! Which pods are captured, and from when to when.

use std::{fs, net::SocketAddr, time::Duration};

use kit::{Daemon, Echo, Live, LiveConnections, Netns, NodeOptions, Pod, Ztunnel, ZtunnelOptions};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer, RELAYED};

const MODE: &str = "istio.io/dataplane-mode";

fn label(mut manifest: Value, value: &str) -> Value {
    manifest["metadata"]["labels"][MODE] = json!(value);
    manifest
}

fn annotate(mut manifest: Value, key: &str, value: &str) -> Value {
    manifest["metadata"]["annotations"][key] = json!(value);
    manifest
}

#[test]
fn running_pods_join_and_leave_with_the_label_of_their_namespace_or_their_own() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(PLAIN, "web");
    let other = fixture.pod_without_plugin("unlabelled", "other");
    fixture.manifests.put_namespace("unlabelled", &[]);
    let manifest = pod.sandbox.manifest();
    assert!(!fixture.is_captured(&pod) && !fixture.is_reached_through_ztunnel(&pod));

    let joins = |fixture: &Ambient| {
        fixture.wait_enrolled(&pod, true);
        assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
        fixture.assert_owned(&pod);
        assert!(!fixture.is_captured(&other));
    };
    let leaves = |fixture: &Ambient| {
        fixture.wait_enrolled(&pod, false);
        fixture.eventually("its routes are gone", |fixture| {
            pod.sandbox.ips().iter().all(|ip| fixture.member_routes(*ip).is_empty())
        });
        assert!(!fixture.is_captured(&pod) && !fixture.is_reached_through_ztunnel(&pod));
    };
    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    joins(&fixture);
    fixture.manifests.put_namespace(PLAIN, &[(MODE, "Ambient")]);
    leaves(&fixture);
    fixture.manifests.put_pod(&label(manifest.clone(), "ambient"));
    joins(&fixture);
    fixture.manifests.put_pod(&manifest);
    leaves(&fixture);
    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    joins(&fixture);
    fixture.manifests.put_pod(&label(manifest.clone(), "none"));
    leaves(&fixture);
    fixture.manifests.put_pod(&manifest);
    joins(&fixture);
}

#[test]
fn pods_of_a_node_that_disables_ipv6_for_new_links_are_captured() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let ztunnel = Ztunnel::start(&fixture.node, "ztunnel-a", ZtunnelOptions::default());
    let pod = fixture.pod_without_plugin(MESH, "web");
    fixture.node.netns().sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    ztunnel.pod().netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
    fixture.announce(&ztunnel, true);
    fixture.start();
    fixture.wait_active(&ztunnel);
    fixture.wait_enrolled(&pod, true);
    assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
}

/// The file serves pods that start while there is no agent.
#[test]
fn an_agent_that_cannot_write_the_shared_configuration_enrols_pods_and_reports_it() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    drop(fixture.daemon.take());
    let file = fixture.config_file();
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap(); // so that no file can replace it, even by root
    fixture.daemon = Some(fixture.container.start_with(&fixture.arguments, &[]));
    let error = "cannot write /etc/ambient-config/config.json: it is a directory, not a regular file";
    let reports = |daemon: &Daemon| daemon.has_logged("reconcile failed", &[("error", error)]);
    fixture.daemon().wait_for("the agent reports it", reports);
    let pod = fixture.pod(MESH, "web");
    assert!(fixture.is_captured(&pod) && fixture.is_reached_through_ztunnel(&pod));
    assert!(!fixture.daemon().is_ready());
    fs::remove_dir(&file).unwrap();
    fixture.daemon().wait_for("it is written", |daemon| daemon.is_ready());
    assert!(file.is_file());
}

/// Drops and counts connection attempts to this port.
fn deafen(netns: &Netns, port: u16) {
    let drops =
        ["ipv4", "ipv6"].map(|family| format!("meta nfproto {family} tcp dport {port} counter drop\n"));
    let hook = "type filter hook input priority 0;";
    let chain = format!("chain in {{\n{hook}\n{}}}", drops.concat());
    netns.pipe("nft -f -", &format!("table inet kit_deaf {{\n{chain}\n}}\n"));
}

/// Whether attempts were dropped in each family.
fn was_called(netns: &Netns) -> bool {
    let packets = netns.packets("inet kit_deaf");
    !packets.is_empty() && !packets.contains(&0)
}

/// The SYN is then retransmitted. `nat` does not see it again.
#[test]
fn connections_that_are_unanswered_when_their_pod_joins_are_captured() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(PLAIN, "web");
    let (inside, outside) = (&pod.sandbox.netns, fixture.node.outside());
    deafen(outside, PORT);
    deafen(inside, pod.at(false).port());
    let mut clients = [inside, outside].map(|netns| LiveConnections::start(netns, Live::default()));
    let mut ids = Vec::new();
    for v6 in [false, true] {
        let server = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        for (who, target) in [server, pod.at(v6)].into_iter().enumerate() {
            ids.push((who, clients[who].begin(target, 1, Duration::from_secs(50))[0]));
        }
    }
    fixture.eventually("all have tried", |_| was_called(inside) && was_called(outside));
    fixture.manifests.put_namespace(PLAIN, &[(MODE, "ambient")]);
    fixture.eventually("it is captured", |fixture| {
        pod.sandbox.ips().iter().all(|ip| fixture.has_member(*ip) && !fixture.member_routes(*ip).is_empty())
    });
    for netns in [inside, outside] {
        netns.sh("nft delete table inet kit_deaf");
    }
    for (who, id) in ids {
        let opened = clients[who].outcome(id).unwrap_or_else(|error| panic!("{who} {id}: {error}"));
        assert!(RELAYED.contains(&opened.seen.peer.port()), "{who}: {opened:?} is not captured");
    }
    for mut client in clients {
        client.wait_round();
        client.wait_round();
        client.finish().assert_unbroken();
    }
}

#[test]
fn pods_that_nothing_may_capture_are_left_alone() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    for namespace in ["istio-system", "kube-system"] {
        fixture.manifests.put_namespace(namespace, &[(MODE, "ambient")]);
    }
    let mut number = 0;
    let mut manifest = |namespace: &str, name: &str| {
        number += 1;
        let ips = [format!("10.201.0.{number}"), format!("fd00:201::{number}")];
        Pod::new(namespace, name).manifest(&ips.map(|ip| ip.parse().unwrap()))
    };
    let changed = |mut manifest: Value, change: fn(&mut Value)| {
        change(&mut manifest);
        manifest
    };
    let fine = manifest(MESH, "fine");
    let pods = [
        annotate(manifest(MESH, "opted-out"), "ambient.istio.io/redirection", "disabled"),
        changed(annotate(manifest(MESH, "sidecar"), "sidecar.istio.io/status", "{}"), |pod| {
            pod["spec"]["containers"][0]["name"] = json!("istio-proxy");
        }),
        annotate(manifest(MESH, "claims-one"), "sidecar.istio.io/status", "{}"),
        changed(manifest(MESH, "host"), |pod| pod["spec"]["hostNetwork"] = json!(true)),
        changed(manifest(MESH, "done"), |pod| pod["status"]["phase"] = json!("Succeeded")),
        changed(manifest(MESH, "failed"), |pod| pod["status"]["phase"] = json!("Failed")),
        label(manifest(MESH, "refuses"), "none"),
        label(changed(manifest(MESH, "host-2"), |pod| pod["spec"]["hostNetwork"] = json!(true)), "ambient"),
        manifest("kube-system", "istio-cni-node-x7k2p"),
        changed(manifest(MESH, "elsewhere"), |pod| pod["spec"]["nodeName"] = json!("node-2")),
    ];
    pods.iter().chain([&fine]).for_each(|pod| fixture.manifests.put_pod(pod));
    fixture.settle();
    let ips = |pod: &Value| -> Vec<std::net::IpAddr> {
        let ips = pod["status"]["podIPs"].as_array().unwrap().iter();
        ips.map(|ip| ip["ip"].as_str().unwrap().parse().unwrap()).collect()
    };
    let enrolled = |fixture: &Ambient, pod: &Value| ips(pod).into_iter().any(|ip| fixture.has_member(ip));
    for pod in &pods {
        assert!(!enrolled(&fixture, pod), "{pod:#}\n{}", fixture.log());
    }
    assert!(ztunnel.pod().ips().into_iter().all(|ip| !fixture.has_member(ip)));
    assert!(enrolled(&fixture, &fine));
    // Pods that request capture but must not have it are counted by reason.
    for reason in ["opted-out", "sidecar", "no-proxy", "host-network", "terminated", "agent-pod", "ztunnel"] {
        let sample = format!("istio_cni_ambient_refused_pods{{reason=\"{reason}\"}}");
        let is_counted = |daemon: &Daemon| daemon.metric(&sample).is_some_and(|count| count >= 1.0);
        fixture.daemon().wait_for(reason, is_counted);
    }
    let done = changed(fine.clone(), |pod| pod["status"]["phase"] = json!("Succeeded"));
    fixture.manifests.put_pod(&done);
    fixture.eventually("a pod that has ended leaves", |fixture| !enrolled(fixture, &fine));
}

#[test]
fn a_new_pod_is_captured_from_its_first_packet_to_its_del() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    for late in [false, true] {
        let mut pod = fixture.starting(Pod::new(MESH, &format!("web-{late}")));
        assert!(fixture.is_captured(&pod), "nobody but the plugin has told of it");
        fixture.assert_owned(&pod);
        fixture.settle();
        fixture.assert_owned(&pod);
        if !late {
            fixture.manifests.put_pod(&pod.sandbox.manifest());
            fixture.settle();
            fixture.assert_owned(&pod);
        }
        pod.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
        pod.sandbox.delete().unwrap();
        fixture.assert_free(&pod);
        fixture.settle();
        fixture.assert_free(&pod);
        // The API's object is older than the pod's end.
        let mut manifest = pod.sandbox.manifest();
        manifest["metadata"]["annotations"]["touched.istio.io/late"] = json!("yes");
        fixture.manifests.put_pod(&manifest);
        fixture.settle();
        fixture.assert_free(&pod);
        pod.sandbox.delete_again().unwrap();
        fixture.manifests.remove_pod(MESH, &pod.sandbox.pod.name);
        fixture.settle();
        fixture.assert_free(&pod);
    }
}

#[test]
fn check_sees_what_somebody_took_away() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let (pod, plain) = (fixture.pod(MESH, "web"), fixture.pod(PLAIN, "plain"));
    fixture.settle();
    for peer in [&pod, &plain] {
        peer.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
    }
    let ip = pod.ip(true);
    // The agent observes at intervals, too, and may repair before the check.
    let error = (0..20).find_map(|_| {
        fixture.node.netns().sh(&format!("ipset del -exist ztunnel-pods-ips-v6 {ip}"));
        pod.sandbox.check().err()
    });
    let error = error.expect("CHECK notices nothing");
    assert_eq!(error.failed.plugin, "istio-cni");
    let text = error.error.to_string();
    for part in ["pod mesh/web bypasses the mesh", &ip.to_string(), "enrolled addresses"] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    fixture.settle(); // any change starts a pass
    fixture.assert_owned(&pod);
    pod.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn gc_releases_what_is_not_listed_and_status_does_not_wait_for_the_agent() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let [stays, goes] = ["stays", "goes"].map(|name| fixture.pod(MESH, name));
    let plain = fixture.pod(PLAIN, "plain");
    fixture.settle();
    let runtime = fixture.node.runtime();
    let chain = json!({"cniVersion": "1.1.0", "name": "kit", "plugins": [fixture.plugin()]});
    // Another network that also has our entry, and no container.
    let other = json!({"cniVersion": "1.1.0", "name": "other", "plugins": [fixture.plugin()]});
    runtime.gc(&other, &[]).unwrap_or_else(|error| panic!("{error}"));
    [&stays, &goes].into_iter().for_each(|pod| fixture.assert_owned(pod));
    let listed = [&stays, &plain].map(|peer| (peer.sandbox.pod.container_id.as_str(), "eth0"));
    runtime.gc(&chain, &listed).unwrap_or_else(|error| panic!("{error}"));
    fixture.assert_owned(&stays);
    fixture.assert_free(&goes);
    fixture.settle();
    fixture.assert_free(&goes);
    fixture.assert_owned(&stays);

    runtime.status(&chain).unwrap_or_else(|error| panic!("{error}"));
    fixture.daemon.take().unwrap().kill();
    // Otherwise the agent's own pod would never start on a node that is not ready without the agent.
    runtime.status(&chain).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn an_exception_that_a_pod_asks_for_is_refused_and_the_pod_is_captured_as_a_whole() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let annotation = "cni.istio.io/excludeOutboundPorts";
    let pod = fixture.starting(Pod::new(MESH, "web").annotation(annotation, &PORT.to_string()));
    fixture.manifests.put_pod(&pod.sandbox.manifest());
    let plain = fixture.pod(MESH, "plain");
    let refused = |fixture: &Ambient, peer: &Peer| {
        let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
        let state: Value = serde_json::from_slice(&state).unwrap_or_default();
        let pods = state["pods"].as_array().cloned().unwrap_or_default();
        let shown = pods.iter().find(|shown| shown["uid"] == peer.sandbox.pod.uid.as_str());
        shown.map(|shown| shown["refusedExceptions"].clone()).unwrap_or_default()
    };
    let why = "has no effect: node-level capture has no exceptions";
    let expected = json!([format!("annotation {annotation} of the pod {why}")]);
    fixture.eventually("it is refused", |fixture| refused(fixture, &pod) == expected);
    assert!(refused(&fixture, &plain).as_array().is_none_or(Vec::is_empty));
    assert!(fixture.is_captured(&pod) && fixture.is_captured(&plain));
}
