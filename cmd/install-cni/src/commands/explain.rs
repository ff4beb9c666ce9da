//! `explain`: why one pod is captured or not.

use std::process::ExitCode;

use anyhow::{Result, bail};
use report::StateReport;

use super::{command_flags, invocation::CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let (namespace, name) = match parse_query(call)? {
        PodQuery::Pod(namespace, name) => (namespace, name),
        PodQuery::Name(name) => (find_namespace(&node_status::obtain_report(&call.settings)?, &name)?, name),
    };
    let explanation = node_status::explain_pod(&call.settings, &namespace, &name)?;
    call.output.print_value(&explanation, |_, _| explanation.to_string())?;
    Ok(ExitCode::from(explanation.verdict.exit_status()))
}

fn parse_query(call: &CommandInvocation) -> Result<PodQuery> {
    parse_pod_query(call.values.positionals(), call.values.flag_text(&command_flags::POD_NAMESPACE))
}

/// Returns namespace and name of the pod, both of which are required.
pub(super) fn qualified_pod_name(call: &CommandInvocation) -> Result<(String, String)> {
    match parse_query(call)? {
        PodQuery::Pod(namespace, name) => Ok((namespace, name)),
        PodQuery::Name(name) => bail!("{name:?} is not a pod: expected NAMESPACE/POD"),
    }
}

/// Returns the pod named by two operands, or by one with a slash; `None` without operands.
pub(super) fn pod_name(operands: &[String]) -> Result<Option<String>> {
    if operands.is_empty() {
        return Ok(None);
    }
    match parse_pod_query(operands, "")? {
        PodQuery::Pod(namespace, name) => Ok(Some(format!("{namespace}/{name}"))),
        PodQuery::Name(name) => bail!("{name:?} is not a pod: expected NAMESPACE/POD"),
    }
}

/// The pod that the operands select.
#[derive(Debug, PartialEq, Eq)]
enum PodQuery {
    Pod(String, String),
    Name(String),
}

fn parse_pod_query(operands: &[String], namespace: &str) -> Result<PodQuery> {
    let pod = |namespace: &str, name: &str| PodQuery::Pod(namespace.to_owned(), name.to_owned());
    let asked = match (operands, namespace) {
        ([word], "") => match word.split_once('/') {
            Some((namespace, name)) => pod(namespace, name),
            None => PodQuery::Name(word.clone()),
        },
        ([first, second], "") => pod(first, second),
        ([name], namespace) => pod(namespace, name),
        _ => bail!("which pod? NAMESPACE/POD; see --help"),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    match &asked {
        PodQuery::Pod(namespace, name) if is_name(namespace) && is_name(name) => Ok(asked),
        PodQuery::Name(name) if is_name(name) => Ok(asked),
        _ => bail!("{:?} is not a pod: expected NAMESPACE/POD", operands.join(" ")),
    }
}

/// Returns the namespace of a pod given by name only; `default`, as with kubectl, if no namespace has such a pod.
fn find_namespace(state: &StateReport, name: &str) -> Result<String> {
    let mut found = state.pods.iter().filter(|pod| pod.name == name).map(|pod| pod.namespace.as_str());
    match (found.next(), found.next()) {
        (None, _) => Ok("default".to_owned()),
        (Some(namespace), None) => Ok(namespace.to_owned()),
        (Some(first), Some(second)) => {
            let all: Vec<String> = [first, second]
                .into_iter()
                .chain(found)
                .map(|namespace| format!("{namespace}/{name}"))
                .collect();
            bail!("several pods have this name: {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_can_be_named_in_four_ways() {
        let of = |words: &[&str], namespace| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            parse_pod_query(&words, namespace)
        };
        let web = PodQuery::Pod("shop".into(), "web".into());
        assert_eq!(of(&["shop/web"], "").unwrap(), web);
        assert_eq!(of(&["shop", "web"], "").unwrap(), web);
        assert_eq!(of(&["web"], "shop").unwrap(), web);
        assert_eq!(of(&["web"], "").unwrap(), PodQuery::Name("web".into()));
        for words in [&[][..], &["a", "b", "c"], &["/web"], &["shop/"], &["a/b/c"], &[""]] {
            assert!(of(words, "").is_err(), "{words:?}");
        }
        assert!(of(&["a/b"], "shop").is_err() && of(&["a", "b"], "shop").is_err());
    }
}
