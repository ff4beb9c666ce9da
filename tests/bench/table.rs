//! The table: medians, and each row compared with the baseline.

use crate::{contest::Results, measure::Cost, peer::ISTIO, results::write_costs};

/// Prints one row per contest, and differences between them.
pub(crate) fn print(table: &str, results: &[Results], rounds: usize) {
    print_rows(table, results, rounds);
    differences(results);
    print_ratios(results);
}

/// Prints one row per contest, and keeps the samples as those of this table.
pub(crate) fn print_rows(table: &str, results: &[Results], rounds: usize) {
    write_costs(table, results);
    println!(
        "{rounds} rounds, each program once a round; medians (least). Wall and CPU: the whole process with its children."
    );
    println!(
        "{:<52} {:>15} {:>7} {:>15} {:>7} {:>9} {:>9} {:>9}",
        "", "wall ms", "ratio", "CPU ms", "ratio", "peak MiB", "children", "requests"
    );
    let Some(floor) = results.first() else { return };
    for result in results {
        let (wall, cpu) = (numbers(result, |cost| cost.wall), numbers(result, |cost| cost.cpu));
        let (floor_wall, floor_cpu) = (numbers(floor, |cost| cost.wall), numbers(floor, |cost| cost.cpu));
        let memory = numbers(result, |cost| cost.memory as f64).0 / 1024.0;
        println!(
            "{:<52} {:>7.2} ({:>5.2}) {:>7.2} {:>7.2} ({:>5.2}) {:>7.2} {:>9.1} {:>9} {:>9}",
            result.name,
            wall.0,
            wall.1,
            wall.0 / floor_wall.0,
            cpu.0,
            cpu.1,
            cpu.0 / floor_cpu.0,
            memory,
            result.children,
            result.requests
        );
    }
}

/// Prints the parts of the difference between two rows, round by round, so that drift of the machine cancels out.
fn differences(results: &[Results]) {
    let row = |name: &str| results.iter().find(|result| result.name == name);
    let pairs = [
        ("a sidecar ADD takes longer than a bare restore by", SIDECAR, RESTORE),
        ("  the API server's answer, TLS included", ASKED, TOLD),
        ("  our process against an empty one", TOLD, FLOOR),
        ("a bare restore takes longer than an empty program by (tool and kernel)", RESTORE, FLOOR),
    ];
    println!("\nWall time, median of the differences within each round:");
    for (what, more, less) in pairs {
        let (Some(more), Some(less)) = (row(more), row(less)) else { continue };
        let mut rounds: Vec<f64> =
            more.costs.iter().zip(&less.costs).map(|(more, less)| more.wall - less.wall).collect();
        rounds.sort_by(f64::total_cmp);
        println!("{what:<74} {:>6.2} ms", rounds[rounds.len() / 2]);
    }
}

/// Prints how many times as much Istio's programs take as ours, if they were measured: ratios of medians of the same run.
pub(crate) fn print_ratios(results: &[Results]) {
    let pairs = results.iter().filter_map(|theirs| {
        let name = theirs.name.strip_prefix(ISTIO)?;
        Some((theirs, results.iter().find(|ours| ours.name == name)?))
    });
    for (index, (theirs, ours)) in pairs.enumerate() {
        if index == 0 {
            println!("\nIstio's programs take, as a multiple of what ours take:");
        }
        let ratio = |of: fn(&Cost) -> f64| numbers(theirs, of).0 / numbers(ours, of).0;
        println!(
            "{:<52} {:>7.1} times as long, {:>7.1} times the CPU; {} children instead of {}",
            ours.name,
            ratio(|cost| cost.wall),
            ratio(|cost| cost.cpu),
            theirs.children,
            ours.children
        );
    }
    println!();
}

const FLOOR: &str = "an empty static program";
const TOLD: &str = "istio-cni ADD, plain pod, annotations delivered";
const ASKED: &str = "istio-cni ADD, plain pod, no annotations";
const SIDECAR: &str = "istio-cni ADD, sidecar pod";
const RESTORE: &str = "iptables-nft-restore, the same rules";

/// Median and minimum.
fn numbers(result: &Results, of: impl Fn(&Cost) -> f64) -> (f64, f64) {
    let mut values: Vec<f64> = result.costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}
