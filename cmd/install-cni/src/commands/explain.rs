//! `explain`: why one pod is captured or not.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use report::StateReport;

use super::{command_flags::POD_NAMESPACE, invocation::CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let (operands, namespace) = (call.values.positionals(), call.values.flag_text(&POD_NAMESPACE));
    let (namespace, name) = match parse_pod_query(operands, namespace)? {
        (Some(namespace), name) => (namespace, name),
        (None, name) => (find_namespace(&node_status::obtain_report(&call.settings)?, &name)?, name),
    };
    let explanation = node_status::explain_pod(&call.settings, &namespace, &name)?;
    call.output.print_value(&explanation, |_, _| explanation.to_string())?;
    Ok(ExitCode::from(explanation.verdict.exit_status()))
}

/// Returns namespace and name of the pod, both of which are required. `namespace`: the value of `-n`, which may be empty.
pub(super) fn qualified_pod_name(operands: &[String], namespace: &str) -> Result<(String, String)> {
    match parse_pod_query(operands, namespace)? {
        (Some(namespace), name) => Ok((namespace, name)),
        (None, name) => bail!("{name:?} is not a pod: expected NAMESPACE/POD"),
    }
}

/// Returns the namespace, if it is given, and the name of the pod that the operands select.
fn parse_pod_query(operands: &[String], namespace: &str) -> Result<(Option<String>, String)> {
    let (namespace, name) = match (operands, namespace) {
        ([word], "") => match word.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, word.as_str()),
        },
        ([first, second], "") => (Some(first.as_str()), second.as_str()),
        ([name], namespace) => (Some(namespace), name.as_str()),
        _ => bail!("which pod? NAMESPACE/POD; see --help"),
    };
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let is_pod = is_name(name) && namespace.is_none_or(is_name);
    ensure!(is_pod, "{:?} is not a pod: expected NAMESPACE/POD", operands.join(" "));
    Ok((namespace.map(str::to_owned), name.to_owned()))
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
        let web = (Some("shop".to_owned()), "web".to_owned());
        assert_eq!(of(&["shop/web"], "").unwrap(), web);
        assert_eq!(of(&["shop", "web"], "").unwrap(), web);
        assert_eq!(of(&["web"], "shop").unwrap(), web);
        assert_eq!(of(&["web"], "").unwrap(), (None, "web".to_owned()));
        for words in [&[][..], &["a", "b", "c"], &["/web"], &["shop/"], &["a/b/c"], &[""]] {
            assert!(of(words, "").is_err(), "{words:?}");
        }
        assert!(of(&["a/b"], "shop").is_err() && of(&["a", "b"], "shop").is_err());
    }
}
