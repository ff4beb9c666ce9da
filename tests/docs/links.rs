//! Every relative link leads to a file that exists, and every fragment to a heading or an anchor in it.

use std::path::{Component, Path, PathBuf};

use crate::markdown::{Kind, anchors, lines, targets};
use crate::{pages, read, report, repository};

/// A path without `..`, as a browser resolves it.
pub(crate) fn resolve(page: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in Path::new(page).parent().unwrap().join(target).components() {
        match component {
            Component::ParentDir => assert!(path.pop(), "{page}: {target} leaves the repository"),
            Component::Normal(name) => path.push(name),
            other => assert_eq!(other, Component::CurDir, "{page}: {target} is not relative"),
        }
    }
    path
}

/// Fault of a link.
fn complaint(page: &str, target: &str) -> Option<String> {
    if ["https://", "http://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (file, fragment) = target.split_once('#').map_or((target, None), |(file, id)| (file, Some(id)));
    let path = if file.is_empty() { PathBuf::from(page) } else { resolve(page, file) };
    if !repository().join(&path).exists() {
        return Some(format!("no file {}", path.display()));
    }
    let fragment = fragment?;
    if path.extension().is_none_or(|extension| extension != "md") {
        return Some("a fragment of a file that is not Markdown".to_owned());
    }
    let known = anchors(&read(path.to_str().unwrap()));
    (!known.iter().any(|anchor| anchor == fragment)).then(|| format!("no #{fragment} in {}", path.display()))
}

#[test]
fn every_link_resolves() {
    let mut findings = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        for line in lines(&text).iter().filter(|line| !matches!(line.kind, Kind::Block(_))) {
            for target in targets(line.text) {
                count += 1;
                let wrong = complaint(&page, &target);
                findings.extend(wrong.map(|wrong| format!("{page}:{}: {target}: {wrong}", line.number)));
            }
        }
    }
    assert!(count > 100, "links were found: {count}");
    report("links do not resolve", &findings);
}

#[test]
fn a_link_that_does_not_resolve_is_reported() {
    assert_eq!(complaint("README.md", "docs/no.md").unwrap(), "no file docs/no.md");
    assert_eq!(complaint("docs/plugin.md", "../README.md#no").unwrap(), "no #no in README.md");
    assert_eq!(complaint("docs/plugin.md", "#errors"), None);
}
