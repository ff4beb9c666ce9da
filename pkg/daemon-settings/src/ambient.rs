//! The settings of ambient mode.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use agent::RecordIndex;
use capture_modes::{CaptureConfig, InPodConfig};
use cni_types::run_dir;
use enrolment::{EnrolmentPolicy, inpod::PodOptionPolicy, selector::Enablement, ztunnel::ZtunnelSelector};
use firewall::{Backend, NativeTables};
use flags::{Flag, ValueSource};
use model::{ExistingConnections, Family, UnknownExistingConnections};
use node_plan::{NodeConfig, RouteTables, RulePriorities};

use rules::inpod::{self, ProbeAddresses};

use super::{AgentIdentity, SettingsReader};
use crate::{AmbientOptions, EventSettings, HostPaths, PodSource, options};

/// The flag of the operator's selectors.
const SELECTORS: Flag = options::AMBIENT_ENABLEMENT_SELECTOR;
/// Old values of kernel settings, beside the socket.
const JOURNAL: &str = "settings-before.json";

impl SettingsReader<'_> {
    /// Whether ambient mode is on, and what it uses. None after a mistake.
    pub(super) fn read_ambient(
        &mut self,
        identity: &AgentIdentity,
        existing: Option<ExistingConnections>,
        native_nftables: Option<bool>,
        records: &Arc<RecordIndex>,
    ) -> Option<(bool, AmbientOptions)> {
        let on = self.parse_boolean(&options::AMBIENT_ENABLED)?;
        let node = self.node_config();
        let (policy, source) = (self.ambient_policy(identity), self.pod_source());
        let fallback = self.parse_value(&options::NO_ZTUNNEL_POLICY);
        let tools = self.read_firewall_options(native_nftables);
        let socket = self.agent_socket();
        let journal = socket.parent().unwrap_or(Path::new("/")).join(JOURNAL);
        let capture = self.read_capture_mode(existing);
        let host_network = match self.parse_boolean(&options::ALLOW_SWITCH_TO_HOST_NS) {
            Some(true) => Some(PathBuf::from(self.flag_text(&options::HOST_PROC)).join("1/ns/net")),
            _ => None,
        };
        let drift_attribution = self.drift_attribution();
        let policy = policy?;
        let agent = capture_modes::CaptureSettings {
            capture: capture?,
            // Charts that leave the entry to the agent, or set selectors, are of versions whose ztunnel is in the pod, and do
            // not mount what node-level capture needs.
            starts_in_pod: self.is_generated() || policy.enablement.is_some(),
            node: node?,
            policy,
            fallback: fallback?,
            drift_attribution: drift_attribution?,
            tools: tools?,
            netns_directory: self.netns_directory(),
            records: Arc::clone(records),
            history: journal.with_file_name(super::debug::HISTORY),
            journal,
            shared_config: self.flag_text(&options::AMBIENT_CONFIG_FILE).into(),
        };
        let fallback_file = self.optional_text(&options::NO_ZTUNNEL_POLICY_FILE).map(PathBuf::from);
        let events = agent.capture.in_pod().map(|chosen| EventSettings {
            socket: run_dir::path(&self.run_dir(), run_dir::EVENT_SOCKET).into(),
            places: HostPaths {
                root: self.flag_text(&options::HOST_ROOT).into(),
                proc: chosen.proc.clone(),
                netns_directory: self.flag_text(&options::NETNS_DIR).into(),
            },
        });
        Some((on, AmbientOptions { agent, source: source?, fallback_file, host_network, events }))
    }

    /// Whether the process that changes rules is named on the node, too.
    fn drift_attribution(&mut self) -> Option<bool> {
        match self.flag_text(&options::DRIFT_ATTRIBUTION).as_str() {
            "" => Some(false),
            "node" => Some(true),
            other => {
                self.add_mistake(&options::DRIFT_ATTRIBUTION, format!("{other:?} is neither empty nor node"));
                None
            }
        }
    }

    fn read_capture_mode(&mut self, existing: Option<ExistingConnections>) -> Option<CaptureConfig> {
        let chosen = self.in_pod(existing);
        let text = self.flag_text(&options::AMBIENT_CAPTURE);
        match text.as_str() {
            "node" => Some(CaptureConfig::Node),
            "in-pod" => Some(CaptureConfig::InPod(chosen?)),
            "auto" | "" => Some(CaptureConfig::Auto(chosen?)),
            _ => {
                self.add_mistake(
                    &options::AMBIENT_CAPTURE,
                    format!("{text:?} is none of node, in-pod and auto"),
                );
                None
            }
        }
    }

    /// Nothing but in-pod capture was asked for.
    pub(super) fn is_always_in_pod(&self) -> bool {
        self.flag_text(&options::AMBIENT_CAPTURE) == "in-pod"
    }

    fn in_pod(&mut self, existing: Option<ExistingConnections>) -> Option<InPodConfig> {
        let v4 = self.parse_probe_source(&options::HOST_PROBE_SNAT_IP);
        let v6 = self.parse_probe_source(&options::HOST_PROBE_SNAT_IPV6);
        let branch_probes = self.parse_boolean(&options::AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE);
        let allowed = self.parse_value(&options::AMBIENT_ALLOWED_EXCEPTIONS);
        let (dns_capture, ipv6) =
            (self.parse_boolean(&options::AMBIENT_DNS_CAPTURE), self.parse_boolean(&options::AMBIENT_IPV6));
        let (v4, v6, istio) = (v4?, v6?, ProbeAddresses::default());
        let detected = [v4.is_none().then_some(Family::V4), v6.is_none().then_some(Family::V6)];
        Some(InPodConfig {
            detected_probes: detected.into_iter().flatten().collect(),
            rules: inpod::InPodRulesConfig {
                probes: ProbeAddresses { v4: v4.unwrap_or(istio.v4), v6: v6.unwrap_or(istio.v6) },
                branch_probes: branch_probes?,
                ..inpod::InPodRulesConfig::default()
            },
            socket: self.flag_text(&options::ZTUNNEL_UDS_ADDRESS).into(),
            pods: PodOptionPolicy { dns_capture: dns_capture?, allowed: allowed? },
            existing: existing?,
            ipv6: ipv6?,
            proc: self.flag_text(&options::HOST_PROC).into(),
        })
    }

    /// The outer value is none after a mistake, the inner one if the address is to be detected.
    fn parse_probe_source<T: std::str::FromStr>(&mut self, flag: &Flag) -> Option<Option<T>> {
        if self.flag_text(flag) == options::DETECT {
            return Some(None);
        }
        self.parse_address(flag).map(Some)
    }

    fn parse_address<T: std::str::FromStr>(&mut self, flag: &Flag) -> Option<T> {
        let text = self.flag_text(flag);
        let address = text.parse().ok();
        if address.is_none() {
            self.add_mistake(flag, format!("{text:?} is no such address"));
        }
        address
    }

    /// The outer value is none after a mistake, the inner one if pods are chosen by their labels.
    fn read_enablement(&mut self) -> Option<Option<Vec<Enablement>>> {
        match self.parse_selectors() {
            Ok(selectors) => Some(selectors.map(|(selectors, _)| selectors)),
            Err(error) => {
                self.add_mistake(&SELECTORS, error);
                None
            }
        }
    }

    /// The operator's selectors, as they are understood and as they were written; `None`: there are none. Helm renders a
    /// value of `null`, which unsets it, as the word.
    pub(super) fn parse_selectors(&self) -> Result<Option<(Vec<Enablement>, serde_json::Value)>, String> {
        let Some(text) = self.optional_text(&SELECTORS) else { return Ok(None) };
        let list = facts::parse_yaml(&text)?.into_iter().next().unwrap_or_default();
        if list.is_null() {
            return Ok(None);
        }
        let read: Vec<Enablement> =
            serde_json::from_value(list.clone()).map_err(|error| error.to_string())?;
        read.iter().try_for_each(Enablement::check_selectors)?;
        Ok(Some((read, list)))
    }

    /// The namespaces that are never touched.
    pub(super) fn excluded_namespaces(&self) -> Vec<String> {
        let excluded = self.flag_text(&options::EXCLUDE_NAMESPACES);
        model::list_elements(&excluded).map(str::to_owned).collect()
    }

    /// [`ExistingConnections::Keep`] if the value is empty.
    pub(super) fn existing_connections(&mut self) -> Option<ExistingConnections> {
        let text = self.flag_text(&options::EXISTING_CONNECTIONS);
        if text.is_empty() {
            return Some(ExistingConnections::default());
        }
        text.parse()
            .map_err(|error: UnknownExistingConnections| {
                self.add_mistake(&options::EXISTING_CONNECTIONS, error.to_string());
            })
            .ok()
    }

    fn parse_value<T: std::str::FromStr<Err = String>>(&mut self, flag: &Flag) -> Option<T> {
        let parsed = self.flag_text(flag).parse();
        parsed.map_err(|error| self.add_mistake(flag, error)).ok()
    }

    fn pod_source(&mut self) -> Option<PodSource> {
        let text = self.flag_text(&options::POD_SOURCE);
        match (text.as_str(), text.strip_prefix("dir:")) {
            ("api" | "", _) => Some(PodSource::Api),
            (_, Some(path)) if !path.is_empty() => Some(PodSource::Directory(path.into())),
            _ => {
                self.add_mistake(&options::POD_SOURCE, format!("{text:?} is neither api nor dir:<path>"));
                None
            }
        }
    }

    fn ambient_policy(&mut self, identity: &AgentIdentity) -> Option<EnrolmentPolicy> {
        let text = self.flag_text(&options::ZTUNNEL_LABEL);
        let Some((key, value)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            self.add_mistake(&options::ZTUNNEL_LABEL, format!("{text:?} is no key=value"));
            return None;
        };
        let enablement = self.read_enablement()?;
        // Who has selectors comes from a version of Istio in which the annotation means nothing.
        let ignores_opt_out = enablement.is_some() || self.is_always_in_pod();
        Some(EnrolmentPolicy {
            ambient: true,
            ztunnel: ZtunnelSelector {
                label: (key.to_owned(), value.to_owned()),
                namespaces: self.ztunnel_namespaces(identity),
                service_account: self.flag_text(&options::ZTUNNEL_SERVICE_ACCOUNT),
            },
            excluded_namespaces: self.excluded_namespaces(),
            enablement,
            ignores_opt_out,
            agent_namespace: identity.own_namespace(),
        })
    }

    /// The namespace that somebody chose. Unless somebody did, ours too: Istio's chart of 1.20 has no value for it, and on
    /// some platforms puts agent and ztunnel into kube-system. No other: whoever may make pods of ztunnel's service account
    /// in our namespace may replace the agent as well.
    fn ztunnel_namespaces(&self, identity: &AgentIdentity) -> Vec<String> {
        let (chosen, source) = self.values.get(&options::SYSTEM_NAMESPACE);
        let own = Some(&identity.namespace)
            .filter(|own| source == ValueSource::Default && !own.is_empty() && own.as_str() != chosen);
        [Some(chosen.to_owned()), own.cloned()].into_iter().flatten().collect()
    }

    fn node_config(&mut self) -> Option<NodeConfig> {
        let (tables, first) = (self.read_route_tables(), self.parse_number(&options::AMBIENT_RULE_PRIORITY));
        Some(NodeConfig {
            tables: tables?,
            priorities: RulePriorities { first: first? },
            ..NodeConfig::default()
        })
    }

    fn parse_number(&mut self, flag: &Flag) -> Option<u32> {
        let text = self.flag_text(flag);
        let number = text.parse().ok().filter(|number| (1..32_000).contains(number));
        if number.is_none() {
            self.add_mistake(flag, format!("{text:?} is no number from 1 to 31999"));
        }
        number
    }

    fn read_route_tables(&mut self) -> Option<RouteTables> {
        let text = self.flag_text(&options::AMBIENT_TABLES);
        let numbers: Vec<u32> =
            model::list_elements(&text).filter_map(|number| number.parse().ok()).collect();
        let [inbound, outbound, slot_inbound, slot_outbound, slot_return] = numbers[..] else {
            self.add_mistake(&options::AMBIENT_TABLES, format!("{text:?} are not five numbers"));
            return None;
        };
        let tables = RouteTables { inbound, outbound, slot_inbound, slot_outbound, slot_return };
        let all = NodeConfig { tables, ..NodeConfig::default() }.all_tables();
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        let free = |table: &&model::TableId| table.0 > 0 && !(253..=255).contains(&table.0);
        if distinct.len() != all.len() || !all.iter().all(|table| free(&table)) {
            self.add_mistake(
                &options::AMBIENT_TABLES,
                "these are not eight different tables, or one is the kernel's",
            );
            return None;
        }
        Some(tables)
    }

    fn read_firewall_options(&mut self, native_nftables: Option<bool>) -> Option<firewall::FirewallOptions> {
        let forced = match self.optional_text(&options::FORCE_IPTABLES_BINARY) {
            None => None,
            Some(text) => match text.parse::<Backend>() {
                Ok(backend) => Some(backend),
                Err(error) => {
                    self.add_mistake(&options::FORCE_IPTABLES_BINARY, error);
                    return None;
                }
            },
        };
        let lock_directory = Some(self.debug_socket().with_file_name(run_dir::LOCKS));
        let native = NativeTables::by_setting(native_nftables?);
        let others = firewall::FirewallOptions::default();
        Some(firewall::FirewallOptions { forced, lock_directory, native, ..others })
    }
}
