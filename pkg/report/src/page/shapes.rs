//! Shapes of the pictures. Colours and fonts are the style sheet's, so that a picture follows light and dark.

use super::html::HtmlWriter;

/// A rectangle, in the picture's own units, which are pixels on most screens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Width of every picture: what a phone shows without shrinking it.
pub(super) const WIDTH: usize = 360;

/// A picture with its title and description, which is all of it that a screen reader tells.
pub(super) fn picture(
    html: &mut HtmlWriter,
    id: &str,
    height: usize,
    (title, description): (&str, &str),
    inside: impl FnOnce(&mut HtmlWriter),
) {
    let (title_id, description_id) = (format!("{id}-title"), format!("{id}-desc"));
    let names = format!("{title_id} {description_id}");
    let view = format!("0 0 {WIDTH} {height}");
    let attributes = [("id", id), ("viewBox", &view), ("role", "img"), ("aria-labelledby", &names)];
    html.element("svg", &attributes, |html| {
        html.text_element("title", &[("id", &title_id)], title);
        html.text_element("desc", &[("id", &description_id)], description);
        inside(html);
    });
}

/// A box, with a title for who points at it.
pub(super) fn area(html: &mut HtmlWriter, area: Area, class: &str, title: Option<&str>) {
    let [x, y, width, height] = [area.x, area.y, area.width, area.height].map(|number| number.to_string());
    let attributes =
        [("x", x.as_str()), ("y", &y), ("width", &width), ("height", &height), ("rx", "3"), ("class", class)];
    html.element("rect", &attributes, |html| {
        if let Some(title) = title {
            html.text_element("title", &[], title);
        }
    });
}

/// A line of text, its baseline at `y`.
pub(super) fn text(html: &mut HtmlWriter, (x, y): (usize, usize), class: &str, text: &str) {
    let (x, y) = (x.to_string(), y.to_string());
    html.text_element("text", &[("x", &x), ("y", &y), ("class", class)], text);
}

/// An arrow; dashed where nothing new goes.
pub(super) fn arrow(html: &mut HtmlWriter, from: (usize, usize), to: (usize, usize), dashed: bool) {
    let class = if dashed { "arrow dashed" } else { "arrow" };
    let (x, y) = to;
    let line = format!("M{} {}L{x} {}", from.0, from.1, y.saturating_sub(6));
    html.element("path", &[("d", &line), ("class", class)], |_| {});
    let head = format!("M{} {}h10l-5 7z", x.saturating_sub(5), y.saturating_sub(7));
    html.element("path", &[("d", &head), ("class", "head")], |_| {});
}

/// As much of a text as fits into that many characters.
pub(super) fn fit(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        return text.to_owned();
    }
    text.chars().take(characters.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_characters() {
        assert_eq!(fit("ztunnel", 7), "ztunnel");
        assert_eq!(fit("ztünnél-x", 5), "ztün…");
        assert_eq!(fit("", 0), "");
    }
}
