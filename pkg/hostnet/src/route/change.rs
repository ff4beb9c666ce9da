//! Parts shared by single and bulk changes of routes.

use netlink::{Errno, NetlinkRequest};

use super::{Route, message};
use crate::error::{Error, kernel_error};
use crate::wire::{CREATE, REPLACE};
use crate::{ChangeOutcome, RtnetlinkHandle};

model::word_enum! {
    /// Operation on a route.
    #[derive(Clone, Copy, Debug)]
    pub(super) enum RouteVerb {
        Add = "add",
        Replace = "replace",
        Delete = "delete",
    }
}

impl RouteVerb {
    pub(super) fn to_request(self, route: &Route) -> NetlinkRequest {
        match self {
            Self::Add => message::add_request(route, CREATE),
            Self::Replace => message::add_request(route, REPLACE),
            Self::Delete => message::delete_request(route),
        }
    }

    /// Returns the error numbers by which the kernel reports that there is nothing to change.
    pub(super) const fn ignored_errors(self) -> &'static [Errno] {
        match self {
            Self::Add => &[Errno::EXIST],
            Self::Replace => &[],
            // No such route; no such table; nothing of the family at all, as with `ipv6.disable=1` (`rtnetlink_rcv_msg`).
            Self::Delete => &[Errno::SRCH, Errno::NOENT, Errno::OPNOTSUPP],
        }
    }
}

impl RtnetlinkHandle {
    pub(super) fn change_route(&mut self, verb: RouteVerb, route: &Route) -> Result<ChangeOutcome, Error> {
        let changed = self.send_change(verb.to_request(route), verb.ignored_errors());
        changed.map_err(|error| kernel_error(self.describe_change(verb, route), error))
    }

    pub(super) fn describe_change(&mut self, verb: RouteVerb, route: &Route) -> String {
        format!("{} route {}", verb.as_str(), self.describe_route(route))
    }

    /// Returns the route as `ip` prints it, with the name of its link.
    pub fn describe_route(&mut self, route: &Route) -> String {
        let link = route.oif.map(|index| self.link_name(index));
        route.describe_with_link(link.as_deref())
    }
}
