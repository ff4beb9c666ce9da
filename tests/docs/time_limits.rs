//! docs/time-limits.md has every constant of the product that is a duration, with its file and its value.

use crate::{read, report, repository, sources::all_product_files};

/// Constants that limit a setting, not a wait.
const LIMITS_OF_SETTINGS: [&str; 1] = ["LEAST_PROOF_INTERVAL"];
/// Units of the page, in milliseconds.
const UNITS: [(&str, f64); 4] = [("ms", 1.0), ("s", 1000.0), ("min", 60_000.0), ("h", 3_600_000.0)];

/// Names of a source's constants that are durations, with their values in milliseconds; the tests at its end do not count.
fn durations(source: &str) -> Vec<(&str, f64)> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let constants = product.lines().filter_map(|line| {
        let (head, value) = line.split_once(": Duration = Duration::from_")?;
        let (unit, factors) = value.strip_suffix(");")?.split_once('(')?;
        let factors = factors.split('*').map(|factor| factor.trim().replace('_', "").parse::<f64>().unwrap());
        let (_, unit) = [("millis", 1.0), ("secs", 1000.0)].into_iter().find(|(name, _)| *name == unit)?;
        Some((head.rsplit_once("const ")?.1, factors.product::<f64>() * unit))
    });
    constants.collect()
}

/// Whether a cell of the page has a duration, in any unit.
fn has_duration(cell: &str, millis: f64) -> bool {
    let cell = format!(" {cell} ").replace([',', ';', ':', '(', ')'], " ");
    UNITS.iter().any(|(unit, size)| {
        let text = format!(" {} {unit} ", millis / size);
        cell.contains(&text)
    })
}

#[test]
fn every_duration_is_on_the_page_with_its_value() {
    let page = read("docs/time-limits.md");
    let rows: Vec<Vec<&str>> =
        page.lines().map(|line| line.trim_matches('|').split(" | ").collect()).collect();
    let mut missing = Vec::new();
    for path in all_product_files() {
        let source = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
        let is_listed = |name: &str, millis: f64| {
            let name = format!("`{name}`");
            let is_of_it = |row: &&Vec<&str>| {
                row.last().is_some_and(|constants| constants.contains(&name) && constants.contains(&file))
            };
            rows.iter().filter(is_of_it).any(|row| has_duration(row[1], millis))
        };
        let all = durations(&source).into_iter().filter(|(name, _)| !LIMITS_OF_SETTINGS.contains(name));
        let unlisted = all.filter(|&(name, millis)| !is_listed(name, millis));
        missing.extend(unlisted.map(|(name, millis)| format!("{file}: {name} ({millis} ms)")));
    }
    report("durations are not in docs/time-limits.md", &missing);
}

#[test]
fn durations_are_found_in_a_source_and_on_the_page() {
    let source = "pub const A: Duration = Duration::from_secs(24 * 3600);\n    const B_C: Duration = Duration::from_millis(1_500);\n\
                  let d: Duration = x;\n#[cfg(test)]\nmod tests {\nconst E: Duration = Duration::from_secs(1);\n}";
    assert_eq!(durations(source), [("A", 86_400_000.0), ("B_C", 1500.0)]);
    assert!(has_duration("24 h", 86_400_000.0) && has_duration("1 s, at most 1500 ms (then more)", 1500.0));
    assert!(has_duration("1.5 s; 2 s", 1500.0) && !has_duration("15 s, 5 seconds", 5000.0));
}
