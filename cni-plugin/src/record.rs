//! What an ADD leaves behind for people who ask later, and for the next agent: see [`PodRecord`]. In ambient mode the agent
//! knows the pods of the node by itself, so only what failed is kept, and which namespace an enrolled pod has: an agent that
//! is started before the API shows the pod's addresses can learn that from nobody else.
//!
//! That a record cannot be written keeps no pod from starting: its rules hold its traffic until it is found otherwise.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cni_types::CniError;
use model::{ContainerId, Pod};
use wire::{FAILED, NetnsFile, PodRecord, RECORDS};

use crate::{
    call::PluginCall,
    log::{CallLog, now},
    offline_enrol,
};

/// Notes how an ADD ended.
pub fn keep(call: &PluginCall, pod: Option<Pod>, log: &mut CallLog, error: Option<&CniError>) {
    let Some(directory) = directory(call) else { return };
    let (Some(name), Some(container)) = (&call.pod, container(call)) else { return };
    let (code, words) = log.decision().unwrap_or_default();
    let failed = directory.join(format!("{FAILED}{}_{}", name.namespace, name.name));
    let netns = call.environment.netns.as_ref().map(|netns| netns.as_path());
    let record = PodRecord {
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        uid: call.uid.clone().unwrap_or_default(),
        container: container.clone(),
        netns: netns.map(|path| path.display().to_string()).unwrap_or_default(),
        netns_file: netns.and_then(netns_file),
        ips: offline_enrol::addresses(call).unwrap_or_default(),
        at: now(),
        decision: code.to_owned(),
        words: words.to_owned(),
        error: error.map(|error| error.msg.clone()),
        rules: log.rules().clone(),
        pod: pod.map(|mut pod| {
            planner::facts::trim(&mut pod);
            Box::new(pod)
        }),
    };
    let done = match error {
        Some(_) => write(&directory, &failed, &record),
        None => {
            drop(fs::remove_file(&failed)); // most often there is none
            if call.conf.ambient_enabled && !log.has_enrolled() {
                return;
            }
            write(&directory, &directory.join(container.as_str()), &record)
        }
    };
    // Without an agent's directory there is nobody who would read it.
    if let Err(error) = done
        && error.kind() != io::ErrorKind::NotFound
    {
        log.debug(format!("no record in {}: {error}", directory.display()));
    }
}

/// The container is gone.
pub fn forget(call: &PluginCall) {
    if let (Some(directory), Some(container)) = (directory(call), container(call)) {
        drop(fs::remove_file(directory.join(container.as_str()))); // in ambient mode there is none of most pods
    }
}

fn netns_file(path: &Path) -> Option<NetnsFile> {
    let found = fs::metadata(path).ok()?;
    Some(NetnsFile { dev: found.dev(), ino: found.ino() })
}

/// Checked by `cni_types`: letters, digits, and some signs that no path is made of.
fn container(call: &PluginCall) -> Option<&ContainerId> {
    call.environment.container_id.as_ref()
}

fn directory(call: &PluginCall) -> Option<PathBuf> {
    Some(run_dir(call)?.join(RECORDS))
}

/// The directory of the sockets; none where the plugin shares no directory with an agent.
pub(crate) fn run_dir(call: &PluginCall) -> Option<&Path> {
    let socket = call.conf.log_uds_address.as_ref().or(call.conf.agent_socket.as_ref())?;
    Path::new(socket).parent()
}

/// For root alone. Readers pass over what is only half there.
fn write(directory: &Path, path: &Path, record: &PodRecord) -> io::Result<()> {
    let text = serde_json::to_vec(record)?;
    let write = || {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        io::Write::write_all(&mut file, &text)
    };
    match write() {
        // The agent's directory must be there: without an agent there is nobody who would clean it up.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().mode(0o700).create(directory)?;
            write()
        }
        done => done,
    }
}
