//! The tables of one network namespace: look, then change.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use model::Family;
use netlink::ListBounds;
use netns::UserNamespace;
use nftables::native::NativeListing;
use rules::SavedTables;

use crate::{
    Backend, Error, OwnRules, RuleLimits, WantedRules, XtablesLock,
    backend::{HeldTables, OWNERS, by_content, native_prefixes},
    child::{FinishedTool, RunningTool, ToolInput},
    legacy,
    lock::LOCK_VARIABLE,
    presence::BackendPresence,
    tools::{IptablesTools, ToolVerb},
};

/// Means by which the tables of nf_tables are read and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NftAccess {
    /// The engine, over netlink. No tool is needed.
    #[default]
    Engine,
    /// The iptables tools, for callers who want one command for each rule.
    Tools,
}

/// When native tables are used, where no backend is forced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeTables {
    /// Not at all: there are rules that native tables cannot express.
    Never,
    /// Where there are such of ours, and nothing of ours in another backend.
    #[default]
    WhereFound,
    /// Wherever nothing of ours is in another backend (`NATIVE_NFTABLES`).
    Preferred,
}

impl NativeTables {
    /// By the setting.
    #[must_use]
    pub fn by_setting(native_nftables: bool) -> NativeTables {
        if native_nftables { NativeTables::Preferred } else { NativeTables::WhereFound }
    }
}

/// How to work.
#[derive(Clone, Debug)]
pub struct FirewallOptions {
    /// Means by which the tables of nf_tables are read and changed.
    pub nft: NftAccess,
    /// Use this backend whatever the namespace holds.
    pub forced: Option<Backend>,
    /// When native tables are used.
    pub native: NativeTables,
    /// Lock to take for legacy tables.
    pub lock: XtablesLock,
    /// Where [`inside`](crate::inside) keeps the locks of pods' legacy tables: a directory that it makes, for root alone, in one
    /// that all programs of ours see. `None`: each process has locks of its own.
    pub lock_directory: Option<PathBuf>,
    /// How long to wait for that lock; whole seconds, at least 1.
    pub lock_wait: Duration,
    /// How long a tool may take in all.
    pub tool_timeout: Duration,
    /// Limits on what reading may cost, and for changes, a shorter time. `None` means as much as it takes.
    /// [`inside`](crate::inside) sets the limits of pods.
    pub limits: Option<RuleLimits>,
    /// Where the tools that change rules run: the user namespace that owns the network namespace, when it is not our own
    /// ([`Netns::foreign_owner`](netns::Netns::foreign_owner)). The program must call [`become_tool`](crate::become_tool)
    /// first thing.
    pub user_namespace: Option<Arc<UserNamespace>>,
}

impl Default for FirewallOptions {
    fn default() -> FirewallOptions {
        FirewallOptions {
            nft: NftAccess::Engine,
            forced: None,
            native: NativeTables::WhereFound,
            lock: XtablesLock::Host,
            lock_directory: None,
            lock_wait: Duration::from_secs(10),
            tool_timeout: Duration::from_secs(30),
            limits: None,
            user_namespace: None,
        }
    }
}

impl FirewallOptions {
    /// The backends that may hold something of ours: the forced one, else all, since an earlier run may have used any.
    #[must_use]
    pub fn backends(&self) -> Vec<Backend> {
        self.forced.map_or_else(|| Backend::ALL.to_vec(), |forced| vec![forced])
    }

    /// Whether tables of nf_tables are read and changed without tools. In a user namespace the kernel takes rules about
    /// owners only from whoever is in it, which none of our threads can be.
    #[must_use]
    pub fn uses_engine(&self) -> bool {
        self.nft == NftAccess::Engine && self.user_namespace.is_none()
    }

    /// The backend where nothing decides: nf_tables where the engine can be used and the kernel has them, else that of the
    /// host's tools, and native tables where there are none.
    pub(crate) fn default_backend(
        &self,
        tools: &IptablesTools,
        presence: &BackendPresence,
    ) -> Result<Backend, Error> {
        match presence.has_nf_tables {
            true if self.native == NativeTables::Preferred => Ok(Backend::Native),
            true if self.uses_engine() => Ok(Backend::Nft),
            true if self.native != NativeTables::Never => tools.default_backend().or(Ok(Backend::Native)),
            _ => tools.default_backend(),
        }
    }

    /// How long a tool may take that prints, and how much it may use.
    fn look_time(&self) -> Duration {
        self.limits.map_or(self.tool_timeout, |limits| limits.look.min(self.tool_timeout))
    }

    /// How long one may take that changes something.
    fn change_time(&self) -> Duration {
        self.limits.map_or(self.tool_timeout, |limits| limits.change.min(self.tool_timeout))
    }
}

/// The tables of the calling thread's network namespace, by the backend that it uses.
#[derive(Clone, Debug)]
pub struct Firewall {
    backend: Backend,
    tools: IptablesTools,
    options: FirewallOptions,
}

/// Content of the tables of the chosen backend, as far as it concerns one of our owners. A family without any table is
/// absent and counts as blank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedTables {
    /// By family.
    pub families: BTreeMap<Family, SavedTables>,
    /// Only one owner's chains were read, and of these no more than whether they were changed.
    pub coarse: bool,
    /// Content of native tables, where these are used; then there are no families.
    pub native: Option<Arc<NativeListing>>,
}

/// Result of opening the tables.
enum OpenedFirewall {
    /// All tables of the backend.
    Read(Firewall, ObservedTables),
    /// More rules of nf_tables than are read: it has to be asked chain by chain.
    Crowded(Firewall),
}

/// A restore that was started and waits for its text. Dropped, it ends and has changed nothing.
#[derive(Debug)]
pub struct WaitingRestore {
    family: Family,
    running: RunningTool,
}

impl WaitingRestore {
    fn fed(mut self, text: &str) -> Result<RunningTool, Error> {
        self.running.feed(text)?;
        Ok(self.running)
    }
}

/// Bytes that surely fit into an empty pipe without a reader (kernel: `include/linux/pipe_fs_i.h`, 16 pages by default).
const PIPE: usize = 32 * 1024;

impl ObservedTables {
    /// Returns the tables of `family`, blank if it is absent.
    #[must_use]
    pub fn of(&self, family: Family) -> &SavedTables {
        static NOTHING: SavedTables = SavedTables { tables: BTreeMap::new() };
        self.families.get(&family).unwrap_or(&NOTHING)
    }
}

impl Firewall {
    /// Chooses the backend and reads the tables: the forced one, else the one that holds something here, else the
    /// host's default. In a fresh namespace this costs no child process.
    ///
    /// # Errors
    /// No tool for the backend, a save that failed, or more rules than the limits allow.
    pub fn open(options: &FirewallOptions) -> Result<(Firewall, ObservedTables), Error> {
        match Firewall::open_any(options)? {
            OpenedFirewall::Read(firewall, observed) => Ok((firewall, observed)),
            OpenedFirewall::Crowded(firewall) => Err(Error::Crowded(firewall.backend)),
        }
    }

    /// Like [`Firewall::open`], but for the rules of one owner only. Where there are more rules than the limits allow, its
    /// chains are read one by one. Those that are as they were when they were `verified` hold what is wanted, and others
    /// count as wrong.
    ///
    /// # Errors
    /// As [`Firewall::open`]; too many rules are an error in legacy tables only.
    pub fn open_for(
        options: &FirewallOptions,
        wanted: &WantedRules<'_>,
        verified: Option<&OwnRules>,
    ) -> Result<(Firewall, ObservedTables), Error> {
        Ok(match Firewall::open_any(options)? {
            OpenedFirewall::Read(firewall, observed) => (firewall, observed),
            OpenedFirewall::Crowded(firewall) => {
                (firewall, OwnRules::of_this_netns(wanted)?.observation(wanted, verified))
            }
        })
    }

    fn open_any(options: &FirewallOptions) -> Result<OpenedFirewall, Error> {
        let tools = IptablesTools::from_environment();
        let presence = BackendPresence::of_this_netns()?;
        let of = |backend| Firewall { backend, tools: tools.clone(), options: options.clone() };
        let look = |backend| of(backend).look(presence.of(backend));
        let chosen = |backend, observed: Option<ObservedTables>| match observed {
            Some(observed) => OpenedFirewall::Read(of(backend), observed),
            None => OpenedFirewall::Crowded(of(backend)),
        };
        if let Some(backend) = options.forced {
            return Ok(chosen(backend, look(backend)?));
        }
        if presence.is_blank() {
            let backend = options.default_backend(&tools, &presence)?;
            let native = (backend == Backend::Native).then(Arc::default);
            return Ok(chosen(backend, Some(ObservedTables { native, ..ObservedTables::default() })));
        }
        let (nft, legacy) = (readable(look(Backend::Nft))?, readable(look(Backend::Legacy))?);
        let has_native = presence.native && options.native != NativeTables::Never;
        let prefers_native = options.native == NativeTables::Preferred && presence.has_nf_tables;
        let held = by_content(held(nft.as_ref())?, held(legacy.as_ref())?, has_native, prefers_native);
        Ok(match held.map_or_else(|| options.default_backend(&tools, &presence), Ok)? {
            Backend::Nft => chosen(Backend::Nft, nft),
            Backend::Legacy => chosen(Backend::Legacy, legacy),
            Backend::Native => chosen(Backend::Native, look(Backend::Native)?),
        })
    }

    /// Reads the tables of these families, within the limits; `None`: nf_tables holds too much.
    pub(crate) fn look(&self, families: &[Family]) -> Result<Option<ObservedTables>, Error> {
        if self.backend == Backend::Native {
            return self.native().map(Some);
        }
        let Some(limits) = self.options.limits.filter(|_| !families.is_empty()) else {
            return self.save(families).map(Some);
        };
        match self.backend {
            Backend::Legacy if legacy::is_longer_than_any_pods()? => Err(Error::Crowded(self.backend)),
            Backend::Legacy => self.save(families).map(Some),
            Backend::Nft if self.is_direct() => match self.save(families) {
                Err(Error::Engine(error)) if error.is_excess() => Ok(None),
                done => done.map(Some),
            },
            Backend::Nft | Backend::Native if limits.are_exceeded()? => Ok(None),
            // Rules are not all that makes a tool take long, and they may have come just now.
            Backend::Nft | Backend::Native => match self.save(families) {
                Err(Error::TimedOut { .. } | Error::TooMuch { .. }) => Ok(None),
                done => done.map(Some),
            },
        }
    }

    /// The backend in use.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// When native tables may be used.
    pub(crate) fn native_tables(&self) -> NativeTables {
        self.options.native
    }

    /// Whether the engine reads and changes the tables.
    pub(crate) fn is_direct(&self) -> bool {
        match self.backend {
            Backend::Nft => self.options.uses_engine(),
            Backend::Legacy => false,
            Backend::Native => true,
        }
    }

    /// Whether the backend was not a matter of choice.
    pub(crate) fn is_forced(&self) -> bool {
        self.options.forced.is_some()
    }

    /// Returns this firewall with each of the other backends.
    pub(crate) fn others(&self) -> impl Iterator<Item = Firewall> {
        let others = Backend::ALL.into_iter().filter(|backend| *backend != self.backend);
        others.map(|backend| Firewall { backend, ..self.clone() })
    }

    /// Our native tables.
    fn native(&self) -> Result<ObservedTables, Error> {
        let native = NativeListing::read(&native_prefixes(), ListBounds::POD)?;
        Ok(ObservedTables { native: Some(Arc::new(native)), ..ObservedTables::default() })
    }

    /// Reads the tables of these families, which must exist, side by side.
    pub(crate) fn save(&self, families: &[Family]) -> Result<ObservedTables, Error> {
        if self.is_direct() {
            let bounds = if self.options.limits.is_some() { ListBounds::POD } else { ListBounds::NODE };
            let families = nftables::listing(&OWNERS, bounds)?;
            return Ok(ObservedTables { families, ..ObservedTables::default() });
        }
        let started = families.iter().map(|family| {
            let tool = self.tools.find(self.backend, *family, ToolVerb::Save)?;
            let running = RunningTool::start(&tool, &[], &[], ToolInput::Text(""))?;
            Ok((*family, running.limited(self.options.limits.as_ref())?))
        });
        let mut observed = ObservedTables::default();
        let time = self.options.look_time();
        for (family, finished) in finish_all(started.collect::<Result<_, Error>>()?, time)? {
            let tool = finished.tool.clone();
            let output = finished.success()?;
            let saved = SavedTables::parse_for(&output.stdout, &OWNERS).map_err(|source| Error::Save {
                tool,
                family,
                source,
            })?;
            observed.families.insert(family, saved);
        }
        Ok(observed)
    }

    /// Starts a restore whose text is not known yet, so that loading the tool costs no time later; none if the engine needs
    /// no tool.
    ///
    /// # Errors
    /// There is no such tool, or it cannot be started.
    pub fn start_restore(&self, family: Family) -> Result<Option<WaitingRestore>, Error> {
        if self.is_direct() {
            return Ok(None);
        }
        Ok(Some(WaitingRestore { family, running: self.start(family, ToolInput::Later)? }))
    }

    /// Feeds each family's text to one `iptables-restore --noflush`, side by side: to one that waits for it, else to a
    /// new one. A family with empty text gets no child. Atomic per table: after an error, repeat from a fresh
    /// observation.
    ///
    /// # Errors
    /// The first family's refusal, with the tool's own words; the other family has been finished too.
    pub fn restore(&self, texts: &[(Family, String)], mut waiting: Vec<WaitingRestore>) -> Result<(), Error> {
        let mut running = Vec::new();
        for (family, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
            let started = waiting.iter().position(|waiting| waiting.family == *family);
            running.push((
                *family,
                match started {
                    Some(index) if text.len() <= PIPE => waiting.swap_remove(index).fed(text)?,
                    _ => self.start(*family, ToolInput::Text(text))?,
                },
            ));
        }
        let finished = finish_all(running, self.options.change_time())?;
        finished.into_iter().try_for_each(|(_, finished)| self.restored(finished))
    }

    fn start(&self, family: Family, input: ToolInput<'_>) -> Result<RunningTool, Error> {
        let tool = self.tools.find(self.backend, family, ToolVerb::Restore)?;
        let within = self.options.user_namespace.as_deref();
        RunningTool::start_within(
            within,
            &tool,
            &self.restore_arguments(),
            &self.restore_environment(),
            input,
        )
    }

    /// Runs one `iptables` (or `ip6tables`) command; `arguments` begin with `-t TABLE`.
    ///
    /// # Errors
    /// The tool's refusal in its own words.
    pub fn call(&self, family: Family, arguments: &[String]) -> Result<(), Error> {
        let tool = self.tools.find(self.backend, family, ToolVerb::Command)?;
        let wait = self.wait_argument();
        let arguments: Vec<String> = wait.into_iter().chain(arguments.iter().cloned()).collect();
        let within = self.options.user_namespace.as_deref();
        let environment = self.restore_environment();
        let running =
            RunningTool::start_within(within, &tool, &arguments, &environment, ToolInput::Text(""))?;
        let bound = self.options.change_time();
        self.restored(running.finish(Instant::now() + bound, bound)?)
    }

    fn restored(&self, finished: FinishedTool) -> Result<(), Error> {
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
            (XtablesLock::Private(path), Backend::Legacy) => vec![(LOCK_VARIABLE, path)],
            _ => Vec::new(),
        }
    }
}

/// Waits for all, also after one failed, so that no child outlives the call.
fn finish_all(
    running: Vec<(Family, RunningTool)>,
    bound: Duration,
) -> Result<Vec<(Family, FinishedTool)>, Error> {
    let deadline = Instant::now() + bound;
    let finished: Vec<_> =
        running.into_iter().map(|(family, child)| Ok((family, child.finish(deadline, bound)?))).collect();
    finished.into_iter().collect()
}

/// True when [`Firewall::open`] may choose the legacy backend here. Costs no child process.
///
/// # Errors
/// The kernel could not be asked.
pub fn may_use_legacy(options: &FirewallOptions) -> Result<bool, Error> {
    if let Some(forced) = options.forced {
        return Ok(forced == Backend::Legacy);
    }
    let presence = BackendPresence::of_this_netns()?;
    let by_default = || {
        let tools = IptablesTools::from_environment();
        options.default_backend(&tools, &presence).is_ok_and(|backend| backend == Backend::Legacy)
    };
    Ok(!presence.legacy.is_empty() || (presence.nft.is_empty() && by_default()))
}

/// Tables of a backend whose tools this host lacks cannot be ours to change: they do not count in the choice.
pub(crate) fn readable(look: Result<Option<ObservedTables>, Error>) -> Result<Option<ObservedTables>, Error> {
    match look {
        Err(Error::NoTool { .. }) => Ok(Some(ObservedTables::default())),
        other => other,
    }
}

/// Summarizes what a backend holds. `None` means that its tables were not read because nf_tables holds too much.
fn held(observed: Option<&ObservedTables>) -> Result<HeldTables, Error> {
    let Some(observed) = observed else {
        let ours = OWNERS.into_iter().map(OwnRules::has_any).collect::<Result<Vec<bool>, Error>>()?;
        return Ok(HeldTables { ours: ours.contains(&true), any: true });
    };
    Ok(HeldTables::of(observed.families.values()))
}
