//! `docs/reference.md`: every name in the programs' interfaces, taken from the sources, with the page that describes it. After a
//! change: `MILLRACE_UPDATE_GOLDEN=1 cargo test -p docs-check`, then read the diff.

mod help;
mod istio;
mod names;

use std::fmt::Write as _;

use crate::{read, repository};

const PAGE: &str = "docs/reference.md";

const HEAD: &str = "# Reference

Every flag, variable and exit status of the programs, every metric, Event, key and annotation.
This page is generated from the programs' help, their sources and the other pages, and a test checks that it is up to date; do not edit it.
The findings of `millrace` are in [millrace.md](millrace.md#findings), and the chart's values are in [helm.md](helm.md).
";

/// Programs with their sub-commands.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "install-cni",
        &[
            "",
            "uninstall",
            "check",
            "state",
            "explain",
            "prove",
            "list",
            "verify",
            "plan",
            "watch",
            "bundle",
            "history",
            "simulate",
            "log-level",
            "completion",
            "version",
        ],
    ),
    ("istio-cni-taint", &[""]),
    ("istio-iptables", &[""]),
    ("istio-clean-iptables", &[""]),
    (
        "millrace",
        &[
            "",
            "check",
            "list",
            "explain",
            "prove",
            "simulate label",
            "simulate settings",
            "verify",
            "bundle",
            "watch",
            "version",
            "completion",
            "man",
        ],
    ),
];

/// The page, if the programs have been built.
fn page() -> Option<String> {
    let mut page = HEAD.to_owned();
    for (program, commands) in PROGRAMS {
        write!(page, "\n## `{program}`\n").unwrap();
        let own: Vec<help::Help> =
            commands.iter().map(|command| help::of(program, command)).collect::<Option<_>>()?;
        let statuses: Vec<_> = own.iter().filter(|help| !help.exit_status.is_empty()).collect();
        if !statuses.is_empty() {
            page.push_str("\n| Command | Exit status |\n|---|---|\n");
            for help in statuses {
                writeln!(page, "| `{}` | {} |", help.command, help.exit_status).unwrap();
            }
        }
        for help in &own {
            let of_all: Vec<String> = own[0].flags.iter().map(help::HelpFlag::row).collect();
            let is_first = std::ptr::eq(help, &raw const own[0]);
            let rows = help.flags.iter().map(help::HelpFlag::row);
            let rows: Vec<String> = rows.filter(|row| is_first || !of_all.contains(row)).collect();
            if rows.is_empty() {
                continue;
            }
            if !is_first {
                write!(page, "\n`{}`:\n", help.command).unwrap();
            }
            write!(page, "\n| Flag | Variable | Default | Meaning |\n|---|---|---|---|\n{}", rows.concat())
                .unwrap();
        }
    }
    for (title, intro, header, rows) in names::sections() {
        write!(page, "\n## {title}\n\n{intro}\n\n{header}\n{}", rows.concat()).unwrap();
    }
    Some(page)
}

#[test]
fn the_reference_is_up_to_date() {
    let Some(page) = page() else {
        assert!(std::env::var_os("CI").is_none(), "build the programs first: cargo build --workspace --bins");
        eprintln!("skipped: the programs are not built");
        return;
    };
    if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
        std::fs::write(repository().join(PAGE), page).unwrap();
        return;
    }
    let old = read(PAGE);
    let differs = old.lines().zip(page.lines()).find(|(old, new)| old != new);
    assert!(
        old == page,
        "{PAGE} is out of date: MILLRACE_UPDATE_GOLDEN=1 cargo test -p docs-check; first difference: {differs:?}"
    );
}
