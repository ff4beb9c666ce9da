//! Records of ADDs for people and for the next agent: see [`PodRecord`]. In ambient mode the agent itself knows the pods of the
//! node, so only failures are kept, and the namespaces of enrolled pods: an agent that starts before the API shows the pods'
//! addresses has no other source for these.
//!
//! A success has a file for its container, removed by DEL and GC; failures share a fixed number of files. Both are limited in bytes
//! ([`PodRecord::encode`]), so the directory is bounded by the runtime's containers, even without an agent that cleans it up.
//!
//! A record that cannot be written does not keep a pod from starting: its rules hold its traffic until it is found otherwise.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher as _, RandomState},
    io::{self, Read as _, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use agent_protocol::{NetnsFile, PodRecord, RECORDS, STAGED};
use cni_types::{CniError, NetConf};
use enrolment::PodDecision;
use model::{Pod, PodName};

use crate::{
    agent,
    call::PluginCall,
    log::{CallLog, current_time},
    offline_enrol,
};

/// Maximum size read, more than any failure's record has.
const MAX_READ: u64 = 16 << 10;

/// Records the outcome of an ADD. `ips`: the addresses that were sent to the agent; empty: those that the call has.
pub fn save_outcome(
    call: &PluginCall,
    (ips, pod): (Vec<IpAddr>, Option<Pod>),
    log: &mut CallLog,
    error: Option<&CniError>,
) {
    let Some(directory) = record_directory(&call.conf) else { return };
    let (Some(name), Some(container)) = (&call.pod, &call.environment.container_id) else { return };
    if error.is_none() {
        forget_failure(&directory, name);
        // In ambient mode the agent follows all pods, and those without rules need no record.
        if call.conf.ambient_enabled && matches!(log.decision, None | Some(PodDecision::Skip(_))) {
            return;
        }
    }
    let decision = log.decision.as_ref();
    let is_redirected = matches!(decision, Some(PodDecision::Sidecar(_)));
    let netns = call.environment.netns.as_ref().map(|netns| netns.as_path());
    let record = PodRecord {
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        uid: call.uid.clone().unwrap_or_default(),
        pod_uid: pod.as_ref().map(|pod| pod.metadata.uid.clone()).unwrap_or_default(),
        network: call.conf.name.clone(),
        container: container.clone(),
        netns: netns.map(|path| path.display().to_string()).unwrap_or_default(),
        netns_file: netns.and_then(netns_file),
        ips: if ips.is_empty() { offline_enrol::pod_addresses(call).unwrap_or_default() } else { ips },
        at: current_time(),
        decision: decision.map(PodDecision::code).unwrap_or_default().to_owned(),
        message: decision.map(ToString::to_string).unwrap_or_default(),
        error: error.map(|error| error.msg.clone()),
        rules: log.rules.rules.lines().clone(),
        captured: log.rules.captured.to_lines(),
        // A failure's pod is not evaluated.
        pod: pod.filter(|_| error.is_none() && is_redirected).map(|mut pod| {
            enrolment::facts::trim_pod(&mut pod);
            enrolment::facts::trim_to_sidecar(&mut pod);
            Box::new(pod)
        }),
    };
    let file = match error {
        Some(_) => agent_protocol::failure_place(&name.namespace, &name.name),
        None => container.as_str().to_owned(),
    };
    if let Err(error) = write_record(&directory, &file, record) {
        log.warn(format!("cannot record this ADD in {}: {error}", directory.display()));
    }
}

/// Removes the record of a failed earlier ADD of the pod, unless its slot is used by another pod now.
fn forget_failure(directory: &Path, name: &PodName) {
    let path = directory.join(agent_protocol::failure_place(&name.namespace, &name.name));
    let last = load_record(&path); // usually missing
    if last.is_some_and(|last| last.namespace == name.namespace && last.name == name.name) {
        drop(fs::remove_file(&path)); // on an error, shown until it is pruned
    }
}

fn load_record(path: &Path) -> Option<PodRecord> {
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(MAX_READ).read_to_end(&mut text).ok()?;
    PodRecord::decode(&text).ok()
}

/// Returns the record of the ADD that attached this container: of this pod, and of this network namespace, if it can be determined.
/// `None`: there is no valid one.
pub fn find_for_container(call: &PluginCall) -> Option<PodRecord> {
    let record = load_record(&container_file(call)?)?;
    let name = call.pod.as_ref()?;
    let is_same_pod = record.namespace == name.namespace
        && record.name == name.name
        && call.uid.as_ref().is_none_or(|uid| record.uid.is_empty() || record.uid == *uid);
    let now = call.environment.netns.as_ref().and_then(|netns| netns_file(netns.as_path()));
    let is_same_netns = record.netns_file.zip(now).is_none_or(|(then, now)| then == now);
    Some(record).filter(|_| is_same_pod && is_same_netns)
}

/// Removes the record of a deleted container.
pub fn delete_for_container(call: &PluginCall) {
    if let Some(file) = container_file(call) {
        drop(fs::remove_file(file)); // in ambient mode most pods have none
    }
}

/// Removes the records of containers that the runtime no longer has in this network. GC is not called concurrently with an ADD.
pub fn remove_stale(conf: &NetConf, attached: &BTreeSet<&str>) {
    let entries = record_directory(conf).and_then(|directory| fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        // Names of failures and staged files begin like no container ID.
        let is_container = |name: &&str| name.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_detached = name.to_str().filter(is_container).is_some_and(|name| !attached.contains(name));
        let is_of_network = |record: PodRecord| record.network.is_empty() || record.network == conf.name;
        if is_detached && load_record(&entry.path()).is_none_or(is_of_network) {
            drop(fs::remove_file(entry.path())); // the next call retries
        }
    }
}

fn netns_file(path: &Path) -> Option<NetnsFile> {
    let found = fs::metadata(path).ok()?;
    Some(NetnsFile { dev: found.dev(), ino: found.ino() })
}

/// Returns the record's file. `cni_types` has validated the container ID: letters, digits, and a few characters without meaning in
/// paths.
fn container_file(call: &PluginCall) -> Option<PathBuf> {
    Some(record_directory(&call.conf)?.join(call.environment.container_id.as_ref()?.as_str()))
}

fn record_directory(conf: &NetConf) -> Option<PathBuf> {
    Some(run_dir(conf)?.join(RECORDS))
}

/// Returns the directory of the sockets that the configuration names, else of the agent's default one.
pub(crate) fn run_dir(conf: &NetConf) -> Option<&Path> {
    let named = conf.log_uds_address.as_deref().or(conf.agent_socket.as_deref());
    Path::new(named.unwrap_or(agent::SOCKET)).parent()
}

/// Writes a record atomically, for root alone: a full disk or a kill leaves at most a staged file, which is never read and which
/// the agent removes. Without an agent's directory no one would read a record, or clean up.
fn write_record(directory: &Path, file: &str, record: PodRecord) -> io::Result<()> {
    let (text, file) = (record.encode().map_err(io::Error::other)?, directory.join(file));
    match replace_file(directory, &file, &text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match create_directory(directory, 0o700) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                made => made?,
            }
            replace_file(directory, &file, &text)
        }
        done => done,
    }
}

/// Creates a directory, unless it exists: a concurrent call may have created it.
pub(crate) fn create_directory(directory: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Writes a file atomically, for root alone, by way of the existing directory of records, where the agent looks for staged files.
pub(crate) fn replace_file(records: &Path, file: &Path, content: &[u8]) -> io::Result<()> {
    let unique = RandomState::new().hash_one(std::process::id());
    let staged = records.join(format!("{STAGED}{unique:016x}"));
    let mut staging = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged)?;
    let written = staging.write_all(content);
    let done = written.and_then(|()| fs::rename(&staged, file));
    if done.is_err() {
        drop(fs::remove_file(&staged)); // else the agent does
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("add-records-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn records_are_beside_the_sockets_that_are_named_else_beside_the_default_one() {
        let table = [
            ("", "/var/run/istio-cni"),
            (r#""agent_socket": "/a/agent.sock","#, "/a"),
            (r#""agent_socket": "/a/agent.sock", "log_uds_address": "/b/log.sock","#, "/b"),
        ];
        for (named, expected) in table {
            let text = format!(r#"{{{named} "cniVersion": "1.0.0", "name": "net", "type": "istio-cni"}}"#);
            let conf = NetConf::parse(text.as_bytes()).unwrap();
            assert_eq!(record_directory(&conf), Some(Path::new(expected).join(RECORDS)));
        }
    }

    #[test]
    fn a_record_is_whole_or_absent_and_nothing_staged_stays() {
        let run_dir = scratch("whole");
        let directory = run_dir.join(RECORDS);
        let record = |words: &str| PodRecord { message: words.to_owned(), ..PodRecord::default() };
        write_record(&directory, "one", record("first")).unwrap();
        write_record(&directory, "one", record(&"\u{1}".repeat(100_000))).unwrap();
        let text = fs::read(directory.join("one")).unwrap();
        assert!(text.len() <= agent_protocol::MAX_SUCCESS && PodRecord::decode(&text).is_ok());
        let endless = PodRecord { netns: "n".repeat(agent_protocol::MAX_SUCCESS), ..PodRecord::default() };
        assert!(write_record(&directory, "one", endless).is_err());
        assert_eq!(fs::read(directory.join("one")).unwrap(), text, "the earlier one stays");
        fs::create_dir(directory.join("two")).unwrap();
        assert!(write_record(&directory, "two", record("")).is_err(), "it cannot be renamed");
        assert_eq!(files(&directory), ["one", "two"]);
        fs::remove_dir_all(run_dir).unwrap();
    }

    #[test]
    fn without_an_agents_directory_nothing_is_recorded_and_nothing_is_wrong() {
        let run_dir = scratch("none");
        write_record(&run_dir.join("agent").join(RECORDS), "one", PodRecord::default()).unwrap();
        assert!(files(&run_dir).is_empty());
        fs::remove_dir_all(run_dir).unwrap();
    }

    #[test]
    fn failures_of_any_number_of_pods_take_a_bounded_space() {
        let run_dir = scratch("failures");
        let directory = run_dir.join(RECORDS);
        for number in 0..500 {
            let name = PodName { namespace: "shop".to_owned(), name: format!("web-{number}") };
            let record = PodRecord {
                namespace: name.namespace.clone(),
                name: name.name.clone(),
                error: Some("\u{1}\"".repeat(5000)),
                ..PodRecord::default()
            };
            write_record(&directory, &agent_protocol::failure_place(&name.namespace, &name.name), record)
                .unwrap();
        }
        let count = files(&directory).len();
        assert!(count <= usize::try_from(agent_protocol::FAILURE_PLACES).unwrap(), "{count} files");
        for file in files(&directory) {
            assert!(
                fs::metadata(directory.join(&file)).unwrap().len() <= agent_protocol::MAX_FAILURE as u64,
                "{file}"
            );
        }
        let last = PodName { namespace: "shop".to_owned(), name: "web-499".to_owned() };
        let place = directory.join(agent_protocol::failure_place("shop", "web-499"));
        let other = PodName { name: "web".to_owned(), ..last.clone() };
        fs::copy(&place, directory.join(agent_protocol::failure_place("shop", "web"))).unwrap();
        forget_failure(&directory, &other);
        assert!(directory.join(agent_protocol::failure_place("shop", "web")).exists(), "it is another pod's");
        forget_failure(&directory, &last);
        assert!(!place.exists());
        fs::remove_dir_all(run_dir).unwrap();
    }
}
