//! A page of the documentation whose commands are run verbatim.

use crate::checks::Checks;

/// The rest of a page: sections, each with its commands.
pub(crate) struct Page {
    path: &'static str,
    sections: Vec<(String, Vec<String>)>,
}

impl Page {
    /// Parses a page. Sections without commands are left out; a command of several lines is one.
    pub(crate) fn new(path: &'static str, text: &str) -> Self {
        Self { path, sections: text.replace("\\\n", "").split("\n## ").filter_map(parse_section).collect() }
    }

    /// Commands of the rest, for replacements that the page asks of its reader.
    pub(crate) fn commands_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.sections.iter_mut().flat_map(|(_, commands)| commands)
    }

    /// Begins the next section, which must be this one, and returns its commands.
    pub(crate) fn begin_section(&mut self, checks: &Checks, title: &str) -> Vec<String> {
        checks.chapter(format!("{}: {title}", self.path));
        let (found, commands) = self.sections.remove(0);
        assert_eq!(found, title, "the next section of {} that has commands", self.path);
        commands
    }

    /// Checks that no section is left.
    pub(crate) fn check_end(&self, checks: &mut Checks) {
        let left: Vec<_> = self.sections.iter().map(|(title, _)| title).collect();
        checks.check(left.is_empty(), format!("no section of {} is left {left:?}", self.path));
    }
}

fn parse_section(text: &str) -> Option<(String, Vec<String>)> {
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ ").map(str::to_owned));
    Some((text.lines().next()?.to_owned(), commands.collect()))
        .filter(|(_, commands): &(_, Vec<_>)| !commands.is_empty())
}

/// Content of YAML blocks that follow a line such as "`values.yaml`:", by that name.
pub(crate) fn files(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = page.split("\n```yaml\n");
    let mut before = blocks.next().unwrap_or_default();
    let mut files = Vec::new();
    for rest in blocks {
        let Some((content, after)) = rest.split_once("```") else { continue };
        let intro = before.trim_end().lines().next_back().unwrap_or_default();
        if let Some(name) = intro.strip_prefix('`').and_then(|intro| intro.split('`').next()) {
            files.push((name, content));
        }
        before = after;
    }
    files
}
