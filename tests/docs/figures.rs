//! Figures of docs/performance.md: they are drawn from the results in its tables. `hack/bench --plot --check` compares the drawings
//! with the results.

use crate::{read, report};

/// Fields of each row: measurement, owner, and two or three numbers.
fn rows<const FIELDS: usize>(figure: &str) -> Vec<[String; FIELDS]> {
    let text = read(&format!("docs/figures/{figure}.tsv"));
    let rows =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').map(str::to_owned));
    let rows = rows.filter_map(|fields| <[String; FIELDS]>::try_from(fields.collect::<Vec<_>>()).ok());
    rows.collect()
}

/// The page's row that begins with this cell.
fn table_row<'a>(page: &'a str, first: &str) -> &'a str {
    page.lines().find(|line| line.starts_with(&format!("| {first}"))).unwrap_or_default()
}

#[test]
fn adds_are_those_of_the_table() {
    let page = read("docs/performance.md");
    let (_, page) = page.split_once("### Beside Istio 1.20 and 1.29").unwrap();
    let rows = rows("add");
    assert_eq!(rows.len(), 12);
    let is_missing = |[what, _, least, most]: &[String; 4]| {
        let found = if least == most { format!("{least} ms") } else { format!("{least} to {most} ms") };
        !table_row(page, &format!("ADD, {what}")).contains(&found)
    };
    let missing: Vec<String> = rows.iter().filter(|row| is_missing(row)).map(|row| row.join(" ")).collect();
    report("results are not in the table", &missing);
}

#[test]
fn packets_are_those_of_the_table() {
    let page = read("docs/performance.md");
    let rows = rows("packets");
    assert_eq!(rows.len(), 28);
    let is_missing = |[what, whose, least, most]: &[String; 4]| {
        let [least, most]: [f64; 2] = [least, most].map(|number| number.parse().unwrap());
        let (middle, error) = (f64::midpoint(least, most), (most - least) / 2.0);
        let place = what.replace("stream,", "stream, per MiB,").replace("bytes,", "bytes (eight),");
        let cells: Vec<&str> = table_row(&page, &place).split('|').collect();
        let cell = if whose.starts_with("Millrace") { cells.get(4) } else { cells.get(3) };
        // Such as `**+8.9, +7.4 %** (±0.3) (bound 3)`: IPv4, IPv6, and the error of both.
        let words: Vec<&str> =
            cell.into_iter().flat_map(|cell| cell.split([' ', '*', ',', '(', ')'])).collect();
        let numbers: Vec<&str> = words.iter().copied().filter(|word| word.starts_with(['+', '-'])).collect();
        let number = numbers.get(usize::from(whose.ends_with("IPv6")));
        number != Some(&&*format!("{middle:+.1}")) || !words.contains(&&*format!("±{error:.1}"))
    };
    let missing: Vec<String> = rows.iter().filter(|row| is_missing(row)).map(|row| row.join(" ")).collect();
    report("results are not in the table", &missing);
}

/// Each table of drift has ranges of kinds, whose limits are results.
#[test]
fn drift_is_that_of_the_table() {
    let page = read("docs/performance.md");
    let results = rows::<5>("drift");
    let of = |kinds: &[&str]| -> Vec<f64> {
        let rows = results.iter().filter(|[kind, ..]| kinds.iter().any(|one| kind.starts_with(one)));
        rows.map(|[_, _, median, ..]| median.parse().unwrap()).collect()
    };
    for (row, kinds) in [
        ("pods with a sidecar", &["sidecar: "][..]),
        ("in a pod: a chain", &["in-pod: chain", "in-pod: IPv6 jump", "in-pod: ruleset"]),
        ("in a pod, native tables", &["in-pod: native "]),
        (
            "in a pod: a policy rule",
            &["in-pod: policy", "in-pod: IPv6 policy", "in-pod: route", "in-pod: IPv6 route"],
        ),
        ("on the node: rules and sets", &["in-pod: node:"]),
    ] {
        let medians = of(kinds);
        let [least, most] =
            [medians.iter().copied().fold(f64::MAX, f64::min), medians.iter().copied().fold(0.0, f64::max)];
        let found = format!("| {least:.0} to {most:.0} ms |");
        let line = table_row(&page, row);
        assert!(line.contains(&found), "{row}: {found} of the results is not in {line:?}");
    }
}
