//! Work in a pod's namespace.

use netns::{MountSandbox, Netns};

use crate::{Error, Limits, Lock, Options, may_use_legacy, private_mounts};

/// A pod's lock for its legacy tables: the file of its own namespace, as a child in that namespace sees it.
const NETNS_FILE: &str = "/proc/thread-self/ns/net";

/// Runs `act` in a pod's namespace, with options that fit a pod: its own lock for the legacy tables, and
/// no name lookups over the network. When the private mounts for these cannot be made, it goes on without them and
/// says why in the second value.
///
/// # Errors
/// The namespace cannot be entered, or `act` failed.
pub fn inside<T: Send, E: From<Error> + From<netns::Error> + Send>(
    netns: &Netns,
    options: &Options,
    act: impl Fn(&Options) -> Result<T, E> + Send + Sync,
) -> Result<(T, Option<String>), E> {
    let options = Options {
        lock: Lock::Private(NETNS_FILE.into()),
        limits: options.limits.or(Some(Limits::POD)),
        ..options.clone()
    };
    let attempt = || -> Result<Attempt<T>, E> {
        let legacy = may_use_legacy(&options)?;
        match private_mounts(&options.lock, legacy) {
            Some(mounts) => Ok(Attempt::Needs(mounts)),
            None => act(&options).map(Attempt::Done),
        }
    };
    let mounts = match netns.run_in(attempt)?? {
        Attempt::Done(done) => return Ok((done, None)),
        Attempt::Needs(mounts) => mounts,
    };
    match netns.run_in_sandbox(&mounts, || act(&options)) {
        Err(error @ netns::Error::Sandbox { .. }) => {
            Ok((netns.run_in(|| act(&options))??, Some(error.to_string())))
        }
        done => Ok((done??, None)),
    }
}

enum Attempt<T> {
    Done(T),
    Needs(MountSandbox),
}
