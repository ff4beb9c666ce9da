//! The page that shows a node: one HTML document, made of a [`StateReport`] and nothing else.
//!
//! It is whole without scripts and asks nobody for anything. With scripts it fetches itself again every few seconds
//! and takes over what has changed, which is why everything that may change carries an `id`.

mod frame;
mod groups;
mod headline;
mod html;
mod lamps;
mod objects;
mod parts;
mod picture;
mod pods;
mod shapes;
mod way;
mod when;

use crate::StateReport;
use html::HtmlWriter;

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Nothing is loaded from anywhere, and only the page's own server is asked, for the page itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'";

/// The whole page as HTML, in UTF-8. A few tens of kilobytes, and about one more for each pod.
///
/// The address that serves it must answer a GET with a new one: the page's script fetches the address that it came from.
#[must_use]
pub fn page(state: &StateReport) -> String {
    let groups = groups::groups(state);
    let said = headline::statements(state, &groups);
    let mut html = HtmlWriter::document();
    html.element("html", &[("lang", "en"), ("data-version", &state.version)], |html| {
        head(html, &headline::title(state, &said));
        html.element("body", &[], |html| {
            frame::header(html, state);
            html.element("main", &[("id", "main"), ("tabindex", "-1")], |html| {
                html.element(
                    "section",
                    &[("id", "headline"), ("aria-labelledby", "headline-words")],
                    |html| {
                        headline::headline(html, &said);
                        lamps::lamps(html, state);
                        headline::seen(html, state);
                    },
                );
                picture::section(html, state);
                pods::section(html, state, &groups);
                rest(html, state);
            });
            frame::footer(html, state);
            html.element("script", &[], |html| html.fixed(SCRIPT));
        });
    });
    html.finish()
}

fn head(html: &mut HtmlWriter, title: &str) {
    html.element("head", &[], |html| {
        html.void("meta", &[("charset", "utf-8")]);
        html.void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
        html.void("meta", &[("name", "color-scheme"), ("content", "light dark")]);
        html.void("meta", &[("http-equiv", "Content-Security-Policy"), ("content", POLICY)]);
        // Without it, browsers ask for /favicon.ico.
        html.void("link", &[("rel", "icon"), ("href", "data:,")]);
        html.text_element("title", &[], title);
        html.element("style", &[], |html| html.fixed(STYLE));
    });
}

/// Sections for who wants to know more.
fn rest(html: &mut HtmlWriter, state: &StateReport) {
    parts::ztunnels(html, state);
    objects::section(html, state);
    parts::plan(html, state);
    parts::history(html, state);
    parts::installation(html, state);
    parts::settings(html, state);
}
