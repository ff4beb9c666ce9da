//! The tables of one network namespace: look, then change.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use model::Family;
use netns::UserNamespace;
use rules::Saved;

use crate::{
    Backend, Error, Lock,
    backend::by_content,
    child::{Finished, Input, Running},
    lock::LOCK_VARIABLE,
    presence::Presence,
    tools::{Tools, Verb},
};

/// How to work.
#[derive(Clone, Debug)]
pub struct Options {
    /// Use this backend whatever the namespace holds.
    pub forced: Option<Backend>,
    /// Whose lock to take for legacy tables.
    pub lock: Lock,
    /// How long to wait for that lock; whole seconds, at least 1.
    pub lock_wait: Duration,
    /// How long a tool may take in all.
    pub tool_timeout: Duration,
    /// Where the tools that change rules run: the user namespace that owns the network namespace, when it is not our own
    /// ([`Netns::foreign_owner`](netns::Netns::foreign_owner)). The program must call [`become_tool`](crate::become_tool)
    /// first thing.
    pub user_namespace: Option<Arc<UserNamespace>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            forced: None,
            lock: Lock::Host,
            lock_wait: Duration::from_secs(10),
            tool_timeout: Duration::from_secs(30),
            user_namespace: None,
        }
    }
}

impl Options {
    /// The backends that may hold something of ours: the forced one, else both, since an earlier run may have used
    /// either.
    #[must_use]
    pub fn backends(&self) -> Vec<Backend> {
        self.forced.map_or_else(|| vec![Backend::Nft, Backend::Legacy], |forced| vec![forced])
    }
}

/// The tables of the calling thread's network namespace, by the backend that it uses.
#[derive(Clone, Debug)]
pub struct Firewall {
    backend: Backend,
    tools: Tools,
    options: Options,
}

/// What the tables of the chosen backend hold. A family without any table is absent and counts as blank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// By family.
    pub families: BTreeMap<Family, Saved>,
}

/// A restore that was started and waits for its text. Dropped, it ends and has changed nothing.
#[derive(Debug)]
pub struct Waiting {
    family: Family,
    running: Running,
}

impl Waiting {
    fn fed(mut self, text: &str) -> Result<Running, Error> {
        self.running.feed(text)?;
        Ok(self.running)
    }
}

/// What surely fits into an empty pipe without a reader (kernel: `include/linux/pipe_fs_i.h`, 16 pages by default).
const PIPE: usize = 32 * 1024;

impl Observation {
    /// What `family` holds.
    #[must_use]
    pub fn of(&self, family: Family) -> Saved {
        self.families.get(&family).cloned().unwrap_or_default()
    }
}

impl Firewall {
    /// Chooses the backend and reads the tables: the forced one, else the one that holds something here, else the
    /// host's default. In a fresh namespace this costs no child process.
    ///
    /// # Errors
    /// No tool for the backend, or a save that failed.
    pub fn open(options: &Options) -> Result<(Firewall, Observation), Error> {
        let tools = Tools::from_environment();
        let presence = Presence::of_this_netns()?;
        let save = |backend, families: &[Family]| {
            Firewall { backend, tools: tools.clone(), options: options.clone() }.save(families)
        };
        let look = |backend| save(backend, presence.of(backend));
        let (backend, observed) = match options.forced {
            Some(backend) => (backend, look(backend)?),
            None if presence == Presence::default() => (tools.default_backend()?, Observation::default()),
            None => choose(readable(look(Backend::Nft))?, readable(look(Backend::Legacy))?, || {
                tools.default_backend()
            })?,
        };
        Ok((Firewall { backend, tools, options: options.clone() }, observed))
    }

    /// The backend in use.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether the backend was not a matter of choice.
    pub(crate) fn is_forced(&self) -> bool {
        self.options.forced.is_some()
    }

    /// The same with the other backend.
    pub(crate) fn other(&self) -> Firewall {
        let backend = match self.backend {
            Backend::Nft => Backend::Legacy,
            Backend::Legacy => Backend::Nft,
        };
        Firewall { backend, ..self.clone() }
    }

    /// Reads the tables of these families, which must exist, side by side.
    pub(crate) fn save(&self, families: &[Family]) -> Result<Observation, Error> {
        let started = families.iter().map(|family| {
            let tool = self.tools.find(self.backend, *family, Verb::Save)?;
            Ok((*family, Running::start(&tool, &[], &[], Input::Text(""))?))
        });
        let mut observed = Observation::default();
        for (family, finished) in self.finish_all(started.collect::<Result<_, Error>>()?)? {
            let tool = finished.tool.clone();
            let output = finished.success()?;
            let saved =
                Saved::parse(&output.stdout).map_err(|source| Error::Save { tool, family, source })?;
            observed.families.insert(family, saved);
        }
        Ok(observed)
    }

    /// Starts a restore whose text is not known yet, so that loading the tool costs no time later.
    ///
    /// # Errors
    /// There is no such tool, or it cannot be started.
    pub fn start_restore(&self, family: Family) -> Result<Waiting, Error> {
        Ok(Waiting { family, running: self.start(family, Input::Later)? })
    }

    /// Feeds each family's text to one `iptables-restore --noflush`, side by side: to one that waits for it, else to a
    /// new one. A family with empty text gets no child. Atomic per table: after an error, repeat from a fresh
    /// observation.
    ///
    /// # Errors
    /// The first family's refusal, with the tool's own words; the other family has been finished too.
    pub fn restore(&self, texts: &[(Family, String)], mut waiting: Vec<Waiting>) -> Result<(), Error> {
        let mut running = Vec::new();
        for (family, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
            let started = waiting.iter().position(|waiting| waiting.family == *family);
            running.push((
                *family,
                match started {
                    Some(index) if text.len() <= PIPE => waiting.swap_remove(index).fed(text)?,
                    _ => self.start(*family, Input::Text(text))?,
                },
            ));
        }
        let finished = self.finish_all(running)?;
        finished.into_iter().try_for_each(|(_, finished)| self.restored(finished))
    }

    fn start(&self, family: Family, input: Input<'_>) -> Result<Running, Error> {
        let tool = self.tools.find(self.backend, family, Verb::Restore)?;
        let within = self.options.user_namespace.as_deref();
        Running::start_within(within, &tool, &self.restore_arguments(), &self.restore_environment(), input)
    }

    /// Runs one `iptables` (or `ip6tables`) command; `arguments` begin with `-t TABLE`.
    ///
    /// # Errors
    /// The tool's refusal in its own words.
    pub fn call(&self, family: Family, arguments: &[String]) -> Result<(), Error> {
        let tool = self.tools.find(self.backend, family, Verb::Command)?;
        let wait = self.wait_argument();
        let arguments: Vec<String> = wait.into_iter().chain(arguments.iter().cloned()).collect();
        let within = self.options.user_namespace.as_deref();
        let environment = self.restore_environment();
        let running = Running::start_within(within, &tool, &arguments, &environment, Input::Text(""))?;
        let bound = self.options.tool_timeout;
        self.restored(running.finish(Instant::now() + bound, bound)?)
    }

    fn restored(&self, finished: Finished) -> Result<(), Error> {
        let tool = finished.tool.clone();
        let locked = finished.stderr.contains("xtables lock");
        match finished.success() {
            Ok(_) => Ok(()),
            Err(_) if locked && self.backend == Backend::Legacy => Err(Error::Locked {
                tool,
                lock: self.options.lock.path().to_owned(),
                waited: self.options.lock_wait,
                holder: self.options.lock.holder(),
            }),
            Err(error) => Err(error),
        }
    }

    fn restore_arguments(&self) -> Vec<String> {
        std::iter::once("--noflush".to_owned()).chain(self.wait_argument()).collect()
    }

    /// The nft backend needs no lock, and takes none.
    fn wait_argument(&self) -> Option<String> {
        let seconds = self.options.lock_wait.as_secs().max(1);
        (self.backend == Backend::Legacy).then(|| format!("--wait={seconds}"))
    }

    fn restore_environment(&self) -> Vec<(&'static str, &Path)> {
        match (&self.options.lock, self.backend) {
            (Lock::Private(path), Backend::Legacy) => vec![(LOCK_VARIABLE, path)],
            _ => Vec::new(),
        }
    }

    /// Waits for all, also after one failed, so that no child outlives the call.
    fn finish_all(&self, running: Vec<(Family, Running)>) -> Result<Vec<(Family, Finished)>, Error> {
        let bound = self.options.tool_timeout;
        let deadline = Instant::now() + bound;
        let finished: Vec<_> =
            running.into_iter().map(|(family, child)| Ok((family, child.finish(deadline, bound)?))).collect();
        finished.into_iter().collect()
    }
}

/// True when [`Firewall::open`] may choose the legacy backend here. Costs no child process.
///
/// # Errors
/// The kernel could not be asked.
pub fn may_use_legacy(options: &Options) -> Result<bool, Error> {
    if let Some(forced) = options.forced {
        return Ok(forced == Backend::Legacy);
    }
    let presence = Presence::of_this_netns()?;
    let by_default =
        || Tools::from_environment().default_backend().is_ok_and(|backend| backend == Backend::Legacy);
    Ok(!presence.legacy.is_empty() || (presence.nft.is_empty() && by_default()))
}

/// Tables of a backend whose tools this host lacks cannot be ours to change: they do not count in the choice.
pub(crate) fn readable(look: Result<Observation, Error>) -> Result<Observation, Error> {
    match look {
        Err(Error::NoTool { .. }) => Ok(Observation::default()),
        other => other,
    }
}

fn choose(
    nft: Observation,
    legacy: Observation,
    default: impl FnOnce() -> Result<Backend, Error>,
) -> Result<(Backend, Observation), Error> {
    let all = |observed: &Observation| observed.families.values().cloned().collect::<Vec<_>>();
    let (nft_saves, legacy_saves) = (all(&nft), all(&legacy));
    let chosen = by_content(&nft_saves.iter().collect::<Vec<_>>(), &legacy_saves.iter().collect::<Vec<_>>());
    Ok(match chosen.map_or_else(default, Ok)? {
        Backend::Nft => (Backend::Nft, nft),
        Backend::Legacy => (Backend::Legacy, legacy),
    })
}
