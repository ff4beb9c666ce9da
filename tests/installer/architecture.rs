//! Claims of ARCHITECTURE.md that can be checked mechanically.

use std::{collections::BTreeSet, fs, path::Path};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Cargo manifests of the product.
fn manifests() -> Vec<String> {
    let crates = ["pkg", "cmd"].map(|directory| fs::read_dir(repository().join(directory)).unwrap());
    let crates = crates.into_iter().flatten().map(|entry| entry.unwrap().path());
    let all = crates.chain([repository().join("cni-plugin")]).map(|path| path.join("Cargo.toml"));
    all.filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// Crates below `[dependencies]` that are not in this repository.
fn external(manifest: &str) -> BTreeSet<&str> {
    let section = manifest.split("\n[").find(|section| section.starts_with("dependencies]"));
    let lines = section.into_iter().flat_map(str::lines);
    let names = lines.filter_map(|line| Some(line.split_once('=')?.0.trim().trim_end_matches(".workspace")));
    names.filter(|name| !["pkg", "cmd"].iter().any(|at| repository().join(at).join(name).is_dir())).collect()
}

/// Both a dependency without a reason, and a reason without a dependency, are faults.
#[test]
fn every_direct_dependency_has_its_reason() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("Dependencies\n")).unwrap();
    let table = section.split("| Ours |").next().unwrap();
    let first_cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let named: BTreeSet<&str> =
        first_cells.flat_map(|cell| cell.split(", ")).map(|name| name.trim_matches('`')).collect();
    let manifests = manifests();
    let used: BTreeSet<&str> = manifests.iter().flat_map(|manifest| external(manifest)).collect();
    assert_eq!(named, used);
}

/// A constant that was renamed or moved must be in the table at its new place.
#[test]
fn every_time_limit_stands_where_the_table_says() {
    let text = fs::read_to_string(repository().join("docs/time-limits.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| ") && line.contains(".rs |"));
    let mut checked = 0;
    for row in rows {
        let cell = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for part in cell.split("; ") {
            let names: Vec<&str> = part.split('`').skip(1).step_by(2).collect();
            let paths = part.split(", ").filter(|word| !word.starts_with('`'));
            for path in paths {
                let source = fs::read_to_string(repository().join(path));
                let source = source.unwrap_or_else(|error| panic!("{path}: {error}: {row}"));
                for name in &names {
                    let constant = name.rsplit("::").next().unwrap();
                    assert!(source.contains(constant), "{path} has no {constant}: {row}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 100, "the table was read: {checked}");
}
