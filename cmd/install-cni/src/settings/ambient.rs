//! The settings of ambient mode.

use std::path::{Path, PathBuf};

use agent::{CaptureConfig, InPodConfig};
use cni_types::run_dir;
use flags::Source;
use netfilter::Backend;
use planner::{
    ambient::AmbientPolicy,
    node::{NodeConfig, Priorities, Tables},
    selector::Enablement,
    ztunnel::ZtunnelSelector,
};

use rules::inpod::{self, Probes};

use super::{Identity, Reader};
use crate::{
    ambient::{Ambient, PodSource},
    events::{EventSettings, Places},
};

/// The flag of the operator's selectors.
const SELECTORS: &str = "ambient-enablement-selector";
/// Old values of kernel settings, beside the socket.
const JOURNAL: &str = "settings-before.json";

impl Reader<'_> {
    /// The outer value is none after a mistake, the inner one when ambient mode is off.
    pub(super) fn ambient(&mut self, identity: &Identity) -> Option<Option<Ambient>> {
        let on = self.boolean("ambient-enabled")?;
        let node = self.node_config();
        let (policy, source) = (self.ambient_policy(identity), self.pod_source());
        let fallback = self.parsed("no-ztunnel-policy");
        let tools = self.tools();
        let socket = PathBuf::from(self.shared("agent-socket", run_dir::AGENT_SOCKET));
        let journal = socket.parent().unwrap_or(Path::new("/")).join(JOURNAL);
        let capture = self.capture();
        let host_network = match self.boolean("allow-switch-to-host-ns") {
            Some(true) => Some(PathBuf::from(self.text("host-proc")).join("1/ns/net")),
            _ => None,
        };
        let policy = policy?;
        let agent = agent::Settings {
            capture: capture?,
            // Charts that leave the entry to the agent, or set selectors, are of versions whose ztunnel is in the pod, and do
            // not mount what node-level capture needs.
            starts_in_pod: self.is_generated() || policy.enablement.is_some(),
            node: node?,
            policy,
            fallback: fallback?,
            tools: tools?,
            netns_directory: self.netns_directory(),
            records: self.debug_socket().with_file_name(wire::RECORDS),
            journal,
            shared_config: self.text("ambient-config-file").into(),
        };
        let fallback_file = self.optional("no-ztunnel-policy-file").map(PathBuf::from);
        let events = agent.capture.in_pod().map(|chosen| EventSettings {
            socket: run_dir::path(&self.run_dir(), run_dir::EVENT_SOCKET).into(),
            places: Places {
                root: self.text("host-root").into(),
                proc: chosen.proc.clone(),
                netns_directory: self.text("netns-dir").into(),
            },
        });
        Some(on.then_some(Ambient { agent, socket, source: source?, fallback_file, host_network, events }))
    }

    fn capture(&mut self) -> Option<CaptureConfig> {
        let chosen = self.in_pod();
        let text = self.text("ambient-capture");
        match text.as_str() {
            "node" => Some(CaptureConfig::Node),
            "in-pod" => Some(CaptureConfig::InPod(chosen?)),
            "auto" | "" => Some(CaptureConfig::Auto(chosen?)),
            _ => {
                self.mistake("ambient-capture", format!("{text:?} is none of node, in-pod and auto"));
                None
            }
        }
    }

    /// Nothing but in-pod capture was asked for.
    pub(super) fn is_always_in_pod(&self) -> bool {
        self.text("ambient-capture") == "in-pod"
    }

    fn in_pod(&mut self) -> Option<InPodConfig> {
        let v4 = self.address("host-probe-snat-ip");
        let v6 = self.address("host-probe-snat-ipv6");
        let branch_probes = self.boolean("ambient-enable-aws-branch-eni-probe");
        let (dns_capture, ipv6) = (self.boolean("ambient-dns-capture"), self.boolean("ambient-ipv6"));
        Some(InPodConfig {
            rules: inpod::Config {
                probes: Probes { v4: v4?, v6: v6? },
                branch_probes: branch_probes?,
                ..inpod::Config::default()
            },
            socket: self.text("ztunnel-uds-address").into(),
            dns_capture: dns_capture?,
            ipv6: ipv6?,
            proc: self.text("host-proc").into(),
        })
    }

    fn address<T: std::str::FromStr>(&mut self, flag: &str) -> Option<T> {
        let text = self.text(flag);
        let address = text.parse().ok();
        if address.is_none() {
            self.mistake(flag, format!("{text:?} is no such address"));
        }
        address
    }

    /// The outer value is none after a mistake, the inner one if pods are chosen by their labels.
    fn enablement(&mut self) -> Option<Option<Vec<Enablement>>> {
        match self.selectors() {
            Ok(selectors) => Some(selectors.map(|(selectors, _)| selectors)),
            Err(error) => {
                self.mistake(SELECTORS, error);
                None
            }
        }
    }

    /// The operator's selectors, as they are understood and as they were written; `None`: there are none. Helm renders a
    /// value of `null`, which unsets it, as the word.
    pub(super) fn selectors(&self) -> Result<Option<(Vec<Enablement>, serde_json::Value)>, String> {
        let Some(text) = self.optional(SELECTORS) else { return Ok(None) };
        let list = facts::parse_yaml(&text)?.into_iter().next().unwrap_or_default();
        if list.is_null() {
            return Ok(None);
        }
        let read: Vec<Enablement> =
            serde_json::from_value(list.clone()).map_err(|error| error.to_string())?;
        read.iter().try_for_each(Enablement::check)?;
        Ok(Some((read, list)))
    }

    /// The namespaces that are never touched.
    pub(super) fn excluded_namespaces(&self) -> Vec<String> {
        let excluded = self.text("exclude-namespaces");
        let excluded = excluded.split(',').map(str::trim).filter(|name| !name.is_empty());
        excluded.map(str::to_owned).collect()
    }

    fn parsed<T: std::str::FromStr<Err = String>>(&mut self, flag: &str) -> Option<T> {
        let parsed = self.text(flag).parse();
        parsed.map_err(|error| self.mistake(flag, error)).ok()
    }

    fn pod_source(&mut self) -> Option<PodSource> {
        let text = self.text("pod-source");
        match (text.as_str(), text.strip_prefix("dir:")) {
            ("api" | "", _) => Some(PodSource::Api),
            (_, Some(path)) if !path.is_empty() => Some(PodSource::Directory(path.into())),
            _ => {
                self.mistake("pod-source", format!("{text:?} is neither api nor dir:<path>"));
                None
            }
        }
    }

    fn ambient_policy(&mut self, identity: &Identity) -> Option<AmbientPolicy> {
        let text = self.text("ztunnel-label");
        let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            self.mistake("ztunnel-label", format!("{text:?} is no key=value"));
            return None;
        };
        let enablement = self.enablement()?;
        // Who has selectors comes from a version of Istio in which the annotation means nothing.
        let ignores_opt_out = enablement.is_some() || self.is_always_in_pod();
        Some(AmbientPolicy {
            ztunnel: ZtunnelSelector {
                label: (key.to_owned(), value.to_owned()),
                namespaces: self.ztunnel_namespaces(identity),
                service_account: self.text("ztunnel-service-account"),
            },
            excluded_namespaces: self.excluded_namespaces(),
            enablement,
            ignores_opt_out,
            agent_namespace: Some(identity.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        })
    }

    /// The namespace that somebody chose. Unless somebody did, ours too: Istio's chart of 1.20 has no value for it, and on
    /// some platforms puts agent and ztunnel into kube-system. No other: whoever may make pods of ztunnel's service account
    /// in our namespace may replace the agent as well.
    fn ztunnel_namespaces(&self, identity: &Identity) -> Vec<String> {
        let (chosen, source) = self.values.get("system-namespace");
        let own = Some(&identity.namespace)
            .filter(|own| source == Source::Default && !own.is_empty() && own.as_str() != chosen);
        [Some(chosen.to_owned()), own.cloned()].into_iter().flatten().collect()
    }

    fn node_config(&mut self) -> Option<NodeConfig> {
        let links = self.parsed("ambient-links");
        let (tables, first) = (self.tables(), self.number("ambient-rule-priority"));
        Some(NodeConfig {
            links: links?,
            tables: tables?,
            priorities: Priorities { first: first? },
            ..NodeConfig::default()
        })
    }

    fn number(&mut self, flag: &str) -> Option<u32> {
        let text = self.text(flag);
        let number = text.parse().ok().filter(|number| (1..32_000).contains(number));
        if number.is_none() {
            self.mistake(flag, format!("{text:?} is no number from 1 to 31999"));
        }
        number
    }

    fn tables(&mut self) -> Option<Tables> {
        let text = self.text("ambient-tables");
        let numbers: Vec<u32> = text.split(',').filter_map(|number| number.trim().parse().ok()).collect();
        let [inbound, outbound, slot_inbound, slot_outbound, slot_return] = numbers[..] else {
            self.mistake("ambient-tables", format!("{text:?} are not five numbers"));
            return None;
        };
        let tables = Tables { inbound, outbound, slot_inbound, slot_outbound, slot_return };
        let all = NodeConfig { tables, ..NodeConfig::default() }.all_tables();
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        let free = |table: &&model::TableId| table.0 > 0 && !(253..=255).contains(&table.0);
        if distinct.len() != all.len() || !all.iter().all(|table| free(&table)) {
            self.mistake("ambient-tables", "these are not eight different tables, or one is the kernel's");
            return None;
        }
        Some(tables)
    }

    fn tools(&mut self) -> Option<netfilter::Options> {
        let forced = match self.optional("force-iptables-binary") {
            None => None,
            Some(text) => match text.parse::<Backend>() {
                Ok(backend) => Some(backend),
                Err(error) => {
                    self.mistake("force-iptables-binary", error);
                    return None;
                }
            },
        };
        let lock_directory = Some(self.debug_socket().with_file_name(run_dir::LOCKS));
        Some(netfilter::Options { forced, lock_directory, ..netfilter::Options::default() })
    }
}
