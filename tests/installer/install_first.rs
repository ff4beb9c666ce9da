//! A first installation, a restart, and an uninstallation, as an operator sees them.

use std::fs;

use kit::{Container, Node, NodeOptions};
use serde_json::{Value, json};

fn network(node: &Node) -> Value {
    let mut network = node.conflist(&[]);
    network["plugins"][0]["mtu"] = json!(1500);
    network
}

#[test]
fn a_first_start_installs_and_the_end_of_an_uninstallation_leaves_nothing() {
    let node = Node::new(NodeOptions::default());
    let original = node.write_conflist("10-kit.conflist", &network(&node));
    let before = fs::read(&original).unwrap();
    let container = Container::new(&node).with_env("CLEANUP_ON_EXIT", "always");
    container.add_image_program("istio-iptables"); // as a third-party image might
    let mut daemon = container.start();
    daemon.wait_until_ready();

    for name in ["istio-cni", "istio-iptables"] {
        let (source, installed) = (container.source_dir().join(name), container.bin_dir().join(name));
        assert_eq!(fs::read(source).unwrap(), fs::read(installed).unwrap(), "{name}");
    }
    let conflist: Value = serde_json::from_slice(&fs::read(&original).unwrap()).unwrap();
    let plugins = conflist["plugins"].as_array().unwrap();
    assert_eq!(plugins.iter().map(|plugin| &plugin["type"]).collect::<Vec<_>>(), ["ptp", "istio-cni"]);
    assert_eq!(plugins[1]["kubernetes"]["kubeconfig"], "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig");
    assert_eq!(plugins[1].get("cniVersion"), None);
    let kubeconfig = fs::read_to_string(node.net_d().join("ZZZ-istio-cni-kubeconfig")).unwrap();
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://10.96.0.1:6443", "{kubeconfig}");
    daemon.wait_for("it is counted", |daemon| daemon.metric("istio_cni_install_ready") == Some(1.0));
    assert_eq!(daemon.metric(r#"istio_cni_installs_total{result="SUCCESS"}"#), Some(1.0));
    let log = daemon.log();
    assert!(!log.contains("a.token.of-nobody"), "{log}");

    let (status, log) = daemon.terminate();
    assert!(status.success(), "{status}: {log}");
    assert_eq!(fs::read(&original).unwrap(), before, "to the byte");
    assert_eq!(fs::read_dir(node.net_d()).unwrap().count(), 1, "{log}");
    assert_eq!(fs::read_dir(container.bin_dir()).unwrap().count(), 0, "{log}");
}
