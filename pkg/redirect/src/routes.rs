//! Objects that the rules need besides the tables: TPROXY's local route, and the source address of Envoy's connections
//! to its own application over IPv6 (IPv4's 127.0.0.6 is on `lo` already, as all of 127.0.0.0/8).

use std::io::ErrorKind;

use hostnet::{
    ChangeOutcome, LinkIndex, LocalDelivery, PolicyRule, Route, RouteProtocol, RtnetlinkHandle, RuleAction,
    sysctl,
};
use model::{Family, IpNet, Mark};
use rules::{LocalRoute, sidecar};

use crate::{Error, concat_results};

const SRC_VALID_MARK: &str = "net/ipv4/conf/all/src_valid_mark";

/// Adds what is missing, and returns it as text. Every step is attempted, and the first error returned.
pub(crate) fn ensure_routes(
    config: &sidecar::SidecarConfig,
    families: &[Family],
) -> Result<Vec<String>, Error> {
    if nothing_needed(config, families) {
        return Ok(Vec::new());
    }
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = LinkIndex::LOOPBACK;
    let mut steps = Vec::new();
    if families.contains(&Family::V6) {
        // Without duplicate address detection: with it, even an address of `lo` is unusable until a kernel worker gets
        // the lock of all namespaces, which takes seconds on a node where many pods start and end.
        let added = handle.add_address(lo, passthrough_net());
        steps.push(added.map(|added| Vec::from_iter((added == ChangeOutcome::Yes).then(no_address))));
    }
    if config.local_route().is_some() && families.contains(&Family::V4) {
        steps.push(ensure_unmarked_check());
    }
    for family in families {
        let Some(local) = config.local_route() else { break };
        let mut made = Vec::new();
        let ensured = handle.ensure_local_delivery(*family, lo, &local_delivery(local), &mut made);
        steps.push(ensured.map(|()| made));
    }
    Ok(concat_results(steps.into_iter())?)
}

/// Returns what is missing, as text.
pub(crate) fn missing_routes(
    config: &sidecar::SidecarConfig,
    families: &[Family],
) -> Result<Vec<String>, Error> {
    if nothing_needed(config, families) {
        return Ok(Vec::new());
    }
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = LinkIndex::LOOPBACK;
    let mut missing = Vec::new();
    if families.contains(&Family::V6) {
        let desired = passthrough_net().addr();
        let found =
            handle.list_addresses()?.iter().any(|address| address.ip == desired && address.index == lo);
        missing.extend((!found).then(no_address));
    }
    for family in families {
        let Some(local) = config.local_route() else { break };
        let delivery = local_delivery(local);
        let has_rule = handle.has_rule(&delivery.policy_rule(*family))?;
        missing.extend(handle.observe_local_delivery(*family, has_rule, &delivery)?.missing);
    }
    Ok(missing)
}

/// Removes policy rules with the mark, the local routes in their tables, and the address, unless this is a dry run, and
/// returns them as text.
pub(crate) fn remove_routes(mark: Mark, dry_run: bool) -> Result<Vec<String>, Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let lo = LinkIndex::LOOPBACK;
    let found = find_routes(&mut handle, mark, lo)?;
    if dry_run {
        return Ok(found.descriptions());
    }
    // An object that no longer exists counts as deleted.
    for (rule, route) in &found.policies {
        let _ = handle.delete_rule(rule)?;
        let _ = handle.delete_route(route)?;
    }
    if found.address {
        let _ = handle.delete_address(lo, passthrough_net())?;
    }
    Ok(found.descriptions())
}

struct FoundRoutes {
    policies: Vec<(PolicyRule, Route)>,
    address: bool,
}

impl FoundRoutes {
    fn descriptions(&self) -> Vec<String> {
        let policy =
            |(rule, route): &(PolicyRule, Route)| [format!("policy rule {rule}"), format!("route {route}")];
        let address = self.address.then(|| format!("address {} on lo", passthrough_net()));
        self.policies.iter().flat_map(policy).chain(address).collect()
    }
}

fn find_routes(handle: &mut RtnetlinkHandle, mark: Mark, lo: LinkIndex) -> Result<FoundRoutes, Error> {
    let mut policies = Vec::new();
    for family in Family::BOTH {
        for rule in handle.list_rules(family)? {
            if let (Some(found), RuleAction::Lookup(table)) = (rule.fwmark, rule.action)
                && found == mark
                && !rule.unmodelled
                && rule.dest.is_none()
            {
                let route = LocalDelivery { mark, table, priority: None }.default_route(family, lo);
                let protocol = RouteProtocol::ANY; // of any creator, such as `ip` or us
                policies.push((rule, Route { protocol, ..route }));
            }
        }
    }
    let ours = |address: &hostnet::LinkAddress| address.ip == passthrough_net().addr() && address.index == lo;
    let address = handle.list_addresses()?.iter().any(ours);
    Ok(FoundRoutes { policies, address })
}

fn nothing_needed(config: &sidecar::SidecarConfig, families: &[Family]) -> bool {
    config.local_route().is_none() && !families.contains(&Family::V6)
}

/// Makes the kernel look up sources without the mark: with it, the policy route makes every source a local one, and the kernel drops
/// all that TPROXY marks. A pod inherits the setting of its node, which WireGuard changes. IPv6 has none. An unprivileged container may
/// not change it: the rest of the redirection is not to fail for that.
fn ensure_unmarked_check() -> Result<Vec<String>, hostnet::Error> {
    let changed = match sysctl::write(SRC_VALID_MARK, "0") {
        Err(hostnet::Error::Sysctl { source, .. }) if source.kind() == ErrorKind::ReadOnlyFilesystem => {
            ChangeOutcome::No
        }
        written => written?,
    };
    Ok(Vec::from_iter((changed == ChangeOutcome::Yes).then(|| format!("sysctl {SRC_VALID_MARK} was not 0"))))
}

fn passthrough_net() -> IpNet {
    sidecar::passthrough_source(Family::V6).into()
}

fn local_delivery(local: LocalRoute) -> LocalDelivery {
    LocalDelivery { mark: local.mark, table: local.table, priority: None }
}

fn no_address() -> String {
    format!("lo has no address {}", passthrough_net())
}
