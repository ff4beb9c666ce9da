//! Limits of habits in tests and names, so that they do not return.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    read, report, repository,
    sources::{all_product_files, product_files},
};

/// Maximum number of comparisons with a part of a text, in the tests below `tests` except the benchmarks, and in those of the crates:
/// calls that match `\bcontains\((&?format!\()?"`. Such a test fails when a message is reworded, and passes when another message has
/// these words. Codes, kinds, fields, whole lines and parsed documents do not. Lower them when there are fewer.
const MOST_PARTS_OF_TEXT: [usize; 2] = [91, 63];

/// Maximum percentage of the product's functions with a name of one word (`new`, `parse`): more of them are meaningless at their
/// calls.
const MOST_ONE_WORD_NAMES: usize = 25;
/// Minimum mean length of functions' names.
const LEAST_MEAN_LENGTH: usize = 9;
/// Maximum number of named closures of more than three lines, in a thousand lines of code: a function has a name and types.
const MOST_LONG_CLOSURES: usize = 1;
/// Words that no name of the product may have: the glossary in ARCHITECTURE.md has terms for them.
const PRIVATE_WORDS: [&str; 11] =
    ["blind", "damage", "glance", "mend", "said", "stranger", "tell", "told", "trouble", "turn", "wanted"];

/// Words that no name of a function may have: a verb of the field says more.
const VAGUE_WORDS: [&str; 3] = ["look", "out", "settle"];
/// Terms of the field that have one of these words.
const TERMS: [&str; 4] = ["_look_up_", "_opted_out_", "_time_out_", "_timed_out_"];

/// Crates with `unsafe` code, and the number of places: those of invariant 15 in ARCHITECTURE.md.
const UNSAFE_PLACES: [(&str, usize); 3] = [("netlink", 2), ("netns", 5), ("proof", 1)];

fn sources(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources = entries.flat_map(|path| match path.extension() {
        _ if path.ends_with("bench") => Vec::new(),
        _ if path.is_dir() => sources(&path),
        Some(extension) if extension == "rs" => vec![std::fs::read_to_string(&path).unwrap()],
        _ => Vec::new(),
    });
    sources.collect()
}

/// Number of calls of `contains` with a literal.
fn count_parts_of_text(source: &str) -> usize {
    let calls = source.match_indices("contains(").filter(|(at, _)| {
        let before = source[..*at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
    });
    let is_text = |(at, call): &(usize, &str)| {
        let argument = &source[at + call.len()..];
        let formatted = argument.strip_prefix('&').unwrap_or(argument).strip_prefix("format!(");
        formatted.unwrap_or(argument).starts_with('"')
    };
    calls.filter(is_text).count()
}

/// Tests of the crates in a directory: in files of their own, and at the end of a source.
fn crate_tests(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let tests = entries.flat_map(|path| match path.file_name().and_then(|name| name.to_str()) {
        Some("benches" | "target") => Vec::new(),
        Some("tests") => sources(&path),
        _ if path.is_dir() => crate_tests(&path),
        Some("tests.rs") => vec![std::fs::read_to_string(&path).unwrap()],
        Some(name) if name.ends_with(".rs") => {
            let source = std::fs::read_to_string(&path).unwrap();
            source.split_once("#[cfg(test)]\nmod ").map(|(_, tests)| tests.to_owned()).into_iter().collect()
        }
        _ => Vec::new(),
    });
    tests.collect()
}

#[test]
fn tests_compare_no_more_parts_of_texts_than_they_did() {
    let crates =
        ["pkg", "cmd", "cni-plugin"].into_iter().flat_map(|part| crate_tests(&repository().join(part)));
    let counts = [sources(&repository().join("tests")), crates.collect()]
        .map(|sources| sources.iter().map(|one| count_parts_of_text(one)).sum::<usize>());
    assert!(
        counts.iter().zip(MOST_PARTS_OF_TEXT).all(|(count, most)| *count <= most),
        "{counts:?} comparisons with a part of a text, {MOST_PARTS_OF_TEXT:?} allowed: compare a code, a field or a whole line"
    );
}

#[test]
fn only_written_texts_count() {
    let source = r#"a.contains("b") || a.contains(&format!("{b}")) && a.contains(b) || c.contains(&d) && has_contains("e")
        || a.contains(format!("f").as_str()) || a.contains('g')"#;
    assert_eq!(count_parts_of_text(source), 3);
}

/// Lines of code of a source, without comments and the tests at its end.
fn code_lines(source: &str) -> Vec<&str> {
    let product = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = product.lines().map(|line| line.split(" // ").next().unwrap_or_default());
    lines.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).collect()
}

/// Names of the functions that a source defines.
fn function_names(source: &str) -> Vec<&str> {
    let names = code_lines(source).into_iter().filter_map(|line| {
        let (before, rest) = line.split_once("fn ")?;
        let is_definition = before.chars().all(|c| c.is_ascii_alphabetic() || " ():\"_".contains(c));
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        (is_definition && end > 0).then(|| &rest[..end])
    });
    names.collect()
}

/// Sources of the product.
fn all_product_sources() -> impl Iterator<Item = String> {
    read_files(all_product_files())
}

fn read_files(paths: Vec<PathBuf>) -> impl Iterator<Item = String> {
    paths.into_iter().map(|path| std::fs::read_to_string(path).unwrap())
}

#[test]
fn functions_are_named_by_more_than_a_word() {
    let sources: Vec<_> = all_product_sources().collect();
    let names: Vec<_> = sources.iter().flat_map(|source| function_names(source)).collect();
    let one_word = names.iter().filter(|name| !name.trim_matches('_').contains('_')).count();
    let length: usize = names.iter().map(|name| name.len()).sum();
    assert!(names.len() > 4000, "{} functions found", names.len());
    assert!(
        one_word * 100 <= names.len() * MOST_ONE_WORD_NAMES && length >= names.len() * LEAST_MEAN_LENGTH,
        "{one_word} of {} functions have a name of one word; mean length {}",
        names.len(),
        length / names.len()
    );
}

#[test]
fn only_definitions_of_the_product_have_names() {
    let source = "pub(crate) const fn one(f: fn(u8)) {}\n// fn none\n    async fn two_words<T>() {}\nlet f: fn(u8) = g;\n\
                  unsafe extern \"C\" fn three() {}\n#[cfg(test)]\nmod tests {\nfn four() {}\n}";
    assert_eq!(function_names(source), ["one", "two_words", "three"]);
}

/// Named closures of more than three lines.
fn count_long_closures(code: &[&str]) -> usize {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lengths = code.iter().enumerate().filter_map(|(at, line)| {
        let (_, value) = line.trim_start().strip_prefix("let ")?.split_once(" = ")?;
        let is_closure = value.trim_start_matches("async ").trim_start_matches("move ").starts_with('|');
        let is_end = |other: &&str| other.ends_with(';') && indent(other) <= indent(line);
        is_closure.then(|| code[at..].iter().position(is_end))?
    });
    lengths.filter(|length| *length >= 3).count()
}

#[test]
fn long_closures_are_functions() {
    let sources: Vec<_> = all_product_sources().collect();
    let code: Vec<_> = sources.iter().map(|source| code_lines(source)).collect();
    let lines: usize = code.iter().map(Vec::len).sum();
    let closures: usize = code.iter().map(|code| count_long_closures(code)).sum();
    assert!(lines > 50_000, "{lines} lines found");
    assert!(
        closures * 1000 < lines * MOST_LONG_CLOSURES,
        "{closures} named closures of more than three lines, in {lines} lines of code: make them functions, or smaller"
    );
}

#[test]
fn only_named_closures_of_more_than_three_lines_are_long() {
    let long = "    let a = move |b| {\n        // no line of code\n        c;\n\n        d\n    };\n";
    let short = "    let a: E = |b| {\n        c\n    }; // end\n    let a = b.map(|c| {\n        c;\n        d\n    });\n";
    let test = "#[cfg(test)]\nmod tests {\n";
    let count = |source: &[&str]| count_long_closures(&code_lines(&source.concat()));
    assert_eq!([count(&[long, short, long]), count(&[short]), count(&[long, test, long])], [2, 0, 1]);
}

/// The words of a name, such as `is_told`, `WantedNode` or `LAST_TURN`.
fn words_of_name(name: &str) -> Vec<String> {
    let is_camel = name.contains(char::is_lowercase);
    let starts_word = |c: char| c == '_' || is_camel && c.is_uppercase();
    let spaced: String = name.chars().flat_map(|c| [if starts_word(c) { ' ' } else { '_' }, c]).collect();
    spaced.replace('_', "").split(' ').map(str::to_lowercase).collect()
}

/// Names in a source that have a forbidden word; comments, texts and the tests at its end do not count.
fn private_names(source: &str) -> Vec<String> {
    let code = code_lines(source).join("\n").replace(r"\\", " ").replace("\\\"", " ").replace("'\"'", " ");
    let outside_texts = code.split('"').step_by(2);
    let names: BTreeSet<&str> =
        outside_texts.flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_')).collect();
    let is_private = |word: &String| {
        let stems = [word.trim_end_matches('s'), word.trim_end_matches("ed")];
        stems.iter().any(|stem| PRIVATE_WORDS.contains(stem))
    };
    names.into_iter().filter(|name| words_of_name(name).iter().any(is_private)).map(str::to_owned).collect()
}

#[test]
fn names_have_the_words_of_the_field() {
    let private: Vec<_> = all_product_sources().flat_map(|source| private_names(&source)).collect();
    assert!(private.is_empty(), "the glossary has other words: {private:?}");
}

/// Whether a function has a name with a vague word, or one that begins or ends with `of`, so that half of it is at the call.
fn is_vague(name: &str) -> bool {
    let name = TERMS.iter().fold(format!("_{name}_"), |name, term| name.replace(term, "_"));
    let mut words = name.trim_matches('_').split('_');
    name.starts_with("_of_") || name.ends_with("_of_") || words.any(|word| VAGUE_WORDS.contains(&word))
}

#[test]
fn functions_are_named_by_verbs_of_the_field() {
    let sources: Vec<_> = all_product_sources().collect();
    let names = sources.iter().flat_map(|source| function_names(source));
    let vague: Vec<_> = names.filter(|name| is_vague(name)).collect();
    assert!(vague.is_empty(), "name what they do: {vague:?}");
}

#[test]
fn only_terms_have_vague_words() {
    let vague = ["of_pod", "rules_of", "look_at", "print_out", "settle"];
    let terms = ["has_users_of_node", "look_up", "look_up_limit", "timed_out", "outer"];
    assert!(vague.into_iter().all(is_vague) && !terms.into_iter().any(is_vague));
}

#[test]
fn only_names_have_private_words() {
    let source = "// blind\nlet is_told = WantedNode { turned_at: \"said \\\" told\" }; // mend\n\
                  const LAST_TURNS: u8 = b'\"';\nlet trouble = 1;\n#[cfg(test)]\nmod tests { fn told() {} }";
    assert_eq!(private_names(source), ["LAST_TURNS", "WantedNode", "is_told", "trouble", "turned_at"]);
}

/// Tests below a directory: each with its modules, and its code.
fn tests_below(directory: &Path, modules: &str) -> Vec<(String, String)> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let tests = entries.flat_map(|path| {
        let module = format!("{modules}{}::", path.file_stem().unwrap().display());
        if path.is_dir() {
            return tests_below(&path, &module);
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let tests = source.split("#[test]\n").skip(1).filter_map(|test| {
            let (name, code) = test.split_once("fn ")?.1.split_once('(')?;
            Some((format!("{module}{name}"), code.split("\n}\n").next()?.to_owned()))
        });
        tests.collect()
    });
    tests.collect()
}

/// Names in a list of a script.
fn listed<'a>(script: &'a str, list: &str) -> Vec<&'a str> {
    let (_, names) = script.split_once(&format!("\n{list}=(\n")).unwrap();
    names.split_once("\n)\n").unwrap().0.split_whitespace().collect()
}

#[test]
fn tests_that_choose_their_tables_run_once() {
    let script = read("hack/test");
    let once = ["whatever_the_tables", "own_tables"].map(|list| listed(&script, list)).concat();
    let tests = tests_below(&repository().join("tests/in-pod"), "");
    let unknown: Vec<_> =
        once.iter().filter(|start| !tests.iter().any(|(name, _)| name.starts_with(**start))).collect();
    assert!(unknown.is_empty(), "hack/test lists tests that do not exist: {unknown:?}");
    let choices = ["&[IPTABLES]", "&[(\"FORCE_IPTABLES_BINARY\","];
    let choosing = tests.iter().filter(|(_, code)| choices.iter().any(|choice| code.contains(choice)));
    let unlisted: Vec<_> = choosing
        .filter(|(name, _)| !once.iter().any(|start| name.starts_with(start)))
        .map(|(name, _)| name)
        .collect();
    assert!(unlisted.is_empty(), "add them to own_tables in hack/test: {unlisted:?}");
}

#[test]
fn unsafe_occurs_only_where_the_architecture_says() {
    let count = |sources: &mut dyn Iterator<Item = String>| {
        sources.map(|source| source.matches("expect(unsafe_code").count()).sum::<usize>()
    };
    for (name, places) in UNSAFE_PLACES {
        let mut sources = read_files(product_files(&repository().join("pkg").join(name)));
        assert_eq!(count(&mut sources), places, "{name}");
    }
    let most = UNSAFE_PLACES.iter().map(|(_, places)| places).sum::<usize>();
    assert_eq!(count(&mut all_product_sources()), most, "in another crate");
    let page = read("ARCHITECTURE.md");
    let invariant = page.lines().find(|line| line.starts_with("15. `unsafe`")).unwrap();
    let named: BTreeSet<&str> = invariant.split('`').skip(1).step_by(2).collect();
    let missing = UNSAFE_PLACES.iter().find(|(name, _)| !named.contains(name));
    assert_eq!(missing, None, "invariant 15 does not name it");
}

/// Paths of the product's code in a text, such as `rules::ChainSet`: their crate, and the name at the end.
fn code_paths(text: &str) -> BTreeSet<(&str, &str)> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let paths = words.filter_map(|word| word.trim_matches(':').split_once("::"));
    let named = paths.filter(|(first, _)| first.starts_with(|c: char| c.is_ascii_lowercase()));
    named.map(|(first, rest)| (first, rest.rsplit("::").next().unwrap_or(rest))).collect()
}

#[test]
fn the_architecture_names_what_exists() {
    let page = read("ARCHITECTURE.md");
    let paths = code_paths(&page);
    assert!(paths.contains(&("pod_status", "Stability")), "{paths:?}");
    let sources: String = all_product_sources().collect();
    let is_defined = |name: &str| {
        let definitions = ["fn", "struct", "enum", "trait", "mod"].map(|kind| format!("{kind} {name}"));
        definitions.iter().any(|definition| {
            let mut ends = sources.match_indices(definition).map(|(at, found)| &sources[at + found.len()..]);
            ends.any(|end| !end.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let is_dependency = |name: &str| name == "axum";
    let is_crate = |name: &str| repository().join("pkg").join(name.replace('_', "-")).is_dir();
    let own = paths.iter().filter(|(first, _)| !is_dependency(first));
    let unknown = own.filter(|(first, name)| !is_crate(first) || !is_defined(name));
    report("paths that do not exist", &unknown.map(|path| format!("{path:?}")).collect::<Vec<_>>());
}
