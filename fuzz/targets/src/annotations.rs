//! Annotations and labels that users write on pods.

use std::collections::BTreeMap;

use enrolment::{EnrolmentPolicy, PodDecision, RuntimeCall, SkipReason, decide, decide_early};
use model::{Container, EnvVar, Family, Namespace, ObjectMeta, Pod, PodName};
use rules::{ChainSet, RuleChange, RuleSet, SavedTables, Target, sidecar};

/// A pod, one fact per line, each a letter, a blank and a value: `a KEY=VALUE` annotation, `l KEY=VALUE` label, `m VALUE` the
/// namespace's data plane mode, `c NAME` a container, `i NAME` an init container, each after its own `e NAME=VALUE`, `g ARGUMENT`,
/// `u UID`; `h` host network, `x` ambient mode. Any other line is skipped.
///
/// Every pod gets a decision with a reason, or an error that names pod, annotation and the valid values; a decision on the call
/// alone equals the one on the pod; a redirected pod's rule set is complete and parses back to itself.
///
/// # Panics
/// If one of these does not hold.
pub fn annotations(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (pod, namespace, policy) = facts(&text);
    let decision = decide(&pod, Some(&namespace), &policy);
    assert_eq!(decision, decide(&pod, Some(&namespace), &policy));
    early_agrees(&pod, &policy, decision.as_ref().ok());
    match decision {
        Ok(PodDecision::Sidecar(redirect)) => {
            for family in Family::BOTH {
                whole(&sidecar::rule_set(&redirect.config, family));
            }
        }
        Ok(decision) => assert!(!decision.code().is_empty() && !decision.to_string().is_empty()),
        Err(error) => {
            let said = error.to_string();
            let parts = [&error.pod.to_string(), error.annotation, error.allowed];
            assert!(parts.iter().all(|part| !part.is_empty() && said.contains(part)), "{said}");
            assert!(error.value.chars().count() <= 200, "{said}");
        }
    }
}

fn facts(text: &str) -> (Pod, Namespace, EnrolmentPolicy) {
    let meta = ObjectMeta { name: "web-0".into(), namespace: "shop".into(), ..ObjectMeta::default() };
    let mut pod = Pod { metadata: meta, ..Pod::default() };
    let (mut namespace, mut policy) = (Namespace::default(), EnrolmentPolicy::default());
    let mut container = Container::default();
    for line in text.lines().take(200) {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let pair = || (key.to_owned(), value.to_owned());
        match kind {
            "a" => pod.metadata.annotations.extend([pair()]),
            "l" => pod.metadata.labels.extend([pair()]),
            "m" => {
                namespace.metadata.labels.extend([(enrolment::DATAPLANE_MODE.to_owned(), rest.to_owned())]);
            }
            "e" => container.env.push(EnvVar { name: key.to_owned(), value: Some(value.to_owned()) }),
            "g" => container.args.push(rest.to_owned()),
            "u" => container.security_context.run_as_user = rest.parse().ok(),
            "c" | "i" => {
                container.name = rest.to_owned();
                let list = if kind == "c" { &mut pod.spec.containers } else { &mut pod.spec.init_containers };
                list.push(std::mem::take(&mut container));
            }
            "h" => pod.spec.host_network = true,
            "x" => policy.ambient = true,
            _ => {}
        }
    }
    (pod, namespace, policy)
}

fn early_agrees(pod: &Pod, policy: &EnrolmentPolicy, late: Option<&PodDecision>) {
    let meta = &pod.metadata;
    let name = PodName { namespace: meta.namespace.clone(), name: meta.name.clone() };
    let annotations: &BTreeMap<String, String> = &meta.annotations;
    let call = RuntimeCall { pod: Some(&name), annotations: Some(annotations) };
    if let Some(early) = decide_early(&call, policy) {
        let known =
            matches!(early, PodDecision::Skip(SkipReason::NotInjected | SkipReason::InterceptionNone));
        assert!(known && matches!(late, Some(PodDecision::Skip(_))), "{early:?} early, {late:?} late");
    }
}

/// Every target chain exists, and the whole text parses back to the rule set.
fn whole(desired: &RuleSet) {
    for rules in desired.tables.values() {
        let all =
            rules.jumps.iter().map(|jump| &jump.rule).chain(rules.chains.iter().flat_map(|(_, rules)| rules));
        for rule in all {
            if let Target::Jump(chain) | Target::Goto(chain) = &rule.target {
                assert!(rules.chains.iter().any(|(name, _)| name == chain), "no chain {chain}");
            }
        }
    }
    let text = ChainSet::SIDECAR.apply(desired, &SavedTables::default()).restore_text();
    let text: String =
        text.lines().map(|line| line.replacen("-I PREROUTING 1 ", "-A PREROUTING ", 1) + "\n").collect();
    let saved = SavedTables::parse(&text);
    let change = saved.map(|saved| ChainSet::SIDECAR.apply(desired, &saved));
    assert!(change.as_ref().is_ok_and(RuleChange::is_empty), "{change:?}");
}
