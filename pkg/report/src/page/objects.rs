//! Our objects in the node's network: what differs first, then all that is desired and observed.

use std::fmt::Display;

use super::{html::HtmlWriter, parts};
use crate::{Comparison, StateDifference, StateReport};

/// The section.
pub(super) fn section(html: &mut HtmlWriter, state: &StateReport) {
    let network = &state.network;
    parts::section(html, "objects", "Objects in the node's network", |html| {
        parts::filter(html, "objects-lists", "Find objects", |_| {});
        html.element("div", &[("id", "objects-lists")], |html| {
            kind(html, "ipsets", "Members of sets", &network.ipsets);
            kind(html, "rules", "Policy rules", &network.rules);
            kind(html, "routes", "Routes", &network.routes);
            kind(html, "links", "Links", &network.links);
            kind(html, "sysctls", "Kernel settings", &network.sysctls);
            kind(html, "firewall", "Firewall rules", &network.firewall);
        });
        foreign(html, &network.foreign);
    });
}

/// One kind of object.
fn kind<T: Display>(html: &mut HtmlWriter, id: &'static str, name: &str, found: &Comparison<T>) {
    let class = if found.differences.is_empty() { "kind" } else { "kind wrong" };
    html.element("div", &[("id", &format!("objects/{id}")), ("class", class)], |html| {
        html.text_element("h3", &[], name);
        html.text_element("p", &[("class", "verdict")], &verdict(found));
        if !found.differences.is_empty() {
            html.element("ul", &[("class", "differences")], |html| {
                found.differences.iter().for_each(|one| difference(html, one));
            });
        }
        lists(html, found);
    });
}

/// How the two compare, in words.
fn verdict<T>(found: &Comparison<T>) -> String {
    let desired = found.desired.len();
    match (&found.observed, found.differences.len()) {
        (None, _) if desired == 0 => "Not looked at.".to_owned(),
        (None, _) => format!("? {desired} desired. The kernel could not be asked."),
        (Some(observed), 0) if desired == 0 && observed.is_empty() => {
            "✓ None desired, none there.".to_owned()
        }
        (Some(_), 0) => format!("✓ {desired} desired, and the kernel shows them."),
        (Some(observed), differ) => {
            let differ =
                if differ == 1 { "1 difference".to_owned() } else { format!("{differ} differences") };
            format!("≠ {differ}: {desired} desired, {} observed.", observed.len())
        }
    }
}

fn difference(html: &mut HtmlWriter, difference: &StateDifference) {
    html.element("li", &[("class", "row")], |html| {
        html.text_element("strong", &[], &format!("≠ {}: ", difference.kind));
        html.text_element("code", &[], &difference.object);
    });
}

/// All that is desired and observed; once, where they are the same to the letter.
fn lists<T: Display>(html: &mut HtmlWriter, found: &Comparison<T>) {
    let desired = printed(&found.desired);
    let observed = found.observed.as_deref().map(printed);
    if observed.as_ref() == Some(&desired) {
        return list(html, "Desired and observed", &desired);
    }
    list(html, "Desired", &desired);
    list(html, "Observed", &observed.unwrap_or_default());
}

/// As text, in one order for both lists.
fn printed<T: Display>(objects: &[T]) -> Vec<String> {
    let mut lines: Vec<_> = objects.iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}

fn list(html: &mut HtmlWriter, name: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    html.element("details", &[], |html| {
        html.text_element("summary", &[], &format!("{name}: {}", lines.len()));
        html.element("ul", &[("class", "lines"), ("tabindex", "0")], |html| {
            for line in lines {
                html.element("li", &[("class", "row")], |html| html.text_element("code", &[], line));
            }
        });
    });
}

/// Writes the objects of other components that are in places that ours need.
fn foreign(html: &mut HtmlWriter, foreign: &[String]) {
    if foreign.is_empty() {
        return;
    }
    html.element("div", &[("id", "objects/foreign"), ("class", "kind watch")], |html| {
        html.text_element("h3", &[], "Others' objects in our place");
        html.element("ul", &[], |html| {
            for one in foreign {
                html.element("li", &[], |html| {
                    html.text_element("strong", &[], "! ");
                    html.text(one);
                });
            }
        });
    });
}
