//! Levels, flags, and exact lines.

mod places;
mod scopes;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use flags::{FlagStyle, ParseOutcome};
use tracing::subscriber::with_default;

use super::*;

/// 2023-11-21T12:00:00Z.
fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_568_000)
}

/// Options of a program with these arguments.
pub(crate) fn parse_arguments(arguments: &[&str]) -> Result<LogOptions, String> {
    let (style, arguments) = (FlagStyle::default(), arguments.iter().map(Into::into));
    match flags::parse(flags::LOGGING, style, arguments, |_| None).unwrap() {
        ParseOutcome::Run(values) => LogOptions::parse(&values),
        ParseOutcome::Help => panic!("help"),
    }
}

fn logger(arguments: &[&str]) -> Logger {
    Logger::with_clock(parse_arguments(arguments).unwrap(), noon).unwrap()
}

/// A logger with a file.
struct Logged {
    logger: Logger,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Logged {
    fn with(arguments: &[&str]) -> Logged {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let target = format!("--log_target={}", path.display());
        let logger = logger(&[&[target.as_str()], arguments].concat());
        Logged { logger, path, _directory: directory }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }
}

fn record(level: LogLevel, scope: &str, msg: &str, labels: &[(&str, &str)]) -> LogRecord {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    LogRecord { level, time: String::new(), scope: scope.to_owned(), msg: msg.to_owned(), labels }
}

#[test]
fn levels_are_read_as_istio_reads_them() {
    use OutputLevel::{Debug, Error, Fatal, Info, None, Warn};
    // text; levels of default, cni, install, kube
    let table: &[(&str, [OutputLevel; 4])] = &[
        ("", [Info, Info, Info, None]),
        ("default:info", [Info, Info, Info, None]),
        ("debug", [Debug, Debug, Debug, None]),
        ("default:none", [None, None, None, None]),
        ("default:warn,cni:debug", [Warn, Debug, Warn, None]),
        ("cni:error", [Info, Error, Info, None]),
        ("cni:error,cni:fatal", [Info, Fatal, Info, None]),
        ("kube:debug", [Info, Info, Info, Debug]),
        (" cni:none , kube:info ", [Info, None, Info, Info]),
        ("cni-plugin:debug,cni-agent:warn", [Info, Debug, Warn, None]),
        ("all:debug", [Debug, Debug, Debug, Debug]),
        ("cni:error,all:info,install:debug", [Info, Info, Info, Info]),
    ];
    for (text, expected) in table {
        let (levels, mistakes) = ScopeLevels::parse(text);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        assert_eq!(
            ["default", "cni", "install", "kube"].map(|scope| levels.scope_level(scope)),
            *expected,
            "{text:?}"
        );
        assert_eq!(levels.scope_level(""), expected[0], "{text:?}");
    }
}

#[test]
fn levels_that_cannot_be_read_count_for_nothing_and_are_told() {
    let mistake = parse_arguments(&["--log_as_json=yes"]).unwrap_err();
    assert_eq!(mistake, "--log_as_json: \"yes\" is neither true nor false");
    let options = parse_arguments(&[
        "--log_output_level=cni:loud,a:b:info,:info,install:debug",
        "--log_stacktrace_level=INFO",
    ]);
    let options = options.unwrap();
    let levels = ["cni", "a", "install"].map(|scope| options.scope_level(scope));
    assert_eq!(levels, [OutputLevel::Info, OutputLevel::Info, OutputLevel::Debug]);
    let flagged = options.warnings.iter().map(|warning| warning.split_once(": ").unwrap().0);
    let level = "--log_output_level";
    assert_eq!(flagged.collect::<Vec<_>>(), [level, level, level, "--log_stacktrace_level"]);
    assert_eq!(
        options.warnings[0],
        "--log_output_level: \"loud\" in \"cni:loud\" is not a level (known: none, fatal, error, warn, info, debug)"
    );
    assert_eq!(options.warnings[2], "--log_output_level: \":info\" names no scope");
}

#[test]
fn booleans_and_targets_are_read() {
    for (text, json) in
        [("true", true), ("1", true), ("T", true), ("false", false), ("", false), ("0", false)]
    {
        let options = parse_arguments(&[&format!("--log_as_json={text}")]).unwrap();
        assert_eq!(options.json, json, "{text:?}");
    }
    for (text, rotate, targets) in [
        ("stdout", "", &["stdout"][..]),
        ("stderr, /var/log/x.log", "", &["stderr", "/var/log/x.log"]),
        ("", "", &["stdout"]),
        ("", "/var/log/x.log", &["/var/log/x.log"]),
        ("stdout", "/var/log/x.log", &["stdout", "/var/log/x.log"]),
    ] {
        let (target, rotate) = (format!("--log_target={text}"), format!("--log_rotate={rotate}"));
        let options = parse_arguments(&[&target, &rotate]).unwrap();
        assert_eq!(options.targets, targets, "{text:?}, {rotate:?}");
    }
}

#[test]
fn text_lines_have_istios_columns() {
    let table: &[(LogRecord, &str)] = &[
        (record(LogLevel::Info, "", "plain", &[]), "info\tplain"),
        (record(LogLevel::Warn, "default", "plain", &[]), "warn\tplain"),
        (record(LogLevel::Error, "cni", "bad", &[]), "error\tcni\tbad"),
        (
            record(LogLevel::Info, "cni", "m", &[("pod", "a/b"), ("if", "eth0")]),
            "info\tcni\tm\tif=eth0 pod=a/b",
        ),
        (record(LogLevel::Info, "", "m", &[("why", "no such file")]), "info\tm\twhy=\"no such file\""),
        (record(LogLevel::Info, "", "m", &[("q", "a\"b\\")]), r#"info	m	q="a\"b\\""#),
        (record(LogLevel::Info, "", "m", &[("e", ""), ("x=y", "a=b")]), "info\tm\te= \"x=y\"=\"a=b\""),
        (record(LogLevel::Info, "", "m", &[("k", "1\n2")]), "info\tm\tk=\"1\\n2\""),
        (
            record(LogLevel::Info, "", "a \"b\\c\"\n2023\tinfo\r\u{1b}[31m\u{85}é", &[]),
            "info\ta \"b\\c\"\\n2023\\tinfo\\r\\u001b[31m\\u0085é",
        ),
    ];
    for (record, expected) in table {
        let logged = Logged::with(&[]);
        logged.logger.emit(record);
        assert_eq!(logged.text(), format!("2023-11-21T12:00:00.000000Z\t{expected}\n"));
    }
}

#[test]
fn json_lines_have_istios_members() {
    let logged = Logged::with(&["--log_as_json=true"]);
    logged.logger.emit(&record(LogLevel::Warn, "cni", "a\nb", &[("pod", "x/y")]));
    logged.logger.emit(&record(LogLevel::Info, "default", "b", &[("level", "forged")]));
    let time = r#""time":"2023-11-21T12:00:00.000000Z""#;
    let expected = format!(
        "{{\"level\":\"warn\",{time},\"scope\":\"cni\",\"msg\":\"a\\nb\",\"pod\":\"x/y\"}}\n\
         {{\"level\":\"info\",{time},\"msg\":\"b\",\"label_level\":\"forged\"}}\n"
    );
    assert_eq!(logged.text(), expected);
}

#[test]
fn a_record_keeps_its_time_and_its_level_decides() {
    let logged = Logged::with(&["--log_output_level=cni:warn"]);
    let mut timed = record(LogLevel::Warn, "cni", "kept", &[]);
    timed.time = "2020-01-01T00:00:00.000000Z".to_owned();
    logged.logger.emit(&timed);
    logged.logger.emit(&record(LogLevel::Info, "cni", "too low", &[]));
    logged.logger.set_level("cni", OutputLevel::None);
    logged.logger.emit(&record(LogLevel::Error, "cni", "too low as well", &[]));
    logged.logger.emit_all([record(LogLevel::Error, "cni", "and this", &[])].into_iter());
    assert_eq!(logged.text(), "2020-01-01T00:00:00.000000Z\twarn\tcni\tkept\n");
}

#[test]
fn events_become_lines() {
    let logged = Logged::with(&[]);
    with_default(logged.logger.subscriber(), || {
        tracing::info!(target: "default", "hello {}", "there");
        tracing::warn!(target: "install", pod = "a/b", count = 3, ok = true, kind = ?Some(1), shown = %Path::new("x").display(), "msg");
        let error = io::Error::other("broken pipe");
        tracing::error!(target: "cni", error = &error as &dyn std::error::Error, "failed");
        tracing::info!(target: "install", only = "labels");
        tracing::info_span!(target: "install", "a span")
            .in_scope(|| tracing::info!(target: "install", "in it"));
    });
    let expected = [
        "info\thello there",
        "warn\tinstall\tmsg\tcount=3 kind=Some(1) ok=true pod=a/b shown=x",
        "error\tcni\tfailed\terror=\"broken pipe\"",
        "info\tinstall\t\tonly=labels",
        "info\tinstall\tin it",
    ];
    let lines = expected.map(|line| format!("2023-11-21T12:00:00.000000Z\t{line}\n"));
    assert_eq!(logged.text(), lines.concat());
}

#[test]
fn libraries_share_a_scope_that_is_silent_below_warn() {
    for (target, scope) in [
        ("kube_client::client::builder", "kube"),
        ("kube", "kube"),
        ("hyper_util", "kube"),
        ("rustls::conn", "kube"),
        ("any::path", "kube"),
        ("default", ""),
        ("cni", "cni"),
        ("cni-repair", "cni-repair"),
    ] {
        assert_eq!(subscriber::event_scope(target), scope);
    }
    let logged = Logged::with(&["--log_output_level=debug,kube:warn"]);
    with_default(logged.logger.subscriber(), || {
        tracing::info!("an event of a module path");
        tracing::warn!(target: "hyper::proto", "heard");
        tracing::debug!(target: "cni", "heard too");
        tracing::trace!(target: "cni", "never heard");
    });
    let lines = ["warn\tkube\theard", "debug\tcni\theard too"];
    assert_eq!(logged.text(), lines.map(|line| format!("2023-11-21T12:00:00.000000Z\t{line}\n")).concat());
}

#[test]
fn a_level_changes_at_run_time_and_a_silent_line_is_not_even_made() {
    let logged = Logged::with(&[]);
    let made = Cell::new(0);
    let say = || tracing::debug!(target: "install", value = { made.set(made.get() + 1); made.get() }, "told");
    with_default(logged.logger.subscriber(), || {
        say();
        assert_eq!(made.get(), 0);
        logged.logger.set_level("install", OutputLevel::Debug);
        say();
        logged.logger.set_level("install", OutputLevel::Info);
        say();
        logged.logger.set_level("all", OutputLevel::Debug);
        say();
        logged.logger.set_level("default", OutputLevel::None);
        say();
    });
    assert_eq!((made.get(), logged.text().lines().count()), (2, 2));
    assert_eq!(logged.logger.scope_levels(), [("default".to_owned(), OutputLevel::None)].into());
    let levels = Logged::with(&["--log_output_level=cni:error"]).logger.scope_levels();
    let expected = [("cni", OutputLevel::Error), ("default", OutputLevel::Info), ("kube", OutputLevel::None)];
    assert_eq!(levels, BTreeMap::from(expected.map(|(scope, level)| (scope.to_owned(), level))));
}

/// Beside a subscriber that enables everything, so that the global maximum level decides nothing.
#[test]
fn what_is_not_printed_is_not_even_made() {
    struct Everything;
    impl tracing::Subscriber for Everything {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let _everything = tracing::Dispatch::new(Everything);
    let logged = Logged::with(&["--log_output_level=debug"]);
    let made = Cell::new(0);
    let make = || made.replace(made.get() + 1);
    with_default(logged.logger.subscriber(), || {
        tracing::trace!(target: "install", value = make(), "trace");
        tracing::info!(target: "kube", value = make(), "a library's");
        tracing::info_span!(target: "install", "span", value = make()).in_scope(|| ());
        assert_eq!(made.get(), 0);
        tracing::debug!(target: "install", value = make(), "debug");
    });
    assert_eq!((made.get(), logged.text().lines().count()), (1, 1));
}

#[test]
fn the_caller_is_told_for_the_scopes_that_are_asked_for() {
    for (flag, install, default) in
        [("", false, false), ("install", true, false), ("x, default", false, true), ("all", true, true)]
    {
        let logged = Logged::with(&[&format!("--log_caller={flag}")]);
        with_default(logged.logger.subscriber(), || {
            tracing::info!(target: "install", "one");
            tracing::info!(target: "default", "two");
        });
        let text = logged.text();
        let names_caller =
            |line: &str| line.split('\t').any(|field| field.starts_with("caller=src/logging/tests.rs:"));
        let told: Vec<bool> = text.lines().map(names_caller).collect();
        assert_eq!(told, [install, default], "{flag:?}: {text}");
    }
}

#[test]
fn lines_of_many_threads_do_not_mix() {
    let logged = Logged::with(&[]);
    let msg = "x".repeat(3000);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    logged.logger.emit(&record(LogLevel::Info, "", &msg, &[]));
                }
            });
        }
    });
    let text = logged.text();
    let expected = format!("2023-11-21T12:00:00.000000Z\tinfo\t{msg}");
    assert!(text.lines().count() == 800 && text.lines().all(|line| line == expected));
}

#[test]
fn the_last_lines_are_kept_and_no_more_than_fits() {
    let logged = Logged::with(&[]);
    let line = |number: usize| {
        let text = format!("line {number} {}", "x".repeat(1000));
        record(LogLevel::Info, "default", &text, &[])
    };
    (0..300).for_each(|number| logged.logger.emit(&line(number)));
    let recent = logged.logger.recent_lines();
    assert!(recent.len() <= MAX_RECENT && recent.len() > MAX_RECENT - 2000, "{}", recent.len());
    let numbers: Vec<&str> = recent.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(numbers.last(), Some(&"299"));
    assert_ne!(numbers.first(), Some(&"0"));
}
