//! Source addresses of the node's packets to its pods by its own routes: those of the kubelet's probes.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
};

use capture_modes::CaptureConfig;
use daemon_settings::{AmbientOptions, DaemonSettings};
use hostnet::RtnetlinkHandle;
use model::Family;
use netns::Netns;
use report::Observed;

use crate::{sidecar::NetnsPaths, standalone::open_node};

/// Maximum number of pods examined: the network treats all alike.
pub(crate) const MOST_PODS: usize = 64;

/// Network namespace of a pod, and its mount.
pub(crate) type PodNetns = (PathBuf, Netns);

/// Replaces sources of probes that are to be detected with the addresses from which the node reaches most of its pods. Returns each
/// of these families with its source, or why it could not be detected, so that Istio's is kept.
pub fn detect_probe_sources(settings: &mut DaemonSettings) -> Vec<(Family, Observed<IpAddr>)> {
    let Some(ambient) = &settings.ambient else { return Vec::new() };
    let Some(chosen) = ambient.agent.capture.in_pod() else { return Vec::new() };
    let mut families = chosen.within_kernel().captured_families();
    families.retain(|family| chosen.detected_probes.contains(family));
    if families.is_empty() {
        return Vec::new();
    }
    let sources = pod_netns(settings).and_then(|pods| observe_sources(ambient, &pods));
    let no_route = |family: Family| format!("the node has no {family} route to a pod that runs");
    let source_for = |family| {
        most_frequent(sources.as_ref().map_err(Clone::clone)?, family).ok_or_else(|| no_route(family))
    };
    let detected: Vec<_> = families.into_iter().map(|family| (family, source_for(family))).collect();
    let capture = settings.ambient.as_mut().map(|ambient| &mut ambient.agent.capture);
    if let Some(CaptureConfig::InPod(chosen) | CaptureConfig::Auto(chosen)) = capture {
        for (_, source) in &detected {
            match source {
                Ok(IpAddr::V4(ip)) => chosen.rules.probes.v4 = *ip,
                Ok(IpAddr::V6(ip)) => chosen.rules.probes.v6 = *ip,
                Err(_) => {}
            }
        }
    }
    detected
}

/// Returns the addresses from which the node reaches its pods: each address once per pod, because a pod may assign itself any
/// number.
pub(crate) fn observe_sources(ambient: &AmbientOptions, pods: &[PodNetns]) -> Observed<Vec<IpAddr>> {
    let pods = pods.iter().take(MOST_PODS);
    let pods: Vec<_> =
        pods.map(|(_, netns)| pod_capture::netns_addresses(netns).unwrap_or_default()).collect();
    in_node(ambient, || {
        let mut routes = RtnetlinkHandle::open().map_err(|error| error.to_string())?;
        // The source to an address of the node is that address.
        let mut source_to = |ip: &IpAddr| routes.source_to(*ip).ok().flatten().filter(|source| source != ip);
        let mut sources_of =
            |ips: &BTreeSet<IpAddr>| ips.iter().filter_map(&mut source_to).collect::<BTreeSet<_>>();
        Ok(pods.iter().flat_map(&mut sources_of).collect())
    })
}

/// Returns the network namespaces of the node's pods that are visible here.
pub(crate) fn pod_netns(settings: &DaemonSettings) -> Observed<Vec<PodNetns>> {
    let places = NetnsPaths { netns_directory: &settings.netns_directory, proc: Some(&settings.host_proc) };
    if places.are_unknown() {
        return Err(format!("{} is not there", places.netns_directory.display()));
    }
    places.list_netns().map_err(|error| error.to_string())
}

/// Observes in the node's network namespace.
pub(crate) fn in_node<T: Send>(
    ambient: &AmbientOptions,
    observe: impl FnOnce() -> Observed<T> + Send,
) -> Observed<T> {
    match open_node(ambient).map_err(|error| model::describe_error(&*error))? {
        None => observe(),
        Some(node) => node.run_in(observe).map_err(|error| error.to_string())?,
    }
}

/// Returns the most frequent source; a pod may have another network, which the node reaches by another link. Of two equally
/// frequent ones, the lower address.
fn most_frequent(sources: &[IpAddr], family: Family) -> Option<IpAddr> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| Family::from_ip(**source) == family) {
        *counts.entry(*source).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(source, count)| (*count, Reverse(*source))).map(|(source, _)| source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_most_pods_counts_in_each_family() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (sources, v4, v6) in [
            (&[][..], None, None),
            (&["10.0.0.1", "fd00::1"][..], Some("10.0.0.1"), Some("fd00::1")),
            (&["10.0.0.9", "10.0.0.1", "10.0.0.9"], Some("10.0.0.9"), None),
            (&["10.0.0.9", "10.0.0.1"], Some("10.0.0.1"), None),
        ] {
            let found = |family| most_frequent(&ips(sources), family).map(|ip| ip.to_string());
            assert_eq!((found(Family::V4).as_deref(), found(Family::V6).as_deref()), (v4, v6), "{sources:?}");
        }
    }
}
