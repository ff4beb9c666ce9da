//! Compares our rules with those of containerd and CRI-O: with the networks that their own libraries load from random directories.
//! `hack/libcni` builds the programs that report them.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    process::{Command, Stdio},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use cni_types::Json;

use super::*;

const FIXED_SEED: u64 = 0x6d69_6c6c_7261_6365;
const DIRECTORIES: usize = 600;
const PLUGINS: [&str; 4] = ["bridge", "calico-ipam", "portmap", "ptp"];

/// Network that each runtime loads with one version of libcni.
#[derive(Debug, PartialEq, Eq)]
struct Loaded {
    /// The file, and the number of plugins appended to its own.
    containerd: Option<(String, usize)>,
    /// The network's name.
    crio: Option<String>,
}

#[test]
fn our_rules_are_those_of_containerd_and_crio() {
    let Some(programs) = env::var_os("MILLRACE_LIBCNI").map(PathBuf::from) else {
        assert!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "CI runs everything, but MILLRACE_LIBCNI is not set"
        );
        return record_skip("MILLRACE_LIBCNI is not set; hack/libcni prints it");
    };
    let random_seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    for seed in [FIXED_SEED, random_seed] {
        println!("seed {seed:#x}");
        let mut random = Random(seed);
        let scratch = tempfile::tempdir().unwrap();
        let directories: Vec<PathBuf> =
            (0..DIRECTORIES).map(|at| scratch.path().join(at.to_string())).collect();
        directories.iter().for_each(|directory| fill_directory(directory, &mut random));
        let theirs = thread::scope(|scope| {
            let versions = Libcni::ALL.map(|libcni| {
                let program = programs.join(libcni.to_string().replace(' ', "-"));
                let directories = &directories;
                scope.spawn(move || run_loader(&program, directories))
            });
            versions.map(|version| version.join().unwrap())
        });
        for (at, directory) in directories.iter().enumerate() {
            let theirs: Vec<&Loaded> = theirs.iter().filter_map(|loaded| loaded.get(at)).collect();
            assert_eq!(theirs.len(), Libcni::ALL.len());
            compare_with_runtimes(directory, &theirs);
        }
        let chained = directories.iter().filter(|directory| found_network(directory).is_some()).count();
        assert!(chained > DIRECTORIES / 5, "the directories are too odd: {chained}");
    }
}

/// Records a skip, which `hack/test` counts.
fn record_skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(skips) = env::var_os("MILLRACE_SKIPS") {
        let mut skips = fs::OpenOptions::new().append(true).open(skips).unwrap();
        writeln!(skips, "our_rules_are_those_of_containerd_and_crio: {why}").unwrap();
    }
}

/// Both runtimes with each version load the network that we select, and our entry is added to that file or to none.
fn compare_with_runtimes(directory: &Path, theirs: &[&Loaded]) {
    let context = || describe_directory(directory);
    for (libcni, theirs) in Libcni::ALL.into_iter().zip(theirs) {
        assert_eq!(load_by_our_rules(directory, libcni), **theirs, "{libcni}: {}", context());
    }
    match found_network(directory) {
        Some(network) => {
            assert!(theirs.iter().any(|loaded| loaded.crio.is_some()), "{}: {}", network.name, context());
            for loaded in theirs {
                let containerd = loaded.containerd.as_ref();
                let is_same =
                    |(name, appended): &(String, usize)| (name, *appended) == (&marked_file(&network), 0);
                assert!(containerd.is_none_or(is_same), "{}: {loaded:?}: {}", network.name, context());
                let name = pod_network(&network);
                assert!(
                    loaded.crio.as_ref().is_none_or(|crio| *crio == name),
                    "{name}: {loaded:?}: {}",
                    context()
                );
            }
        }
        None => {
            let mut defaults: Vec<Option<(String, usize, bool)>> = Libcni::ALL
                .iter()
                .map(|libcni| default_network(directory, *libcni))
                .map(|found| {
                    found.map(|(network, appended)| (network.name.clone(), appended, connects_pods(&network)))
                })
                .collect();
            defaults.dedup();
            assert!(!matches!(defaults[..], [Some((_, 0, true))]), "all take {defaults:?}: {}", context());
        }
    }
}

fn connects_pods(network: &NetworkConf) -> bool {
    plugin_types(&network.content).iter().any(|kind| !is_auxiliary(kind))
        && unknown_version(&network.content).is_none()
}

fn found_network(directory: &Path) -> Option<NetworkConf> {
    find_default(directory, "").unwrap().ok()
}

fn load_by_our_rules(directory: &Path, libcni: Libcni) -> Loaded {
    let mut candidates =
        file_names(directory).unwrap().into_iter().filter(|name| FileForm::from_file_name(name).is_some());
    let containerd = candidates.next().and_then(|name| load_file(directory, &name, libcni));
    Loaded {
        containerd: containerd.map(|(network, appended)| (marked_file(&network), appended)),
        crio: default_network(directory, libcni).map(|(network, _)| pod_network(&network)),
    }
}

/// The first file that loads.
fn default_network(directory: &Path, libcni: Libcni) -> Option<(NetworkConf, usize)> {
    let names =
        file_names(directory).unwrap().into_iter().filter(|name| FileForm::from_file_name(name).is_some());
    names.into_iter().find_map(|name| load_file(directory, &name, libcni))
}

fn load_file(directory: &Path, name: &str, libcni: Libcni) -> Option<(NetworkConf, usize)> {
    let network = match NetworkConf::read(directory, name) {
        Ok(network) => network?,
        Err(Error::File(error)) if error.is_no_file() => return None,
        Err(error) => panic!("{error}"),
    };
    let appended = network.load(directory, libcni).unwrap().ok()?;
    Some((network, appended.len()))
}

/// The file with its content, also through a link.
fn marked_file(network: &NetworkConf) -> String {
    file_mark(&String::from_utf8_lossy(&network.content)).unwrap()
}

/// The name under which CRI-O lists it.
fn pod_network(network: &NetworkConf) -> String {
    let content = Json::parse(&network.content).unwrap();
    let name = content.get("name").or_else(|| content.get("Name")).and_then(Json::as_str).unwrap_or_default();
    if name.is_empty() { network.name.clone() } else { name.to_owned() }
}

fn run_loader(program: &Path, directories: &[PathBuf]) -> Vec<Loaded> {
    let mut child =
        Command::new(program).args(PLUGINS).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let paths: String = directories.iter().map(|directory| format!("{}\n", directory.display())).collect();
    let mut input = child.stdin.take().unwrap();
    let writer = thread::spawn(move || input.write_all(paths.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse_loaded(&Json::parse(line).unwrap())).collect()
}

fn parse_loaded(report: &Json) -> Loaded {
    let texts = report.get("containerd").and_then(Json::as_list).unwrap_or_default();
    let marks: Vec<_> = texts.iter().map(|text| file_mark(text.as_str().unwrap())).collect();
    // The list that a runtime creates from a single configuration has no mark of its own.
    let file = marks.iter().flatten().next().cloned();
    let crio = report.get("crio").and_then(Json::as_str).unwrap();
    Loaded {
        containerd: file.map(|file| {
            let appended = marks.iter().flatten().filter(|mark| **mark != file).count();
            (file, appended)
        }),
        crio: (!crio.is_empty()).then(|| crio.to_owned()),
    }
}

/// The source file of a configuration.
fn file_mark(text: &str) -> Option<String> {
    Json::parse(text.as_bytes()).unwrap().get("mark").and_then(Json::as_str).map(str::to_owned)
}

fn describe_directory(directory: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let content = if path.is_dir() {
            describe_directory(&path)
        } else {
            String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned()
        };
        writeln!(text, "{}: {content}", path.display()).unwrap();
    }
    text
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    fn pick_from<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const STEMS: &[&str] = &["", "00", "05-a", "10-kit", "10-kit.x", "10_kit", "99-z", "n", "\u{e9}"];
const EXTENSIONS: &[&str] =
    &[".conf", ".conflist", ".json", ".conf", ".conflist", ".conflist~", ".CONF", ".conf.bak", ""];

fn fill_directory(directory: &Path, random: &mut Random) {
    fs::create_dir(directory).unwrap();
    for network in ["m", "n", "k8s-pod-network"] {
        if random.one_in(4) {
            fs::create_dir(directory.join(network)).unwrap();
            for _ in 0..random.below(3) {
                make_entry(directory, &format!("{network}/{}", file_name(random)), random);
            }
        }
    }
    for _ in 0..=random.below(4) {
        make_entry(directory, &file_name(random), random);
    }
}

fn file_name(random: &mut Random) -> String {
    let name = format!("{}{}", random.pick_from(STEMS), random.pick_from(EXTENSIONS));
    if name.is_empty() { "none".to_owned() } else { name }
}

/// Creates one entry, unless the name exists.
fn make_entry(directory: &Path, name: &str, random: &mut Random) {
    let path = directory.join(name);
    if path.exists() || path.is_symlink() {
        return;
    }
    match random.below(30) {
        0 => fs::create_dir(path).unwrap(),
        1 => symlink(
            random.pick_from(&["missing", "/dev/null", "n", "m", "10-kit.conf", "10-kit.conflist"]),
            path,
        )
        .unwrap(),
        _ => {
            let text = if name.ends_with(".conflist") != random.one_in(30) {
                random_list(name, random)
            } else {
                random_plugin(name, random)
            };
            let end = if random.one_in(40) { text.len() / 2 } else { text.len() };
            fs::write(path, &text.as_bytes()[..end]).unwrap();
        }
    }
}

/// A field that is valid in most files, and missing in several.
fn add_member(members: &mut Vec<String>, random: &mut Random, key: &str, good: &[&str], odd: &[&str]) {
    let value = match random.below(12) {
        0 => random.pick_from(odd),
        1 => return,
        _ => random.pick_from(good),
    };
    members.push(format!("\"{key}\":{value}"));
}

/// A field that most files do not have.
fn add_rare_member(members: &mut Vec<String>, random: &mut Random, key: &str, values: &[&str]) {
    if random.one_in(10) {
        members.push(format!("\"{key}\":{}", random.pick_from(values)));
    }
}

const FLAGS: &[&str] = &["true", "false", "\"true\"", "\"False\"", "\"TRUE\"", "\"\"", "null", "1"];

fn random_list(file: &str, random: &mut Random) -> String {
    let mut members = vec![format!("\"mark\":\"{file}\"")];
    add_member(
        &mut members,
        random,
        "name",
        &["\"m\"", "\"n\"", "\"kit\""],
        &["\"\"", "\".\"", "5", "null", "\"10-kit.conf\""],
    );
    add_member(
        &mut members,
        random,
        "cniVersion",
        &["\"1.0.0\"", "\"0.3.1\""],
        &["\"\"", "\"new\"", "1", "null"],
    );
    add_rare_member(
        &mut members,
        random,
        "cniVersions",
        &[
            "[]",
            "[\"1.0.0\"]",
            "[\"1.0\",\"1\"]",
            "[\"9.9.9\",\"\"]",
            "[\"x\"]",
            "[\"1.0.0.0\"]",
            "[1]",
            "null",
            "\"1.0.0\"",
        ],
    );
    add_rare_member(&mut members, random, "disableCheck", FLAGS);
    add_rare_member(&mut members, random, "disableGC", FLAGS);
    add_rare_member(&mut members, random, "loadOnlyInlinedPlugins", FLAGS);
    add_rare_member(&mut members, random, "type", &["\"bridge\"", "5"]);
    add_rare_member(&mut members, random, "big", &["1e308", "1e309"]);
    match random.below(12) {
        0 => {
            members.push(format!("\"plugins\":{}", random.pick_from(&["[]", "{}", "null", "[5]", "[null]"])));
        }
        1 | 2 => {}
        _ => {
            let plugins: Vec<String> = (0..=random.below(2)).map(|_| random_plugin(file, random)).collect();
            members.push(format!("\"plugins\":[{}]", plugins.join(",")));
        }
    }
    format!("{{{}}}", members.join(","))
}

fn random_plugin(file: &str, random: &mut Random) -> String {
    let mut members = vec![format!("\"mark\":\"{file}\"")];
    let types: Vec<String> = PLUGINS.iter().map(|name| format!("\"{name}\"")).collect();
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    let key = random.pick_from(&["type", "type", "type", "Type", "TYPE"]);
    if random.one_in(15) {
        add_rare_member(&mut members, random, key, &["\"\"", "5", "null"]);
    } else {
        members.push(format!("\"{key}\":{}", random.pick_from(&types)));
    }
    let key = random.pick_from(&["name", "Name"]);
    add_rare_member(&mut members, random, key, &["\"m\"", "\"kit\"", "\"\"", "5", "null"]);
    add_rare_member(&mut members, random, "cniVersion", &["\"1.0.0\"", "\"new\"", "5", "null"]);
    add_rare_member(
        &mut members,
        random,
        "capabilities",
        &["{\"portMappings\":true}", "{\"a\":null}", "{\"a\":1}", "[]", "null"],
    );
    add_rare_member(
        &mut members,
        random,
        "ipam",
        &["{\"type\":\"x\",\"n\":5}", "{\"type\":5}", "{}", "\"x\"", "null"],
    );
    add_rare_member(
        &mut members,
        random,
        "dns",
        &["{\"search\":[\"a\",null]}", "{\"search\":\"a\"}", "{\"domain\":1}", "[]", "null"],
    );
    add_rare_member(
        &mut members,
        random,
        "prevResult",
        &["{}", "{\"n\":1e308}", "{\"n\":1e309}", "[]", "null"],
    );
    add_rare_member(
        &mut members,
        random,
        "cni.dev/valid-attachments",
        &["[]", "[{\"containerID\":\"c\"},null]", "[{\"IFNAME\":5}]", "[5]", "{}", "null"],
    );
    add_rare_member(&mut members, random, "big", &["1e308", "1e309", "[{\"n\":-1e999}]"]);
    add_rare_member(&mut members, random, "plugins", &["[]", "5"]);
    format!("{{{}}}", members.join(","))
}
