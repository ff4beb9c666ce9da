//! What stands around the page: where one is, where one can go, and whether the page is alive.

use super::html::HtmlWriter;
use crate::StateReport;

/// The sections that can be jumped to, in their order.
const SECTIONS: [(&str, &str); 8] = [
    ("#picture", "Picture"),
    ("#pods", "Pods"),
    ("#ztunnels", "Ztunnels"),
    ("#objects", "Objects"),
    ("#plan", "Plan"),
    ("#history", "History"),
    ("#installation", "Installation"),
    ("#settings", "Settings"),
];

/// The top of the page.
pub(super) fn header(html: &mut HtmlWriter, state: &StateReport) {
    html.text_element("a", &[("class", "skip"), ("href", "#main")], "Skip to the state of the node");
    html.element("header", &[], |html| {
        html.element("p", &[("class", "name")], |html| {
            html.text("Millrace ");
            html.text_element(
                "strong",
                &[],
                if state.node.name.is_empty() { "this node" } else { &state.node.name },
            );
        });
        html.element("nav", &[("aria-label", "Sections")], |html| {
            html.element("ul", &[], |html| {
                for (target, name) in SECTIONS {
                    html.element("li", &[], |html| html.text_element("a", &[("href", target)], name));
                }
            });
        });
        live(html);
    });
}

/// How fresh the page is. The script shows the one, who has none sees the other.
fn live(html: &mut HtmlWriter) {
    html.element("div", &[("id", "live"), ("hidden", "")], |html| {
        html.text_element("span", &[("id", "fresh")], "");
        let button = [("id", "pause"), ("type", "button"), ("aria-pressed", "false")];
        html.text_element("button", &button, "Pause");
    });
    html.text_element("p", &[("id", "stale"), ("role", "alert"), ("hidden", "")], "");
    html.element("noscript", &[], |html| {
        html.text_element(
            "p",
            &[("class", "dim")],
            "Scripts are off: load the page again to see what is new.",
        );
    });
}

/// The bottom of the page.
pub(super) fn footer(html: &mut HtmlWriter, state: &StateReport) {
    html.element("footer", &[], |html| {
        html.text(&format!("install-cni {}. The same for programs: ", state.version));
        html.text_element("a", &[("href", "debug/state")], "/debug/state");
        html.text(&format!(" ({}).", state.schema));
    });
}
