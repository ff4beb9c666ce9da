//! The table of pods by cause, worst first, each with its explanation.

use super::{
    groups::{PodGroup, impersonal},
    html::HtmlWriter,
    parts, when,
};
use crate::{CaptureState, PodState, RedirectionMode, StateReport, explain, tables, text::count};

const COLUMNS: [&str; 6] = ["Pod", "State", "Mode", "Since", "Addresses", "Explanation"];

/// The sign of a state, beside its word.
pub(super) fn sign(capture: CaptureState) -> &'static str {
    match capture {
        CaptureState::Captured => "✓",
        CaptureState::Pending => "…",
        CaptureState::Bypassing => "✗",
        CaptureState::Held => "‖",
        CaptureState::Outside => "○",
        CaptureState::Leaving => "←",
        CaptureState::Unknown => "?",
    }
}

/// The section.
pub(super) fn section(html: &mut HtmlWriter, state: &StateReport, groups: &[PodGroup<'_>]) {
    parts::section(html, "pods", "Pods", |html| {
        if groups.is_empty() {
            return html.text_element("p", &[], tables::pods(state, &[], false).trim_end());
        }
        filter(html);
        parts::table(html, "pods-table", "Pods of this node by cause, worst first", &COLUMNS, |html| {
            for one in groups {
                group(html, one);
                one.pods.iter().for_each(|pod| row(html, state, one, pod));
            }
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
                    html.text_element("option", &[("value", capture.word())], capture.word());
                }
            });
        });
    });
}

/// The row above those of a group.
fn group(html: &mut HtmlWriter, group: &PodGroup<'_>) {
    let key = format!("cause/{}/{}/{}", group.capture, group.code, group.cause);
    html.element("tr", &[("data-key", &key), ("class", "group")], |html| {
        html.element("td", &[("colspan", &COLUMNS.len().to_string())], |html| {
            badge(html, group.capture);
            html.element("h3", &[], |html| {
                html.text(&count(group.pods.len(), "pod"));
                if !group.cause.is_empty() {
                    html.text(&format!(": {}", group.clause()));
                }
            });
            if !group.code.is_empty() {
                html.text(" ");
                html.text_element("code", &[], &group.code);
            }
        });
    });
}

fn row(html: &mut HtmlWriter, state: &StateReport, group: &PodGroup<'_>, pod: &PodState) {
    let class = if pod.capture.is_wrong() { "wrong" } else { "plain" };
    let id = format!("pod/{}", pod.title());
    let attributes = [("id", id.as_str()), ("data-state", pod.capture.word()), ("class", class)];
    html.element("tr", &attributes, |html| {
        html.element("th", &[("scope", "row")], |html| {
            html.element("a", &[("href", &format!("#explain/{}", pod.title()))], |html| {
                html.text(&format!("{}/", pod.namespace));
                html.void("wbr", &[]);
                html.text(&pod.name);
            });
        });
        html.element("td", &[], |html| badge(html, pod.capture));
        html.text_element("td", &[], pod.mode.map_or("–", RedirectionMode::word));
        html.element("td", &[], |html| match &pod.last_transition_time {
            Some(since) => when::time(html, since, &state.observation.observed_at),
            None => html.text("–"),
        });
        html.element("td", &[], |html| addresses(html, pod));
        html.element("td", &[], |html| explanation(html, state, group, pod));
    });
}

/// A state, as sign and word in its colour.
fn badge(html: &mut HtmlWriter, capture: CaptureState) {
    html.element("span", &[("class", &format!("badge s-{capture}"))], |html| {
        html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], sign(capture));
        html.text(capture.word());
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

/// Cause of the pod's state as in `list`, unless the group says it, and the output of `explain`. Browsers open what is closed
/// for a link that leads into it.
fn explanation(html: &mut HtmlWriter, state: &StateReport, group: &PodGroup<'_>, pod: &PodState) {
    let why = tables::why(state, pod);
    if !group.cause.contains(&impersonal(pod, &why)) {
        html.text_element("p", &[], &why);
    }
    html.element("details", &[], |html| {
        html.text_element("summary", &[], "Explain");
        let id = format!("explain/{}", pod.title());
        let text = explain(state, &pod.namespace, &pod.name).to_string();
        html.text_element("pre", &[("id", &id), ("tabindex", "0")], text.trim_end());
        if !pod.uid.is_empty() {
            html.text_element("p", &[("class", "dim")], &format!("UID {}", pod.uid));
        }
    });
}
