//! Every single sample of a run, in files from which `hack/bench --plot` draws figures.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::contest::Results;

/// Directory of the files, and prefix of their names.
static PLACE: OnceLock<(PathBuf, &str)> = OnceLock::new();

/// Keeps all samples of this run in a directory, in files whose names begin with `prefix`.
pub(crate) fn keep(directory: &Path, prefix: &'static str) {
    fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    PLACE.set((directory.to_owned(), prefix)).unwrap();
}

/// Writes the samples of a table, if they are kept: tab-separated lines with the name of a row, the round and `columns`, after a
/// line that describes the run, as `hack/bench` prints it, and one of headings.
pub(crate) fn write<const COLUMNS: usize>(
    table: &str,
    columns: [&str; COLUMNS],
    rows: impl IntoIterator<Item = (String, Vec<[f64; COLUMNS]>)>,
) {
    let Some((directory, prefix)) = PLACE.get() else { return };
    let run = env::var("MILLRACE_BENCH_RUN").unwrap_or_default();
    let mut text = format!("# {run}\nwhat\tround\t{}\n", columns.join("\t"));
    for (what, samples) in rows {
        for (round, sample) in (1..).zip(samples) {
            let values = sample.map(|value| format!("{value:.3}")).join("\t");
            writeln!(text, "{what}\t{round}\t{values}").unwrap();
        }
    }
    fs::write(directory.join(format!("{prefix}{table}.tsv")), text).unwrap();
}

/// Writes the samples of measured commands.
pub(crate) fn write_costs(table: &str, results: &[Results]) {
    let samples = |result: &Results| {
        result.costs.iter().map(|cost| [cost.wall, cost.cpu, cost.memory as f64]).collect()
    };
    let rows = results.iter().map(|result| (result.name.clone(), samples(result)));
    write(table, ["wall_ms", "cpu_ms", "peak_kib"], rows);
}
