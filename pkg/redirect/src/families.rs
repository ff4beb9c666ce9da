//! Address families of a pod that are redirected.

use std::net::IpAddr;

use model::Family;

use crate::Error;

/// Rule for choosing the families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyChoice {
    /// By the first usable address: if it is IPv6, IPv6 is redirected, too.
    First,
    /// IPv6 is redirected, too, if any usable address is IPv6 (`ISTIO_DUAL_STACK`).
    Dual,
    /// Both, because both are redirected already: an address may be missing for the moment. Routes as with
    /// [`FamilyChoice::Dual`].
    Both,
}

/// No usable address exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the network namespace has no address beyond loopback and link-local ones")]
pub struct NoAddress;

/// Returns the family of the first usable address of the calling thread's namespace.
///
/// # Errors
/// The kernel could not be queried, or there is no address.
pub fn first_family() -> Result<Family, Error> {
    let addresses = netns_addresses()?;
    let first = addresses.iter().map(|ip| ip.to_canonical()).find(|ip| is_usable(*ip));
    first.map(Family::from_ip).ok_or(Error::NoAddress(NoAddress))
}

/// Returns the addresses of the calling thread's namespace, in the kernel's order.
pub(crate) fn netns_addresses() -> Result<Vec<IpAddr>, Error> {
    Ok(hostnet::RtnetlinkHandle::open_in_pod()?.list_addresses()?.iter().map(|address| address.ip).collect())
}

/// Returns the addresses of a pod, as a runtime would report them: the usable ones of the first link that has any, in
/// the calling thread's namespace. Later links belong to further networks.
///
/// # Errors
/// The kernel could not be queried.
pub fn pod_addresses() -> Result<Vec<IpAddr>, Error> {
    let all = hostnet::RtnetlinkHandle::open_in_pod()?.list_addresses()?;
    let mut usable: Vec<_> = all.iter().filter(|address| is_usable(address.ip.to_canonical())).collect();
    let first = usable.iter().map(|address| address.index).min();
    usable.retain(|address| Some(address.index) == first);
    Ok(usable.iter().map(|address| address.ip).collect())
}

impl FamilyChoice {
    /// Returns the choice for a dual-stack setting.
    pub fn by_setting(dual_stack: bool) -> FamilyChoice {
        if dual_stack { FamilyChoice::Dual } else { FamilyChoice::First }
    }

    /// Returns the families to redirect in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel could not be queried, or no address is usable.
    pub fn choose_in_netns(self) -> Result<Vec<Family>, Error> {
        Ok(self.choose_families(&netns_addresses()?)?)
    }

    /// Returns the families to redirect in a namespace with these addresses: IPv4 always; IPv6 by the addresses, in the
    /// kernel's order (all IPv4 ones are first).
    ///
    /// # Errors
    /// [`NoAddress`] if none is usable.
    pub fn choose_families(self, addresses: &[IpAddr]) -> Result<Vec<Family>, NoAddress> {
        let addressed = self.choose_routed(addresses)?;
        Ok(if self == FamilyChoice::Both { Family::BOTH.to_vec() } else { addressed })
    }

    /// Returns the families that need routes and an address on `lo`: those with an address, because IPv6 may be disabled
    /// where it has none.
    ///
    /// # Errors
    /// As [`FamilyChoice::choose_families`].
    pub(crate) fn choose_routed(self, addresses: &[IpAddr]) -> Result<Vec<Family>, NoAddress> {
        let mut usable = addresses.iter().map(|ip| ip.to_canonical()).filter(|ip| is_usable(*ip));
        let first = usable.next().ok_or(NoAddress)?;
        let v6 = first.is_ipv6() || (self != FamilyChoice::First && usable.any(|ip| ip.is_ipv6()));
        Ok(if v6 { Family::BOTH.to_vec() } else { vec![Family::V4] })
    }
}

fn is_usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local() || ip.segments().first().is_some_and(|first| first & 0xff0f == 0xff02)
        }
    };
    !ip.is_loopback() && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usable_address_decides_unless_both_families_are_asked_for() {
        let both = Family::BOTH.to_vec();
        let v4 = vec![Family::V4];
        let cases: [(&[&str], _, _); 7] = [
            (&["127.0.0.1", "10.0.0.1"], &v4, &v4),
            (&["127.0.0.1", "10.0.0.1", "fd00::1"], &v4, &both),
            (&["127.0.0.1", "::1", "fd00::1", "fe80::1"], &both, &both),
            (&["169.254.1.1", "fe80::1", "fd00::1"], &both, &both),
            (&["fd00::1", "10.0.0.1"], &both, &both),
            (&["10.0.0.1", "fe80::1"], &v4, &v4),
            (&["::ffff:10.0.0.1"], &v4, &v4),
        ];
        for (addresses, first, dual) in cases {
            let parsed: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(FamilyChoice::First.choose_families(&parsed).as_ref(), Ok(first), "{addresses:?}");
            assert_eq!(FamilyChoice::Dual.choose_families(&parsed).as_ref(), Ok(dual), "{addresses:?}");
            assert_eq!(FamilyChoice::Both.choose_families(&parsed).as_ref(), Ok(&both), "{addresses:?}");
            assert_eq!(FamilyChoice::Both.choose_routed(&parsed).as_ref(), Ok(dual), "{addresses:?}");
        }
        assert_eq!(FamilyChoice::Dual.choose_families(&["127.0.0.1".parse().unwrap()]), Err(NoAddress));
    }
}
