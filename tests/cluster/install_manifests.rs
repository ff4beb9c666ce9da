//! The files of `deploy/`: an API server accepts them, they match the agent, and the agent runs with no more than they give it.

mod ambient;
pub(crate) mod documents;
pub(crate) mod image;
mod in_pod;
mod permissions;
mod run;
mod settings;
