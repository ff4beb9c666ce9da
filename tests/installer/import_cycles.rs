//! Modules that use each other in a cycle can only be understood together, so the size of a cycle is limited.
//!
//! A module uses another one if it names something of it by a path, in a `use` or elsewhere. What a module re-exports counts as of
//! the module that defines it. Tests, comments and re-exports themselves do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Maximum number of modules of one crate in a cycle.
const MOST: usize = 5;

/// Names of the modules from the crate's root to a module.
type ModulePath = Vec<String>;

/// The text of one module, without comments and literals.
struct ModuleSource {
    /// Without `use`.
    text: String,
    imports: Vec<Vec<String>>,
    reexports: Vec<Vec<String>>,
}

impl ModuleSource {
    fn new(source: &str) -> ModuleSource {
        let source = without_literals(source);
        let mut module = ModuleSource { text: String::new(), imports: Vec::new(), reexports: Vec::new() };
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            let Some((visibility, tree)) = use_in(line) else {
                module.text.extend([line, "\n"]);
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.ends_with(';') {
                tree.push_str(lines.next().expect("a use ends"));
            }
            let paths = if visibility.is_empty() { &mut module.imports } else { &mut module.reexports };
            expand(tree.trim_end_matches(';'), &[], paths);
        }
        module
    }
}

/// For a line in which a `use` begins, the text before and after `use`.
fn use_in(line: &str) -> Option<(&str, &str)> {
    let (visibility, tree) = line.trim().split_once("use ")?;
    let is_use = visibility.is_empty() || (visibility.starts_with("pub") && visibility.ends_with(' '));
    is_use.then_some((visibility, tree))
}

/// The source up to the tests, without comments, strings and characters.
fn without_literals(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut text = String::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if c == '"' {
            string_length(rest)
        } else if rest.starts_with("'\"'") || rest.starts_with("'{'") || rest.starts_with("'}'") {
            3
        } else {
            text.push(c);
            c.len_utf8()
        };
        rest = &rest[skipped..];
    }
    text
}

fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    text.len()
}

/// Paths of a tree such as `crate::{a, b::{c, d as e}}`.
fn expand(tree: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (simple, group) = tree.split_once('{').unwrap_or((tree, ""));
    let simple = simple.split(" as ").next().unwrap();
    let names = simple.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    let path: Vec<String> = before.iter().cloned().chain(names).collect();
    if simple.len() == tree.len() || group.is_empty() {
        return paths.push(path);
    }
    let (mut depth, mut part) = (0, String::new());
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => expand(&std::mem::take(&mut part), &path, paths),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                part.push(c);
            }
        }
    }
    if !part.trim().is_empty() {
        expand(&part, &path, paths);
    }
}

/// The modules of one crate.
struct Crate(BTreeMap<ModulePath, ModuleSource>);

impl Crate {
    fn read(source: &Path) -> Crate {
        let mut modules = BTreeMap::new();
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|path| path.exists());
        let root = root.unwrap_or_else(|| panic!("{} has no root", source.display()));
        modules.insert(ModulePath::new(), ModuleSource::new(&fs::read_to_string(root).unwrap()));
        read_directory(source, &ModulePath::new(), &mut modules);
        Crate(modules)
    }

    /// Module that defines the item of a path in the module `at`; `None` means another crate's, or no module.
    fn definer(&self, at: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (ModulePath::new(), &path[1..]),
            "self" => (at.to_vec(), &path[1..]),
            "super" => (at.split_last()?.1.to_vec(), &path[1..]),
            first => {
                let child = self.child(at, first)?;
                (child, &path[1..])
            }
        };
        while rest.first().is_some_and(|name| name == "super") {
            (_, rest) = (module.pop(), &rest[1..]);
        }
        while let Some(child) = rest.first().and_then(|name| self.child(&module, name)) {
            (module, rest) = (child, &rest[1..]);
        }
        let reexports = self.0.get(&module).map(|source| &source.reexports).filter(|_| depth < 8);
        let reexport = rest.first().and_then(|item| reexports?.iter().find(|path| path.last() == Some(item)));
        let definer = reexport.and_then(|path| self.definer(&module, path, depth + 1));
        Some(definer.unwrap_or(module))
    }

    fn child(&self, module: &[String], name: &str) -> Option<ModulePath> {
        let child = [module, &[name.to_owned()]].concat();
        self.0.contains_key(&child).then_some(child)
    }

    /// The other modules that each module uses.
    fn uses(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let used_by = |(at, source): (&ModulePath, &ModuleSource)| {
            let paths = source.imports.iter().cloned().chain(paths_in(&source.text));
            let used: BTreeSet<_> = paths.filter_map(|path| self.definer(at, &path, 0)).collect();
            (at.clone(), used.into_iter().filter(|other| other != at).collect())
        };
        self.0.iter().map(used_by).collect()
    }

    /// Each set of modules that use each other, directly or not.
    fn cycles(&self) -> BTreeSet<BTreeSet<ModulePath>> {
        let uses = self.uses();
        let reached: BTreeMap<_, _> =
            uses.keys().map(|module| (module, reached_from(module, &uses))).collect();
        let cycle_of = |module: &ModulePath| -> BTreeSet<ModulePath> {
            reached[module].iter().filter(|other| reached[*other].contains(module)).cloned().collect()
        };
        uses.keys().map(cycle_of).filter(|cycle| !cycle.is_empty()).collect()
    }
}

fn read_directory(directory: &Path, at: &[String], modules: &mut BTreeMap<ModulePath, ModuleSource>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let module = [at, std::slice::from_ref(&name)].concat();
        match name.as_str() {
            "tests" | "bin" => {}
            "lib" | "main" if at.is_empty() => {}
            _ if path.is_dir() => read_directory(&path, &module, modules),
            _ => drop(modules.insert(module, ModuleSource::new(&fs::read_to_string(path).unwrap()))),
        }
    }
}

/// Paths of two names or more.
fn paths_in(text: &str) -> impl Iterator<Item = Vec<String>> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
    let paths = words.filter(|word| word.contains("::"));
    paths.map(|path| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn reached_from(
    module: &ModulePath,
    uses: &BTreeMap<ModulePath, BTreeSet<ModulePath>>,
) -> BTreeSet<ModulePath> {
    let (mut reached, mut pending) = (BTreeSet::new(), vec![module]);
    while let Some(next) = pending.pop() {
        pending.extend(uses[next].iter().filter(|used| reached.insert((*used).clone())));
    }
    reached
}

#[test]
fn few_modules_use_each_other_in_a_circle() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let below = ["pkg", "cmd"].into_iter().flat_map(|at| fs::read_dir(repository.join(at)).unwrap());
    let crates = below.map(|entry| entry.unwrap().path()).chain([repository.join("cni-plugin")]);
    let sources: Vec<_> = crates.map(|path| path.join("src")).filter(|source| source.is_dir()).collect();
    assert!(sources.len() > 35, "{sources:?}");
    let mut too_long = Vec::new();
    for source in sources {
        let cycles = Crate::read(&source).cycles();
        let long = cycles.into_iter().filter(|cycle| cycle.len() > MOST);
        too_long.extend(long.map(|cycle| {
            let modules: Vec<String> = cycle.iter().map(|module| module.join("::")).collect();
            format!("{}: {}", source.display(), modules.join(", "))
        }));
    }
    assert!(too_long.is_empty(), "more than {MOST} modules use each other:\n{}", too_long.join("\n"));
}

#[test]
fn a_circle_is_found_however_its_paths_are_written() {
    let module = |name: &str, source: &str| {
        let path = name.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        (path, ModuleSource::new(source))
    };
    let modules = Crate(BTreeMap::from([
        module("", "mod a;\nmod b;\npub use b::{Item, c::Other as Same};\nuse a::start;"),
        module("a", "#[derive(Debug)]\nuse crate::{Item, b::Thing};\nfn start() {}"),
        module("b", "mod c;\nfn f() -> &'static str { c::g(\"crate::a // no path\") }\n"),
        module("b::c", "fn g() { super::super::a::start() } // crate::d::x"),
        module("d", "use crate::a::start;\n#[cfg(test)]\nmod tests {\n use crate::e::x;\n}"),
        module("e", "use crate::d::x;\npub use crate::e::x;"),
    ]));
    let cycles: Vec<Vec<String>> =
        modules.cycles().iter().map(|cycle| cycle.iter().map(|module| module.join("::")).collect()).collect();
    assert_eq!(cycles, [["a", "b", "b::c"]]);
    let uses = modules.uses();
    assert_eq!(uses[&vec!["e".to_owned()]], BTreeSet::from([vec!["d".to_owned()]]));
    assert!(uses[&ModulePath::new()].contains(&vec!["a".to_owned()]));
}
