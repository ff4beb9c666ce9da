//! `explain`: finds the pod's node, and queries its agent.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use cluster_report::Pod;
use kube_api::ApiErrorKind;
use model::PodUid;
use report::{PodVerdict, is_object_name, percent_encode};

use crate::{
    arguments::Options,
    discovery::{agents_by_node, rival_message},
    gather::ClusterSource,
    output,
};

pub(super) async fn run(options: &Options, word: &str, namespace: Option<&str>) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let found = match locate_pod_agent(&source, word, namespace).await? {
        Ok(found) => found,
        Err(verdict) => return Ok(ExitCode::from(verdict.exit_status())),
    };
    let PodAgent { namespace, name, node, agent, .. } = &found;
    let explanation = source.agent_query().explain_pod(agent, namespace, name).await;
    let mut explanation = explanation.map_err(|error| found.no_answer_error(error))?;
    found.check_uid(&explanation.uid)?;
    // The API server has the pod: its agent only does not know it.
    if explanation.verdict == PodVerdict::NotFound {
        explanation.verdict = PodVerdict::Unknown;
    }
    let text = |_, _| format!("{explanation}\nNode: {node}\n");
    output::new_printer(options).print_value(&explanation, text)?;
    Ok(ExitCode::from(explanation.verdict.exit_status()))
}

/// A pod, and the agent of its node.
pub(super) struct PodAgent {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: PodUid,
    pub(super) node: String,
    pub(super) agent: Pod,
}

impl PodAgent {
    /// Returns the error for an agent that does not answer.
    pub(super) fn no_answer_error(&self, error: anyhow::Error) -> anyhow::Error {
        let PodAgent { node, agent, .. } = self;
        let meta = &agent.metadata;
        let standing = agent.phase_summary();
        error.context(format!(
            "the agent {}/{} of node {node} ({standing}) does not answer",
            meta.namespace, meta.name
        ))
    }

    /// Checks that the agent has reported this pod, as far as known, not an earlier or later one of its name.
    fn check_uid(&self, reported: &PodUid) -> Result<()> {
        let PodAgent { namespace, name, uid, node, .. } = self;
        ensure!(
            uid == reported || uid.is_empty() || reported.is_empty(),
            "the agent of node {node} reports another pod {namespace}/{name}: its UID is {reported}, that of the API server {uid}"
        );
        Ok(())
    }
}

/// Finds the selected pod, and the agent of its node. If there is none, prints the reason to standard error, and returns the
/// verdict: `NotFound` for a pod that does not exist, `Unhealthy` for one without a node yet, `Unknown` for one on a node without
/// an agent.
///
/// # Errors
/// The pod's name is invalid, or the API server does not answer.
pub(super) async fn locate_pod_agent(
    source: &ClusterSource<'_>,
    word: &str,
    namespace: Option<&str>,
) -> Result<Result<PodAgent, PodVerdict>> {
    let (namespace, name) = parse_pod_name(word, namespace, &source.session.namespace)?;
    let path = format!("/api/v1/namespaces/{}/pods/{}", percent_encode(namespace), percent_encode(name));
    let what = format!("pod {namespace}/{name}");
    let pod: Pod = match source.session.client.get(&what, &path, source.options.request_timeout).await {
        Ok(pod) => pod,
        Err(error) if error.kind() == ApiErrorKind::NotFound => {
            output::print_message(&format!("the cluster has no {what}"));
            return Ok(Err(PodVerdict::NotFound));
        }
        Err(error) => return Err(error.into()),
    };
    let node = pod.spec.node_name.as_str();
    if node.is_empty() {
        output::print_message(&format!("{what} is not scheduled on a node yet ({})", pod.phase_summary()));
        return Ok(Err(PodVerdict::Unhealthy));
    }
    let agents = source.list_agents(Some(node)).await?;
    let Some(agent) = agents_by_node(&agents).get(node).copied().cloned() else {
        output::print_message(&format!(
            "{what} is on node {node}, where no agent runs: nothing is known of it"
        ));
        return Ok(Err(PodVerdict::Unknown));
    };
    if let Some(why) = rival_message(&agents, &agent) {
        bail!("node {node}: {why}");
    }
    let (namespace, name, node) = (namespace.to_owned(), name.to_owned(), node.to_owned());
    Ok(Ok(PodAgent { namespace, name, uid: pod.metadata.uid, node, agent }))
}

/// Returns namespace and name of the selected pod.
pub(super) fn parse_pod_name<'a>(
    word: &'a str,
    namespace: Option<&'a str>,
    context: &'a str,
) -> Result<(&'a str, &'a str)> {
    let (namespace, name) = match (word.split_once('/'), namespace) {
        (Some((of_word, _)), Some(namespace)) if of_word != namespace => {
            bail!("{word} and -n {namespace} name two namespaces")
        }
        (Some(pod), _) => pod,
        (None, Some(namespace)) => (namespace, word),
        (None, None) => (context, word),
    };
    if is_object_name(namespace) && is_object_name(name) {
        Ok((namespace, name))
    } else {
        bail!("{word:?} is not a pod: expected NAMESPACE/POD")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_pod_of_the_name_is_not_the_one_that_was_asked_for() {
        for (uid, reported, is_same) in
            [("a", "a", true), ("a", "b", false), ("a", "", true), ("", "b", true)]
        {
            let (namespace, name, node) = ("shop".to_owned(), "web".to_owned(), "n1".to_owned());
            let found = PodAgent { namespace, name, uid: uid.into(), node, agent: Pod::default() };
            assert_eq!(found.check_uid(&reported.into()).is_ok(), is_same, "{uid} and {reported}");
        }
    }

    #[test]
    fn a_pod_can_be_named_in_three_ways() {
        assert_eq!(parse_pod_name("shop/web", None, "default").unwrap(), ("shop", "web"));
        assert_eq!(parse_pod_name("shop/web", Some("shop"), "default").unwrap(), ("shop", "web"));
        assert_eq!(parse_pod_name("web", Some("shop"), "default").unwrap(), ("shop", "web"));
        assert_eq!(parse_pod_name("web", None, "mine").unwrap(), ("mine", "web"));
        for word in ["", "/web", "shop/", "a/b/c", "We b", "a/..", "../b"] {
            assert!(parse_pod_name(word, None, "default").is_err(), "{word}");
        }
        assert!(parse_pod_name("a/b", Some("c"), "default").is_err());
    }
}
