//! What redirection does to traffic: real connections and datagrams, with both backends and in both families. Each
//! test names one behaviour; who answered, on which port, and which destination it saw, is the proof.

#[path = "sidecar_traffic/dns.rs"]
mod dns;
#[path = "sidecar_traffic/inbound.rs"]
mod inbound;
#[path = "sidecar_traffic/loopback.rs"]
mod loopback;
#[path = "sidecar_traffic/other.rs"]
mod other;
#[path = "sidecar_traffic/outbound.rs"]
mod outbound;
#[path = "sidecar_traffic/scene.rs"]
mod scene;
#[path = "sidecar_traffic/tproxy.rs"]
mod tproxy;
