//! Answers of a name server, and the files that select it.

use apiclient::fuzzing;

/// ID of the query in the seeds.
const ID: u16 = 7;
const NAME: &str = "api.x";
/// Length of the shortest record with an address, whose name is a pointer.
const RECORD: usize = 16;

/// Any datagram is an answer to our query or not, the same each time, with no more addresses than fit into it, all of the requested
/// family or of an alias. Our own query, sent back, is no answer. As text it is a hosts file and a `resolv.conf` with one to three
/// servers and a name to query.
///
/// # Panics
/// If one of these does not hold.
pub fn dns_answer(data: &[u8]) {
    for v6 in [false, true] {
        let answer = fuzzing::dns_answer(data, ID, NAME, v6);
        assert_eq!(answer, fuzzing::dns_answer(data, ID, NAME, v6));
        assert!(answer.is_none_or(|found| found.len() <= data.len() / RECORD));
    }
    let text = String::from_utf8_lossy(data);
    let name: String = text.chars().take(300).collect();
    if let Some(query) = fuzzing::dns_query(ID, &name, false) {
        assert_eq!(fuzzing::dns_answer(&query, ID, &name, false), None, "{name:?}");
    }
    let (_, servers, candidates) = fuzzing::name_files(&text, NAME);
    assert!((1..=3).contains(&servers.len()), "{servers:?}");
    assert!(candidates.iter().any(|candidate| candidate == NAME), "{candidates:?}");
}
