//! Enrolled addresses: the part of the node path that changes with every pod, and that the plugin can change by itself.

use std::{collections::BTreeMap, net::IpAddr};

use hostnet::{RouteChange, RtnetlinkHandle};
use ipset::{SetName, SetSpec};
use model::{Family, PodUid, Reason};
use node_plan::{NodeConfig, PathRoute, ZtunnelFallback, ZtunnelSlot, member_routes};

use crate::{Error, convert, convert::LinkNames};

/// Sets and routes of enrolled addresses, in the namespace in which this was opened.
#[derive(Debug)]
pub struct EnrolledMembers {
    config: NodeConfig,
    net: RtnetlinkHandle,
    sets: ipset::IpsetHandle,
}

impl EnrolledMembers {
    /// Opens sets and routes for the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel has no sets, or refuses.
    pub fn open(config: NodeConfig) -> Result<EnrolledMembers, Error> {
        Ok(EnrolledMembers { config, net: RtnetlinkHandle::open()?, sets: ipset::IpsetHandle::open()? })
    }

    /// Enrols the addresses of a pod: routes first, so that its replies never arrive before them. Repeating it changes
    /// nothing.
    ///
    /// # Errors
    /// The step that failed. Completed steps are kept and valid.
    pub fn enrol_pod(
        &mut self,
        ips: &[IpAddr],
        uid: &PodUid,
        active: Option<ZtunnelSlot>,
        policy: ZtunnelFallback,
    ) -> Result<(), Error> {
        let routes: Vec<PathRoute> =
            ips.iter().flat_map(|ip| member_routes(&self.config, *ip, active, policy)).collect();
        let names = LinkNames::read_links(&mut self.net, routes.iter())?;
        let made = routes.iter().map(|route| convert::route_to(route, &names).map(RouteChange::Replace));
        self.net.apply_routes(&made.collect::<Result<Vec<_>, _>>()?)?;
        let pairs: Vec<_> = ips.iter().map(|ip| (*ip, uid.clone())).collect();
        add_members(&mut self.sets, &self.config, &pairs)
    }

    /// Returns the owners of those addresses that are in the sets.
    ///
    /// # Errors
    /// The kernel refuses to list.
    fn address_owners(&mut self, ips: &[IpAddr]) -> Result<BTreeMap<IpAddr, Option<PodUid>>, Error> {
        let mut found = BTreeMap::new();
        for family in Family::BOTH {
            if ips.iter().any(|ip| Family::from_ip(*ip) == family) {
                let members = list_members(&mut self.sets, &self.config, family)?.unwrap_or_default();
                found.extend(members.into_iter().filter(|(ip, _)| ips.contains(ip)));
            }
        }
        Ok(found)
    }

    /// Returns an error unless the node captures the traffic of all these addresses. Sets that the kernel does not list
    /// count as complete.
    ///
    /// # Errors
    /// An address is in no set.
    pub fn check_members(&mut self, ips: &[IpAddr]) -> Result<(), Reason> {
        let Ok(owners) = self.address_owners(ips) else { return Ok(()) };
        match ips.iter().find(|ip| !owners.contains_key(ip)) {
            Some(ip) => Err(format!("{ip} is not in the node's set of enrolled addresses").into()),
            None => Ok(()),
        }
    }

    /// Releases those of the addresses that this pod owns, and returns them.
    ///
    /// # Errors
    /// The step that failed.
    pub fn release_pod(&mut self, ips: &[IpAddr], uid: &PodUid) -> Result<Vec<IpAddr>, Error> {
        let owners = self.address_owners(ips)?;
        let own = |owner: &Option<PodUid>| owner.as_ref().is_none_or(|owner| owner == uid);
        let left: Vec<IpAddr> =
            owners.into_iter().filter(|(_, owner)| own(owner)).map(|(ip, _)| ip).collect();
        remove_members(&mut self.sets, &self.config, &left)?;
        let table = hostnet::TableId(self.config.tables.inbound);
        let routes = self.net.list_routes(Some(table))?;
        let ours = |route: &&hostnet::Route| {
            route.protocol == convert::OURS && route.dst.is_some_and(|dst| left.contains(&dst.addr()))
        };
        let gone: Vec<_> = routes.iter().filter(ours).cloned().map(RouteChange::Delete).collect();
        self.net.apply_routes(&gone)?;
        Ok(left)
    }
}

pub(crate) fn set_spec(config: &NodeConfig, family: Family) -> Result<SetSpec, Error> {
    Ok(SetSpec { name: SetName::new(config.set_name(family))?, family })
}

/// Returns the names of the sets.
///
/// # Errors
/// The configuration has a name that is invalid in the kernel.
pub fn set_names(config: &NodeConfig) -> Result<Vec<SetName>, Error> {
    Family::BOTH.into_iter().map(|family| Ok(SetName::new(config.set_name(family))?)).collect()
}

/// Adds addresses to their sets.
pub(crate) fn add_members(
    sets: &mut ipset::IpsetHandle,
    config: &NodeConfig,
    members: &[(IpAddr, PodUid)],
) -> Result<(), Error> {
    for family in Family::BOTH {
        let of = members.iter().filter(|(ip, _)| Family::from_ip(*ip) == family);
        sets.add_owned(&set_spec(config, family)?.name, of.map(|(ip, uid)| (*ip, uid)))?;
    }
    Ok(())
}

/// Removes addresses from their sets.
pub(crate) fn remove_members(
    sets: &mut ipset::IpsetHandle,
    config: &NodeConfig,
    ips: &[IpAddr],
) -> Result<(), Error> {
    for ip in ips {
        let _ = sets.remove_member(&set_spec(config, Family::from_ip(*ip))?.name, *ip)?;
    }
    Ok(())
}

/// Returns the members of a family's set; `None` if the set does not exist.
pub(crate) fn list_members(
    sets: &mut ipset::IpsetHandle,
    config: &NodeConfig,
    family: Family,
) -> Result<Option<BTreeMap<IpAddr, Option<PodUid>>>, Error> {
    Ok(sets.member_owners(&set_spec(config, family)?.name)?)
}
