//! Layout of tables in columns.

use crate::{findings::Severity, text::sanitize_text};

/// Colours that are legible on any terminal background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Default colour of the terminal.
    None,
    /// Faulty.
    Red,
    /// Unknown, or incomplete.
    Yellow,
    /// As desired.
    Green,
    /// Irrelevant.
    Dim,
    /// Title.
    Bold,
}

impl Colour {
    /// Returns the colour of a finding; `None`: a check that has passed.
    pub fn for_severity(severity: Option<Severity>) -> Colour {
        match severity {
            None => Colour::Green,
            Some(Severity::Warning | Severity::Unknown) => Colour::Yellow,
            Some(Severity::Error) => Colour::Red,
        }
    }
}

/// A table cell.
pub struct Cell {
    text: String,
    colour: Colour,
}

impl Cell {
    /// Returns a cell without a colour. Control characters in its text are escaped.
    pub fn plain(text: &str) -> Cell {
        Cell::coloured(text, Colour::None)
    }

    /// Returns a cell with a colour.
    pub fn coloured(text: &str, colour: Colour) -> Cell {
        Cell { text: sanitize_text(text), colour }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// Returns the text, with colour codes if `coloured`.
pub fn paint(text: &str, colour: Colour, coloured: bool) -> String {
    let code = match colour {
        Colour::None => return text.to_owned(),
        Colour::Red => "31",
        Colour::Yellow => "33",
        Colour::Green => "32",
        Colour::Dim => "2",
        Colour::Bold => "1",
    };
    if coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Renders rows of cells in aligned columns, two blanks apart; the last column is not padded. Without titles the header is omitted.
pub fn render_table(titles: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>, colour: bool) -> String {
    let head: Vec<Cell> = titles.iter().map(|title| Cell::coloured(title, Colour::Bold)).collect();
    let all = std::iter::once(head).chain(rows).filter(|row| !row.is_empty());
    let all: Vec<Vec<Cell>> = all.collect();
    let columns = all.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(Cell::width).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let mut text = String::new();
    for row in &all {
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            text.push_str(&paint(&cell.text, cell.colour, colour));
            if at + 1 < row.len() {
                text.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width()) + 2));
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}
