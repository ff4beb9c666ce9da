//! A writer of HTML that cannot forget to escape: markup is part of the program, text is not.

use std::fmt::Write as _;

/// A document, or a part of one, as it grows. Names of elements and attributes are literals; everything else is
/// escaped on its way in.
pub(super) struct HtmlWriter {
    out: String,
}

/// An attribute: its name, and its value as it is meant.
pub(super) type HtmlAttribute<'a> = (&'static str, &'a str);

impl HtmlWriter {
    /// A new document, up to its root element.
    pub(super) fn document() -> HtmlWriter {
        HtmlWriter { out: "<!DOCTYPE html>\n".to_owned() }
    }

    /// Returns the HTML that was written.
    pub(super) fn finish(self) -> String {
        self.out
    }

    /// An element, and what `inside` puts into it.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: &[HtmlAttribute<'_>],
        inside: impl FnOnce(&mut HtmlWriter),
    ) {
        self.void(name, attributes);
        inside(self);
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
        if is_block(name) {
            self.out.push('\n');
        }
    }

    /// An element that holds text alone.
    pub(super) fn text_element(&mut self, name: &'static str, attributes: &[HtmlAttribute<'_>], text: &str) {
        self.element(name, attributes, |html| html.text(text));
    }

    /// An element that has no end.
    pub(super) fn void(&mut self, name: &'static str, attributes: &[HtmlAttribute<'_>]) {
        self.out.push('<');
        self.out.push_str(name);
        for (name, value) in attributes {
            let _ = write!(self.out, " {name}");
            if !value.is_empty() {
                self.out.push_str("=\"");
                self.text(value);
                self.out.push('"');
            }
        }
        self.out.push('>');
    }

    /// Text.
    pub(super) fn text(&mut self, text: &str) {
        for symbol in text.chars() {
            match symbol {
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '&' => self.out.push_str("&amp;"),
                '"' => self.out.push_str("&quot;"),
                '\'' => self.out.push_str("&#39;"),
                other if misleads(other) => self.out.push('\u{fffd}'),
                other => self.out.push(other),
            }
        }
    }

    /// Writes a fixed part of the program, such as a style or a script, without escaping.
    pub(super) fn fixed(&mut self, markup: &'static str) {
        self.out.push_str(markup);
    }
}

/// Whether a character would change what is seen around it, or cannot stand in HTML at all.
fn misleads(symbol: char) -> bool {
    let turns = matches!(symbol, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (symbol.is_control() && symbol != '\n' && symbol != '\t')
}

/// Whether a line ends behind it, so that a person can read the source.
fn is_block(name: &str) -> bool {
    matches!(
        name,
        "tr" | "li" | "section" | "p" | "h2" | "details" | "table" | "svg" | "head" | "header" | "g"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut HtmlWriter)) -> String {
        let mut html = HtmlWriter { out: String::new() };
        write(&mut html);
        html.finish()
    }

    #[test]
    fn text_and_values_are_escaped() {
        let hostile = "<b a='1' b=\"2\">&";
        let safe = "&lt;b a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;";
        let html = written(|html| html.text_element("td", &[("title", hostile)], hostile));
        assert_eq!(html, format!("<td title=\"{safe}\">{safe}</td>"));
    }

    #[test]
    fn characters_that_mislead_are_replaced() {
        let text = written(|html| html.text("a\0b\u{202e}c\u{2068}d\re\tf\n"));
        assert_eq!(text, "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\tf\n");
    }

    #[test]
    fn an_attribute_without_value_is_its_name() {
        assert_eq!(written(|html| html.void("input", &[("hidden", "")])), "<input hidden>");
    }

    #[test]
    fn style_and_script_do_not_end_themselves() {
        for (text, end) in [(crate::page::STYLE, "</style"), (crate::page::SCRIPT, "</script")] {
            assert!(!text.to_lowercase().contains(end) && !text.contains("<!--"));
        }
    }
}
