//! The process-wide subscriber: one test, since there is one process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::fs;
use std::thread;

use flags::{FlagStyle, ParseOutcome};
use telemetry::logging::{LogOptions, OutputLevel, install};

#[test]
fn the_logger_is_installed_once_and_for_all_threads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let (style, target) = (FlagStyle::default(), format!("--log_target={}", path.display()));
    let values = flags::parse(flags::LOGGING, style, [target.into()], |_| None);
    let Ok(ParseOutcome::Run(values)) = values else { panic!("{values:?}") };
    let options = || LogOptions::parse(&values).unwrap();
    let debug = || tracing::debug!(target: "install", "seen when the level says so");
    debug();
    let logger = install(options()).unwrap();
    assert_eq!(install(options()).map(drop).unwrap_err().to_string(), "logging is set up already");
    debug();
    logger.set_level("install", OutputLevel::Debug);
    thread::spawn(debug).join().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.ends_with("Z\tdebug\tinstall\tseen when the level says so\n"), "{text}");
    assert_eq!(text.lines().count(), 1);
}
