//! Services, and the objects of pods in a directory.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use kit::{
    Echo, Manifests, Node, NodeOptions, Pod, Proto, ProxyMode, Service, Ztunnel, ZtunnelOptions, connect,
};
use serde_json::{Value, json};

#[test]
fn a_service_leads_from_pod_node_and_outside_to_its_endpoint() {
    let node = Node::new(NodeOptions::default());
    let (client, server) =
        (node.pod(Pod::new("default", "client"), &[]), node.pod(Pod::new("default", "server"), &[]));
    let _echo = [Echo::tcp(&server.netns, 8080), Echo::udp(&server.netns, 8080)];
    for (v6, vip, masqueraded) in [(false, "10.96.7.7", "10.96.7.8"), (true, "fd00:96::77", "fd00:96::78")] {
        let at = |ip: &str| SocketAddr::from((ip.parse::<IpAddr>().unwrap(), 53));
        let backend = (server.ip(v6), 8080).into();
        node.service(&Service::new(at(vip), backend));
        node.service(&Service::new(at(masqueraded), backend).masqueraded());
        for proto in [Proto::Tcp, Proto::Udp] {
            for from in [&client.netns, node.netns(), node.outside()] {
                assert_eq!(connect(from, proto, at(vip)).expect("the server answers").listener, 8080);
            }
            let seen = connect(&client.netns, proto, at(vip)).expect("the server answers");
            assert_eq!(seen.peer.ip(), client.ip(v6));
            let seen = connect(&client.netns, proto, at(masqueraded)).expect("the server answers");
            assert_ne!(seen.peer.ip(), client.ip(v6));
        }
        // A pod that is its own endpoint reaches itself only if masqueraded.
        connect(&server.netns, Proto::Tcp, at(vip)).expect("the server answers itself");
    }
}

#[test]
fn a_service_can_be_made_with_the_older_backend() {
    let node = Node::new(NodeOptions::default());
    let server = node.pod(Pod::new("default", "server"), &[]);
    let _echo = Echo::tcp(&server.netns, 8080);
    for (v6, vip) in [(false, "10.96.7.7:80"), (true, "[fd00:96::77]:80")] {
        let vip = vip.parse().unwrap();
        node.service(&Service::new(vip, (server.ip(v6), 8080).into()).by(ProxyMode::LegacyIptables));
        connect(node.outside(), Proto::Tcp, vip).expect("the server answers");
    }
    assert_eq!(node.netns().sh("nft list ruleset"), "");
}

fn read(manifests: &Manifests, file: &str) -> Value {
    serde_json::from_slice(&fs::read(manifests.path().join(file)).unwrap()).unwrap()
}

#[test]
fn objects_of_pods_and_namespaces_come_and_go_as_files() {
    let node = Node::new(NodeOptions::default());
    let app = node.pod(Pod::new("shop", "cart").label("app", "cart"), &[]);
    let options = ZtunnelOptions { dns_capture: true, ..ZtunnelOptions::default() };
    let ztunnel = Ztunnel::start(&node, "ztunnel-x", options);
    let manifests = Manifests::new();
    manifests.put_namespace("shop", &[("istio.io/dataplane-mode", "ambient")]);
    manifests.put_pod(&app.manifest());
    manifests.put_pod(&ztunnel.pod_manifest(false, "2026-02-03T04:05:06Z"));
    assert_eq!(
        read(&manifests, "namespace_shop.json")["metadata"]["labels"]["istio.io/dataplane-mode"],
        "ambient"
    );
    let read_app = read(&manifests, "pod_shop_cart.json");
    assert_eq!(read_app["metadata"]["uid"], app.pod.uid);
    assert_eq!(read_app["metadata"]["labels"]["app"], "cart");
    assert_eq!(read_app["spec"]["nodeName"], "node-1");
    let ips: Vec<_> = app.ips().iter().map(ToString::to_string).collect();
    assert_eq!((read_app["status"]["podIP"].as_str(), ips.len()), (Some(ips[0].as_str()), 2));
    assert_eq!(read_app["status"]["podIPs"][1]["ip"], ips[1]);
    let read_ztunnel = read(&manifests, "pod_istio-system_ztunnel-x.json");
    assert_eq!(read_ztunnel["metadata"]["creationTimestamp"], "2026-02-03T04:05:06Z");
    assert_eq!(read_ztunnel["status"]["conditions"][1]["status"], "False");
    manifests.put_pod(&ztunnel.pod_manifest(true, "2026-02-03T04:05:06Z"));
    let read_ztunnel = read(&manifests, "pod_istio-system_ztunnel-x.json");
    assert_eq!(read_ztunnel["status"]["conditions"][1]["status"], "True");
    assert_eq!(read_ztunnel["spec"]["containers"][0]["env"][0]["value"], "true");
    manifests.remove_pod("shop", "cart");
    assert_eq!(fs::read_dir(manifests.path()).unwrap().count(), 2);
    let path = manifests.path();
    drop(manifests);
    assert!(!path.exists());
}

#[test]
fn a_manifest_is_one_that_the_api_server_takes() {
    let Some(api) = kit::ApiServer::shared() else { return };
    let node = Node::new(NodeOptions::default());
    let ztunnel = Ztunnel::start(&node, "ztunnel-y", ZtunnelOptions::default());
    // Another test may have created it.
    let namespace = json!({"metadata": {"name": "istio-system"}});
    api.admin().request("POST", "/api/v1/namespaces", Some(&namespace));
    let manifest = ztunnel.pod_manifest(true, "2026-02-03T04:05:06Z");
    api.create_pod(&manifest);
    let path = "/api/v1/namespaces/istio-system/pods/ztunnel-y";
    api.admin().patch_status(path, &manifest["status"]);
    let stored = api.admin().get(path);
    assert_eq!(stored["status"]["podIPs"], manifest["status"]["podIPs"]);
    assert_eq!(stored["status"]["conditions"][1]["status"], "True");
    api.admin().delete(path);
}
