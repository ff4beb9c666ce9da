//! Destinations of lines: full files, pipes without a reader.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::time::Instant;

use super::*;

#[test]
fn a_target_that_cannot_be_opened_is_named() {
    for (flag, name) in [("log_target", "/nonexistent/x.log"), ("log_rotate", "/dev/null/x.log")] {
        let options = parse_arguments(&[&format!("--{flag}={name}")]).unwrap();
        let error = Logger::open(options).map(drop).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot open the log {name}: ")), "{error}");
    }
}

#[test]
fn a_full_disk_loses_lines_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let good = directory.path().join("good");
    let logger = logger(&[&format!("--log_target=/dev/full,{}", good.display())]);
    logger.emit(&record(LogLevel::Info, "", "one", &[]));
    logger.emit(&record(LogLevel::Info, "", "two", &[]));
    assert_eq!(fs::read_to_string(good).unwrap().lines().count(), 2, "the other target has them");
}

#[test]
fn a_closed_pipe_loses_lines_and_nothing_else() {
    let (reader, writer) = io::pipe().unwrap();
    let mut output = LogOutput::open_standard(writer.as_fd()).unwrap();
    assert!(output.write_line(b"read\n"));
    drop(reader);
    assert!(!output.write_line(b"lost\n"));
}

/// Both kinds of descriptors of a pipe: reopened as non-blocking, and as inherited.
#[test]
fn a_reader_that_stalls_delays_once_and_gets_whole_lines_later() {
    for anew in [true, false] {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = if anew {
            let output = LogOutput::open_standard(writer.as_fd()).unwrap();
            drop(writer);
            output
        } else {
            LogOutput::new(std::os::fd::OwnedFd::from(writer).into())
        };
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let fitting = fill(&mut output, &line);
        assert!((60..66).contains(&fitting), "a pipe takes 64 kB: {fitting}");
        let took = (0..3).map(|_| {
            let start = Instant::now();
            assert!((0..100).all(|_| !output.write_line(&line)));
            start.elapsed()
        });
        assert!(took.min() < Some(Duration::from_millis(500)), "waited again");
        let mut text = vec![0; fitting * line.len()];
        reader.read_exact(&mut text).unwrap();
        assert!(output.write_line(b"back\n"));
        let mut back = [0; 5];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(back, *b"back\n");
        fill(&mut output, &line); // the reader is given time again
    }
}

/// Number of lines that fit, until the reader's time is over.
fn fill(output: &mut LogOutput, line: &[u8]) -> usize {
    let start = Instant::now();
    let fitting = (0..1000).take_while(|_| output.write_line(line)).count();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(900) && waited < Duration::from_secs(5), "{waited:?}");
    fitting
}

#[test]
fn a_line_that_was_cut_is_ended_before_the_next() {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut output = LogOutput::open_standard(writer.as_fd()).unwrap();
    drop(writer);
    assert!(!output.write_line(&b"x".repeat(100_000)));
    assert!(!output.write_line(b"lost\n"));
    let mut part = vec![0; 65_536];
    reader.read_exact(&mut part).unwrap();
    assert!(output.write_line(b"next\n") && output.write_line(b"last\n"));
    drop(output);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\nnext\nlast\n");
}
