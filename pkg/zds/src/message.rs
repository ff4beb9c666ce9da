//! ZDS messages, as ztunnel reads and writes them (proto3, package `istio.workload.zds`).

pub use prost::Message;

/// The first message of a connection, from ztunnel.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ZdsHello {
    /// Version of the protocol that ztunnel speaks. 1 is the only existing version; 0 means none.
    #[prost(int32, tag = "1")]
    pub version: i32,
}

/// Request of the agent to ztunnel.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadRequest {
    /// Never missing.
    #[prost(oneof = "RequestPayload", tags = "1, 2, 3, 5")]
    pub payload: Option<RequestPayload>,
}

/// Kind of a request.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum RequestPayload {
    /// Serve this workload; the packet carries its network namespace.
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    /// Stop serving this workload.
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    /// The snapshot is complete: ztunnel shall stop serving all other workloads.
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    /// Keep serving this workload, if it is served.
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

/// A workload to serve.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AddWorkload {
    /// UID of the pod.
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Never missing: ztunnel would end its process.
    #[prost(message, optional, tag = "2")]
    pub workload_info: Option<WorkloadInfo>,
}

/// Identity of a workload.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadInfo {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace of the pod.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Service account of the pod, from which its identity in the mesh is made.
    #[prost(string, tag = "3")]
    pub service_account: String,
}

/// A workload that ztunnel shall stop serving.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DelWorkload {
    /// UID of the pod; field 2 here, unlike in other messages.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// A workload whose network namespace is not known.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeepWorkload {
    /// UID of the pod.
    #[prost(string, tag = "1")]
    pub uid: String,
}

/// End of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SnapshotSent {}

/// Response of ztunnel to a request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct WorkloadResponse {
    /// Missing only in an invalid answer.
    #[prost(oneof = "ResponsePayload", tags = "1")]
    pub payload: Option<ResponsePayload>,
}

/// Kind of an answer.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum ResponsePayload {
    /// The request was processed.
    #[prost(message, tag = "1")]
    Ack(Ack),
}

/// Acknowledgement that a request was processed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ack {
    /// Error text; empty if the request succeeded.
    #[prost(string, tag = "1")]
    pub error: String,
}
