//! Messages on our Unix sockets: log lines and requests of plugins, and the agent's answers.

use agent_protocol::{
    AgentAnswer, AgentRequest, LogRecord, PluginEvent, PodRecord, SharedConfig, parse_post_body, post_body,
};
use serde_json::Value;

/// Any body is a list of lines no longer than itself, or an error; each line is a record or an error; and a record's own line,
/// alone and in a body, is that record.
///
/// # Panics
/// If one of these does not hold.
pub fn log_post(data: &[u8]) {
    let lines = match parse_post_body(data) {
        Ok(lines) => lines,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(lines.iter().map(String::len).sum::<usize>() <= data.len());
    let records: Vec<LogRecord> = lines.iter().filter_map(|line| LogRecord::parse(line).ok()).collect();
    let body = post_body(&records);
    let again = parse_post_body(body.as_bytes()).unwrap_or_default();
    assert_eq!(again.len(), records.len(), "{body}");
    for (line, record) in again.iter().zip(&records) {
        assert_eq!(line.matches('\n').count(), 1, "one line: {line:?}");
        assert_eq!(LogRecord::parse(line).ok().as_ref(), Some(record), "{line}");
    }
}

/// Any line is a request, an answer, a record of an ADD, a shared file, or an error; a parsed one parses back to itself from one
/// line.
///
/// # Panics
/// If one of these does not hold.
pub fn agent_messages(data: &[u8]) {
    reads_back::<AgentRequest>(data);
    reads_back::<AgentAnswer>(data);
    reads_back::<PodRecord>(data);
    if let Ok(mut shared) = serde_json::from_slice::<SharedConfig>(data) {
        // Numbers out of range, which our own never has, are read as the nearest ones.
        shared.node.iter_mut().for_each(|node| node.config = Value::Null);
        reads_back::<SharedConfig>(serde_json::to_string(&shared).unwrap_or_default().as_bytes());
    }
}

fn reads_back<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(data) else { return };
    let line = serde_json::to_string(&value).unwrap_or_default();
    assert!(!line.contains('\n'), "{line}");
    assert_eq!(serde_json::from_str::<T>(&line).ok().as_ref(), Some(&value), "{line}");
}

/// Any body is an event with names and addresses, none of which is IPv4-mapped IPv6, or an error.
///
/// # Panics
/// If one of these does not hold.
pub fn plugin_event(data: &[u8]) {
    match PluginEvent::parse(data) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(event) => {
            assert!([&event.netns, &event.name, &event.namespace].iter().all(|name| !name.is_empty()));
            assert!(event.ips.iter().all(|ip| ip.to_canonical() == *ip), "{:?}", event.ips);
        }
    }
}
