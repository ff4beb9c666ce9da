//! A node that starts many pods at the same time.

use std::thread;

use kit::{Netns, NodeOptions};

use super::Cluster;
use crate::fixtures::plugin::{V4, bare_pod, expected, routes, rules};

const PODS: usize = 50;

#[test]
fn fifty_sidecar_pods_at_once() {
    let Some(cluster) = Cluster::start("crowd", NodeOptions::default()) else { return };
    let pods: Vec<(String, Netns)> = (0..PODS)
        .map(|at| {
            let name = format!("web-{at}");
            cluster.create(&name, |pod| pod);
            (name, bare_pod(V4))
        })
        .collect();
    thread::scope(|scope| {
        let adds = pods.iter().map(|(name, pod)| scope.spawn(|| cluster.add(pod, name).run().ok()));
        let adds: Vec<_> = adds.collect();
        adds.into_iter().for_each(|add| drop(add.join().unwrap()));
    });
    let clean = routes(&bare_pod(V4));
    for (name, pod) in &pods {
        assert_eq!(rules(&pod.sh("iptables-save")), expected(false), "{name}");
        assert_eq!((rules(&pod.sh("ip6tables-save")), routes(pod)), (String::new(), clean.clone()), "{name}");
    }
    assert_eq!(cluster.asked().len(), PODS);
}
