//! A node that starts many pods at the same time.

use std::thread;
use std::time::Duration;

use kit::{Netns, NodeOptions};

use super::Cluster;
use crate::fixtures::plugin::{V4, bare_pod, expected, routes, rules};

const PODS: usize = 50;
/// Time after which the plugin repeats a request that the API server has not answered.
const TRY: Duration = Duration::from_secs(5);

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
    let times: Vec<Duration> = thread::scope(|scope| {
        let adds = pods.iter().map(|(name, pod)| {
            scope.spawn(|| {
                let outcome = cluster.add(pod, name).run();
                outcome.ok();
                outcome.wall()
            })
        });
        let adds: Vec<_> = adds.collect();
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    let clean = routes(&bare_pod(V4));
    for (name, pod) in &pods {
        assert_eq!(rules(&pod.sh("iptables-save")), expected(false), "{name}");
        assert_eq!((rules(&pod.sh("ip6tables-save")), routes(pod)), (String::new(), clean.clone()), "{name}");
    }
    let asked = cluster.asked();
    assert!(asked.iter().all(|request| request.resource == "pods"), "{asked:?}");
    for ((name, _), took) in pods.iter().zip(times) {
        let of_pod = asked.iter().filter(|request| request.uri.ends_with(&format!("/pods/{name}"))).count();
        assert!(of_pod == 1 || (of_pod > 1 && took >= TRY), "{name}: {of_pod} requests in {took:?}");
    }
}
