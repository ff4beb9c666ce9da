//! The tables of one network namespace: read, then change.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use iptables_legacy::{FinishedTool, IptablesTools, LOCK_VARIABLE, RunningTool, ToolInput, ToolVerb};
use model::Family;
use netlink::ListBounds;
use netns::UserNamespace;
use nftables::native::NativeListing;
use rules::SavedTables;

use crate::{
    Backend, Error, XtablesLock,
    backend::{HeldTables, OWNERS, by_content},
    presence::BackendPresence,
};

/// Use of native tables, unless a backend is forced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeTables {
    /// Never: some rules cannot be expressed in native tables.
    Never,
    /// Where native tables of ours exist, and no other backend has rules of ours.
    #[default]
    WhereFound,
    /// Wherever no other backend has rules of ours (`NATIVE_NFTABLES`).
    Preferred,
}

impl NativeTables {
    /// Converts the setting.
    pub fn by_setting(native_nftables: bool) -> NativeTables {
        if native_nftables { NativeTables::Preferred } else { NativeTables::WhereFound }
    }
}

/// Options for reading and changing tables.
#[derive(Clone, Debug)]
pub struct FirewallOptions {
    /// Use this backend whatever the namespace contains.
    pub forced: Option<Backend>,
    /// Use of native tables.
    pub native: NativeTables,
    /// Lock to take for legacy tables.
    pub lock: XtablesLock,
    /// Directory in which [`run_inside`](crate::run_inside) keeps the locks of pods' legacy tables: created for root
    /// only, in a directory that all programs of ours share. `None`: each process has its own locks.
    pub lock_directory: Option<PathBuf>,
    /// Time to wait for that lock; whole seconds, at least 1.
    pub lock_wait: Duration,
    /// Whether the network namespace is a pod's: reading is limited to what any pod has, and tools have less time.
    /// [`run_inside`](crate::run_inside) sets it.
    pub is_pod: bool,
    /// User namespace in which tools that change rules run: the one that owns the network namespace, if it is not our
    /// own ([`Netns::foreign_owner`](netns::Netns::foreign_owner)). The program must call
    /// [`become_tool`](crate::become_tool) first thing.
    pub user_namespace: Option<Arc<UserNamespace>>,
}

impl Default for FirewallOptions {
    fn default() -> FirewallOptions {
        FirewallOptions {
            forced: None,
            native: NativeTables::WhereFound,
            lock: XtablesLock::Host,
            lock_directory: None,
            lock_wait: Duration::from_secs(10),
            is_pod: false,
            user_namespace: None,
        }
    }
}

impl FirewallOptions {
    /// Returns the backends that may have rules of ours: the forced one, else all, since an earlier run may have used
    /// any.
    pub fn possible_backends(&self) -> Vec<Backend> {
        self.forced.map_or_else(|| Backend::ALL.to_vec(), |forced| vec![forced])
    }

    /// Returns whether tables of nf_tables are changed without tools. In a user namespace the kernel accepts owner
    /// matches only from processes in it, which none of our threads can be.
    pub fn uses_engine(&self) -> bool {
        self.user_namespace.is_none()
    }

    /// Returns the default backend: nf_tables if the engine can be used and the kernel has them, else that of the
    /// host's tools, else native tables.
    pub(crate) fn default_backend(
        &self,
        tools: &IptablesTools,
        presence: &BackendPresence,
    ) -> Result<Backend, Error> {
        match presence.has_nf_tables {
            true if self.native == NativeTables::Preferred => Ok(Backend::Native),
            true if self.uses_engine() => Ok(Backend::Nft),
            true if self.native != NativeTables::Never => default_backend(tools).or(Ok(Backend::Native)),
            _ => default_backend(tools),
        }
    }

    /// Returns the time limit of a tool.
    fn tool_time(&self) -> Duration {
        if self.is_pod { POD_TOOL_TIME } else { TOOL_TIME }
    }

    /// Returns the limits for lists.
    fn list_bounds(&self) -> ListBounds {
        if self.is_pod { ListBounds::POD } else { ListBounds::NODE }
    }
}

/// Returns the backend of the host's tools.
fn default_backend(tools: &IptablesTools) -> Result<Backend, Error> {
    Ok(tools.default_kind()?.into())
}

/// The tables of the calling thread's network namespace, in the selected backend.
#[derive(Clone, Debug)]
pub struct Firewall {
    backend: Backend,
    tools: IptablesTools,
    pub(crate) options: FirewallOptions,
    /// The tables that existed when this was opened.
    presence: BackendPresence,
}

/// Content of the tables of the selected backend, as far as it concerns one of our owners. A family without any table
/// is absent and counts as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedTables {
    /// By family.
    pub families: BTreeMap<Family, SavedTables>,
    /// Content of native tables, if these are used; then there are no families.
    pub native: Option<Arc<NativeListing>>,
}

/// A restore that was started and waits for its input. If it is dropped, the tool ends without any change.
#[derive(Debug)]
pub struct WaitingRestore {
    family: Family,
    running: RunningTool,
}

impl WaitingRestore {
    fn feed_text(mut self, text: &str) -> Result<RunningTool, Error> {
        self.running.write_input(text)?;
        Ok(self.running)
    }
}

/// Time limit of a tool.
const TOOL_TIME: Duration = Duration::from_secs(30);
/// Time limit of a tool in a pod, where it may have to wait for a lock.
const POD_TOOL_TIME: Duration = Duration::from_secs(10);
/// Bytes that fit into an empty pipe without a reader (kernel: `include/linux/pipe_fs_i.h`, 16 pages by default).
const PIPE: usize = 32 * 1024;

impl ObservedTables {
    /// Returns native tables without any content.
    fn no_native() -> ObservedTables {
        ObservedTables { native: Some(Arc::default()), ..ObservedTables::default() }
    }

    fn has_native(&self) -> bool {
        self.native.as_ref().is_some_and(|native| !native.is_empty())
    }

    /// Returns the tables of `family`, empty if it is absent.
    pub fn family_tables(&self, family: Family) -> &SavedTables {
        static NOTHING: SavedTables = SavedTables { tables: BTreeMap::new() };
        self.families.get(&family).unwrap_or(&NOTHING)
    }

    /// Reads the tables of the calling thread's network namespace, a pod's, in the backend that it uses. No tool is
    /// needed.
    ///
    /// # Errors
    /// The kernel could not be queried, its answer is malformed, or there are more chains than any pod has.
    pub fn observe_pod() -> Result<ObservedTables, Error> {
        let options = FirewallOptions { is_pod: true, ..FirewallOptions::default() };
        let presence = BackendPresence::observe_netns()?;
        let chosen = AllTables::read_all(&options, &presence, true)?.choose_backend();
        Ok(chosen.map(|(_, observed)| observed).unwrap_or_default())
    }

    /// Returns whether a foreign chain has a jump to one of ours with conditions that are not understood.
    fn has_opaque_jump(&self) -> bool {
        let has_opaque =
            |found: &SavedTables| OWNERS.iter().flat_map(|owner| owner.opaque_jumps(found)).next().is_some();
        self.families.values().any(has_opaque)
    }
}

/// The tables of each backend.
struct AllTables {
    nft: ObservedTables,
    legacy: ObservedTables,
    native: Option<ObservedTables>,
    /// Whether native tables are used where there are no rules of ours.
    prefers_native: bool,
}

impl AllTables {
    /// Reads all tables. `with_all`: includes backends whose tools the host lacks. Their tables cannot be changed by
    /// us.
    fn read_all(
        options: &FirewallOptions,
        presence: &BackendPresence,
        with_all: bool,
    ) -> Result<AllTables, Error> {
        let read = |backend| Firewall::with_backend(backend, options, presence).read_present();
        let legacy = Firewall::with_backend(Backend::Legacy, options, presence);
        let has_legacy = with_all || presence.legacy.iter().any(|family| legacy.has_tool(*family));
        let native = presence.native && options.native != NativeTables::Never;
        Ok(AllTables {
            nft: read(Backend::Nft)?,
            legacy: if has_legacy { read(Backend::Legacy)? } else { ObservedTables::default() },
            native: native.then(|| read(Backend::Native)).transpose()?.filter(ObservedTables::has_native),
            prefers_native: options.native == NativeTables::Preferred && presence.has_nf_tables,
        })
    }

    /// Selects the backend. `None`: no content counts.
    fn choose_backend(self) -> Option<(Backend, ObservedTables)> {
        let held = |observed: &ObservedTables| HeldTables::from_saves(observed.families.values());
        let (nft, legacy) = (held(&self.nft), held(&self.legacy));
        let backend = by_content(nft, legacy, self.native.is_some(), self.prefers_native)?;
        let observed = match backend {
            Backend::Nft => self.nft,
            Backend::Legacy => self.legacy,
            Backend::Native => self.native.unwrap_or_else(ObservedTables::no_native),
        };
        Some((backend, observed))
    }
}

impl Firewall {
    /// Selects the backend and reads the tables: the forced one, else the one with content here, else the host's
    /// default. Starts no child process, unless a legacy table has a rule that jumps to ours and is not understood.
    ///
    /// # Errors
    /// The kernel could not be queried, its answer is malformed, there is more than any pod has, or no backend is
    /// available.
    pub fn open(options: &FirewallOptions) -> Result<(Firewall, ObservedTables), Error> {
        let presence = BackendPresence::observe_netns()?;
        if options.forced.is_none()
            && let Some((backend, observed)) =
                AllTables::read_all(options, &presence, false)?.choose_backend()
        {
            return Ok((Firewall::with_backend(backend, options, &presence), observed));
        }
        let default = || options.default_backend(&IptablesTools::from_environment(), &presence);
        let backend = options.forced.map_or_else(default, Ok)?;
        let firewall = Firewall::with_backend(backend, options, &presence);
        let observed = firewall.read_present()?;
        Ok((firewall, observed))
    }

    fn with_backend(backend: Backend, options: &FirewallOptions, presence: &BackendPresence) -> Firewall {
        let (tools, options) = (IptablesTools::from_environment(), options.clone());
        Firewall { backend, tools, options, presence: presence.clone() }
    }

    /// Returns whether this host has what is needed to change the tables.
    pub(crate) fn can_be_changed(&self) -> bool {
        self.backend != Backend::Legacy || Family::BOTH.into_iter().any(|family| self.has_tool(family))
    }

    fn has_tool(&self, family: Family) -> bool {
        self.tools.find_tool(self.backend.tool_kind(), family, ToolVerb::Restore).is_ok()
    }

    /// Reads the tables that existed when this was opened.
    pub(crate) fn read_present(&self) -> Result<ObservedTables, Error> {
        let bounds = self.options.list_bounds();
        let families = self.presence.backend_families(self.backend);
        match self.backend {
            Backend::Native if !self.presence.native => Ok(ObservedTables::no_native()),
            Backend::Native => {
                let native = Some(Arc::new(NativeListing::read(&OWNERS, bounds)?));
                Ok(ObservedTables { native, ..ObservedTables::default() })
            }
            _ if families.is_empty() => Ok(ObservedTables::default()),
            Backend::Nft => {
                let families = nftables::read_tables(&OWNERS, bounds)?;
                Ok(ObservedTables { families, ..ObservedTables::default() })
            }
            Backend::Legacy => {
                let longest = if self.options.is_pod {
                    iptables_legacy::LONGEST
                } else {
                    iptables_legacy::LONGEST_OF_NODE
                };
                let read = |family: &Family| {
                    Ok((*family, iptables_legacy::read_listing(*family, &OWNERS, longest)?))
                };
                let families = families.iter().map(read).collect::<Result<BTreeMap<_, _>, Error>>()?;
                let observed = ObservedTables { families, ..ObservedTables::default() };
                if !observed.has_opaque_jump() {
                    return Ok(observed);
                }
                // To delete such a rule, a tool needs its complete text. Without tools no one will delete it.
                match self.save_tables() {
                    Err(Error::Tool(iptables_legacy::Error::NoTool { .. })) => Ok(observed),
                    saved => saved,
                }
            }
        }
    }

    /// Returns the backend in use.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns whether the engine changes the tables.
    pub(crate) fn is_direct(&self) -> bool {
        match self.backend {
            Backend::Nft => self.options.uses_engine(),
            Backend::Legacy => false,
            Backend::Native => true,
        }
    }

    /// Returns this firewall with each of the other backends that had tables when it was opened.
    pub(crate) fn other_backends(&self) -> impl Iterator<Item = Firewall> {
        let others = Backend::ALL.into_iter().filter(|backend| *backend != self.backend);
        let present = others.filter(|backend| self.presence.has_tables(*backend));
        present.map(|backend| Firewall { backend, ..self.clone() })
    }

    /// Reads the tables by the save tools of this backend, both families in parallel.
    fn save_tables(&self) -> Result<ObservedTables, Error> {
        let families = BackendPresence::observe_netns()?.backend_families(self.backend).to_vec();
        let started = families.iter().map(|family| {
            let tool = self.tools.find_tool(self.backend.tool_kind(), *family, ToolVerb::Save)?;
            Ok((*family, RunningTool::start(None, &tool, &[], &[], ToolInput::Text(""))?))
        });
        let mut observed = ObservedTables::default();
        let time = self.options.tool_time();
        for (family, finished) in finish_all(started.collect::<Result<_, Error>>()?, time)? {
            let FinishedTool { tool, stdout, .. } = finished.require_success()?;
            let saved = SavedTables::parse_for(&stdout, &OWNERS);
            let saved = saved.map_err(|source| Error::Save { tool, family, source })?;
            observed.families.insert(family, saved);
        }
        Ok(observed)
    }

    /// Starts a restore whose input is not known yet, so that loading the tool costs no time later; `None` if the
    /// engine needs no tool.
    ///
    /// # Errors
    /// The tool does not exist, or cannot be started.
    pub fn start_restore(&self, family: Family) -> Result<Option<WaitingRestore>, Error> {
        if self.is_direct() {
            return Ok(None);
        }
        Ok(Some(WaitingRestore { family, running: self.start_tool(family, ToolInput::Later)? }))
    }

    /// Passes each family's text to one `iptables-restore --noflush`, in parallel: to one that waits for it, else to a
    /// new one. A family with empty text gets no child. Atomic per table: after an error, repeat from a fresh
    /// observation.
    ///
    /// # Errors
    /// A tool that could not be started, or the error of the first family that failed, with the tool's output; the
    /// other family has been completed, too.
    pub fn restore(&self, texts: &[(Family, String)], mut waiting: Vec<WaitingRestore>) -> Result<(), Error> {
        let (mut running, mut not_started) = (Vec::new(), None);
        for (family, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
            let started = waiting.iter().position(|waiting| waiting.family == *family);
            let started = match started {
                Some(index) if text.len() <= PIPE => waiting.swap_remove(index).feed_text(text),
                _ => self.start_tool(*family, ToolInput::Text(text)),
            };
            match started {
                Ok(child) => running.push((*family, child)),
                Err(error) => not_started = not_started.or(Some(error)),
            }
        }
        let finished = finish_all(running, self.options.tool_time());
        not_started.map_or(Ok(()), Err)?;
        finished?.into_iter().try_for_each(|(_, finished)| self.check_finished(finished))
    }

    fn start_tool(&self, family: Family, input: ToolInput<'_>) -> Result<RunningTool, Error> {
        let tool = self.tools.find_tool(self.backend.tool_kind(), family, ToolVerb::Restore)?;
        let within = self.options.user_namespace.as_deref();
        let (arguments, environment) = (self.restore_arguments(), self.restore_environment());
        Ok(RunningTool::start(within, &tool, &arguments, &environment, input)?)
    }

    fn check_finished(&self, finished: FinishedTool) -> Result<(), Error> {
        let tool = finished.tool.clone();
        let locked = finished.stderr.contains("xtables lock");
        match finished.require_success() {
            Ok(_) => Ok(()),
            Err(_) if locked && self.backend == Backend::Legacy => Err(Error::Locked {
                tool,
                lock: self.options.lock.path().to_owned(),
                waited: self.options.lock_wait,
                holder: self.options.lock.describe_holders(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the arguments of a restore, which waits for the lock; for nft, which needs none, it does not.
    fn restore_arguments(&self) -> Vec<String> {
        let seconds = self.options.lock_wait.as_secs().max(1);
        let wait = (self.backend == Backend::Legacy).then(|| format!("--wait={seconds}"));
        std::iter::once("--noflush".to_owned()).chain(wait).collect()
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
    let finished: Vec<_> = running
        .into_iter()
        .map(|(family, child)| Ok((family, child.wait_for_exit(deadline, bound)?)))
        .collect();
    finished.into_iter().collect()
}

/// Returns whether [`Firewall::open`] may select the legacy backend here. Starts no child process.
///
/// # Errors
/// The kernel could not be queried.
pub fn may_use_legacy(options: &FirewallOptions) -> Result<bool, Error> {
    if let Some(forced) = options.forced {
        return Ok(forced == Backend::Legacy);
    }
    let presence = BackendPresence::observe_netns()?;
    let default = || options.default_backend(&IptablesTools::from_environment(), &presence);
    let by_default = || default().is_ok_and(|backend| backend == Backend::Legacy);
    Ok(!presence.legacy.is_empty() || (presence.nft.is_empty() && by_default()))
}
