//! Names in the sources, and the pages that describe them. A name without a page is an error.

use std::collections::{BTreeMap, BTreeSet};

use crate::markdown::{Kind, lines};
use crate::{read, report, repository, sources::product_files};

type Section = (&'static str, &'static str, &'static str, Vec<String>);

/// Title, introduction, head of the table, and rows.
pub(super) fn sections() -> Vec<Section> {
    vec![
        (
            "Metrics",
            "The agent serves them at `:15014/metrics`; beside them the usual `process_*`.",
            "| Metric | Meaning | Page |\n|---|---|---|",
            rows(&metrics(), &["repair.md", "ambient.md", "in-pod.md", "install-cni.md"], true),
        ),
        (
            "Events",
            "[alerts.md](alerts.md#events) has their types and how often they are published.",
            "| Reason | Page |\n|---|---|",
            rows(&without_help(events()), &["alerts.md", "repair.md", "install-cni.md"], false),
        ),
        (
            "Annotations, labels and taints",
            "Those that the programs read or write.",
            "| Key | Page |\n|---|---|",
            rows(
                &without_help(keys()),
                &[
                    "in-pod.md",
                    "plugin.md",
                    "ambient.md",
                    "repair.md",
                    "node-readiness.md",
                    "millrace.md",
                    "compatibility.md",
                ],
                false,
            ),
        ),
        (
            "Keys of the plugin's configuration",
            "Beside those of the CNI specification.",
            "| Key | Page |\n|---|---|",
            rows(&without_help(configuration()), &["plugin.md", "compatibility.md"], false),
        ),
    ]
}

/// Sources of the product, without tests.
fn sources(roots: &[&str]) -> String {
    let files = roots.iter().flat_map(|root| product_files(&repository().join(root)));
    let sources = files.map(|path| std::fs::read_to_string(path).unwrap());
    sources.map(|source| source.split("#[cfg(test)]").next().unwrap_or_default().to_owned()).collect()
}

/// String literals without escapes, in the order in which they are written.
fn literals(source: &str) -> impl Iterator<Item = &str> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split('"').skip(1).step_by(2))
}

fn is_snake(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

/// Metrics as registered, with their help; the exported name of a counter ends in `_total`.
fn metrics() -> BTreeMap<String, String> {
    let all = sources(&["pkg", "cmd"]);
    let prefixes = ["istio_cni_", "nodeagent_", "ztunnel_connected"];
    let whole = literals(&all).filter(|name| is_snake(name));
    let whole = whole.filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    whole.map(|name| (name.to_owned(), help_of(&all, name))).collect()
}

/// The literal after a metric's name, or, if a variable follows, the one before it.
fn help_of(source: &str, name: &str) -> String {
    let (before, after) = source.split_once(&format!("\"{name}\"")).unwrap();
    let next = after.trim_start_matches([',', ' ', '\n']);
    let help = next.strip_prefix('"').and_then(|rest| rest.split('"').next());
    help.or_else(|| before.rsplit('"').nth(1)).unwrap().to_owned()
}

/// Reasons of Events: camel case, in the files that publish them.
fn events() -> BTreeSet<String> {
    let text = sources(&[
        "pkg/agent/src/notice.rs",
        "pkg/agent/src/notice",
        "pkg/repair/src/controller.rs",
        "pkg/repair/src/controller",
        "pkg/installer/src/pass.rs",
        "pkg/node-status/src/sidecar_drift.rs",
        "pkg/pod-status/src/lifecycle/stability.rs",
    ]);
    let is_reason = |text: &&str| {
        text.len() > 6
            && text.starts_with(|c: char| c.is_ascii_uppercase())
            && text.chars().all(char::is_alphanumeric)
            && text.chars().skip(1).any(|c| c.is_ascii_uppercase())
    };
    literals(&text).filter(is_reason).map(str::to_owned).collect()
}

fn keys() -> BTreeSet<String> {
    let all = sources(&["pkg", "cmd", "cni-plugin"]);
    let domain = |text: &&str| text.starts_with("istio.io/") || text.contains(".istio.io/");
    let found = literals(&all).filter(domain).filter(|text| !text.contains([' ', '{', ':']));
    found.map(|text| text.split('=').next().unwrap().to_owned()).collect()
}

/// Fields that the parser of the plugin's configuration reads.
fn configuration() -> BTreeSet<String> {
    let source = sources(&["pkg/cni-types/src/conf.rs"]);
    let found =
        literals(&source).filter(|text| is_snake(text) && (text.contains('_') || *text == "kubeconfig"));
    found.map(str::to_owned).collect()
}

fn without_help(names: BTreeSet<String>) -> BTreeMap<String, String> {
    names.into_iter().map(|name| (name, String::new())).collect()
}

/// A row for each name, with the first page that has it at the head of a table row, or else anywhere.
fn rows(names: &BTreeMap<String, String>, pages: &[&'static str], with_help: bool) -> Vec<String> {
    let texts: BTreeMap<&str, String> =
        pages.iter().map(|page| (*page, read(&format!("docs/{page}")))).collect();
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for (name, help) in names {
        let in_table = pages.iter().find_map(|page| Some((*page, head_of_row(&texts[page], name)?)));
        let mention = |page: &&&'static str| spans(&texts[**page]).any(|span| is(span, name));
        let anywhere = || Some((*pages.iter().find(mention)?, name.clone()));
        match in_table.or_else(anywhere) {
            Some((page, span)) if with_help => {
                rows.push(format!("| `{span}` | {help} | [{page}]({page}) |\n"));
            }
            Some((page, _)) => rows.push(format!("| `{name}` | [{page}]({page}) |\n")),
            None => missing.push(format!("{name}: in the sources, and on none of {pages:?}")),
        }
    }
    report("names are not documented", &missing);
    rows
}

/// The code span, with labels, that has the name in the first cell of a row.
fn head_of_row(page: &str, name: &str) -> Option<String> {
    let rows = lines(page).into_iter().filter(|line| line.kind == Kind::Table);
    let mut cells = rows.filter_map(|line| line.text.trim().strip_prefix("| ")?.split(" | ").next());
    cells.find_map(|cell| spans(cell).find(|span| is(span, name)).map(str::to_owned))
}

fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether a code span has the name: with labels or a value, below `kubernetes.`, or as the exported counter.
fn is(span: &str, name: &str) -> bool {
    let span = span.strip_prefix("kubernetes.").unwrap_or(span);
    let rest = span.strip_prefix(name).map(|rest| rest.strip_prefix("_total").unwrap_or(rest));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', '=', ':', ' ']))
}
