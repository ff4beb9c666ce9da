//! The table: medians, and each row against the floor.

use crate::{contest::Results, measure::Cost};

/// Prints one row per contest.
pub(crate) fn print(results: &[Results], rounds: usize) {
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

/// Median and minimum.
fn numbers(result: &Results, of: impl Fn(&Cost) -> f64) -> (f64, f64) {
    let mut values: Vec<f64> = result.costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}
