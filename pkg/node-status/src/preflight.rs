//! Facts that would keep the agent from capturing pods on this node, read for [`report::judge_preflight`].
//! The node is not changed: trials run in temporary network namespaces.

mod confinement;
mod trial;

use std::{
    collections::BTreeSet,
    fs, io,
    net::IpAddr,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use capture_modes::{CaptureConfig, CaptureSettings, InPodConfig, open_path};
use daemon_settings::{AmbientOptions, DaemonSettings, token_times};
use hostnet::{PolicyRule, RtnetlinkHandle, RuleAction};
use model::Family;
use node_plan::{PathRule, is_our_inside_rule};
use report::{
    NodePreflight, Observed, PREFLIGHT_SCHEMA, PreflightCheck, PreflightCode, PreflightFact, ProbeSources,
    Severity, TablesInUse, TokenTimes, judge_preflight,
};
use rules::inpod::ProbeAddresses;
use rustix::{
    fs::inotify,
    process::{Resource, getrlimit},
};

use crate::{
    client,
    client::FetchError,
    probe_source::{MOST_PODS, PodNetns, in_node, observe_sources, pod_netns},
};

/// Memory limit files of cgroup v2 and v1.
const MEMORY_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
/// Limit from which on memory is unlimited: cgroup v1 has no other representation.
const NO_LIMIT: u64 = 1 << 60;
/// Checks that only a process in the agent's container can make.
const OF_AGENT: [PreflightCode; 3] =
    [PreflightCode::PortTaken, PreflightCode::FewFiles, PreflightCode::LittleMemory];

/// Returns a message for each of these ports on which a process listens in the calling thread's network namespace. To be called
/// before the agent itself listens.
///
/// # Errors
/// The kernel does not list listeners.
pub fn taken_ports(ports: &[u16]) -> Observed<Vec<String>> {
    let listeners = conntrack::sockets::tcp_listeners().map_err(|error| error.to_string())?;
    let listeners = listeners.ok_or("there are too many listeners")?;
    let is_taken = |port: &&u16| listeners.iter().any(|listener| listener.local.port() == **port);
    let message = |port: &u16| format!("another process listens on TCP port {port}");
    Ok(ports.iter().filter(is_taken).map(message).collect())
}

/// Checks the node at the agent's start. `ports`: of [`taken_ports`] for those of the agent. Blocks while kernel and tools work.
pub fn preflight_agent(settings: &DaemonSettings, ports: Observed<Vec<String>>) -> Vec<PreflightCheck> {
    let mut facts = ambient_facts(settings);
    facts.extend(confinement_facts(settings));
    facts.extend(container_facts(ports));
    facts.push(inotify_fact());
    facts.extend(clock_fact());
    judge_preflight(&facts)
}

/// Returns facts about the container of the calling process, as listed in [`OF_AGENT`].
fn container_facts(ports: Observed<Vec<String>>) -> [PreflightFact; 3] {
    [
        PreflightFact::Found(PreflightCode::PortTaken, Severity::Warning, ports),
        PreflightFact::Files(getrlimit(Resource::Nofile).maximum),
        PreflightFact::Memory(memory_limit()),
    ]
}

/// Checks the node for `install-cni check`, whether or not an agent runs. Facts that only the agent's process can determine are
/// taken from the agent's start; without an agent from this container, if it is one of the agent's. `ports`: those of the agent.
pub fn check_node(settings: &DaemonSettings, ports: &[u16]) -> NodePreflight {
    let agent = client::from_agent(&settings.debug_socket, client::LIMIT);
    let mut facts = ambient_facts(settings);
    let tools = settings.ambient_traces.agent.tools.clone();
    facts.extend(trial::try_sidecars(&tools));
    facts.extend(confinement_facts(settings));
    facts.extend(settings.ambient.iter().filter_map(numbers_fact));
    let sockets = match &agent {
        Ok(_) => Ok(Vec::new()), // the agent's own listeners
        Err(error) if is_without_agent(error) => served_sockets(settings),
        Err(error) => Err(model::describe_error(&**error)),
    };
    facts.extend([
        inotify_fact(),
        PreflightFact::Found(PreflightCode::SocketTaken, Severity::Error, sockets),
        PreflightFact::Found(PreflightCode::ReadOnly, Severity::Warning, read_only_directories(settings)),
    ]);
    facts.extend(network_fact(settings));
    facts.extend(clock_fact());
    let is_of_agent = |check: &&PreflightCheck| OF_AGENT.iter().any(|code| code.as_str() == check.code);
    let of_agent: Vec<PreflightCheck> =
        agent.iter().flat_map(|agent| &agent.preflight).filter(is_of_agent).cloned().collect();
    let is_own = match &agent {
        Ok(_) => Err("the agent has not checked the node yet".to_owned()),
        Err(error) if is_without_agent(error) => is_container(&settings.installer.conf_dir),
        Err(error) => Err(model::describe_error(&**error)),
    };
    match is_own {
        Ok(()) => facts.extend(container_facts(taken_ports(ports))),
        Err(why) => {
            let is_missing = |code: &PreflightCode| !of_agent.iter().any(|check| check.code == code.as_str());
            let why = || Err(format!("not examined: {why}"));
            let unknown = |code| PreflightFact::Found(code, Severity::Unknown, why());
            facts.extend(OF_AGENT.into_iter().filter(is_missing).map(unknown));
        }
    }
    let mut checks = judge_preflight(&facts);
    checks.extend(of_agent);
    let place =
        |check: &PreflightCheck| PreflightCode::ALL.iter().position(|code| code.as_str() == check.code);
    checks.sort_by_key(place);
    NodePreflight { schema: PREFLIGHT_SCHEMA, node: settings.identity.node.clone(), checks }
}

fn is_without_agent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(FetchError::NoAgent { .. }))
}

fn ambient_facts(settings: &DaemonSettings) -> Vec<PreflightFact> {
    let Some(ambient) = &settings.ambient else { return Vec::new() };
    let mut facts = trial::try_ambient(&ambient.agent);
    facts.push(PreflightFact::Tables(in_node(ambient, || {
        let legacy_chains = firewall::legacy_chains().map_err(|error| error.to_string())?;
        let legacy_chains = legacy_chains.into_iter().collect();
        let nft_names = firewall::nft_names().unwrap_or_default().into_iter().collect();
        Ok(TablesInUse { legacy_chains, nft_names, has_legacy_tool: firewall::has_legacy_tool() })
    })));
    if let Some(chosen) = ambient.agent.capture.in_pod() {
        let (pods, kernel) = (pod_netns(settings), chosen.within_kernel());
        let pods = || pods.as_deref().map_err(Clone::clone);
        facts.push(PreflightFact::PodNumbers(pods().and_then(|pods| taken_numbers(pods, &kernel))));
        facts
            .push(PreflightFact::ProbeSources(pods().and_then(|pods| probe_sources(ambient, pods, &kernel))));
        let addresses = in_node(ambient, || taken_addresses(chosen.rules.probes));
        facts.push(PreflightFact::Found(PreflightCode::ProbeAddressTaken, Severity::Warning, addresses));
    }
    facts
}

/// Returns facts about confinement. An agent that enters no network namespace needs no mounts, and may run in another user
/// namespace.
fn confinement_facts(settings: &DaemonSettings) -> Vec<PreflightFact> {
    let mut facts = vec![PreflightFact::SeLinux(confinement::selinux_context(&settings.host_proc))];
    if settings.ambient.is_some() {
        facts.push(PreflightFact::AppArmor(confinement::apparmor_profile()));
        facts.push(PreflightFact::Found(
            PreflightCode::UserNamespace,
            Severity::Error,
            confinement::own_user_namespace(&settings.host_proc),
        ));
    }
    facts
}

/// Returns messages for probe addresses that the node has; an operator may have chosen one.
fn taken_addresses(probes: ProbeAddresses) -> Observed<Vec<String>> {
    let (chosen, defaults) = (probes, ProbeAddresses::default());
    let mut probes = Vec::new();
    probes.extend((chosen.v4 == defaults.v4).then_some(IpAddr::V4(chosen.v4)));
    probes.extend((chosen.v6 == defaults.v6).then_some(IpAddr::V6(chosen.v6)));
    find_addresses(&probes).map_err(|error| error.to_string())
}

/// Returns a message for each of these that the calling thread's network namespace has.
fn find_addresses(ips: &[IpAddr]) -> Result<Vec<String>, hostnet::Error> {
    let mut handle = RtnetlinkHandle::open()?;
    let links = handle.list_links()?;
    let in_use = handle.list_addresses()?.into_iter().filter(|address| ips.contains(&address.ip));
    let name = |index| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    let in_use = in_use.map(|address| (address.ip, name(address.index).unwrap_or_default()));
    Ok(in_use.map(|(ip, link)| format!("{ip} is an address of {link}")).collect())
}

/// Examines running pods that are not captured, and are no ztunnel of the node path. If one cannot be examined, the result is
/// unknown unless others have findings.
fn taken_numbers(pods: &[PodNetns], chosen: &InPodConfig) -> Observed<(usize, Vec<String>)> {
    let (mut examined, mut taken, mut failure) = (0, Vec::new(), None);
    for (path, netns) in pods {
        if examined == MOST_PODS {
            break;
        }
        let found = || pod_capture::find_taken_numbers(netns, &chosen.rules, &chosen.captured_families());
        let found = match netns.run_in(is_node_level_ztunnel) {
            Ok(Ok(true)) => Ok(None),
            _ => found(),
        };
        match found {
            Ok(None) => {}
            Ok(Some(found)) => {
                examined += 1;
                taken.extend(found.iter().map(|number| format!("in {}: {number}", path.display())));
            }
            Err(error) => failure = Some(format!("cannot examine {}: {error}", path.display())),
        }
    }
    failure.filter(|_| taken.is_empty()).map_or(Ok((examined, taken)), Err)
}

/// Whether the calling thread's network namespace is that of a ztunnel with node-level capture: it has policy rules of the agent's,
/// ours or Istio's, and is never captured itself.
fn is_node_level_ztunnel() -> Result<bool, hostnet::Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let is_inside = |rule: &PolicyRule| {
        let (RuleAction::Lookup(table), Some(priority)) = (rule.action, rule.priority) else { return false };
        is_our_inside_rule(&PathRule { family: rule.family, priority, mark: rule.fwmark, table })
    };
    for family in Family::BOTH {
        if handle.list_rules(family)?.iter().any(is_inside) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn probe_sources(
    ambient: &AmbientOptions,
    pods: &[PodNetns],
    chosen: &InPodConfig,
) -> Observed<ProbeSources> {
    let routes = observe_sources(ambient, pods)?.into_iter().collect::<BTreeSet<_>>();
    let used = chosen.captured_families();
    let (used, detected) =
        (used.iter(), used.iter().filter(|family| chosen.detected_probes.contains(family)));
    let address = |family: &Family| chosen.rules.probes.address_for(*family);
    let undetected = detected.map(address).filter(|source| !routes.contains(source)).collect();
    Ok(ProbeSources { used: used.map(address).collect(), undetected, routes })
}

/// Returns the fact about numbers of node-level capture.
fn numbers_fact(ambient: &AmbientOptions) -> Option<PreflightFact> {
    let settings: &CaptureSettings = &ambient.agent;
    let is_node = matches!(settings.capture, CaptureConfig::Node);
    let observe = || open_path(settings).and_then(|mut path| path.observe_network());
    let foreign = || observe().map(|observed| observed.foreign).map_err(|error| error.to_string());
    is_node.then(|| {
        PreflightFact::Found(PreflightCode::NumbersTaken, Severity::Error, in_node(ambient, foreign))
    })
}

/// Returns the sockets of the agent that another process serves.
fn served_sockets(settings: &DaemonSettings) -> Observed<Vec<String>> {
    let ambient = settings.ambient.as_ref();
    let events = ambient.and_then(|ambient| Some(ambient.events.as_ref()?.socket.as_path()));
    let ztunnel = ambient.and_then(|ambient| Some(ambient.agent.capture.in_pod()?.socket.as_path()));
    let log = settings.log_socket.as_deref();
    let sockets = [Some(settings.agent_socket.as_path()), log, events, ztunnel].into_iter().flatten();
    let mut served = Vec::new();
    for socket in sockets {
        if socketfile::is_in_use(socket).map_err(|error| error.to_string())? {
            served.push(format!("a process serves {}", socket.display()));
        }
    }
    Ok(served)
}

/// Returns messages for read-only directories. Unknown in a shell on the node, where they are at other paths than in the agent's
/// container.
fn read_only_directories(settings: &DaemonSettings) -> Observed<Vec<String>> {
    let installer = &settings.installer;
    is_container(&installer.conf_dir)?;
    let refusal = |directory: &Path| Some(hostfs::check_writable(directory).err()?.to_string());
    let targets: Vec<Option<String>> = installer.targets.iter().map(|target| refusal(target)).collect();
    // One writable directory suffices.
    let targets = if targets.contains(&None) { Vec::new() } else { targets };
    let others = [Some(installer.conf_dir.as_path()), settings.agent_socket.parent()];
    Ok(targets.into_iter().chain(others.into_iter().flatten().map(refusal)).flatten().collect())
}

fn network_fact(settings: &DaemonSettings) -> Option<PreflightFact> {
    let directory = &settings.installer.conf_dir;
    let found = is_container(directory)
        .and_then(|()| installer::inspect_network(&settings.installer).map_err(|error| error.to_string()));
    found.transpose().map(PreflightFact::Network)
}

/// Checks that the directory of network configurations is there, as in the agent's container.
pub(crate) fn is_container(directory: &Path) -> Observed<()> {
    let why = || format!("{} is not there, so this is not the agent's container", directory.display());
    if directory.is_dir() { Ok(()) } else { Err(why()) }
}

/// Returns the fact whether directories can be watched.
fn inotify_fact() -> PreflightFact {
    let events = inotify::init(inotify::CreateFlags::CLOEXEC);
    let watch = events.and_then(|events| inotify::add_watch(&events, "/", inotify::WatchFlags::DELETE_SELF));
    let refusal = watch.err().map(|error| format!("a directory cannot be watched: {error}"));
    PreflightFact::Found(PreflightCode::NoInotify, Severity::Warning, Ok(refusal.into_iter().collect()))
}

fn memory_limit() -> Observed<Option<u64>> {
    for file in MEMORY_LIMITS {
        match fs::read_to_string(file) {
            Ok(text) if text.trim() == "max" => return Ok(None),
            Ok(text) => {
                let limit: u64 = text.trim().parse().map_err(|_| format!("{file} is not a number"))?;
                return Ok(Some(limit).filter(|limit| *limit < NO_LIMIT));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read {file}: {error}")),
        }
    }
    Err("no memory control group is visible here".to_owned())
}

/// Returns the times of the token; `None`: it has none.
fn clock_fact() -> Option<PreflightFact> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let times = match token_times() {
        Ok(times) => Ok(times.map(|(issued, expires)| TokenTimes { issued, expires })?),
        Err(error) => Err(format!("the service account's token cannot be read: {error}")),
    };
    Some(PreflightFact::Clock(times, now))
}
