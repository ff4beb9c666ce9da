//! Just enough of an HTML reader to check what the page is made of. It knows no more than the page needs.

/// A tag, or what stands between two.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece<'a> {
    Open { name: &'a str, attributes: Vec<(&'a str, &'a str)> },
    Close(&'a str),
    Text(&'a str),
}

impl<'a> Piece<'a> {
    /// The value of an attribute, still escaped.
    pub(crate) fn attribute(&self, wanted: &str) -> Option<&'a str> {
        let Piece::Open { attributes, .. } = self else { return None };
        attributes.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
    }
}

/// Elements that have no end.
pub(crate) fn is_void(name: &str) -> bool {
    matches!(name, "meta" | "link" | "br" | "input" | "wbr" | "!DOCTYPE")
}

/// All of them, in order. Styles and scripts are text up to their ends.
pub(crate) fn pieces(mut page: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    while let Some(at) = page.find('<') {
        pieces.push(Piece::Text(&page[..at]));
        let end = tag_end(&page[at..]) + at;
        let piece = tag(&page[at + 1..end]);
        page = &page[end + 1..];
        if let Piece::Open { name: name @ ("style" | "script"), .. } = piece {
            let end = page.find(if name == "style" { "</style" } else { "</script" }).expect("it ends");
            page = &page[end..];
        }
        pieces.push(piece);
    }
    pieces.push(Piece::Text(page));
    pieces
}

/// Where a tag ends: at the first `>` outside of quotes.
fn tag_end(tag: &str) -> usize {
    let mut quoted = false;
    tag.find(|symbol| {
        quoted ^= symbol == '"';
        symbol == '>' && !quoted
    })
    .expect("every tag ends")
}

fn tag(inside: &str) -> Piece<'_> {
    if let Some(name) = inside.strip_prefix('/') {
        return Piece::Close(name);
    }
    let (name, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let end = rest.find([' ', '=']).unwrap_or(rest.len());
        let (attribute, after) = rest.split_at(end);
        let (value, after) = match after.strip_prefix("=\"") {
            Some(quoted) => quoted.split_once('"').expect("every value ends"),
            None => ("", after),
        };
        attributes.push((attribute, value));
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    Piece::Open { name, attributes }
}

/// What a person reads.
pub(crate) fn text(page: &str) -> String {
    let texts = pieces(page).into_iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        _ => None,
    });
    let escaped = texts.collect::<Vec<_>>().concat();
    let plain =
        escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'");
    plain.replace("&amp;", "&")
}
