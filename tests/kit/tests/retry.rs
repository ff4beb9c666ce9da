//! `hack/retry`: failed tests are repeated once, alone, within limits. The test programs are this one, with [`subjects`] that fail
//! on request, and scripts that print and log recorded output.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Tests that pass immediately, unless [`REQUEST`] names a directory with a file of their name.
mod subjects {
    use std::path::PathBuf;

    pub(super) const REQUEST: &str = "RETRY_REQUEST";
    /// Lines that could be mistaken for results.
    const ODD: &str = "test subjects::a ... FAILED\nok nothing\nfailed nothing\n\n---- x stdout ----\nfailures:\n\
                       test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured;\n     Running tests/x.rs";

    /// Requested result, once (`once`) or always.
    fn requested(name: &str) -> Option<String> {
        let path = PathBuf::from(std::env::var_os(REQUEST)?).join(name);
        let text = std::fs::read_to_string(&path).ok()?;
        if text == "once" {
            std::fs::remove_file(path).unwrap();
        }
        Some(text)
    }

    fn play(name: &str) {
        let Some(what) = requested(name) else { return };
        println!("{ODD}");
        match what.as_str() {
            "abort" => std::process::abort(),
            "exit" => std::process::exit(101),
            _ => panic!("{what}"),
        }
    }

    #[test]
    fn a() {
        play("a");
    }
    #[test]
    fn b() {
        play("b");
    }
    #[test]
    fn c() {
        play("c");
    }
    #[test]
    fn d() {
        play("d");
    }
    #[test]
    #[should_panic(expected = "as it must")]
    fn panics() {
        assert!(requested("panics").is_some(), "as it must");
        panic!("other\nok words");
    }
}

/// A run of tests, with its records and all its files.
struct Run(TempDir);

/// Result of a run.
struct Judged {
    passes: bool,
    printed: String,
    counts: String,
    summary: String,
}

impl Run {
    fn new() -> Self {
        let run = Self(TempDir::new().unwrap());
        ["records", "request", "target"].iter().for_each(|name| fs::create_dir(run.path(name)).unwrap());
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn request(&self, requests: &[(&str, &str)]) {
        for (name, what) in requests {
            fs::write(self.path("request").join(name), what).unwrap();
        }
    }

    fn retry(&self, arguments: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/retry"));
        command.args(arguments).env("CARGO_TARGET_DIR", self.path("target"));
        command.env("MILLRACE_FLAKY", self.path("flaky"));
        ["CARGO_PKG_NAME", "MILLRACE_VARIANT", "MILLRACE_RECORDS"].iter().for_each(|name| {
            command.env_remove(name);
        });
        command.env("RUST_TEST_THREADS", "1").envs(env.iter().copied()).output().unwrap()
    }

    /// Runs a program as cargo does; returns its exit status.
    fn record(&self, program: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Option<i32> {
        let records = self.path("records");
        let all = [&["record", program.to_str().unwrap()], arguments].concat();
        let request = self.path("request");
        // Only the first run has any of these: an equal second run shows that the environment is kept.
        let own =
            [("MILLRACE_RECORDS", records.to_str().unwrap()), (subjects::REQUEST, request.to_str().unwrap())];
        let env = [&own, env].concat();
        self.retry(&all, &env).status.code()
    }

    /// Runs the subjects of this program.
    fn subjects(&self, env: &[(&str, &str)]) -> Option<i32> {
        self.record(&std::env::current_exe().unwrap(), &["subjects::"], env)
    }

    fn judge(&self) -> Judged {
        let output = self.retry(&["tests", "a/run", self.path("records").to_str().unwrap()], &[]);
        let read = |name: &str| fs::read_to_string(self.path("records").join(name)).unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Judged {
            passes: output.status.success(),
            counts: read("counts").trim().to_owned(),
            summary: read("summary").replace(self.0.path().to_str().unwrap(), "."),
            printed,
        }
    }

    /// A program that prints and logs this text, exits with this status, and improves in a second run or not.
    fn script(&self, name: &str, log: &str, output: &str, status: u8, again: &str) -> PathBuf {
        let path = self.path("target").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!(
            "#!/bin/bash\ncase $* in --exact*) printf '%s\\n' '{again}' >\"${{@: -1}}\"; echo '{again}'; exit ;;\n\
             *--list*) printf 'one: test\\ntwo: test\\nthree: test\\n'; exit ;; esac\n\
             cat >\"${{@: -1}}\" <<'END'\n{log}\nEND\ncat <<'END'\n{output}\nEND\nexit {status}\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

#[test]
fn all_that_passes_passes() {
    let run = Run::new();
    assert_eq!(run.subjects(&[]), Some(0));
    let judged = run.judge();
    assert!(judged.passes);
    assert_eq!((judged.counts.as_str(), judged.summary.as_str(), judged.printed.as_str()), ("5 0 0", "", ""));
    assert!(!run.path("flaky").exists());
}

#[test]
fn a_test_that_passes_alone_is_flaky_and_one_that_does_not_has_failed() {
    let run = Run::new();
    run.request(&[("a", "once"), ("c", "always")]);
    assert_eq!(run.subjects(&[]), Some(0), "for the next to judge");
    let judged = run.judge();
    assert!(!judged.passes);
    assert_eq!(judged.counts, "4 1 0");
    assert_eq!(
        judged.summary,
        "Flaky (failed, and passed when run again, alone):\n  retry: subjects::a\nFailed:\n  retry: subjects::c\n\
         Both outputs of each are in ./target/retried/a-run\n"
    );
    let kept = |name: &str| fs::read_to_string(run.path("target/retried/a-run").join(name)).unwrap();
    for (name, line) in [
        ("1-subjects--a.first", "once"),
        ("1-subjects--a.second", "test subjects::a ... ok"),
        ("2-subjects--c.second", "test subjects::c ... FAILED"),
    ] {
        assert!(kit::has_line(&kept(name), line), "{name}: {}", kept(name));
    }
    // The part of the first output about this test alone, with its odd lines.
    let printed = &judged.printed;
    let (first, second) = printed.split_once("\n== a/run: once more, alone: retry: subjects::c\n").unwrap();
    assert!(
        first.starts_with("\n== a/run: once more, alone: retry: subjects::a\n---- subjects::a stdout"),
        "{printed}"
    );
    assert!(kit::has_line(first, "     Running tests/x.rs") && kit::has_line(first, "once"), "{printed}");
    assert!(!kit::has_line(first, "always"), "{printed}");
    assert!(second.starts_with("---- subjects::c stdout") && kit::has_line(second, "always"), "{printed}");
    assert_eq!(fs::read_to_string(run.path("flaky")).unwrap(), "a/run: retry: subjects::a\n");
}

#[test]
fn one_flaky_test_alone_does_not_fail_a_run() {
    let run = Run::new();
    run.request(&[("panics", "once")]);
    assert_eq!(run.subjects(&[("CARGO_PKG_NAME", "shop"), ("MILLRACE_VARIANT", "native tables")]), Some(0));
    let judged = run.judge();
    assert!(judged.passes, "{}", judged.printed);
    assert_eq!(judged.counts, "5 0 0");
    let line = "  shop/retry (native tables): subjects::panics";
    assert!(kit::has_line(&judged.summary, line), "{}", judged.summary);
}

#[test]
fn more_than_three_flaky_tests_are_failures() {
    let run = Run::new();
    run.request(&[("a", "once"), ("b", "once"), ("c", "once")]);
    run.subjects(&[]);
    assert!(run.judge().passes);
    let run = Run::new();
    run.request(&[("a", "once"), ("b", "once"), ("c", "once"), ("d", "once")]);
    run.subjects(&[]);
    let judged = run.judge();
    assert!(!judged.passes);
    assert_eq!(judged.counts, "1 4 0");
    let line = "  retry: subjects::d (passed when run again; more than 3 such tests are a failure)";
    assert!(kit::has_line(&judged.summary, line), "{}", judged.summary);
    assert!(!run.path("flaky").exists());
}

#[test]
fn a_program_that_has_not_reported_fails_at_once_and_names_its_test() {
    for (how, status) in [("abort", 134), ("exit", 101)] {
        let run = Run::new();
        run.request(&[("a", "once"), ("b", how)]);
        assert_eq!(run.subjects(&[]), Some(status));
        run.request(&[("b", "once")]);
        let judged = run.judge();
        assert!(!judged.passes);
        // The program, and the test that has failed before.
        assert_eq!(judged.counts, "0 2 0");
        assert_eq!(
            judged.summary,
            format!(
                "Failed:\n  retry: ended with status {status} and without a report of its tests; these had begun, or were the \
                 next: subjects::b \n  retry: subjects::a\n"
            )
        );
    }
}

#[test]
fn a_test_that_ran_long_is_named_when_its_program_was_killed() {
    let run = Run::new();
    let output = "running 3 tests\ntest one ... ok\ntest three has been running for over 60 seconds";
    let program = run.script("deps/hangs-12", "ok one", output, 137, "ok three");
    assert_eq!(run.record(&program, &[], &[]), Some(137));
    let judged = run.judge();
    assert!(!judged.passes);
    assert_eq!(judged.counts, "1 1 0");
    let how =
        "ended with status 137 and without a report of its tests; these had begun, or were the next: three ";
    assert_eq!(judged.summary, format!("Failed:\n  hangs: {how}\n"));
}

#[test]
fn two_programs_with_one_name_of_a_test_are_two() {
    let run = Run::new();
    let output =
        "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
    for (program, again) in [("deps/first-12", "ok same::test"), ("deps/second-34", "failed same::test")] {
        let program = run.script(program, "failed same::test", output, 101, again);
        assert_eq!(run.record(&program, &[], &[]), Some(0));
    }
    let judged = run.judge();
    assert_eq!(judged.counts, "1 1 0");
    assert_eq!(
        judged.summary,
        "Flaky (failed, and passed when run again, alone):\n  first: same::test\nFailed:\n  second: same::test\n\
         Both outputs of each are in ./target/retried/a-run\n"
    );
}

#[test]
fn a_retry_that_runs_no_test_is_a_failure() {
    let run = Run::new();
    let output =
        "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
    let program = run.script("deps/gone-12", "failed one", output, 101, "");
    assert_eq!(run.record(&program, &[], &[]), Some(0));
    assert_eq!(run.judge().counts, "0 1 0");
}

/// As written by libtest of Rust 1.95.
#[test]
fn every_kind_of_result_is_read() {
    let log = "failed fails\nok good\nignored: a reason here ign\nignored ign2\n\
               failed: test did not panic as expected at a.rs:5:28 nopanic\nok ok\n\
               failed: panic did not contain expected string\n      panic message: \"c\\nok d\"\n expected substring: \"a\\nb\" wrong";
    let output =
        "test result: FAILED. 2 passed; 3 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.08s";
    let run = Run::new();
    let program = run.script("deps/kinds-12", log, output, 101, "");
    assert_eq!(run.record(&program, &[], &[]), Some(0));
    let judged = run.judge();
    assert_eq!(judged.counts, "2 3 2");
    assert!(
        judged.summary.starts_with("Failed:\n  kinds: fails\n  kinds: nopanic\n  kinds: wrong\n"),
        "{}",
        judged.summary
    );
    let record = fs::read_dir(run.path("records")).unwrap().flatten().find(|entry| entry.path().is_dir());
    let results = fs::read_to_string(record.unwrap().path().join("results")).unwrap();
    let ignored: Vec<_> = results.lines().filter(|line| line.starts_with("ignored\t")).collect();
    assert_eq!(ignored, ["ignored\tign\ta reason here", "ignored\tign2\t"], "{results}");
}

/// A line of another process, or of a test, does not count.
#[test]
fn a_report_needs_the_numbers_of_the_log() {
    let run = Run::new();
    let output =
        "test result: FAILED. 7 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.08s";
    let program = run.script("deps/odd-12", "failed one", output, 101, "ok one");
    assert_eq!(run.record(&program, &[], &[]), Some(101));
    assert!(!run.judge().passes);
}

/// Two threads: the third test starts when the first one ends, whichever that is.
#[test]
fn times_are_those_from_the_start_of_a_test_to_its_end() {
    let run = Run::new();
    let program = run.script("deps/slow-12", "ok two\nignored: a\tb three\nok one", "", 0, "");
    assert_eq!(run.record(&program, &["--test-threads=2"], &[]), Some(0));
    assert_eq!(run.judge().counts, "2 0 1");
    let record = fs::read_dir(run.path("records")).unwrap().flatten().find(|entry| entry.path().is_dir());
    let record = record.unwrap().path();
    let stamped = fs::read_to_string(record.join("stamped")).unwrap();
    let ends: Vec<_> = stamped.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert!(
        ends.len() == 3 && ends.iter().all(|end| end.parse::<f64>().is_ok_and(|end| end > 1e9)),
        "{stamped}"
    );

    fs::write(record.join("began"), "100.5\n").unwrap();
    fs::write(record.join("stamped"), "102.5\tok two\n102.8\tignored: a\tb three\n108.0\tok one\n").unwrap();
    fs::write(record.join("time"), "9.5\t1.25\t2.5\n").unwrap();
    fs::write(run.path("records/steps"), "7\tquick\n60\tslow\n").unwrap();
    let times = |most: &[&str]| {
        let output = run.retry(&[&["times", run.path("records").to_str().unwrap()], most].concat(), &[]);
        String::from_utf8(output.stdout).unwrap()
    };
    let program = "      9.5 s  slow: 3 tests, 3.8 s of processors\n";
    let test = |seconds: &str, name: &str| format!("      {seconds} s  slow: {name}\n");
    let tests = [test("7.5", "one"), test("2.0", "two"), test("0.3", "three")];
    let [steps, programs, by_test] = [
        "Time by step:\n",
        "Time by test program, and what it used of the processors (the rest is waiting):\n",
        "Time by test (several run side by side):\n",
    ];
    let (slow, quick) = ("     60.0 s  slow\n", "      7.0 s  quick\n");
    let all = [steps, slow, quick, programs, program, by_test, &tests.concat()].concat();
    assert_eq!(times(&[]), all);
    assert_eq!(times(&["1"]), [steps, slow, programs, program, by_test, &tests[0]].concat());
}

#[test]
fn other_programs_are_not_recorded() {
    let run = Run::new();
    let program = run.script("elsewhere/example", "", "", 7, "");
    assert_eq!(run.record(&program, &["/dev/null"], &[]), Some(7));
    assert_eq!(fs::read_dir(run.path("records")).unwrap().count(), 0);
}

#[test]
fn a_play_that_fails_once_is_flaky() {
    let play = |script: &str| {
        let run = Run::new();
        let script = script.replace("MARKER", run.path("marker").to_str().unwrap());
        let output = run.retry(&["play", "hack/demo --in-pod", "bash", "-c", &script], &[]);
        let text = String::from_utf8(output.stdout).unwrap().replace(run.0.path().to_str().unwrap(), ".");
        let flaky = fs::read_to_string(run.path("flaky")).unwrap_or_default();
        (output.status.code(), text, flaky, run)
    };
    let good = "echo 'demo: 2 passed, 0 failed'";
    let bad = "echo ' ✗ NOT SO: it works'; echo 'demo: 1 passed, 1 failed'; exit 1";

    let (status, text, flaky, run) = play(good);
    assert_eq!((status, text.as_str(), flaky.as_str()), (Some(0), "demo: 2 passed, 0 failed\n", ""));
    assert!(!run.path("target/retried/hack-demo---in-pod").exists());

    let (status, text, flaky, run) = play(&format!("[[ -e MARKER ]] || {{ touch MARKER; {bad}; }}; {good}"));
    assert_eq!(status, Some(0));
    assert_eq!(
        text,
        " ✗ NOT SO: it works\ndemo: 1 passed, 1 failed\n\n== hack/demo --in-pod: failed with status 1; once more\n\
         demo: 2 passed, 0 failed\nFlaky (failed, and passed when run again; both outputs are in \
         ./target/retried/hack-demo---in-pod):\n  hack/demo --in-pod\n    ✗ NOT SO: it works\ndemo: 2 passed, 0 failed\n"
    );
    assert_eq!(flaky, "  hack/demo --in-pod\n    ✗ NOT SO: it works\n");
    for (name, line) in [("first", "demo: 1 passed, 1 failed\n"), ("second", "demo: 2 passed, 0 failed\n")] {
        let kept = fs::read_to_string(run.path("target/retried/hack-demo---in-pod").join(name)).unwrap();
        assert!(kept.ends_with(line), "{kept}");
    }

    let (status, text, ..) = play(bad);
    assert_eq!((status, text.matches("NOT SO").count()), (Some(1), 2));
    assert!(text.ends_with("demo: 1 passed, 1 failed\n"), "{text}");
    // Without a summary, or with one from before a crash.
    for script in ["exit 101".to_owned(), format!("{good}; exit 3")] {
        let (status, text, ..) = play(&script);
        assert_ne!(status, Some(0));
        assert!(text.ends_with("hack/demo: 0 passed, 1 failed\n"), "{text}");
    }
    // Killed, or after its time limit.
    for (script, expected) in [("kill -KILL $$", 137), ("exit 124", 124)] {
        let (status, text, ..) = play(&format!("[[ ! -e MARKER ]] || exit 0; touch MARKER; {script}"));
        assert_eq!((status, text.as_str()), (Some(expected), "hack/demo: 0 passed, 1 failed\n"));
    }
}
