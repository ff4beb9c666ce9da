//! The picture of the node: its pods by state, and the packet flow.

use super::{
    html::HtmlWriter,
    parts, pods,
    shapes::{self, Area, WIDTH},
    way,
};
use crate::{CaptureState, PodState, StateReport, tables, text::count};

/// A tile and the space behind it.
const PITCH: usize = 13;
/// Where tiles begin: left of them are state and count.
const LEFT: usize = 152;
const PER_LINE: usize = (WIDTH - LEFT) / PITCH;
/// More would be noise; the count tells the rest.
const MOST: usize = 320;

/// The section.
pub(super) fn section(html: &mut HtmlWriter, state: &StateReport) {
    parts::section(html, "picture", "Picture of the node", |html| {
        html.element("div", &[("class", "figures")], |html| {
            by_state(html, state);
            way::ways(state).iter().for_each(|way| way::draw(html, way));
        });
    });
}

/// Pods as tiles, one row of them for each state that there is.
fn by_state(html: &mut HtmlWriter, state: &StateReport) {
    let groups: Vec<(CaptureState, Vec<&PodState>)> = CaptureState::ALL
        .into_iter()
        .map(|capture| (capture, state.pods.iter().filter(|pod| pod.capture == capture).collect::<Vec<_>>()))
        .filter(|(_, pods)| !pods.is_empty())
        .collect();
    let words = format!("{}: {}.", count(state.pods.len(), "pod"), tables::counts(state.pods.iter()));
    let height = groups.iter().map(|(_, pods)| row_height(pods.len())).sum::<usize>().max(24);
    html.element("figure", &[("id", "figure-pods")], |html| {
        html.text_element("h3", &[], "Pods by state");
        shapes::picture(html, "picture-pods", height, ("Pods by state", &words), |html| {
            let mut y = 0;
            for (capture, pods) in &groups {
                row(html, y, *capture, pods);
                y += row_height(pods.len());
            }
        });
        html.text_element("figcaption", &[], &words);
    });
}

fn row_height(pods: usize) -> usize {
    pods.min(MOST).div_ceil(PER_LINE) * PITCH + 14
}

fn row(html: &mut HtmlWriter, y: usize, capture: CaptureState, pods: &[&PodState]) {
    let class = format!("tiles s-{capture}");
    html.element("g", &[("class", &class)], |html| {
        shapes::text(html, (0, y + 11), "label", &format!("{} {capture}", pods::sign(capture)));
        shapes::text(html, (LEFT - 10, y + 11), "label count", &pods.len().to_string());
        for (place, pod) in pods.iter().take(MOST).enumerate() {
            let (x, y) = (LEFT + place % PER_LINE * PITCH, y + 1 + place / PER_LINE * PITCH);
            let tile = Area { x, y, width: PITCH - 2, height: PITCH - 2 };
            shapes::area(html, tile, "tile", Some(&format!("{}: {capture}", pod.title())));
        }
    });
}
