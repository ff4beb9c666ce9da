//! `simulate`: what a change of labels would do.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use report::{LabelChange, tables};

use super::invocation::{CANNOT, CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let change = parse_change(call.values.positionals())?;
    let simulation = node_status::simulate_change(&call.settings, &change)?;
    call.output.print_value(&simulation, |colour| tables::simulation_table(&simulation, colour))?;
    Ok(if simulation.synced { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

fn parse_change(words: &[String]) -> Result<LabelChange> {
    const USAGE: &str = "what is to be simulated? label namespace NAME KEY=VALUE; see --help";
    let [what, kind, name, labels @ ..] = words else { bail!(USAGE) };
    let labels = labels.iter().map(String::as_str);
    let change = match (what.as_str(), kind.as_str()) {
        ("label", "namespace" | "ns" | "namespaces") => LabelChange::parse(name, None, labels),
        ("label", "pod" | "po" | "pods") => {
            let (namespace, pod) = name.split_once('/').context("a pod is named NAMESPACE/NAME")?;
            LabelChange::parse(namespace, Some(pod), labels)
        }
        _ => bail!(USAGE),
    };
    Ok(change?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_kubectl_reads_it() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            parse_change(&words).map(|change| change.to_string())
        };
        let text = "namespace shop, with istio.io/dataplane-mode=ambient";
        for kind in ["namespace", "ns"] {
            assert_eq!(of(&format!("label {kind} shop istio.io/dataplane-mode=ambient")).unwrap(), text);
        }
        assert_eq!(of("label pod shop/web a- b=1").unwrap(), "pod shop/web, with a-,b=1");
        for wrong in [
            "label",
            "label namespace shop",
            "label pod web a=1",
            "label node n a=1",
            "taint namespace shop a=1",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
