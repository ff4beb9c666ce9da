//! Settings of ambient mode.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use agent::RecordIndex;
use capture_modes::{CaptureConfig, InPodConfig};
use cni_types::run_dir;
use enrolment::{EnrolmentPolicy, inpod::PodOptionPolicy, selector::Enablement, ztunnel::ZtunnelSelector};
use firewall::{Backend, NativeTables};
use flags::{Flag, ValueSource};
use model::{ExistingConnections, Family};
use node_plan::{NodeConfig, RouteTables, RulePriorities};

use rules::inpod::{self, ProbeAddresses};

use super::{AgentIdentity, SettingsReader};
use crate::{AmbientOptions, EventSettings, PodSource, options};

/// Flag of the operator's selectors.
const SELECTORS: Flag = options::AMBIENT_ENABLEMENT_SELECTOR;
/// File with the previous values of kernel settings, beside the socket.
const JOURNAL: &str = "settings-before.json";

impl SettingsReader<'_> {
    /// Reads the settings of ambient mode, whether it is on or not.
    pub(super) fn read_ambient(
        &mut self,
        identity: &AgentIdentity,
        existing: ExistingConnections,
        native_nftables: bool,
        records: &Arc<RecordIndex>,
    ) -> AmbientOptions {
        let node = self.node_config();
        let (policy, source) = (self.ambient_policy(identity), self.pod_source());
        let fallback = self.parse_value(&options::NO_ZTUNNEL_POLICY);
        let tools = self.read_firewall_options(native_nftables);
        let socket = self.agent_socket();
        let journal = socket.parent().unwrap_or(Path::new("/")).join(JOURNAL);
        let capture = self.read_capture_mode(existing);
        let switches = self.parse_boolean(&options::ALLOW_SWITCH_TO_HOST_NS);
        let host_proc = PathBuf::from(self.flag_text(&options::HOST_PROC));
        let agent = capture_modes::CaptureSettings {
            capture,
            // Charts that leave the entry to the agent, or set selectors, belong to versions with in-pod capture, and lack the
            // mounts that node-level capture needs.
            starts_in_pod: self.is_generated() || policy.enablement.is_some(),
            node,
            policy,
            fallback,
            drift_attribution: self.drift_attribution(),
            tools,
            netns_directory: self.netns_directory(),
            records: Arc::clone(records),
            history: journal.with_file_name(super::debug::HISTORY),
            journal,
            shared_config: self.flag_text(&options::AMBIENT_CONFIG_FILE).into(),
        };
        let events = agent.capture.in_pod().map(|chosen| EventSettings {
            socket: self.shared_path(&options::CNI_EVENT_ADDRESS, run_dir::EVENT_SOCKET).into(),
            root: self.flag_text(&options::HOST_ROOT).into(),
            proc: chosen.proc.clone(),
            netns_directory: self.flag_text(&options::NETNS_DIR).into(),
        });
        AmbientOptions {
            agent,
            source,
            fallback_file: self.optional_text(&options::NO_ZTUNNEL_POLICY_FILE).map(PathBuf::from),
            host_network: switches.then(|| host_proc.join("1/ns/net")),
            events,
        }
    }

    /// Whether the process that changes rules is also identified on the node.
    fn drift_attribution(&mut self) -> bool {
        self.parse_flag(&options::DRIFT_ATTRIBUTION, |text| match text {
            "" => Ok(false),
            "node" => Ok(true),
            _ => Err(format!("{text:?} is neither empty nor node")),
        })
    }

    fn read_capture_mode(&mut self, existing: ExistingConnections) -> CaptureConfig {
        let chosen = self.in_pod(existing);
        match self.flag_text(&options::AMBIENT_CAPTURE).as_str() {
            "node" => return CaptureConfig::Node,
            "in-pod" => return CaptureConfig::InPod(chosen),
            "auto" | "" => {}
            text => {
                self.add_mistake(
                    &options::AMBIENT_CAPTURE,
                    format!("{text:?} must be one of node, in-pod and auto"),
                );
            }
        }
        CaptureConfig::Auto(chosen)
    }

    /// Whether only in-pod capture is configured.
    pub(super) fn is_always_in_pod(&self) -> bool {
        self.flag_text(&options::AMBIENT_CAPTURE) == "in-pod"
    }

    fn in_pod(&mut self, existing: ExistingConnections) -> InPodConfig {
        let istio = ProbeAddresses::default();
        let v4 = self.parse_probe_source(&options::HOST_PROBE_SNAT_IP, istio.v4);
        let v6 = self.parse_probe_source(&options::HOST_PROBE_SNAT_IPV6, istio.v6);
        let branch_probes = self.parse_boolean(&options::AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE);
        let allowed = self.parse_value(&options::AMBIENT_ALLOWED_EXCEPTIONS);
        let detected = [v4.is_none().then_some(Family::V4), v6.is_none().then_some(Family::V6)];
        let probes = ProbeAddresses { v4: v4.unwrap_or(istio.v4), v6: v6.unwrap_or(istio.v6) };
        InPodConfig {
            detected_probes: detected.into_iter().flatten().collect(),
            rules: inpod::InPodRulesConfig { probes, branch_probes, ..Default::default() },
            socket: self.flag_text(&options::ZTUNNEL_UDS_ADDRESS).into(),
            pods: PodOptionPolicy { dns_capture: self.parse_boolean(&options::AMBIENT_DNS_CAPTURE), allowed },
            existing,
            ipv6: self.parse_boolean(&options::AMBIENT_IPV6),
            proc: self.flag_text(&options::HOST_PROC).into(),
        }
    }

    /// Returns the flag's address; `None`: to be detected. Of a list, such as `status.hostIPs`, the first address of the flag's
    /// family is used, or else `default`: the node has none of that family.
    fn parse_probe_source<T: FromStr>(&mut self, flag: &Flag, default: T) -> Option<T> {
        self.parse_flag(flag, |text| {
            if text == options::DETECT {
                return Ok(None);
            }
            let addresses: Vec<&str> = model::list_elements(text).collect();
            let parsed: Vec<IpAddr> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
            if addresses.is_empty() || parsed.len() < addresses.len() {
                return Err(format!("{text:?} is not an IP address"));
            }
            if let Some(wrong) = parsed.into_iter().find(|ip| !can_be_source(*ip)) {
                return Err(format!(
                    "{wrong} cannot be the source of probes: it is unspecified, loopback, multicast, broadcast or IPv4-mapped"
                ));
            }
            Ok(Some(addresses.iter().find_map(|address| address.parse().ok()).unwrap_or(default)))
        })
    }

    /// Reads the selectors; `None`: pods are selected by their labels.
    fn read_enablement(&mut self) -> Option<Vec<Enablement>> {
        let parsed = self.parse_selectors().map_err(|error| self.add_mistake(&SELECTORS, error));
        parsed.ok().flatten().map(|(selectors, _)| selectors)
    }

    /// Parses the operator's selectors, and returns them as parsed and as written; `None`: none are configured. Helm renders a
    /// value of `null`, which unsets it, as that word.
    pub(super) fn parse_selectors(&self) -> Result<Option<(Vec<Enablement>, serde_json::Value)>, String> {
        let Some(text) = self.optional_text(&SELECTORS) else { return Ok(None) };
        let mut list = cluster_facts::parse_yaml(&text)?.into_iter().next().unwrap_or_default();
        if list.is_null() {
            return Ok(None);
        }
        write_scalars_as_text(&mut list);
        let read: Vec<Enablement> =
            serde_json::from_value(list.clone()).map_err(|error| error.to_string())?;
        read.iter().try_for_each(Enablement::check_selectors)?;
        Ok(Some((read, list)))
    }

    /// Returns the namespaces whose pods are never enrolled or redirected.
    pub(super) fn excluded_namespaces(&self) -> Vec<String> {
        let excluded = self.flag_text(&options::EXCLUDE_NAMESPACES);
        model::list_elements(&excluded).map(str::to_owned).collect()
    }

    /// Returns the namespaces of the node's agents: ours, if it is known, and those configured.
    pub(super) fn agent_namespaces(&self, identity: &AgentIdentity) -> Vec<String> {
        let own = Some(&identity.namespace).filter(|namespace| !namespace.is_empty());
        own.cloned().into_iter().chain(self.other_agent_namespaces()).collect()
    }

    pub(super) fn other_agent_namespaces(&self) -> Vec<String> {
        let named = self.flag_text(&options::AGENT_NAMESPACES);
        model::list_elements(&named).map(str::to_owned).collect()
    }

    /// Returns [`ExistingConnections::Keep`] if the value is empty.
    pub(super) fn existing_connections(&mut self) -> ExistingConnections {
        self.parse_flag(&options::EXISTING_CONNECTIONS, |text| match text {
            "" => Ok(ExistingConnections::default()),
            _ => {
                ExistingConnections::from_name(text).ok_or_else(|| format!("{text:?} must be keep or reset"))
            }
        })
    }

    fn pod_source(&mut self) -> PodSource {
        self.parse_flag(&options::POD_SOURCE, |text| match (text, text.strip_prefix("dir:")) {
            ("api" | "", _) => Ok(PodSource::Api),
            (_, Some(path)) if !path.is_empty() => Ok(PodSource::Directory(path.into())),
            _ => Err(format!("{text:?} is neither api nor dir:<path>")),
        })
    }

    fn ambient_policy(&mut self, identity: &AgentIdentity) -> EnrolmentPolicy {
        let label = self.parse_flag(&options::ZTUNNEL_LABEL, |text| {
            let label = text.split_once('=').filter(|(key, _)| !key.is_empty());
            let (key, value) = label.ok_or_else(|| format!("{text:?} is not key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        });
        let enablement = self.read_enablement();
        // Selectors imply a version of Istio in which the annotation is ignored.
        let ignores_opt_out = enablement.is_some() || self.is_always_in_pod();
        EnrolmentPolicy {
            ambient: true,
            ztunnel: ZtunnelSelector {
                label,
                namespaces: self.ztunnel_namespaces(identity),
                service_account: self.flag_text(&options::ZTUNNEL_SERVICE_ACCOUNT),
            },
            excluded_namespaces: self.excluded_namespaces(),
            enablement,
            ignores_opt_out,
            agent_namespaces: self.agent_namespaces(identity),
        }
    }

    /// Returns the configured namespace of ztunnel. Unless one is configured, ours as well: Istio's chart of 1.20 has no value for
    /// it, and on some platforms puts agent and ztunnel into kube-system. No other: permission to create pods of ztunnel's service
    /// account in our namespace implies permission to replace the agent.
    fn ztunnel_namespaces(&self, identity: &AgentIdentity) -> Vec<String> {
        let (chosen, source) = self.values.get(&options::SYSTEM_NAMESPACE);
        let own = Some(&identity.namespace)
            .filter(|own| source == ValueSource::Default && !own.is_empty() && own.as_str() != chosen);
        [Some(chosen.to_owned()), own.cloned()].into_iter().flatten().collect()
    }

    fn node_config(&mut self) -> NodeConfig {
        let defaults = NodeConfig::default();
        let tables = self.parse_flag(&options::AMBIENT_TABLES, |text| parse_route_tables(text).map(Some));
        let first = self.parse_flag(&options::AMBIENT_RULE_PRIORITY, |text| {
            let number = text.parse().ok().filter(|number| (1..32_000).contains(number));
            number.ok_or_else(|| format!("{text:?} is not a number from 1 to 31999"))
        });
        let priorities = RulePriorities { first };
        NodeConfig { tables: tables.unwrap_or(defaults.tables), priorities, ..defaults }
    }

    fn read_firewall_options(&mut self, native_nftables: bool) -> firewall::FirewallOptions {
        let forced = self.parse_flag(&options::FORCE_IPTABLES_BINARY, |text| match text {
            "" => Ok(None),
            _ => text.parse::<Backend>().map(Some).map_err(|error| error.to_string()),
        });
        let lock_directory = Some(self.debug_socket().with_file_name(run_dir::LOCKS));
        let native = NativeTables::by_setting(native_nftables);
        firewall::FirewallOptions { forced, lock_directory, native, ..firewall::FirewallOptions::default() }
    }
}

/// Whether this address can be the source of packets to a pod, and the destination of its replies to the node.
fn can_be_source(ip: IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(ip) => ip.octets().starts_with(&[0]) || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.to_ipv4_mapped().is_some(),
    };
    !is_special && !ip.is_loopback() && !ip.is_multicast()
}

/// Converts every scalar of a selector to text, as Istio does for unquoted ones.
fn write_scalars_as_text(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Bool(_) | Value::Number(_) => *value = Value::String(value.to_string()),
        Value::Array(values) => values.iter_mut().for_each(write_scalars_as_text),
        Value::Object(members) => members.values_mut().for_each(write_scalars_as_text),
        Value::Null | Value::String(_) => {}
    }
}

fn parse_route_tables(text: &str) -> Result<RouteTables, String> {
    let numbers: Result<Vec<u32>, _> = model::list_elements(text).map(str::parse).collect();
    let Ok(&[inbound, outbound, slot_inbound, slot_outbound, slot_return]) = numbers.as_deref() else {
        return Err(format!("{text:?} must be five numbers"));
    };
    let tables = RouteTables { inbound, outbound, slot_inbound, slot_outbound, slot_return };
    let all = NodeConfig { tables, ..NodeConfig::default() }.all_tables();
    let distinct: BTreeSet<_> = all.iter().collect();
    let free = |table: &&model::TableId| table.0 > 0 && !(253..=255).contains(&table.0);
    if distinct.len() != all.len() || !all.iter().all(|table| free(&table)) {
        return Err("these are not eight different tables, or one is the kernel's".to_owned());
    }
    Ok(tables)
}
