//! The picture of one capture mode: its rows with arrows between them, and the same in words.

use super::{Block, Drawing, Row, Tone};
use crate::page::{
    html::HtmlWriter,
    shapes::{self, Area, WIDTH},
};

const BOX: usize = 46;
const GAP: usize = 24;
/// Room for the frame's label, and below the frame.
const MARGIN: usize = 26;

/// The picture, and below it the same in words.
pub(in crate::page) fn draw(html: &mut HtmlWriter, drawing: &Drawing) {
    let id = format!("picture-{}", drawing.way);
    let words: Vec<_> = drawing.rows.iter().map(told).collect();
    let description = words.join(", then ");
    let framed = drawing.frame.map_or(0, |_| 2 * MARGIN);
    let height = drawing.rows.len() * (BOX + GAP) - GAP + framed + 2;
    html.element("figure", &[("id", &format!("figure-{}", drawing.way))], |html| {
        html.text_element("h3", &[], drawing.title);
        shapes::picture(html, &id, height, (drawing.title, &description), |html| rows(html, drawing));
        html.element("figcaption", &[], |html| {
            html.element("details", &[], |html| {
                html.text_element("summary", &[], "In words");
                html.element("ol", &[], |html| {
                    words.iter().for_each(|row| html.text_element("li", &[], row));
                });
            });
        });
    });
}

/// A row in words.
fn told(row: &Row) -> String {
    let boxes: Vec<_> = row.boxes.iter().map(|block| format!("{}: {}", block.title, block.detail)).collect();
    boxes.join("; ")
}

fn rows(html: &mut HtmlWriter, drawing: &Drawing) {
    let mut y = 1;
    if let Some(label) = drawing.frame {
        let inside = drawing.rows.iter().filter(|row| row.framed).count() * (BOX + GAP);
        let frame = Area { x: 1, y, width: WIDTH - 2, height: inside - GAP + MARGIN + 12 };
        shapes::area(html, frame, "frame", None);
        shapes::text(html, (12, y + 18), "detail", label);
        y += MARGIN;
    }
    for (place, row) in drawing.rows.iter().enumerate() {
        blocks(html, y, row);
        let Some(next) = drawing.rows.get(place + 1) else { break };
        let leaves = row.framed && !next.framed;
        let below = y + BOX + GAP + if leaves { MARGIN - 8 } else { 0 };
        arrows(html, (y + BOX, row), (below, next));
        y = below;
    }
}

/// Left edge and width of a box among its row.
fn span(row: &Row, place: usize) -> (usize, usize) {
    let edge = if row.framed { 10 } else { 1 };
    let count = row.boxes.len().max(1);
    let width = (WIDTH - 2 * edge - (count - 1) * 12) / count;
    (edge + place * (width + 12), width)
}

fn blocks(html: &mut HtmlWriter, y: usize, row: &Row) {
    for (place, block) in row.boxes.iter().enumerate() {
        let (x, width) = span(row, place);
        let room = width.saturating_sub(16);
        html.element("g", &[], |html| {
            shapes::area(html, Area { x, y, width, height: BOX }, block.class(), Some(&told_box(block)));
            shapes::text(html, (x + 10, y + 19), "label", &shapes::fit(&block.title, room / 8));
            shapes::text(html, (x + 10, y + 37), "detail", &shapes::fit(&block.detail, room * 2 / 13));
        });
    }
}

fn told_box(block: &Block) -> String {
    format!("{}: {}", block.title, block.detail)
}

/// From every box to the one below it; fanned out where there are more above or below.
fn arrows(html: &mut HtmlWriter, (top, above): (usize, &Row), (bottom, below): (usize, &Row)) {
    let middle = |row: &Row, place| {
        let (x, width) = span(row, place);
        x + width / 2
    };
    let (many, few) = (above.boxes.len().max(below.boxes.len()), above.boxes.len().min(below.boxes.len()));
    for place in 0..many {
        let side = |row: &Row| if row.boxes.len() == many { place } else { place.min(few.saturating_sub(1)) };
        let idle = |row: &Row| row.boxes.get(side(row)).is_some_and(|block| block.tone == Tone::Idle);
        let from = (middle(above, side(above)), top);
        let to = (middle(below, side(below)), bottom);
        shapes::arrow(html, from, to, idle(above) || idle(below));
    }
}
