//! `simulate`: what a change of labels or settings would do.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use report::{LabelChange, SettingsChange, SimulatedChange, tables};

use super::invocation::{CANNOT, CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let change = parse_change(call.values.positionals())?;
    let simulation = node_status::simulate_change(&call.settings, &change)?;
    call.output.print_value(&simulation, |_, colour| tables::simulation_table(&simulation, colour))?;
    Ok(match (simulation.mistakes.is_empty(), simulation.synced) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(CANNOT),
    })
}

fn parse_change(operands: &[String]) -> Result<SimulatedChange> {
    const USAGE: &str =
        "what is to be simulated? label namespace NAME KEY=VALUE, or settings NAME=VALUE; see --help";
    let mut words: Vec<&str> = operands.iter().map(String::as_str).collect();
    // As kubectl label does, it takes TYPE/NAME for TYPE NAME.
    if let ["label", object, ..] = words.as_slice()
        && let Some((kind, name)) = object.split_once('/')
    {
        words.splice(1..2, [kind, name]);
    }
    match words.as_slice() {
        // As kubectl millrace passes them.
        ["settings", text] if text.starts_with('{') => {
            Ok(SimulatedChange::Settings(SettingsChange::from_text(text)?))
        }
        ["settings", variables @ ..] => {
            Ok(SimulatedChange::Settings(SettingsChange::parse(variables.iter().copied())?))
        }
        ["label", "namespace" | "ns" | "namespaces", name, labels @ ..] => {
            Ok(SimulatedChange::Labels(LabelChange::parse(name, None, labels.iter().copied())?))
        }
        ["label", "pod" | "po" | "pods", name, labels @ ..] => {
            let (namespace, pod) = name.split_once('/').context("a pod is named NAMESPACE/NAME")?;
            let change = LabelChange::parse(namespace, Some(pod), labels.iter().copied())?;
            Ok(SimulatedChange::Labels(change))
        }
        _ => bail!(USAGE),
    }
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
        assert_eq!(of("label ns/shop istio.io/dataplane-mode=ambient").unwrap(), text);
        assert_eq!(of("label pod/shop/web a- b=1").unwrap(), "pod shop/web, with a-,b=1");
        let settings = "agents with other settings: EXCLUDE_NAMESPACES";
        assert_eq!(of("settings EXCLUDE_NAMESPACES=shop").unwrap(), settings);
        assert_eq!(of(r#"settings {"variables":{"EXCLUDE_NAMESPACES":"shop"}}"#).unwrap(), settings);
        for wrong in [
            "settings",
            "settings shop",
            "settings {}x",
            "label",
            "label namespace shop",
            "label pod web a=1",
            "label pod/web a=1",
            "label node/n a=1",
            "label node n a=1",
            "taint namespace shop a=1",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
