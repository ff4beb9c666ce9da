//! A kernel booted with `ipv6.disable=1`, as far as another one can imitate it: neither the agent nor the plugin nor their tools
//! can create an IPv6 socket (a seccomp filter returns `EAFNOSUPPORT`, as that kernel does), and the pods have no IPv6
//! (`disable_ipv6` on all their links) and no IPv6 address. Netlink requests that such a kernel refuses succeed here: IPv6 policy
//! rules and routes.

use std::net::SocketAddr;
use std::process::Command;

use kit::{Echo, Families, InpodOptions, Node, NodeOptions, Pod, PodSandbox, Proto, TempDir, istio};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PORT, RELAYED, starting};
use crate::fixtures::inpod::{InPod, wait_relayed};
use crate::fixtures::plugin::{fake_api, injected, token};

const ONLY_V4: NodeOptions = NodeOptions { families: Families::V4 };

/// A plugin of the same name without IPv6, in its own directory.
fn plugin_without_ipv6() -> TempDir {
    let directory = TempDir::new().unwrap();
    kit::write_without_ipv6(&directory.path().join("istio-cni"), &kit::binary("istio-cni"));
    directory
}

/// A pod without IPv6, with our plugin at the end of its chain.
fn add(node: &Node, plugin: Value, pod: Pod) -> PodSandbox {
    let directory = plugin_without_ipv6();
    let off =
        ["all", "default", "lo", "eth0"].map(|name| (format!("net.ipv6.conf.{name}.disable_ipv6"), "1"));
    let tuning =
        json!({"type": "tuning", "sysctl": off.into_iter().collect::<std::collections::BTreeMap<_, _>>()});
    let runtime = node.runtime().with_plugins(directory.path());
    node.add_pod(&runtime, &node.conflist(&[tuning, plugin]), pod).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_filter_is_what_such_a_kernel_answers() {
    let directory = TempDir::new().unwrap();
    let wrapped = |program: &str| {
        let script = directory.path().join("program");
        kit::write_without_ipv6(&script, program.as_ref());
        Command::new(script)
    };
    let refused = wrapped("/usr/sbin/ip6tables-legacy").arg("-L").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("Address family not supported by protocol"), "{said}");
    let granted = wrapped("/usr/sbin/iptables-legacy").arg("-L").output().unwrap();
    assert!(granted.status.success(), "{granted:?}");
}

#[test]
fn a_pod_with_a_sidecar_is_redirected() {
    let node = Node::new(ONLY_V4);
    let api = fake_api(&node, |request| kit::FakeReply::Json(200, injected(request)));
    let kubeconfig = istio::write_file(&node, "kubeconfig", &api.kubeconfig(&token()));
    let plugin = json!({"type": "istio-cni", "log_level": "debug", "kubernetes": {"kubeconfig": kubeconfig}});
    let sandbox = add(&node, plugin, Pod::new("shop", "web"));
    let rules = sandbox.netns.sh("iptables-save");
    let redirect = "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert!(rules.lines().any(|rule| rule == redirect), "{rules}");
    assert_eq!(sandbox.netns.sh("ip6tables-nft-save"), "");
    sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_pod_is_captured_from_within() {
    let mut fixture = InPod::stopped(ONLY_V4, &[]);
    fixture.container.set_without_ipv6();
    fixture.start();
    // Health and metrics are then served on IPv4.
    let captured = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"captured\"}";
    assert_eq!(fixture.daemon().metric(captured), Some(0.0));
    let options = InpodOptions { ipv6: false, ..InpodOptions::default() };
    let ztunnel = fixture.ztunnel("ztunnel-a", options);
    let outside = SocketAddr::new(fixture.node.outside_ip(false), PORT);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = Pod::new(MESH, "web");
    fixture.manifests.put_pod(&starting(&pod));
    let sandbox = add(&fixture.node, fixture.plugin(), pod);
    let _ = fixture.processes.add(&sandbox.pod.uid, &sandbox.netns);
    fixture.manifests.put_pod(&sandbox.manifest());
    fixture.wait_logged("pod captured", "pod=web");
    let _ = kit::connect(&sandbox.netns, Proto::Tcp, outside).unwrap();
    wait_relayed(&ztunnel, sandbox.ip(false), outside);
    // Nothing is changed for IPv6.
    assert_eq!(sandbox.netns.sh("ip -6 rule").matches("0x111").count(), 0);
    assert_eq!(sandbox.netns.sh("ip6tables-nft-save"), "");
    sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_pod_is_captured_on_the_node() {
    let mut fixture = Ambient::stopped(ONLY_V4, &[("AMBIENT_IPV6", "false")]);
    fixture.container.set_without_ipv6();
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let outside = SocketAddr::new(fixture.node.outside_ip(false), PORT);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = Pod::new(MESH, "web");
    fixture.manifests.put_pod(&starting(&pod));
    let sandbox = add(&fixture.node, fixture.plugin(), pod);
    fixture.manifests.put_pod(&sandbox.manifest());
    let seen = kit::connect(&sandbox.netns, Proto::Tcp, outside).unwrap();
    assert!(RELAYED.contains(&seen.peer.port()), "{seen:?}\n{}", fixture.log());
    sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}
