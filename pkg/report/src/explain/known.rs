//! The situation of a pod, by what the document says of it.

use pod_status::{CaptureState, RedirectionMode};

use super::{finding::Finding, outside};
use crate::{
    compare::Comparison,
    network::SetMember,
    pod::PodState,
    state::{Observer, StatePart, StateReport},
    text::{clause, clean, count},
};

/// Advice that fits whenever a pod can be started anew.
const RESTART: &str =
    "If it does not pass, delete the pod: its owner starts another one, which goes through the plugin.";
const WAIT: &str = "Wait a minute and ask again: the agent repairs this by itself.";
const RECURS: &str = "If it comes back, another program changes it: install-cni watch shows when, install-cni verify shows what.";

/// Who asks from elsewhere than the agent's container may see more from there; who is there already may not.
pub(super) fn where_to_ask(state: &StateReport) -> &'static [&'static str] {
    let is_elsewhere = state.seen.blind.iter().any(|blind| blind.part == StatePart::Installation);
    if is_elsewhere { &["Run the command as root in the agent's container."] } else { &[LOG] }
}

const LOG: &str =
    "Read the agent's log of the last minutes: kubectl logs, or the container runtime's log on the node.";

/// What an agent does by itself, if there is one.
pub(super) fn repairs(state: &StateReport) -> &'static [&'static str] {
    if state.seen.by == Observer::Agent { &[WAIT, RECURS] } else { &[] }
}

pub(super) fn pod(state: &StateReport, pod: &PodState) -> Finding {
    match pod.capture {
        CaptureState::Outside => outside::pod(state, pod),
        CaptureState::Leaving => leaving(pod),
        CaptureState::Unknown => unseen(state, pod),
        CaptureState::Captured | CaptureState::Pending | CaptureState::Bypassing | CaptureState::Held => {
            member(state, pod)
        }
    }
}

/// A pod that should be captured: the first that fits.
fn member(state: &StateReport, pod: &PodState) -> Finding {
    let looks = [
        refused,
        no_ztunnel,
        not_connected,
        not_started,
        no_address,
        not_in_set,
        no_namespace,
        overruled,
        drifted,
        failed,
        unannounced,
    ];
    looks.iter().find_map(|look| look(state, pod)).unwrap_or_else(|| plain(state, pod))
}

fn title(pod: &PodState) -> String {
    clean(&pod.title())
}

/// What this means for its traffic.
fn traffic(pod: &PodState) -> &'static str {
    match pod.capture {
        CaptureState::Bypassing => "All or some of its traffic bypasses the mesh.",
        CaptureState::Held => "Its traffic is held back until that changes.",
        CaptureState::Pending => "It is not captured yet.",
        _ => "It is captured as it was before.",
    }
}

fn refused(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let why = pod.ztunnel.as_ref()?.refused.as_ref()?;
    let says = format!("ztunnel refused the pod {}: {}. {}", title(pod), clause(why), traffic(pod));
    let advice = ["Read ztunnel's log on this node: it says more about the refusal.", RESTART];
    Some(Finding::wrong("ztunnel-refused", says, &advice))
}

/// With capture on the node.
fn no_ztunnel(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_node = pod.way == Some(RedirectionMode::Node);
    if !is_node || state.node.active_slot.is_some() || state.ztunnels.iter().any(|ztunnel| ztunnel.active) {
        return None;
    }
    // There is one, and what leads to it could not be made: the node's trouble says why.
    if state.node.trouble.is_some() && state.ztunnels.iter().any(|ztunnel| ztunnel.ready) {
        return None;
    }
    // A document that was made without an agent cannot say which ztunnel is ready.
    if state.seen.by == Observer::Command && pod.capture == CaptureState::Captured {
        return None;
    }
    let (code, then) = match state.node.fallback.as_deref() {
        Some("reject") => (
            "no-ztunnel-reject",
            "its connections are refused until one is, as the setting no-ztunnel-policy says",
        ),
        Some("open") => (
            "no-ztunnel-open",
            "its traffic bypasses the mesh until one is, as the setting no-ztunnel-policy says",
        ),
        _ => ("no-ztunnel-hold", "its connections are held back until one is"),
    };
    let says = format!("No ztunnel is ready on this node, so the pod {} has no proxy: {then}.", title(pod));
    Some(Finding::wrong(code, says, &ZTUNNEL))
}

const ZTUNNEL: [&str; 2] = [
    "Find out why no ztunnel of this node is ready: kubectl get pods -A -o wide -l app=ztunnel, and its log.",
    "If there is none, see whether its DaemonSet tolerates this node's taints.",
];

/// With in-pod capture: no ztunnel talks to the agent.
fn not_connected(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let serves = pod.ztunnel.as_ref().is_some_and(|ztunnel| ztunnel.serves);
    let is_in_pod = pod.way == Some(RedirectionMode::InPod);
    if !is_in_pod || serves || state.ztunnels.iter().any(|ztunnel| ztunnel.connected == Some(true)) {
        return None;
    }
    if state.seen.by == Observer::Command {
        return None; // nobody to be connected to
    }
    // Of several, one that is connected cannot always be told by name.
    if state.ztunnels.iter().any(|ztunnel| ztunnel.connected.is_none()) && !state.ztunnels.is_empty() {
        return None;
    }
    let there = if state.ztunnels.is_empty() {
        "There is no ztunnel on this node"
    } else {
        "No ztunnel is connected to the agent"
    };
    let says = format!("{there}, so ztunnel does not serve the pod {}. {}", title(pod), traffic(pod));
    let [first, second] = ZTUNNEL;
    let advice = [
        first,
        second,
        "Check whether agent and ztunnel share the socket that the setting ztunnel-uds-address names.",
    ];
    Some(Finding::wrong("ztunnel-not-connected", says, &advice))
}

/// A start that failed is why it has no address, or no rules.
fn not_started(state: &StateReport, pod: &PodState) -> Option<Finding> {
    if pod.capture == CaptureState::Pending { failed(state, pod) } else { None }
}

fn no_address(_: &StateReport, pod: &PodState) -> Option<Finding> {
    if !pod.ips.is_empty() || pod.capture != CaptureState::Pending {
        return None;
    }
    let says = format!("The pod {} has no address yet, so there is nothing to capture.", title(pod));
    let advice = ["See in kubectl describe pod whether it has been scheduled and its network has been made."];
    Some(Finding::wrong("no-address", says, &advice))
}

fn not_in_set(state: &StateReport, pod: &PodState) -> Option<Finding> {
    // With in-pod capture, what is wrong inside is worse than a probe that fails.
    let matters = match pod.way {
        Some(RedirectionMode::Node) => pod.capture != CaptureState::Pending,
        Some(RedirectionMode::InPod) => matches!(pod.capture, CaptureState::Captured | CaptureState::Held),
        _ => false,
    };
    if !matters {
        return None;
    }
    let out = outside_the_set(&state.network.ipsets, pod)?;
    let title = title(pod);
    let (code, says) = match pod.way {
        Some(RedirectionMode::InPod) => (
            "probe-address-missing",
            format!(
                "The address {out} of the pod {title} is missing in the set of probed pods, so the node's probes of it may fail."
            ),
        ),
        _ => (
            "address-not-in-set",
            format!(
                "The address {out} of the pod {title} is missing in the set of captured addresses, so its traffic bypasses the mesh."
            ),
        ),
    };
    Some(Finding::wrong(code, says, repairs(state)))
}

/// The first of its addresses that should be in a set and is in none.
fn outside_the_set(sets: &Comparison<SetMember>, pod: &PodState) -> Option<String> {
    let observed = sets.observed.as_ref()?;
    let is_wanted = |ip| sets.desired.iter().any(|member| member.ip == ip);
    let is_there = |ip| observed.iter().any(|member| member.ip == ip);
    pod.ips.iter().copied().find(|ip| is_wanted(*ip) && !is_there(*ip)).map(|ip| ip.to_string())
}

/// Where rules would stand is not known.
fn no_namespace(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_missing = pod.kernel.netns.is_none() && pod.kernel.differences.is_empty();
    if !is_missing
        || !matches!(pod.way, Some(RedirectionMode::InPod | RedirectionMode::Sidecar))
        || pod.capture == CaptureState::Captured
    {
        return None;
    }
    let why = pod.kernel.blind.as_deref().map_or_else(String::new, |why| format!(" ({})", clause(why)));
    let says =
        format!("The network namespace of the pod {} was not found{why}. {}", title(pod), traffic(pod));
    let advice = [
        "Check whether the pod's containers run on this node, for instance with crictl ps.",
        "Check whether the agent sees the processes of the whole node (setting host-proc).",
        RESTART,
    ];
    Some(Finding::wrong("netns-not-found", says, &advice))
}

/// Its rules are in place, and others come first.
fn overruled(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let first = clause(pod.kernel.overruling.first()?);
    let number = pod.kernel.overruling.len();
    let more = if number > 1 { format!(", and {} more", number - 1) } else { String::new() };
    let says = format!(
        "The rules of the pod {} are in place, but rules of another component in its network namespace precede them, so all or \
         some of its traffic bypasses the mesh ({first}{more}).",
        title(pod)
    );
    let advice = [
        "Find out which container of the pod made these rules, and remove them: the agent leaves rules of other components \
         alone.",
        "Remove NET_ADMIN from its containers, for instance by Pod Security (level baseline), and delete the pod.",
    ];
    Some(Finding::wrong("overruled", says, &advice))
}

fn drifted(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let first = clause(pod.kernel.differences.first()?);
    let (title, number) = (title(pod), pod.kernel.differences.len());
    let more = if number > 1 { format!(", and {} more", number - 1) } else { String::new() };
    if pod.way == Some(RedirectionMode::Sidecar) && pod.capture == CaptureState::Bypassing {
        let says = format!(
            "The pod {title} has a sidecar, and the rules that redirect its traffic there are missing or incomplete ({first}{more}). \
             {}",
            traffic(pod)
        );
        let advice = [
            "Delete the pod: its owner starts another one, which goes through the plugin.",
            "If the next one is the same, the plugin is not called: see the files of the installation in install-cni state.",
        ];
        return Some(Finding::wrong("sidecar-rules-missing", says, &advice));
    }
    let says = format!(
        "What the kernel shows for the pod {title} differs from the desired state in {} ({first}{more}). {}",
        count(number, "place"),
        traffic(pod)
    );
    let advice = if pod.way == Some(RedirectionMode::Sidecar) { &[RESTART] } else { repairs(state) };
    Some(Finding::wrong("drifted", says, advice))
}

/// The last try failed.
fn failed(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let trouble = pod.trouble.as_ref()?;
    let what = if pod.way.is_some() { "could not be enrolled" } else { "could not start" };
    let says = format!("The pod {} {what}: {}. {}", title(pod), clause(trouble), traffic(pod));
    let advice =
        ["Fix what the message names; the agent, or the kubelet at the next start, tries again.", RESTART];
    Some(Finding::wrong("failed", says, &advice))
}

/// It is captured, and the control plane has not been told.
fn unannounced(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_ambient = matches!(pod.way, Some(RedirectionMode::Node | RedirectionMode::InPod));
    let is_told = pod.annotation.as_deref() == Some("enabled");
    if !is_ambient || is_told || pod.capture != CaptureState::Captured || has_no_api(state) {
        return None;
    }
    let says = format!(
        "The pod {} is captured, but the API does not show its annotation ambient.istio.io/redirection yet: istiod does not \
         know, and others do not reach it through the mesh.",
        title(pod)
    );
    let advice = [
        "Wait some seconds and ask again.",
        "If it does not pass, see whether the agent's service account may patch pods, and whether the API server can be reached.",
    ];
    Some(Finding::wrong("annotation-missing", says, &advice))
}

/// Pods are read from a directory: nobody could be told.
pub(super) fn has_no_api(state: &StateReport) -> bool {
    state.config.iter().any(|setting| setting.name == "pod-source" && setting.value.starts_with("dir:"))
}

/// By which way, in words.
pub(super) fn by_way(way: Option<RedirectionMode>) -> &'static str {
    match way {
        Some(RedirectionMode::Sidecar) => {
            ": rules in its network namespace redirect its traffic to its own sidecar"
        }
        Some(RedirectionMode::Node) => ": rules of the node redirect its traffic to ztunnel",
        Some(RedirectionMode::InPod) => {
            ": rules in its network namespace redirect its traffic to ztunnel, which listens there"
        }
        None => "",
    }
}

/// Nothing special: what the word says.
fn plain(_: &StateReport, pod: &PodState) -> Finding {
    let title = title(pod);
    match pod.capture {
        CaptureState::Captured => {
            let code =
                if pod.way == Some(RedirectionMode::Sidecar) { "captured-sidecar" } else { "captured" };
            Finding::well(code, format!("The pod {title} is captured{}.", by_way(pod.way)), &[])
        }
        CaptureState::Bypassing => {
            let says = format!(
                "The pod {title} should be captured, and all or some of its traffic bypasses the mesh."
            );
            Finding::wrong("bypassing", says, &[WAIT, RESTART])
        }
        CaptureState::Held => {
            let says = format!(
                "The pod {title} should be captured, and its traffic is held back: it reaches nothing through the mesh."
            );
            Finding::wrong("held", says, &["Check whether a ztunnel of this node is ready and well.", WAIT])
        }
        _ => {
            let says = format!("The pod {title} is on its way into the mesh and not captured yet.");
            Finding::wrong("pending", says, &["Wait some seconds and ask again.", RESTART])
        }
    }
}

/// It should not be captured, and something is left.
fn leaving(pod: &PodState) -> Finding {
    let left = match pod.kernel.differences.first().or(pod.kernel.seen.first()) {
        Some(first) => format!(" ({})", clause(first)),
        None => String::new(),
    };
    let says = format!(
        "The pod {} should not be captured, and rules or addresses of ours are still there for it{left}: {}.",
        title(pod),
        outside::because(pod)
    );
    let advice = [
        "Wait a minute and ask again: the agent removes them by itself.",
        "If they stay, the agent's log says why; install-cni plan shows what it would do.",
    ];
    Finding::wrong("leaving", says, &advice)
}

/// The kernel could not be asked.
fn unseen(state: &StateReport, pod: &PodState) -> Finding {
    let title = title(pod);
    let why = match &pod.kernel.blind {
        Some(why) => clause(why),
        None if state.seen.by == Observer::Command => "the agent does not run".to_owned(),
        None => "it has not been observed yet".to_owned(),
    };
    let says = format!(
        "Whether the pod {title} is captured is unknown, because the kernel could not be queried: {why}."
    );
    let advice = where_to_ask(state);
    let has_namespace = pod.kernel.netns.is_some()
        || !matches!(pod.way, Some(RedirectionMode::InPod | RedirectionMode::Sidecar));
    let code = match has_namespace {
        _ if pod.kernel.blind.is_none() => "unseen",
        true => "kernel-blind",
        false => "netns-not-found",
    };
    Finding::unknown(code, says, advice)
}
