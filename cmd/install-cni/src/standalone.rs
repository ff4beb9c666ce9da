//! The node's document without an agent.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use agent::Plain;
use anyhow::{Context as _, Result};
use report::{Blind, Network, Observer, Seen, State};

use crate::{
    ambient::Ambient,
    desk,
    inspect::{self, MAX_DOCUMENT},
    settings::Settings,
};

/// What the kernel and the files of this node show, beside what the last agent wanted of them. Blocks.
///
/// # Errors
/// There is a record of the last agent, and it cannot be read.
pub(crate) fn state(settings: &Settings) -> Result<State> {
    let path = settings.last_state();
    let last = read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let why = match &last {
        Some(last) => {
            format!("the agent does not run; what it wanted is as it wrote it down at {}", last.seen.at)
        }
        None => format!("the agent does not run, and there is no record of it ({})", path.display()),
    };
    let records = agent::read_records(&settings.records());
    let mut state = match &settings.ambient {
        Some(ambient) => alone(ambient, last),
        None => plain(settings, &records),
    };
    agent::add_failures(&records, &mut state.pods);
    state.seen.by = Observer::Command;
    if settings.ambient.is_some() {
        state.seen.blind.push(Blind { what: "what is wanted by now".to_owned(), why });
    }
    state.health.clear();
    state.installation = installer::look(&settings.installer, settings.config_map.is_none());
    state.installation.extend(desk::shared_config(settings));
    desk::complete(&mut state, settings);
    Ok(state)
}

fn alone(ambient: &Ambient, last: Option<State>) -> State {
    match ambient.node() {
        Ok(node) => agent::look_alone(&ambient.agent, node.as_ref(), last),
        Err(error) => {
            let mut state = last.unwrap_or_else(desk::empty);
            let blind = Blind { what: "the node's network".to_owned(), why: format!("{error:#}") };
            state.seen = Seen { at: agent::now(), blind: vec![blind], ..Seen::default() };
            state
        }
    }
}

/// Without ambient mode the plugin's records tell all that an agent would know.
fn plain(settings: &Settings, records: &[wire::PodRecord]) -> State {
    let plain = Plain::new(settings.netns_directory.clone(), netfilter::Options::default());
    let (pods, blind) = plain.look(records);
    let seen = Seen { at: agent::now(), blind: blind.into_iter().collect(), ..Seen::default() };
    State { pods, seen, network: Network::unwanted(), ..desk::empty() }
}

/// None: there is no such file.
fn read(path: &Path) -> Result<Option<State>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MAX_DOCUMENT).read_to_end(&mut text)?;
    inspect::parse(&text).map(Some)
}
