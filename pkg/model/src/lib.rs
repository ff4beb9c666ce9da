//! Vocabulary shared by all other crates: ports, marks, interface names, address families, and slim facts about pods, namespaces
//! and nodes.
//!
//! Pure: no I/O, no clock, no environment. Every value enforces its own rules, so that an invalid one (an interface name of forty
//! bytes, a mark without mask) cannot be passed on.

mod event;
mod existing;
mod go_bool;
mod identifier;
mod list;
mod net;
mod node;
mod pod;
mod privilege;
mod reason;
mod status;
mod trust;
mod word_enum;

pub use event::{EventLevel, EventSubject, NOTICE_INTERVAL, Notice};
pub use existing::ExistingConnections;
pub use go_bool::{parse_go_bool, parse_switch};
pub use identifier::{ContainerId, MemberAddresses, PodUid};
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use list::list_elements;
pub use net::{Family, IfName, InvalidIfName, Mark, Port, TableId};
pub use node::{
    Affinity, DaemonSet, DaemonSetSpec, DaemonSetStatus, EnvSource, LabelRequirement, Node, NodeAffinity,
    NodeInfo, NodeSelector, NodeSelectorTerm, NodeSpec, NodeStatus, PodPlacement, PodTemplate, Taint,
    TemplateContainer, Toleration,
};
pub use pod::{
    CONFIG_HASH, CONFIG_MIRROR, Container, EnvVar, Namespace, ObjectMeta, OwnerReference, Pod, PodName,
    PodSpec, SecurityContext, null_is_empty,
};
pub use privilege::{Capabilities, NetworkPrivilege};
pub use reason::{Reason, describe_error};
pub use status::{
    Condition, ContainerState, ContainerStatus, PodIp, PodStatus, Termination, Waiting, condition_status,
};
pub use trust::ApiServerTrust;
