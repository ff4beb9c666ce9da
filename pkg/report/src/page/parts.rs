//! Sections that are lists or tables, and what all sections are made of.

use super::{html::HtmlWriter, when};
use crate::{ChangeRecord, ChangeStatus, PlanStep, StateReport, ZtunnelState};

/// A section with its heading.
pub(super) fn section(
    html: &mut HtmlWriter,
    id: &'static str,
    heading: &str,
    inside: impl FnOnce(&mut HtmlWriter),
) {
    let title = format!("{id}-heading");
    html.element("section", &[("id", id), ("aria-labelledby", &title)], |html| {
        html.text_element("h2", &[("id", &title)], heading);
        inside(html);
    });
}

/// A table that scrolls for itself: on a narrow screen the page must not. It takes the focus, so that keys scroll it.
pub(super) fn table(
    html: &mut HtmlWriter,
    id: &'static str,
    caption: &str,
    columns: &[&str],
    rows: impl FnOnce(&mut HtmlWriter),
) {
    let scroll = [("class", "scroll"), ("role", "region"), ("tabindex", "0"), ("aria-label", caption)];
    html.element("div", &scroll, |html| {
        html.element("table", &[("id", id)], |html| {
            html.text_element("caption", &[], caption);
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| {
                    columns.iter().for_each(|name| html.text_element("th", &[("scope", "col")], name));
                });
            });
            html.element("tbody", &[], rows);
        });
    });
}

/// A field that filters the rows of the element `target`; `more` adds other ways to choose. Hidden without scripts.
pub(super) fn filter(
    html: &mut HtmlWriter,
    target: &'static str,
    label: &str,
    more: impl FnOnce(&mut HtmlWriter),
) {
    let form = [
        ("class", "filter"),
        ("role", "search"),
        ("aria-label", label),
        ("data-for", target),
        ("hidden", ""),
    ];
    html.element("div", &form, |html| {
        html.element("label", &[], |html| {
            html.text(&format!("{label} "));
            let input =
                [("type", "search"), ("data-text", ""), ("autocomplete", "off"), ("spellcheck", "false")];
            html.void("input", &input);
        });
        more(html);
        html.text_element("output", &[("aria-live", "polite")], "");
    });
}

/// The node's ztunnels.
pub(super) fn ztunnels(html: &mut HtmlWriter, state: &StateReport) {
    section(html, "ztunnels", "Ztunnels", |html| {
        if state.ztunnels.is_empty() {
            return html.text_element("p", &[], "No ztunnel of this node is known.");
        }
        let columns = ["Ztunnel", "New connections", "Ready", "Slot", "Link", "DNS", "Agent", "Addresses"];
        table(html, "ztunnels-table", "Ztunnels of this node", &columns, |html| {
            state.ztunnels.iter().for_each(|one| ztunnel(html, one));
        });
    });
}

fn ztunnel(html: &mut HtmlWriter, one: &ZtunnelState) {
    let id = format!("ztunnel/{}/{}", one.namespace, one.name);
    let ready = match (one.ready, one.terminating) {
        (true, false) => "ready",
        (false, false) => "not ready",
        (_, true) => "being deleted",
    };
    let connected = match one.connected {
        Some(true) => "connected",
        Some(false) => "not connected",
        None => "–",
    };
    let slot = one.slot.map_or_else(|| "–".to_owned(), |slot| slot.to_string());
    let ips: Vec<_> = one.ips.iter().map(ToString::to_string).collect();
    html.element("tr", &[("id", &id)], |html| {
        html.text_element("th", &[("scope", "row")], &format!("{}/{}", one.namespace, one.name));
        html.text_element("td", &[], if one.active { "✓ go to it" } else { "do not go to it" });
        html.text_element("td", &[], ready);
        html.text_element("td", &[], &slot);
        html.text_element("td", &[], one.link.as_deref().unwrap_or("–"));
        html.text_element("td", &[], if one.dns_proxy { "answers" } else { "–" });
        html.text_element("td", &[], connected);
        html.text_element("td", &[], &ips.join(", "));
    });
}

/// Writes the steps that would be taken now.
pub(super) fn plan(html: &mut HtmlWriter, state: &StateReport) {
    section(html, "plan", "Plan", |html| {
        if state.plan.is_empty() {
            return html.text_element("p", &[], "Nothing is to be done.");
        }
        html.text_element("p", &[], "What would be done now, in this order:");
        html.element("ol", &[], |html| state.plan.iter().for_each(|one| step(html, one)));
    });
}

fn step(html: &mut HtmlWriter, step: &PlanStep) {
    html.element("li", &[], |html| {
        html.text(&format!("{} ", step.message));
        html.text_element("code", &[], &step.kind);
        if !step.operations.is_empty() {
            html.element("details", &[], |html| {
                let summary = match step.operations.len() {
                    1 => "1 operation".to_owned(),
                    some => format!("{some} operations"),
                };
                html.text_element("summary", &[], &summary);
                lines(html, &step.operations);
            });
        }
    });
}

/// Lines of tools. They may be long, and scroll for themselves.
pub(super) fn lines(html: &mut HtmlWriter, lines: &[String]) {
    html.element("pre", &[("tabindex", "0")], |html| {
        for line in lines {
            html.text(line);
            html.text("\n");
        }
    });
}

/// The last changes.
pub(super) fn history(html: &mut HtmlWriter, state: &StateReport) {
    section(html, "history", "History", |html| {
        if state.history.is_empty() {
            return html.text_element("p", &[], "Nothing was changed that the agent remembers.");
        }
        filter(html, "history-table", "Find changes", |_| {});
        let columns = ["When", "Cause", "What was done", "Pod", "Took", "Outcome"];
        table(html, "history-table", "Changes, newest first", &columns, |html| {
            state.history.iter().for_each(|one| change(html, one, &state.observation.observed_at));
        });
    });
}

fn change(html: &mut HtmlWriter, change: &ChangeRecord, now: &str) {
    // Rows move down as new ones come; by its key the script knows a row again.
    let key = format!("change/{}/{}/{}", change.started_at, change.cause, change.action);
    let class = if change.outcome == ChangeStatus::Failed { "wrong" } else { "plain" };
    html.element("tr", &[("data-key", &key), ("class", class)], |html| {
        html.element("th", &[("scope", "row")], |html| when::time(html, &change.started_at, now));
        html.text_element("td", &[], &change.cause);
        html.text_element("td", &[], &change.action);
        html.text_element("td", &[], change.pod.as_deref().unwrap_or("–"));
        html.text_element("td", &[], &when::milliseconds(change.duration_ms));
        html.element("td", &[], |html| match change.outcome {
            ChangeStatus::Succeeded => html.text("✓ done"),
            ChangeStatus::Failed => {
                let why = change.error.as_deref().unwrap_or("nobody said why");
                html.text_element("span", &[("class", "trouble")], &format!("✗ failed: {why}"));
            }
        });
    });
}

/// Files of ours on the node.
pub(super) fn installation(html: &mut HtmlWriter, state: &StateReport) {
    section(html, "installation", "Installation", |html| {
        if state.installation.is_empty() {
            return html.text_element("p", &[], "No installed file is known.");
        }
        let columns = ["File", "Kind", "State", "In words"];
        table(html, "installation-table", "Installed files", &columns, |html| {
            for file in &state.installation {
                let class = if file.correct { "plain" } else { "wrong" };
                html.element("tr", &[("id", &format!("file/{}", file.path)), ("class", class)], |html| {
                    html.element("th", &[("scope", "row")], |html| {
                        html.text_element("code", &[], &file.path);
                    });
                    html.text_element("td", &[], &file.kind);
                    html.text_element("td", &[], if file.correct { "✓ as desired" } else { "≠ different" });
                    html.text_element("td", &[], &file.message);
                });
            }
        });
    });
}

/// Effective settings.
pub(super) fn settings(html: &mut HtmlWriter, state: &StateReport) {
    section(html, "settings", "Settings", |html| {
        if state.config.is_empty() {
            return html.text_element("p", &[], "No settings are known.");
        }
        html.element("details", &[("id", "settings-all")], |html| {
            html.text_element("summary", &[], &format!("{} settings in effect", state.config.len()));
            filter(html, "settings-table", "Find settings", |_| {});
            let columns = ["Setting", "Value", "From"];
            table(html, "settings-table", "Settings in effect", &columns, |html| {
                for setting in &state.config {
                    html.element("tr", &[("id", &format!("setting/{}", setting.name))], |html| {
                        html.text_element("th", &[("scope", "row")], &setting.name);
                        html.element("td", &[], |html| html.text_element("code", &[], &setting.value));
                        html.text_element("td", &[], &setting.source);
                    });
                }
            });
        });
    });
}
