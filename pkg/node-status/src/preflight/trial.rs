//! Trials of kernel features: rules, sets and routes are created as by the agent, in temporary network namespaces.

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use capture_modes::{CaptureConfig, CaptureSettings, InPodConfig, kernel_has_ipv6};
use conntrack::{ConntrackHandle, TcpTuple};
use firewall::{Firewall, FirewallOptions, NativeTables};
use hostnet::{LinkIndex, LocalDelivery, RtnetlinkHandle, sysctl};
use ipset::{IpsetHandle, SetName, SetSpec};
use model::{Family, Mark, PodUid, TableId};
use netlink::Errno;
use netns::Netns;
use node_plan::{DesiredState, NodeConfig, ObservedState, desired_node};
use report::{PreflightCode, PreflightFact, Trial};
use rules::{
    ChainSet, RuleSet, inpod,
    sidecar::{InboundMode, NetworkSelection, PortSelection, SidecarConfig},
};

/// Error of a trial.
type Failure = Box<dyn Error + Send + Sync>;

/// Errors by which the kernel reports a missing feature.
const ABSENT: [Errno; 6] =
    [Errno::NOENT, Errno::INVAL, Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, FIND_TYPE];
/// A setting that node-level capture writes. A new network namespace has it for `lo`.
const SETTING: &str = "net/ipv4/conf/lo/accept_local";
/// `IPSET_ERR_FIND_TYPE`: the kernel lacks the type of set.
const FIND_TYPE: Errno = Errno(4098);

/// Tries the features that ambient mode needs.
pub(super) fn try_ambient(settings: &CaptureSettings) -> Vec<PreflightFact> {
    // With `auto`, ztunnel determines which of the two modes is used: one may be impossible.
    let is_only = !matches!(settings.capture, CaptureConfig::Auto(_));
    let mut facts = Vec::new();
    let mut note = |code, required, trial| facts.push(PreflightFact::Kernel(code, trial, required));
    if let Some(chosen) = settings.capture.in_pod().map(InPodConfig::within_kernel) {
        let (rules, families) = (&chosen.rules, &chosen.captured_families());
        let pod = inpod::PodOptions { dns: true, ..inpod::PodOptions::default() };
        let options = FirewallOptions { is_pod: true, ..settings.tools.clone() };
        let desired =
            |family| RuleSet::if_redirected(families, family, |family| inpod::pod_rules(rules, &pod, family));
        note(PreflightCode::PodRules, is_only, run_trial(|| try_rules(ChainSet::IN_POD, &options, desired)));
        note(PreflightCode::PolicyRules, is_only, run_trial(|| try_delivery(rules, families)));
        note(PreflightCode::Tracking, false, run_trial(ask_tracking));
    }
    note(PreflightCode::AddressSets, true, run_trial(|| make_sets(settings).map(drop)));
    note(PreflightCode::NodeRules, is_only, run_trial(|| try_node(settings)));
    if matches!(settings.capture, CaptureConfig::Node) {
        note(PreflightCode::KernelSettings, true, try_setting());
    }
    facts
}

/// Tries to write a setting. A read-only mount refuses regardless of permissions; any other refusal may be due to permissions.
fn try_setting() -> Trial {
    let mut is_read_only = false;
    let trial = run_trial(|| {
        let value = if sysctl::read(SETTING)?.as_deref() == Some("1") { "0" } else { "1" };
        let written = sysctl::write(SETTING, value);
        is_read_only = matches!(&written, Err(hostnet::Error::Sysctl { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem);
        Ok(written.map(drop)?)
    });
    match trial {
        Trial::NotTested(why) if is_read_only => Trial::Refused(why),
        trial => trial,
    }
}

/// Tries the features that pods with a sidecar need.
pub(super) fn try_sidecars(options: &FirewallOptions) -> Vec<PreflightFact> {
    let families = kernel_families();
    let options = FirewallOptions { is_pod: true, ..options.clone() };
    let tproxy = InboundMode::Tproxy { mark: Mark { value: 1337, mask: u32::MAX }, table: TableId(133) };
    [(PreflightCode::SidecarRules, InboundMode::Redirect), (PreflightCode::Tproxy, tproxy)]
        .map(|(code, inbound_mode)| {
            let config = SidecarConfig { inbound_mode, ..every_port() };
            let desired = |family| {
                RuleSet::if_redirected(&families, family, |family| rules::sidecar::rule_set(&config, family))
            };
            // The tools that the plugin finds on the node are unknown here.
            PreflightFact::Kernel(code, run_trial(|| try_rules(ChainSet::SIDECAR, &options, desired)), false)
        })
        .into()
}

fn kernel_families() -> Vec<Family> {
    Family::BOTH.into_iter().filter(|family| *family == Family::V4 || kernel_has_ipv6()).collect()
}

fn every_port() -> SidecarConfig {
    let mut config = SidecarConfig { include_inbound: PortSelection::All, ..SidecarConfig::default() };
    config.include_networks = NetworkSelection::All;
    config
}

/// Runs a trial in a new network namespace that has a loopback link and nothing else.
fn run_trial(act: impl FnOnce() -> Result<(), Failure> + Send) -> Trial {
    let netns = match Netns::create() {
        Ok(netns) => netns,
        Err(error) => return Trial::NotTested(format!("no network namespace to try it in: {error}")),
    };
    let done = netns.run_in(|| {
        let _ = RtnetlinkHandle::open()?.set_link_up(LinkIndex::LOOPBACK)?;
        act()
    });
    match done {
        Ok(Ok(())) => Trial::Accepted,
        Ok(Err(error)) if is_impossible(&*error) => Trial::Refused(error.to_string()),
        Ok(Err(error)) => Trial::NotTested(error.to_string()),
        Err(error) => Trial::NotTested(error.to_string()),
    }
}

/// Whether the error means that the kernel lacks a feature, or that a tool is missing. Other errors are inconclusive: no
/// permission, no memory, no time.
fn is_impossible(error: &(dyn Error + 'static)) -> bool {
    use firewall::Error as Firewall;
    let is_without_tool = matches!(
        error.downcast_ref::<Firewall>(),
        Some(Firewall::Tool(iptables_legacy::Error::NoTool { .. } | iptables_legacy::Error::NoIptables(_)))
    );
    is_without_tool || is_absent(error) || error.source().is_some_and(is_impossible)
}

fn is_absent(cause: &(dyn Error + 'static)) -> bool {
    let of_netlink = cause.downcast_ref::<netlink::Error>().and_then(netlink::Error::errno);
    let of_sets = cause.downcast_ref::<ipset::IpsetCause>().and_then(ipset::IpsetCause::errno);
    let of_system = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    let of_system = of_system.and_then(|number| u16::try_from(number).ok()).map(Errno);
    of_netlink.or(of_sets).or(of_system).is_some_and(|errno| ABSENT.contains(&errno))
}

fn try_rules(
    owner: ChainSet,
    options: &FirewallOptions,
    desired: impl Fn(Family) -> RuleSet,
) -> Result<(), Failure> {
    let (firewall, observed) = Firewall::open(options)?;
    firewall.apply(&observed.plan_changes(owner, desired), Vec::new())?;
    Ok(())
}

fn try_delivery(config: &inpod::InPodRulesConfig, families: &[Family]) -> Result<(), Failure> {
    let local = config.local_route();
    let desired = LocalDelivery { mark: local.mark, table: local.table, priority: Some(inpod::PRIORITY) };
    let mut handle = RtnetlinkHandle::open()?;
    for family in families {
        handle.ensure_local_delivery(*family, LinkIndex::LOOPBACK, &desired, &mut Vec::new())?;
    }
    Ok(())
}

/// Requests a connection that does not exist, which the kernel can report only if it lists connections.
fn ask_tracking() -> Result<(), Failure> {
    let end = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let _ = ConntrackHandle::open()?.find(TcpTuple { source: end, dest: end })?;
    Ok(())
}

fn make_sets(settings: &CaptureSettings) -> Result<(), Failure> {
    let mut handle = IpsetHandle::open()?;
    for family in kernel_families() {
        let in_pod = settings.capture.in_pod().map(|_| pod_capture::probe_set_name(family));
        let has_node = !matches!(settings.capture, CaptureConfig::InPod(_));
        for name in in_pod.into_iter().chain(has_node.then(|| settings.node.set_name(family))) {
            handle.create_set(&SetSpec { name: SetName::new(name)?, family })?;
        }
    }
    Ok(())
}

/// Tries the rules of the node, for each mode that may be used, with the sets that they match.
fn try_node(settings: &CaptureSettings) -> Result<(), Failure> {
    make_sets(settings)?;
    let options = FirewallOptions { native: NativeTables::Never, is_pod: true, ..settings.tools.clone() };
    if let Some(chosen) = settings.capture.in_pod().map(InPodConfig::within_kernel) {
        let families = chosen.captured_families();
        let host = |family| inpod::host(&chosen.rules, pod_capture::probe_set_name(family), family);
        try_rules(ChainSet::PROBES, &options, |family| RuleSet::if_redirected(&families, family, host))?;
    }
    if !matches!(settings.capture, CaptureConfig::InPod(_)) {
        let rules = node_rules(&settings.node);
        try_rules(ChainSet::NODE, &options, |family| rules.get(&family).cloned().unwrap_or_default())?;
    }
    Ok(())
}

/// Returns the rules for one enrolled pod, and no ztunnel.
fn node_rules(config: &NodeConfig) -> BTreeMap<Family, RuleSet> {
    let addresses = kernel_families().into_iter().map(|family| match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    });
    let members = addresses.map(|ip| (ip, PodUid::default())).collect();
    let desired = DesiredState { members, ..DesiredState::default() };
    desired_node(config, &desired, &ObservedState::default()).node.firewall
}
