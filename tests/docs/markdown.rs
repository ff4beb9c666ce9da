//! The part of Markdown that the documentation uses: fenced blocks, headings, tables, code spans and inline links.

use std::collections::HashMap;

/// Kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind<'a> {
    /// A fence, or a line between fences, with the language of the block.
    Block(&'a str),
    Heading,
    Table,
    Prose,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// Number of the line, from 1.
    pub(crate) number: usize,
    pub(crate) kind: Kind<'a>,
    pub(crate) text: &'a str,
    /// Whether the line is the fence itself.
    pub(crate) fence: bool,
}

/// All lines of a page.
pub(crate) fn lines(page: &str) -> Vec<Line<'_>> {
    let mut block = None;
    let mut lines = Vec::new();
    for (at, text) in page.lines().enumerate() {
        let fence = text.trim_start().strip_prefix("```");
        let kind = match (fence, block) {
            (Some(language), None) => {
                block = Some(language.trim());
                Kind::Block(language.trim())
            }
            (_, Some(language)) => {
                if fence.is_some() {
                    block = None;
                }
                Kind::Block(language)
            }
            (None, None) if text.starts_with('#') => Kind::Heading,
            (None, None) if text.trim_start().starts_with('|') => Kind::Table,
            (None, None) => Kind::Prose,
        };
        lines.push(Line { number: at + 1, kind, text, fence: fence.is_some() });
    }
    assert!(block.is_none(), "a block has no end");
    lines
}

/// The line with an `x` in place of each character of a code span, so that code is neither a link nor prose.
pub(crate) fn without_code(line: &str) -> String {
    let mut is_code = false;
    let mark = |character: char| {
        if character == '`' {
            is_code = !is_code;
            return 'x';
        }
        if is_code { 'x' } else { character }
    };
    line.chars().map(mark).collect()
}

/// Targets of inline links and images, without titles.
pub(crate) fn targets(line: &str) -> Vec<String> {
    let text = without_code(line);
    let after = text.split("](").skip(1);
    after.filter_map(|rest| Some(rest.split_once(')')?.0.split(' ').next()?.to_owned())).collect()
}

/// Fragments of a page: its headings, by the rules of GitHub and GitLab, and its explicit anchors.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    for line in lines(page) {
        match line.kind {
            Kind::Heading => {
                let slug = slug(line.text.trim_start_matches('#').trim());
                let times = seen.entry(slug.clone()).or_default();
                anchors.push(if *times == 0 { slug } else { format!("{slug}-{times}") });
                *times += 1;
            }
            Kind::Prose | Kind::Table => {
                let ids = line.text.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
                anchors.extend(ids.map(|(id, _)| id.to_owned()));
            }
            Kind::Block(_) => {}
        }
    }
    anchors
}

/// Lower case, without punctuation, with hyphens instead of spaces.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn slugs_are_those_of_the_hosting_sites() {
    assert_eq!(slug("The plugin `istio-cni`"), "the-plugin-istio-cni");
    assert_eq!(slug("Start, stop, upgrade, uninstall"), "start-stop-upgrade-uninstall");
    assert_eq!(slug("Istio 1.29 to 1.31"), "istio-129-to-131");
    assert_eq!(anchors("# One\n```\n# no\n```\n## One\n<a id=\"old\"></a>\n"), ["one", "one-1", "old"]);
}

#[test]
fn code_is_neither_a_link_nor_prose() {
    assert_eq!(targets("see [`a`](b.md#c \"title\"), `[no](d)` and ![picture](e.png)"), ["b.md#c", "e.png"]);
    assert_eq!(without_code("a `b. C` d"), "a xxxxxx d");
}
