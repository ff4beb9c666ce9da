//! The node's document without an agent.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use anyhow::{Context as _, Result};
use report::{Blind, Observer, SCHEMA, Seen, State};

use crate::{
    inspect::{self, MAX_DOCUMENT},
    settings::Settings,
};

/// The last document of an agent, beside its socket.
const LAST: &str = "last-state.json";

/// What the last agent wrote down.
///
/// # Errors
/// There is such a record, and it cannot be read.
pub(crate) fn state(settings: &Settings) -> Result<State> {
    let path = settings.debug_socket.with_file_name(LAST);
    let last = read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut state, why) = match last {
        Some(state) => {
            let why = format!("the agent does not run; this is its last record, of {}", state.seen.at);
            (state, why)
        }
        None => {
            let why = format!("the agent does not run, and there is no record of it ({})", path.display());
            let seen = Seen::default();
            (State { schema: SCHEMA.to_owned(), seen, ..State::default() }, why)
        }
    };
    state.seen.by = Observer::Command;
    state.seen.blind.push(Blind { what: "what is so now".to_owned(), why });
    Ok(state)
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
