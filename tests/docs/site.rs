//! docs/SUMMARY.md, from which hack/site builds the site: each page is in it once, under its readers, and pages link to files of
//! the site. hack/site itself checks that links resolve.

use std::collections::BTreeMap;
use std::path::Path;

use crate::links::resolve;
use crate::markdown::{Kind, lines, targets};
use crate::{pages, read, report, repository};

const SUMMARY: &str = "docs/SUMMARY.md";
/// Readers, of which each page has one.
const READERS: [&str; 3] = ["For operators", "For reviewers", "For developers"];

/// A line of a summary: the reader, the title, and the path of the page from the root.
fn entries(summary: &str) -> Vec<(String, String, String)> {
    let mut reader = String::new();
    let mut entries = Vec::new();
    for line in lines(summary) {
        if line.kind == Kind::Heading {
            line.text.trim_start_matches('#').trim().clone_into(&mut reader);
        } else if let Some((title, target)) =
            line.text.strip_prefix("- [").and_then(|rest| rest.split_once("]("))
        {
            let page = resolve(SUMMARY, target.trim_end_matches(')'));
            entries.push((reader.clone(), title.to_owned(), page.to_str().unwrap().to_owned()));
        }
    }
    entries
}

/// Returns the faults of a summary of these pages, each with its title.
fn findings(summary: &str, pages: &BTreeMap<String, String>) -> Vec<String> {
    let entries = entries(summary);
    let mut findings = Vec::new();
    for (reader, title, page) in &entries {
        if !READERS.contains(&reader.as_str()) {
            findings.push(format!("{page} is for {reader:?}, and not for one of {READERS:?}"));
        }
        match pages.get(page) {
            None => findings.push(format!("{page} is no page")),
            Some(heading) if heading != title => {
                findings.push(format!("{page} is {heading:?}, and not {title:?}"));
            }
            Some(_) => {}
        }
    }
    for page in pages.keys() {
        let count = entries.iter().filter(|(.., entry)| entry == page).count();
        if count != 1 {
            findings.push(format!("{page} stands in {SUMMARY} {count} times"));
        }
    }
    findings
}

#[test]
fn each_page_is_for_one_kind_of_reader() {
    let title = |page: String| {
        let first = read(&page).lines().next().unwrap().trim_start_matches("# ").to_owned();
        (page, first)
    };
    let pages = pages().into_iter().filter(|page| page != SUMMARY).map(title).collect();
    report("pages are not in the site as they should be", &findings(&read(SUMMARY), &pages));
}

#[test]
fn a_page_that_is_missing_misplaced_or_misnamed_is_reported() {
    let pages = [("docs/a.md", "A"), ("docs/b.md", "B"), ("C.md", "C")];
    let pages = pages.map(|(page, title)| (page.to_owned(), title.to_owned())).into();
    let whole = "# For operators\n- [A](a.md)\n# For reviewers\n- [B](b.md)\n- [C](../C.md)\n";
    assert_eq!(findings(whole, &pages), [""; 0]);
    let wrong = "# For all\n- [A](a.md)\n# For reviewers\n- [X](b.md)\n- [B](b.md)\n- [D](d.md)\n";
    assert_eq!(findings(wrong, &pages).len(), 5);
}

/// The site has the pages, and each file to which a page links; no directory.
#[test]
fn pages_link_to_what_the_site_has() {
    let all = pages();
    let mut findings = Vec::new();
    for page in &all {
        let text = read(page);
        for line in lines(&text).iter().filter(|line| !matches!(line.kind, Kind::Block(_))) {
            for target in targets(line.text) {
                let path = target.split('#').next().unwrap();
                if path.is_empty() || path.contains(':') {
                    continue;
                }
                let path = resolve(page, path);
                let is_page = path.extension().is_some_and(|extension| extension == "md");
                let has = if is_page { is_listed(&all, &path) } else { repository().join(&path).is_file() };
                if !has {
                    findings.push(format!("{page}:{}: {target}", line.number));
                }
            }
        }
    }
    report("links lead out of the site", &findings);
}

fn is_listed(pages: &[String], path: &Path) -> bool {
    pages.iter().any(|page| Path::new(page) == path && page != SUMMARY)
}
