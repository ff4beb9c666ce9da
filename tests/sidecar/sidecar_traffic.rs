//! Effects of redirection on traffic: real connections and datagrams, with both backends and in both families. Each test names one
//! behaviour; the proof is the server that answered, its port, and the destination that it saw.

mod dns;
mod fixture;
mod inbound;
mod loopback;
mod other;
mod outbound;
mod tproxy;
