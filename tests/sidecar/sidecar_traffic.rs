//! What redirection does to traffic: real connections and datagrams, with both backends and in both families. Each
//! test names one behaviour; who answered, on which port, and which destination it saw, is the proof.

mod dns;
mod fixture;
mod inbound;
mod loopback;
mod other;
mod outbound;
mod tproxy;
