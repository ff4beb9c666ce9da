//! Entry points for fuzz targets, without other callers.

use std::net::IpAddr;

use crate::names::{DnsAnswer, RecordType, ResolvConf, encode_query, in_hosts, parse_answer};

/// Returns a DNS query for the addresses of a name, of IPv6 or IPv4.
pub fn dns_query(id: u16, name: &str, v6: bool) -> Option<Vec<u8>> {
    encode_query(id, name, record_type(v6))
}

/// Returns the addresses in the response to that query; `None` if it is not its response, or reports a failure.
pub fn dns_answer(message: &[u8], id: u16, name: &str, v6: bool) -> Option<Vec<IpAddr>> {
    match parse_answer(message, id, name, record_type(v6))? {
        DnsAnswer::Addresses(addresses) => Some(addresses),
        DnsAnswer::Failed(_) | DnsAnswer::Truncated => None,
    }
}

/// Parses the text as a hosts file and as a `resolv.conf`. Returns the addresses of the name in the former, and the servers and the
/// candidate names in the latter.
pub fn name_files(text: &str, name: &str) -> (Vec<IpAddr>, Vec<IpAddr>, Vec<String>) {
    let conf = ResolvConf::parse(text);
    let candidates = conf.candidate_names(name);
    (in_hosts(text, name), conf.servers, candidates)
}

fn record_type(v6: bool) -> RecordType {
    if v6 { RecordType::Aaaa } else { RecordType::A }
}
