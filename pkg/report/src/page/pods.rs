//! The table of pods, worst first.

use super::{html::HtmlWriter, parts, when};
use crate::{CaptureState, PodState, RedirectionMode, StateReport};

/// What people call a pod's state, and its sign.
pub(super) fn words(capture: CaptureState) -> (&'static str, &'static str) {
    match capture {
        CaptureState::Captured => ("✓", "captured"),
        CaptureState::Pending => ("…", "on its way"),
        CaptureState::Bypassing => ("✗", "bypassing"),
        CaptureState::Held => ("‖", "held back"),
        CaptureState::Outside => ("○", "outside"),
        CaptureState::Leaving => ("←", "leaving"),
        CaptureState::Unknown => ("?", "unknown"),
    }
}

/// The element that a pod's row is; unique as long as pods are.
pub(super) fn anchor(pod: &PodState) -> String {
    format!("pod/{}", pod.title())
}

/// Worst first; among equals those with something to say.
fn order(state: &StateReport) -> Vec<&PodState> {
    let rank = |pod: &PodState| {
        let state = CaptureState::ALL.iter().position(|capture| *capture == pod.capture);
        (state, pod.trouble.is_none(), pod.kernel.differences.is_empty())
    };
    let mut pods: Vec<&PodState> = state.pods.iter().collect();
    pods.sort_by(|a, b| {
        rank(a).cmp(&rank(b)).then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
    });
    pods
}

/// The section.
pub(super) fn section(html: &mut HtmlWriter, state: &StateReport) {
    parts::section(html, "pods", "Pods", |html| {
        if state.pods.is_empty() {
            return html.text_element("p", &[], "No pod of this node is known.");
        }
        filter(html);
        let columns =
            ["Pod", "State", "Why, and what is wrong", "Kernel", "Mode", "Since", "Addresses", "ztunnel"];
        parts::table(html, "pods-table", "Pods of this node, worst first", &columns, |html| {
            order(state).into_iter().for_each(|pod| row(html, state, pod));
        });
    });
}

/// Useless without scripts, and so shown by the script alone, which also keeps what was typed.
fn filter(html: &mut HtmlWriter) {
    parts::filter(html, "pods-table", "Find pods", |html| {
        html.element("label", &[], |html| {
            html.text("State ");
            html.element("select", &[("data-select", "")], |html| {
                html.text_element("option", &[("value", "")], "all");
                for capture in CaptureState::ALL {
                    html.text_element("option", &[("value", capture.word())], words(capture).1);
                }
            });
        });
    });
}

fn row(html: &mut HtmlWriter, state: &StateReport, pod: &PodState) {
    let class = if pod.capture.is_wrong() { "wrong" } else { "plain" };
    let id = anchor(pod);
    let attributes = [("id", id.as_str()), ("data-state", pod.capture.word()), ("class", class)];
    html.element("tr", &attributes, |html| {
        html.element("th", &[("scope", "row")], |html| {
            html.text_element("span", &[("class", "dim")], &format!("{}/", pod.namespace));
            html.void("wbr", &[]);
            html.text(&pod.name);
        });
        html.element("td", &[], |html| badge(html, pod.capture));
        html.element("td", &[], |html| why(html, state, pod));
        html.element("td", &[], |html| kernel(html, pod));
        html.text_element("td", &[], pod.way.map_or("–", RedirectionMode::word));
        html.element("td", &[], |html| match &pod.since {
            Some(since) => when::time(html, since, &state.seen.at),
            None => html.text("–"),
        });
        html.element("td", &[], |html| addresses(html, pod));
        html.text_element("td", &[], ztunnel(pod));
    });
}

/// A state, as sign and word in its colour.
pub(super) fn badge(html: &mut HtmlWriter, capture: CaptureState) {
    let (sign, word) = words(capture);
    html.element("span", &[("class", class(capture))], |html| {
        html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], sign);
        html.text(word);
    });
}

/// The class that gives a state its colour.
fn class(capture: CaptureState) -> &'static str {
    match capture {
        CaptureState::Captured => "badge s-captured",
        CaptureState::Pending => "badge s-pending",
        CaptureState::Bypassing => "badge s-bypassing",
        CaptureState::Held => "badge s-held",
        CaptureState::Outside => "badge s-outside",
        CaptureState::Leaving => "badge s-leaving",
        CaptureState::Unknown => "badge s-unknown",
    }
}

/// Beside the name and the state, because that is what a phone shows without scrolling.
fn why(html: &mut HtmlWriter, state: &StateReport, pod: &PodState) {
    let (words, code) = crate::cause(state, pod);
    html.text(if words.is_empty() { "–" } else { &words });
    if !code.is_empty() {
        html.text(" ");
        html.text_element("code", &[], &code);
    }
    if !matches!(pod.phase.as_str(), "" | "Running") {
        html.text_element("p", &[("class", "dim")], &format!("The pod is {}.", pod.phase));
    }
    trouble(html, "Trouble: ", pod.trouble.as_deref());
    let refused = pod.ztunnel.as_ref().and_then(|view| view.refused.as_deref());
    trouble(html, "ztunnel refused it: ", refused);
    if !pod.kernel.differences.is_empty() {
        html.element("ul", &[("class", "differences")], |html| {
            for difference in &pod.kernel.differences {
                html.element("li", &[], |html| {
                    html.text_element("strong", &[], "≠ ");
                    html.text(difference);
                });
            }
        });
    }
}

fn trouble(html: &mut HtmlWriter, what: &str, words: Option<&str>) {
    let Some(words) = words else { return };
    html.element("p", &[("class", "trouble")], |html| {
        html.text_element("strong", &[], what);
        html.text(words);
    });
}

fn addresses(html: &mut HtmlWriter, pod: &PodState) {
    if pod.ips.is_empty() {
        html.text("–");
    }
    for (place, ip) in pod.ips.iter().enumerate() {
        if place > 0 {
            html.void("br", &[]);
        }
        html.text_element("code", &[], &ip.to_string());
    }
}

fn ztunnel(pod: &PodState) -> &'static str {
    match &pod.ztunnel {
        None => "–",
        Some(view) if view.refused.is_some() => "✗ refused it",
        Some(view) if view.serves => "✓ serves it",
        Some(_) => "does not serve it",
    }
}

fn kernel(html: &mut HtmlWriter, pod: &PodState) {
    if let Some(blind) = &pod.kernel.blind {
        html.text_element("p", &[("class", "dim")], &format!("? Not observed: {blind}"));
    }
    more(html, pod);
}

/// What is as it should be, and what only a search needs.
fn more(html: &mut HtmlWriter, pod: &PodState) {
    html.element("details", &[], |html| {
        let summary = match pod.kernel.seen.len() {
            0 => "More".to_owned(),
            some => format!("{some} in place"),
        };
        html.text_element("summary", &[], &summary);
        html.element("ul", &[], |html| {
            let mut say = |words: &str| html.text_element("li", &[], words);
            pod.kernel.seen.iter().for_each(|seen| say(seen));
            if let Some(annotation) = &pod.annotation {
                say(&format!("annotated ambient.istio.io/redirection: {annotation}"));
            }
            if let Some(netns) = pod.kernel.netns {
                say(&format!("network namespace net:[{}]", netns.inode));
            }
            if !pod.uid.is_empty() {
                say(&format!("UID {}", pod.uid));
            }
        });
    });
}
