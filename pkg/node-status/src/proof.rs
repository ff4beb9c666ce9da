//! Proof by packets: finds the pod's network namespace and its desired rules, and has packets sent there.

use std::sync::Arc;

use ::proof::{InboundSpec, ProofSpec, ProxyIdentity};
use agent::{AgentSnapshot, CaptureSnapshot};
use agent_protocol::PodRecord;
use enrolment::{EnrolmentPolicy, PodDecision, SidecarRedirect};
use model::{Family, Reason};
use netns::Netns;
use redirect::FamilyChoice;
use report::{NetnsRef, PodState, Proof, RedirectionMode, StateReport};
use rules::RuleSet;

use crate::{NodeInspector, inpod::netns_ref, records, sidecar};

/// Namespace of the pod, and the expected redirection in it; else why nothing can be tested, as a clause.
type ProofTarget = Result<(Arc<Netns>, ProofSpec), String>;

/// Reason why a pod with node-level capture cannot be proven, as a clause.
pub const NODE_LEVEL: &str = "the node redirects its traffic: nothing in its own namespace shows that";

impl NodeInspector {
    /// Proves by packets how the traffic of a pod of `state` is redirected. Blocks, for about [`proof::LIMIT`].
    ///
    /// # Errors
    /// In ambient mode: the reconciler does not answer.
    pub fn prove_pod(
        &self,
        state: &StateReport,
        records: &[Arc<PodRecord>],
        namespace: &str,
        name: &str,
    ) -> Result<Proof, Reason> {
        let title = format!("{namespace}/{name}");
        let Some(pod) = state.pod(namespace, name) else {
            let why = "the node has no such pod, or its agent does not follow it";
            return Ok(Proof::untested(title, !state.knows_all_pods(), why.to_owned()));
        };
        let target = match pod.mode {
            None => Err(format!("it is outside of the mesh: {}", pod.reason.message)),
            Some(RedirectionMode::Node) => Err(NODE_LEVEL.to_owned()),
            Some(RedirectionMode::InPod) => self.in_pod_target(&*self.agent_snapshot()?, pod),
            Some(RedirectionMode::Sidecar) => self.sidecar_target(records, pod),
        };
        // Without ambient mode nothing else is done in the node's namespace, which the agent need not share.
        let opened = || Netns::open(self.settings.host_proc.join("1/ns/net")).ok();
        let found = if self.node.is_none() && self.settings.ambient.is_none() { opened() } else { None };
        let node = self.node.as_ref().or(found.as_ref());
        let proven = target
            .and_then(|(netns, spec)| ::proof::prove(&netns, node, &spec).map_err(|error| error.to_string()));
        Ok(match proven {
            Ok(paths) if paths.is_empty() => {
                Proof::untested(title, true, "none of its traffic is to be redirected".to_owned())
            }
            Ok(paths) => Proof { pod: title, found: true, message: None, paths },
            Err(why) => Proof::untested(title, true, why),
        })
    }

    fn in_pod_target(&self, snapshot: &AgentSnapshot, pod: &PodState) -> ProofTarget {
        let ambient = self.settings.ambient.as_ref();
        let chosen = ambient.and_then(|ambient| ambient.agent.capture.in_pod());
        let enrolled_pod = match &snapshot.capture {
            CaptureSnapshot::InPod { enrolled, .. } => enrolled.get(&pod.uid),
            _ => None,
        };
        let Some((chosen, enrolled_pod)) = chosen.zip(enrolled_pod).filter(|(_, pod)| !pod.leaving) else {
            return Err("the agent does not capture it".to_owned());
        };
        if enrolled_pod.options.open {
            return Err("no ztunnel is available, and the pod is not captured without one".to_owned());
        }
        let netns = enrolled_pod.netns.clone().ok_or_else(|| unobserved_reason(pod))?;
        let rules = |family| (family, rules::inpod::pod_rules(&chosen.rules, &enrolled_pod.options, family));
        let rules =
            chosen.captured_families().into_iter().filter(|family| has_family(pod, *family)).map(rules);
        let inbound = InboundSpec { tunnel: chosen.rules.tunnel, probes: Some(chosen.rules.probes) };
        let proxy = ProxyIdentity::Mark(chosen.rules.proxy);
        Ok((netns, ProofSpec { rules: rules.collect(), proxy, inbound }))
    }

    fn sidecar_target(&self, records: &[Arc<PodRecord>], pod: &PodState) -> ProofTarget {
        let redirect = self.sidecar_redirect(records, pod);
        let redirect = redirect
            .ok_or("neither the API server nor a record of its ADD describes what is to be redirected")?;
        let netns = self.resolve_netns(pod.kernel.netns.ok_or_else(|| unobserved_reason(pod))?)?;
        let choice = FamilyChoice::by_setting(redirect.dual_stack);
        let families = netns.run_in(|| choice.choose_in_netns()).map_err(|error| error.to_string())?;
        let families = families.map_err(|error| error.to_string())?;
        let config = &redirect.config;
        let rules = |family| (family, rules::sidecar::rule_set(config, family));
        let rules: Vec<(Family, RuleSet)> =
            families.into_iter().filter(|family| has_family(pod, *family)).map(rules).collect();
        let owner = config.proxy_uids.first().zip(config.proxy_gids.first());
        let (uid, gid) = owner.map(|(uid, gid)| (*uid, *gid)).ok_or("its rules name no user of the proxy")?;
        let users = netns.foreign_owner().map_err(|error| error.to_string())?;
        let on_node = match users {
            None => Some((uid, gid)),
            Some(users) => users.owner_on_node(&self.settings.host_proc, uid, gid),
        };
        let proxy = ProxyIdentity::Owner { uid, gid, on_node };
        let inbound = InboundSpec { tunnel: config.tunnel_port, probes: None };
        Ok((Arc::new(netns), ProofSpec { rules, proxy, inbound }))
    }

    /// Returns the redirection of the pod, decided from the facts as at its ADD; without a record, from its present annotations.
    fn sidecar_redirect(&self, records: &[Arc<PodRecord>], pod: &PodState) -> Option<Box<SidecarRedirect>> {
        let snapshot = self.agent_snapshot().ok();
        let is_pod = |namespace: &str, name: &str| namespace == pod.namespace && name == pod.name;
        let known = snapshot.as_ref().and_then(|snapshot| {
            snapshot.pods.iter().find(|known| is_pod(&known.pod.metadata.namespace, &known.pod.metadata.name))
        });
        // A record omits long annotations.
        let is_long = |value: &String| value.len() > agent_protocol::MAX_ANNOTATION;
        let is_whole = known.is_none_or(|known| !known.pod.metadata.annotations.values().any(is_long));
        let mut recorded = records::redirects_by_record(records, |uid| is_whole && *uid == pod.uid);
        if let Some(redirect) = recorded.remove(&pod.uid) {
            return Some(redirect);
        }
        let (known, policy) = (known?, EnrolmentPolicy::default());
        let ambient = self.settings.ambient.as_ref();
        let policy = ambient.map_or(&policy, |ambient| &ambient.agent.policy);
        match enrolment::decide(&known.pod, known.namespace.as_ref(), policy) {
            Ok(PodDecision::Sidecar(redirect)) => Some(redirect),
            _ => None,
        }
    }

    fn resolve_netns(&self, requested: NetnsRef) -> Result<Netns, String> {
        let proc = self.settings.ambient.is_none().then_some(self.settings.host_proc.as_path());
        let places = sidecar::NetnsPaths { netns_directory: &self.settings.netns_directory, proc };
        let mut found = places.list_netns().map_err(|error| error.to_string())?.into_iter();
        let found = found.find(|(_, netns)| netns_ref(netns.id()) == requested);
        found.map(|(_, netns)| netns).ok_or_else(|| "its network namespace is gone".to_owned())
    }
}

/// Whether the pod has an address of the family, without which it cannot use it; without any address, all are tried.
fn has_family(pod: &PodState, family: Family) -> bool {
    pod.ips.is_empty() || pod.ips.iter().any(|ip| Family::from_ip(*ip) == family)
}

fn unobserved_reason(pod: &PodState) -> String {
    pod.kernel.unobserved.clone().unwrap_or_else(|| "its network namespace is not known".to_owned())
}
