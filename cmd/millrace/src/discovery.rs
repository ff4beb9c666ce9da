//! Selection of the agent of each node.

use std::collections::BTreeMap;

use cluster_report::Pod;

/// Returns the agent of each node: of several, as during a rollout, one that is ready, then one that is not being deleted, then the
/// newest.
pub(crate) fn agents_by_node(agents: &[Pod]) -> BTreeMap<&str, &Pod> {
    let mut chosen: BTreeMap<&str, &Pod> = BTreeMap::new();
    for agent in agents.iter().filter(|agent| !agent.spec.node_name.is_empty()) {
        let best = chosen.entry(&agent.spec.node_name).or_insert(agent);
        if agent_preference(agent) > agent_preference(best) {
            *best = agent;
        }
    }
    chosen
}

fn agent_preference(agent: &Pod) -> (bool, bool, bool, Option<&str>) {
    let started = agent.status.start_time.as_deref();
    (agent.status.phase == "Running", agent.status.is_ready(), agent.metadata.deleted.is_none(), started)
}

/// Returns why the chosen agent of a node is not asked: a pod of another namespace there has the agents' label, too, and either can
/// be one that anybody created. `None`: there is no other.
pub(crate) fn rival_message(agents: &[Pod], chosen: &Pod) -> Option<String> {
    let mut here = agents.iter().filter(|other| other.spec.node_name == chosen.spec.node_name);
    let rival = here
        .find(|other| other.metadata.namespace != chosen.metadata.namespace && !other.status.has_ended())?;
    let (own, rival) = (chosen.qualified_name(), rival.qualified_name());
    Some(format!("both {own} and {rival} have the agents' label: choose one with --agent-namespace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str, phase: &str, ready: &str, started: &str, deleted: bool) -> Pod {
        let deleted = deleted.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "kube-system", "deletionTimestamp": deleted},
            "spec": {"nodeName": "n1"},
            "status": {"phase": phase, "startTime": started, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn of_several_agents_of_a_node_the_one_that_can_answer_is_asked() {
        let early = "2026-01-01T00:00:00Z";
        let late = "2026-01-02T00:00:00Z";
        for (first, second) in [
            (agent("a", "Running", "True", early, false), agent("b", "Pending", "False", late, false)),
            (agent("a", "Running", "True", early, false), agent("b", "Running", "False", late, false)),
            (agent("a", "Running", "True", early, false), agent("b", "Running", "True", late, true)),
            (agent("a", "Running", "True", late, false), agent("b", "Running", "True", early, false)),
        ] {
            for agents in [[first.clone(), second.clone()], [second, first]] {
                assert_eq!(agents_by_node(&agents)["n1"].metadata.name, "a");
            }
        }
        let unscheduled = Pod::default();
        assert!(agents_by_node(&[unscheduled]).is_empty());
    }

    #[test]
    fn a_pod_of_another_namespace_with_the_label_is_a_rival_until_it_ends() {
        let own = agent("a", "Running", "True", "2026-01-01T00:00:00Z", false);
        for (namespace, phase, deleted, is_rival) in [
            ("shop", "Running", false, true),
            ("shop", "Pending", false, true),
            ("shop", "Failed", false, false),
            ("shop", "Running", true, true),
            ("kube-system", "Running", false, false),
        ] {
            let mut other = agent("b", phase, "True", "2026-01-02T00:00:00Z", deleted);
            namespace.clone_into(&mut other.metadata.namespace);
            let agents = [own.clone(), other];
            assert_eq!(rival_message(&agents, &own).is_some(), is_rival, "{namespace}, {phase}");
        }
    }
}
