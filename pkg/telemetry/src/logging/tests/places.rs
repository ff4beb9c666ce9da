//! Where lines go: files that are full, pipes that nobody reads, files that are rotated.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use super::*;

#[test]
fn a_target_that_cannot_be_opened_is_named() {
    let missing = LogFlags { log_target: "/nonexistent/x.log", ..LogFlags::default() };
    let below_a_file = LogFlags { log_rotate: "/dev/null/x.log", ..LogFlags::default() };
    for (flags, name) in [(missing, "/nonexistent/x.log"), (below_a_file, "/dev/null/x.log")] {
        let error = Logger::open(LogOptions::parse(&flags).unwrap()).map(drop).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot open the log {name}: ")), "{error}");
    }
}

#[test]
fn a_full_disk_loses_lines_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good");
    let targets = format!("/dev/full,{}", good.display());
    let logger = logger(&LogFlags { log_target: &targets, ..LogFlags::default() });
    logger.emit(&record(Level::Info, "", "one", &[]));
    logger.emit(&record(Level::Info, "", "two", &[]));
    assert_eq!(logger.dropped(), 2);
    assert_eq!(fs::read_to_string(good).unwrap().lines().count(), 2, "the other target has them");
}

#[test]
fn a_closed_pipe_loses_lines_and_nothing_else() {
    let (reader, writer) = io::pipe().unwrap();
    let mut output = Output::standard(writer.as_fd()).unwrap();
    assert!(output.write(b"read\n"));
    drop(reader);
    assert!(!output.write(b"lost\n"));
}

/// Both ways in which a pipe is held: opened anew without blocking, and as it is.
#[test]
fn a_reader_that_stalls_delays_once_and_gets_whole_lines_later() {
    for anew in [true, false] {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = if anew {
            let output = Output::standard(writer.as_fd()).unwrap();
            drop(writer);
            output
        } else {
            Output::new(std::os::fd::OwnedFd::from(writer).into())
        };
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let fitting = fill(&mut output, &line);
        assert!((60..66).contains(&fitting), "a pipe takes 64 kB: {fitting}");
        let start = Instant::now();
        assert!((0..100).all(|_| !output.write(&line)));
        assert!(start.elapsed() < Duration::from_millis(500), "waited again: {:?}", start.elapsed());
        let mut text = vec![0; fitting * line.len()];
        reader.read_exact(&mut text).unwrap();
        assert!(output.write(b"back\n"));
        let mut back = [0; 5];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(back, *b"back\n");
        fill(&mut output, &line); // it has credit again
    }
}

/// How many lines fit, which ends after the time that a reader is given.
fn fill(output: &mut Output, line: &[u8]) -> usize {
    let start = Instant::now();
    let fitting = (0..1000).take_while(|_| output.write(line)).count();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(900) && waited < Duration::from_secs(5), "{waited:?}");
    fitting
}

#[test]
fn a_line_that_was_cut_is_ended_before_the_next() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut output = Output::standard(writer.as_fd()).unwrap();
    drop(writer);
    assert!(!output.write(&b"x".repeat(100_000)));
    assert!(!output.write(b"lost\n"));
    let mut part = vec![0; 65_536];
    reader.read_exact(&mut part).unwrap();
    assert!(output.write(b"next\n") && output.write(b"last\n"));
    drop(output);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\nnext\nlast\n");
}

/// A rotated log with lines of about 400 kB and a limit of 1 MiB.
struct Rotated {
    directory: tempfile::TempDir,
}

impl Rotated {
    const LINE: &str = "2023-11-21T12:00:00.000000Z\tinfo\t";

    fn new() -> Rotated {
        Rotated { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("logs").join(name)
    }

    fn put(&self, names: &[&str]) {
        fs::create_dir_all(self.path("")).unwrap();
        names.iter().for_each(|name| fs::write(self.path(name), "old").unwrap());
    }

    fn log(&self, lines: usize, max_backups: &str, max_age: &str) -> Logger {
        let path = self.path("cni.log");
        let logger = logger(&LogFlags {
            log_target: "",
            log_rotate: path.to_str().unwrap(),
            log_rotate_max_size: "1",
            log_rotate_max_backups: max_backups,
            log_rotate_max_age: max_age,
            ..LogFlags::default()
        });
        for _ in 0..lines {
            logger.emit(&record(Level::Info, "", &"x".repeat(400_000), &[]));
        }
        logger
    }

    /// Names and how many lines they have.
    fn files(&self) -> Vec<(String, usize)> {
        let entries = fs::read_dir(self.path("")).unwrap().map(Result::unwrap);
        let lines = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap();
            assert!(text.lines().all(|line| line == "old" || line.starts_with(Self::LINE)));
            text.lines().count()
        };
        let mut files: Vec<_> =
            entries.map(|entry| (entry.file_name().into_string().unwrap(), lines(entry.path()))).collect();
        files.sort();
        files
    }

    fn names(&self) -> Vec<String> {
        self.files().into_iter().map(|(name, _)| name).collect()
    }
}

#[test]
fn a_long_file_is_moved_aside_under_its_time() {
    let rotated = Rotated::new();
    rotated.log(5, "0", "0");
    let expected = [
        ("cni-2023-11-21T12-00-00.000.log", 2),
        ("cni-2023-11-21T12-00-00.001.log", 2), // the same instant; nothing is overwritten
        ("cni.log", 1),
    ];
    assert_eq!(rotated.files(), expected.map(|(name, lines)| (name.to_owned(), lines)));
    let mode = fs::metadata(rotated.path("cni.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // What an earlier process wrote counts.
    rotated.log(2, "0", "0");
    assert_eq!(rotated.files().last().unwrap().1, 1, "{:?}", rotated.files());
}

#[test]
fn too_many_and_too_old_backups_are_removed_and_nothing_else() {
    let foreign =
        ["cni-2023-11-20.log", "cni-2023-11-2xT00-00-00.000.log", "other-2020-01-01T00-00-00.000.log"];
    let old = ["cni-2023-11-18T12-00-00.000.log", "cni-2023-11-19T11-59-59.999.log"];
    let kept = "cni-2023-11-20T12-00-00.000.log";
    let all = [&foreign[..], &old, &[kept]].concat();
    let expect = |rotated: &Rotated, backups: &[&str]| {
        let mut names = [&foreign[..], backups, &["cni.log"]].concat();
        names.sort_unstable();
        assert_eq!(rotated.names(), names);
    };
    let by_age = Rotated::new();
    by_age.put(&all);
    by_age.log(0, "0", "2");
    expect(&by_age, &[kept]);
    let by_number = Rotated::new();
    by_number.put(&all);
    by_number.log(0, "2", "0");
    expect(&by_number, &[old[1], kept]);
    by_number.log(3, "2", "0");
    expect(&by_number, &[kept, "cni-2023-11-21T12-00-00.000.log"]);
    let never = Rotated::new();
    never.put(&all);
    never.log(0, "0", "0");
    expect(&never, &[old[0], old[1], kept]);
}

#[test]
fn a_file_that_cannot_be_moved_aside_grows() {
    let rotated = Rotated::new();
    let logger = rotated.log(2, "0", "0");
    // The directory is taken away from under the name: root is refused nothing else.
    fs::rename(rotated.path(""), rotated.directory.path().join("elsewhere")).unwrap();
    fs::write(rotated.directory.path().join("logs"), "in the way").unwrap();
    logger.emit(&record(Level::Info, "", &"x".repeat(400_000), &[]));
    assert_eq!(logger.dropped(), 0);
    let file = rotated.directory.path().join("elsewhere/cni.log");
    assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 3);
}
