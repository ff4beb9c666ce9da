//! Settings that differ from the agent's.

use report::SettingsChange;

use super::*;
use crate::SimulatedSettings;

const OWN: &[(&str, &str)] = &[("AMBIENT_ENABLED", "true"), ("EXCLUDE_NAMESPACES", "a"), ("NODE_NAME", "n1")];

fn simulate(arguments: &[&str], change: &SettingsChange) -> Result<SimulatedSettings, SettingsErrors> {
    let env = [USUAL, OWN].concat();
    read(arguments, OWN).unwrap().simulate(change, &around(&env))
}

fn change(variables: &[&str]) -> SettingsChange {
    SettingsChange::parse(variables.iter().copied()).unwrap()
}

#[test]
fn settings_that_are_not_named_stay_or_have_their_defaults() {
    let changed = change(&["AMBIENT_DNS_CAPTURE=true"]);
    let other = simulate(&[], &changed).unwrap();
    assert!(other.ambient && other.capture.capture.in_pod().unwrap().pods.dns_capture);
    assert_eq!(
        (other.capture.policy.excluded_namespaces, other.not_simulated),
        (vec!["a".to_owned()], vec![])
    );
    let inherited = ["NODE_NAME", "CNI_NETWORK_CONFIG"].map(str::to_owned).into();
    let complete = SettingsChange { complete: true, inherited, ..changed };
    let other = simulate(&["--ambient-ipv6=false"], &complete).unwrap();
    assert!(!other.ambient && other.capture.capture.in_pod().unwrap().ipv6);
    assert_eq!((other.capture.policy.excluded_namespaces, other.not_simulated), (vec![], vec![]));
}

#[test]
fn a_flag_of_the_agent_wins_over_a_variable() {
    let other = simulate(&["--exclude-namespaces=b"], &change(&["EXCLUDE_NAMESPACES=c"])).unwrap();
    assert_eq!(other.capture.policy.excluded_namespaces, ["b"]);
    let given = SettingsChange { arguments: vec!["--exclude-namespaces=c".to_owned()], ..change(&["X="]) };
    let other = simulate(&["--exclude-namespaces=b"], &given).unwrap();
    assert_eq!(other.capture.policy.excluded_namespaces, ["c"]);
}

#[test]
fn what_is_not_simulated_is_named_and_mistakes_are_errors() {
    let other = simulate(&[], &change(&["NODE_NAME=n2", "NATIVE_NFTABLES=true", "NEW=1", "EMPTY="])).unwrap();
    let expected = ["NODE_NAME", "NATIVE_NFTABLES", "NEW, which is not a setting of this agent"];
    assert_eq!(sorted(&other.not_simulated), sorted(&expected.map(str::to_owned)));
    for (variable, mistake) in [
        (
            "AMBIENT_CAPTURE=x",
            "AMBIENT_CAPTURE (--ambient-capture): \"x\" must be one of node, in-pod and auto",
        ),
        (
            "AMBIENT_ENABLED=perhaps",
            "AMBIENT_ENABLED (--ambient-enabled): \"perhaps\" is neither true nor false",
        ),
    ] {
        assert_eq!(simulate(&[], &change(&[variable])).unwrap_err().0, [mistake]);
    }
    for argument in ["--help", "--no-such"] {
        let given = SettingsChange { arguments: vec![argument.to_owned()], ..change(&["X="]) };
        assert_eq!(simulate(&[], &given).unwrap_err().0.len(), 1, "{argument}");
    }
}

/// So that a path in a simulation can be neither opened nor checked.
#[test]
fn no_path_of_a_simulation_is_used() {
    let paths = ["NETNS_DIR=/x", "CNI_NETWORK_CONFIG_FILE=/x", "HOST_PROC=/x", "ZTUNNEL_UDS_ADDRESS=/x"];
    let (other, own) = (simulate(&[], &change(&paths)).unwrap(), read(&[], OWN).unwrap());
    let own = own.ambient_traces.agent;
    assert_eq!(other.capture.netns_directory, own.netns_directory);
    let of = |capture: &capture_modes::CaptureSettings| {
        let in_pod = capture.capture.in_pod().unwrap();
        (in_pod.proc.clone(), in_pod.socket.clone())
    };
    assert_eq!(of(&other.capture), of(&own));
    assert_eq!(other.not_simulated.len(), paths.len());
}

fn sorted(texts: &[String]) -> Vec<&String> {
    let mut sorted: Vec<&String> = texts.iter().collect();
    sorted.sort();
    sorted
}
