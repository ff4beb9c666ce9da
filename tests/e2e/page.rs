//! A page of the documentation whose commands are run as they stand there.

/// Commands of each section that has some, by its title; a command of several lines is one.
pub(crate) fn sections(page: &str) -> Vec<(String, Vec<String>)> {
    page.replace("\\\n", "").split("\n## ").filter_map(parse_section).collect()
}

fn parse_section(text: &str) -> Option<(String, Vec<String>)> {
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ ").map(str::to_owned));
    Some((text.lines().next()?.to_owned(), commands.collect()))
        .filter(|(_, commands): &(_, Vec<_>)| !commands.is_empty())
}

/// Blocks of YAML that follow a line such as "`values.yaml`:", by that name.
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
