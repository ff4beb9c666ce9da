//! Each Rust block in CONTRIBUTING.md is part of the file to which the line before it links, so it compiles and is run.

use crate::markdown::{Kind, lines};
use crate::{read, report};

/// The blocks, each with the path before it.
fn blocks(page: &str) -> Vec<(String, Vec<String>)> {
    let (mut blocks, mut path) = (Vec::new(), String::new());
    for line in lines(page) {
        match line.kind {
            Kind::Block("rust") if line.fence && line.text.trim() == "```rust" => {
                blocks.push((std::mem::take(&mut path), Vec::new()));
            }
            Kind::Block("rust") if !line.fence => blocks.last_mut().unwrap().1.push(line.text.to_owned()),
            Kind::Prose => {
                if let Some((_, link)) = line.text.split_once("](") {
                    path = link.split(')').next().unwrap().to_owned();
                }
            }
            _ => {}
        }
    }
    blocks
}

/// Ignores indentation: a block begins at the left margin, wherever it is in its file.
fn is_part(block: &[String], file: &str) -> bool {
    let lines: Vec<&str> = file.lines().collect();
    lines.windows(block.len()).any(|window| {
        let first = window.first().unwrap_or(&"");
        let margin = &first[..first.len() - first.trim_start().len()];
        window.iter().zip(block).all(|(line, quoted)| line.strip_prefix(margin).unwrap_or(line) == quoted)
    })
}

#[test]
fn every_example_of_a_test_is_one() {
    let blocks = blocks(&read("CONTRIBUTING.md"));
    assert_eq!(blocks.len(), 2, "one for a pure crate, one for the kernel");
    let others = blocks.iter().filter(|(path, block)| !is_part(block, &read(path)));
    let others: Vec<_> = others.map(|(path, block)| format!("{path}:\n{}", block.join("\n"))).collect();
    report("examples that their files do not have", &others);
}

#[test]
fn an_example_is_found_at_any_depth_and_whole() {
    let block = ["fn a() {", "    b();", "}"].map(str::to_owned);
    assert!(is_part(&block, "x\n    fn a() {\n        b();\n    }\n"));
    assert!(is_part(&block, "fn a() {\n    b();\n}\n"));
    assert!(!is_part(&block, "fn a() {\n    b();\n    c();\n}\n"));
    assert!(!is_part(&block, "fn a() {\n        b();\n}\n"));
    let page = "See [a](b/c.rs):\n\n```rust\nx\n\ny\n```\n\n```console\n# z\n```\n";
    let lines = ["x", "", "y"].map(str::to_owned).to_vec();
    assert_eq!(blocks(page), [("b/c.rs".to_owned(), lines)]);
}
