//! Effects of each step in the kernel, and its refusals.

use std::{collections::BTreeMap, net::IpAddr};

use model::{Family, PodUid};
use node_plan::{LinkPair, NetnsPlace, Operation, PathRoute, RouteEdit, RouteTo};
use rules::{RuleChange, TableEdit};

use crate::world::{Netns, Ns, World};

type Done = Result<(), String>;

/// A plan in the smallest observable steps: single routes, members and settings, single tables of the firewall.
pub(crate) fn atoms(steps: &[Operation]) -> Vec<Operation> {
    steps.iter().flat_map(parts).collect()
}

fn parts(step: &Operation) -> Vec<Operation> {
    match step {
        Operation::Routes(place, edits) => {
            edits.iter().map(|edit| Operation::Routes(*place, vec![edit.clone()])).collect()
        }
        Operation::AddMembers(all) => {
            all.iter().map(|one| Operation::AddMembers(vec![one.clone()])).collect()
        }
        Operation::SetSysctls(place, all) => {
            all.iter().map(|one| Operation::SetSysctls(*place, vec![one.clone()])).collect()
        }
        Operation::RemoveMembers(all) => all.iter().map(|one| Operation::RemoveMembers(vec![*one])).collect(),
        Operation::Firewall { place, changes, why } => {
            let tables = |(family, change): &(Family, RuleChange)| {
                let table = |edit: &TableEdit| (*family, RuleChange { edits: vec![edit.clone()] });
                change.edits.iter().map(table).collect::<Vec<_>>()
            };
            let tables = changes.iter().flat_map(tables);
            let one = |table| Operation::Firewall { place: *place, changes: vec![table], why: why.clone() };
            tables.map(one).collect()
        }
        other => vec![other.clone()],
    }
}

impl World {
    pub(crate) fn apply(&mut self, step: &Operation) -> Done {
        self.step(step).map_err(|error| format!("{step}: {error}"))
    }

    fn step(&mut self, step: &Operation) -> Done {
        match step {
            Operation::CreateSet(family) => drop(self.sets.entry(*family).or_default()),
            Operation::DestroySet(family) => self.destroy_set(*family)?,
            Operation::AddMembers(members) => {
                for (ip, uid) in members {
                    self.set_of(ip)?.insert(*ip, Some(uid.clone()));
                }
            }
            Operation::RemoveMembers(ips) => {
                for ip in ips {
                    self.set_of(ip)?.remove(ip);
                }
            }
            Operation::CreatePair(pair) => self.create_pair(pair)?,
            Operation::DeleteLink(NetnsPlace::Node, name) => self.delete_link(Ns::Node, name),
            Operation::DeleteLink(NetnsPlace::Ztunnel(slot), name) => {
                let number = slot.select_from(&self.slots).ok_or("the slot has no ztunnel")?;
                self.delete_link(Ns::Pod(number), name);
            }
            Operation::SetUp(place, name) => {
                let link = self.place(*place)?.links.get_mut(name);
                link.ok_or("no such link")?.up = true;
            }
            Operation::AddAddress(place, name, net) => {
                let ns = self.place(*place)?;
                let _ = ns.links.get(name).ok_or("no such link")?;
                ns.addresses.insert((name.clone(), *net));
            }
            Operation::SetSysctls(place, settings) => {
                settings.iter().try_for_each(|(name, value)| self.set_sysctl(*place, name, value))?;
            }
            Operation::RestoreSysctl(place, name, value) => {
                let ns = self.place(*place)?;
                if let Some(old) = ns.sysctls.get_mut(name) {
                    old.clone_from(value);
                }
                ns.journal.remove(name);
            }
            Operation::AddRule(place, rule) => {
                let rules = &mut self.place(*place)?.rules;
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
            Operation::DeleteRule(place, rule) => self.place(*place)?.rules.retain(|other| other != rule),
            Operation::Routes(place, edits) => {
                let ns = self.place(*place)?;
                edits.iter().try_for_each(|edit| ns.edit(edit))?;
            }
            Operation::Firewall { place, changes, .. } => {
                self.place(*place)?.chains_noted = true;
                for (family, change) in changes {
                    let text = change.restore_text();
                    self.refuse_unknown_sets(&text)?;
                    self.place(*place)?.firewall.get_mut(family).ok_or("no such family")?.restore(&text)?;
                }
            }
            Operation::RemoveChains(place) => self.place(*place)?.chains_noted = false,
        }
        Ok(())
    }

    fn place(&mut self, place: NetnsPlace) -> Result<&mut Netns, String> {
        match place {
            NetnsPlace::Node => Ok(&mut self.node),
            NetnsPlace::Ztunnel(slot) => {
                let number = slot.select_from(&self.slots).ok_or("the slot has no ztunnel")?;
                self.ns(Ns::Pod(number))
            }
        }
    }

    fn set_of(&mut self, ip: &IpAddr) -> Result<&mut BTreeMap<IpAddr, Option<PodUid>>, String> {
        self.sets.get_mut(&Family::from_ip(*ip)).ok_or("no such set".to_owned())
    }

    fn destroy_set(&mut self, family: Family) -> Done {
        let name = self.config.set_name(family).to_owned();
        let mut words = self.node.firewall[&family].kernel.tables.values().flat_map(|chains| chains.values());
        if words.any(|rules| rules.iter().flatten().any(|word| *word == name)) {
            return Err("the set is in use".to_owned());
        }
        self.sets.remove(&family);
        Ok(())
    }

    fn refuse_unknown_sets(&self, text: &str) -> Done {
        let named = text.lines().filter_map(|line| line.split_once("--match-set ")?.1.split(' ').next());
        for name in named {
            if !self.sets.keys().any(|family| self.config.set_name(*family) == name) {
                return Err(format!("no set {name}"));
            }
        }
        Ok(())
    }

    /// A remaining peer is deleted first, with its own other end, as in `node-capture`.
    fn create_pair(&mut self, pair: &LinkPair) -> Done {
        let number = pair.slot.select_from(&self.slots).ok_or("the slot has no ztunnel")?;
        self.delete_link(Ns::Pod(number), &pair.ztunnel);
        if self.node.links.contains_key(&pair.node) {
            return Err("the link exists".to_owned());
        }
        self.ns(Ns::Pod(number))?.link(&pair.ztunnel, Some((Ns::Node, pair.node.clone())));
        self.node.link(&pair.node, Some((Ns::Pod(number), pair.ztunnel.clone())));
        Ok(())
    }

    pub(crate) fn delete_link(&mut self, ns: Ns, name: &str) {
        let link = self.ns(ns).ok().and_then(|ns| ns.forget_link(name));
        if let Some((peer, name)) = link {
            let _ = self.ns(peer).ok().and_then(|ns| ns.forget_link(&name));
        }
    }

    /// Ends a ztunnel's pod, and its namespace.
    pub(crate) fn kill(&mut self, number: u8) {
        let Some(pod) = self.pods.remove(&number) else { return };
        for (ns, name) in pod.links.into_values().filter_map(|link| link.peer) {
            let _ = self.ns(ns).ok().and_then(|ns| ns.forget_link(&name));
        }
    }

    fn set_sysctl(&mut self, place: NetnsPlace, name: &str, value: &str) -> Done {
        let ns = self.place(place)?;
        let setting = ns.sysctls.get_mut(name).ok_or("no such setting")?;
        let old = std::mem::replace(setting, value.to_owned());
        ns.journal.entry(name.to_owned()).or_insert(old);
        Ok(())
    }
}

impl Netns {
    fn forget_link(&mut self, name: &str) -> Option<(Ns, String)> {
        let link = self.links.remove(name)?;
        self.addresses.retain(|(link, _)| link != name);
        self.forget_routes(name);
        let prefix = format!("net/ipv4/conf/{name}/");
        self.sysctls.retain(|setting, _| !setting.starts_with(&prefix));
        link.peer
    }

    fn forget_routes(&mut self, link: &str) {
        self.routes.retain(|(route, _)| leads_over(route).is_none_or(|over| over != link));
    }

    /// Removes routes and IPv6 addresses, as setting the link down does.
    pub(crate) fn switch_off(&mut self, name: &str) {
        if let Some(link) = self.links.get_mut(name) {
            link.up = false;
        }
        self.forget_routes(name);
        self.addresses.retain(|(link, net)| link != name || Family::from_ip(net.addr()) == Family::V4);
    }

    fn edit(&mut self, edit: &RouteEdit) -> Done {
        match edit {
            RouteEdit::Delete(route) => self.routes.retain(|(other, ours)| !ours || other != route),
            RouteEdit::Replace(route) => {
                if let Some(link) = leads_over(route) {
                    let link = self.links.get(link).ok_or("no such link")?;
                    link.up.then_some(()).ok_or("network is down")?;
                }
                let key = |route: &PathRoute| (route.family, route.table, route.dst, route.metric);
                match self.routes.iter_mut().find(|(other, _)| key(other) == key(route)) {
                    Some((_, false)) => return Err("would replace another's".to_owned()),
                    Some((other, true)) => other.clone_from(route),
                    None => self.routes.push((route.clone(), true)),
                }
            }
        }
        Ok(())
    }
}

fn leads_over(route: &PathRoute) -> Option<&str> {
    match &route.to {
        RouteTo::Via(_, link) | RouteTo::Local(link) => Some(link),
        _ => None,
    }
}
