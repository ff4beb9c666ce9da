//! The parts that capture depends on, each in a few words: the plugin, the node with its ztunnel, the pods.

use super::{
    headline::{HeadlineLevel, is_member, no_ztunnel},
    html::HtmlWriter,
    when,
};
use crate::{CaptureState, Observer, StateReport, tables, text::count};

/// How one part is, and a time of it: which one in words, and when.
struct Lamp<'a> {
    name: &'static str,
    level: HeadlineLevel,
    words: String,
    since: Option<(String, &'a str)>,
}

/// All of them, in the order in which they depend on each other.
pub(super) fn lamps(html: &mut HtmlWriter, state: &StateReport) {
    html.element("ul", &[("id", "lamps"), ("aria-label", "Plugin, ztunnel and pods")], |html| {
        [plugin(state), ztunnel(state), pods(state)]
            .iter()
            .for_each(|one| lamp(html, one, &state.observation.observed_at));
    });
}

/// One that is well has no tick: it may stand below a headline that is not.
fn lamp(html: &mut HtmlWriter, lamp: &Lamp<'_>, now: &str) {
    html.element("li", &[("class", &format!("lamp {}", lamp.level.class()))], |html| {
        let sign = if lamp.level == HeadlineLevel::Well { "●" } else { lamp.level.sign() };
        html.text_element("span", &[("class", "sign"), ("aria-hidden", "true")], sign);
        html.text_element("strong", &[], lamp.name);
        html.text(&format!(": {}", lamp.words));
        if let Some((what, at)) = &lamp.since {
            html.element("p", &[], |html| {
                html.text(&format!("{what} "));
                when::time(html, at, now);
            });
        }
    });
}

fn plugin(state: &StateReport) -> Lamp<'_> {
    let mut wrong = state.installation.iter().filter(|file| !file.correct);
    let (level, words) = match (wrong.next(), state.installation.is_empty()) {
        (Some(file), _) => (HeadlineLevel::Wrong, format!("{}: {}", file.path, file.message)),
        (None, true) => (HeadlineLevel::Watch, "not observed".to_owned()),
        (None, false) => (HeadlineLevel::Well, "installed".to_owned()),
    };
    let since =
        state.node.agent_started_at.as_deref().map(|started| ("agent runs since".to_owned(), started));
    Lamp { name: "Plugin", level, words, since }
}

fn ztunnel(state: &StateReport) -> Lamp<'_> {
    let last = state.history.iter().find(|change| change.pod.is_none());
    let (level, words) = node(state);
    Lamp {
        name: "Node and ztunnel",
        level,
        words,
        since: last.map(|change| ("last change".to_owned(), change.started_at.as_str())),
    }
}

fn node(state: &StateReport) -> (HeadlineLevel, String) {
    let active: Vec<_> =
        state.ztunnels.iter().filter(|one| one.active).map(|one| one.name.as_str()).collect();
    let differences = state.network.differences().count();
    if !state.node.ambient_enabled {
        return (HeadlineLevel::Well, "ambient mode is off".to_owned());
    }
    if let Some((missing, _)) = no_ztunnel(state) {
        return (HeadlineLevel::Wrong, missing.to_owned());
    }
    if let Some(trouble) = &state.node.problem {
        return (HeadlineLevel::Wrong, trouble.clone());
    }
    match (differences, active.is_empty() || state.observation.observer == Observer::Command) {
        (0, true) => (HeadlineLevel::Watch, "which ztunnel takes new connections is unknown".to_owned()),
        (0, false) => (HeadlineLevel::Well, format!("new connections go to {}", active.join(", "))),
        (some, _) => (HeadlineLevel::Wrong, format!("{} from the desired state", count(some, "difference"))),
    }
}

/// Since the first of them bypasses or waits, or since the last was captured.
fn pods(state: &StateReport) -> Lamp<'_> {
    let worst = CaptureState::ALL.into_iter().filter(|capture| is_member(*capture));
    let worst = worst.into_iter().find(|capture| state.pods.iter().any(|pod| pod.capture == *capture));
    let level = worst.map_or(HeadlineLevel::Well, HeadlineLevel::of);
    let times = state.pods.iter().filter(|pod| Some(pod.capture) == worst);
    let times = times.filter_map(|pod| pod.last_transition_time.as_deref());
    let since = if level == HeadlineLevel::Well { times.max() } else { times.min() };
    let what = format!("{} since", worst.map_or("", CaptureState::word));
    let words = tables::counts(state.pods.iter());
    Lamp { name: "Pods", level, words, since: since.map(|since| (what, since)) }
}
