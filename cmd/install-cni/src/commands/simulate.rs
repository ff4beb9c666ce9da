//! `simulate`: the effect of a change of labels or settings.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use report::{LabelChange, PodVerdict, SettingsChange, SimulatedChange, tables};

use super::{
    command_flags,
    invocation::{CANNOT, CommandInvocation},
    output::PROGRAM,
};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let namespace = call.values.flag_text(&command_flags::POD_NAMESPACE);
    let change = parse_change(call.values.positionals(), namespace)?;
    let simulation = node_status::simulate_change(&call.settings, &change)?;
    call.output
        .print_value(&simulation, |_, colour| tables::simulation_table(&change, &simulation, colour))?;
    let status = match &change {
        _ if !simulation.mistakes.is_empty() => return Ok(ExitCode::FAILURE),
        _ if !simulation.synced => CANNOT,
        SimulatedChange::Labels(LabelChange { namespace, .. }) if simulation.namespace_missing => {
            console::print_message(PROGRAM, &format!("there is no namespace {namespace}"));
            CANNOT
        }
        SimulatedChange::Labels(LabelChange { namespace, pod: Some(pod), .. })
            if simulation.mode.is_some() && simulation.pods.is_empty() =>
        {
            console::print_message(PROGRAM, &format!("the node has no pod {namespace}/{pod}"));
            PodVerdict::NotFound.exit_status()
        }
        _ => 0,
    };
    Ok(ExitCode::from(status))
}

/// `namespace`: the value of `-n`, which may be empty.
fn parse_change(operands: &[String], namespace: &str) -> Result<SimulatedChange> {
    const USAGE: &str =
        "what is to be simulated? label namespace NAME KEY=VALUE, or settings NAME=VALUE; see --help";
    let mut words: Vec<&str> = operands.iter().map(String::as_str).collect();
    // TYPE/NAME is accepted for TYPE NAME, as by kubectl label.
    if let ["label", object, ..] = words.as_slice()
        && let Some((kind, name)) = object.split_once('/')
    {
        words.splice(1..2, [kind, name]);
    }
    match words.as_slice() {
        ["label", "pod" | "po" | "pods", name, labels @ ..] => {
            let (of_name, pod) = name.split_once('/').unwrap_or((namespace, name));
            ensure!(!of_name.is_empty(), "a pod is named NAMESPACE/NAME, or NAME with -n");
            let is_one = namespace.is_empty() || of_name == namespace;
            ensure!(is_one, "{name} and -n {namespace} name two namespaces");
            let change = LabelChange::parse(of_name, Some(pod), labels.iter().copied())?;
            Ok(SimulatedChange::Labels(change))
        }
        _ if !namespace.is_empty() => bail!("-n names the namespace of a pod: leave out -n"),
        // The form in which kubectl millrace passes settings.
        ["settings", text] if text.starts_with('{') => {
            Ok(SimulatedChange::Settings(SettingsChange::from_text(text)?))
        }
        ["settings", variables @ ..] => {
            Ok(SimulatedChange::Settings(SettingsChange::parse(variables.iter().copied())?))
        }
        ["label", "namespace" | "ns" | "namespaces", name, labels @ ..] => {
            Ok(SimulatedChange::Labels(LabelChange::parse(name, None, labels.iter().copied())?))
        }
        _ => bail!(USAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_as_kubectl_reads_it() {
        let within = |line: &str, namespace| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            parse_change(&words, namespace).map(|change| change.to_string())
        };
        let of = |line: &str| within(line, "");
        let text = "namespace shop, with istio.io/dataplane-mode=ambient";
        for kind in ["namespace", "ns"] {
            assert_eq!(of(&format!("label {kind} shop istio.io/dataplane-mode=ambient")).unwrap(), text);
        }
        assert_eq!(of("label pod shop/web a- b=1").unwrap(), "pod shop/web, with a-,b=1");
        assert_eq!(of("label ns/shop istio.io/dataplane-mode=ambient").unwrap(), text);
        assert_eq!(of("label pod/shop/web a- b=1").unwrap(), "pod shop/web, with a-,b=1");
        for name in ["web", "shop/web"] {
            let line = format!("label pod {name} a- b=1");
            assert_eq!(within(&line, "shop").unwrap(), "pod shop/web, with a-,b=1");
        }
        for wrong in ["label ns shop a=1", "label pod bank/web a=1", "settings A=b"] {
            assert!(within(wrong, "shop").is_err(), "{wrong}");
        }
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
