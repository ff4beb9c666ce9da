//! Second line of defence after an uninstallation that left the plugin behind.
//!
//! An agent that is killed before it can clean up leaves an entry in the network configuration with a credential that becomes
//! invalid with the agent's pod or its account. The API server then refuses to report which pods belong to the mesh, and no pod
//! could start on the node. If that persists, and no agent answers either, a pod is started that has no sidecar according to the
//! node itself. The evidence is the kubelet's: it creates a pod's volumes before the pod's sandbox, and every template of Istio's
//! has volumes for the sidecar.
//!
//! No local evidence shows whether a pod belongs to ambient mode: that depends on labels, which only the API server and the agent
//! know. With ambient mode on, these rules start no pod.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    attach::is_injected,
    call::PluginCall,
    facts::{LookupError, file_fingerprint},
    record,
};

/// Time after which a refusal counts as final, in seconds: longer than a rollout takes to start the next agent, including an image
/// pull.
const LASTING: i64 = 300;
/// Maximum size of [`agent_protocol::REFUSED_CREDENTIAL`], in bytes.
const MAX_FILE: u64 = 512;
/// Maximum number of entries read from a pod's volume directory.
const MAX_VOLUMES: usize = 4096;
/// File with the ID of the current boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Name prefix of most volumes that Istio's injection templates give to a sidecar.
const PREFIX: &str = "istio";
/// Names of the other ones.
const OTHERS: [&str; 4] =
    ["workload-socket", "credential-socket", "workload-certs", "gke-workload-certificate"];
const REMEDY: &str =
    "reinstall the node agent, or remove what it left on this node with `install-cni uninstall`";

/// Decides whether an ADD of a pod that is unknown because of `error` may succeed: `Ok` with a warning for the log, or `Err` with
/// an addition to the error. `None`: not applicable.
pub fn judge_add(call: &PluginCall, error: &LookupError) -> Option<Result<String, String>> {
    if !error.is_refusal() {
        if error.is_not_found() {
            remove_record(call); // the credential is accepted
        }
        return None;
    }
    if call.conf.ambient_enabled {
        let why = "which pods belong to ambient mode, only the API server and the node agent know";
        return Some(Err(format!("{why}; {REMEDY}")));
    }
    let socket = call.conf.log_uds_address.as_deref()?;
    if !matches!(socketfile::is_in_use(Path::new(socket)), Ok(false)) {
        remove_record(call);
        return None;
    }
    Some(by_the_node(call, socket))
}

/// Removes the record of refusals: the API server has accepted the credential, or an agent runs.
pub fn remove_record(call: &PluginCall) {
    if let (false, Some(directory)) = (call.conf.ambient_enabled, record::run_dir(&call.conf)) {
        drop(fs::remove_file(directory.join(agent_protocol::REFUSED_CREDENTIAL))); // usually missing
    }
}

fn by_the_node(call: &PluginCall, socket: &str) -> Result<String, String> {
    let lasted = refused_seconds(call, socket)
        .map_err(|error| format!("cannot note the refusal: {error}; {REMEDY}"))?;
    if lasted < LASTING {
        return Err(format!(
            "no node agent listens at {socket}; when this has lasted {LASTING} s (by now {lasted} s), pods without a \
             sidecar start"
        ));
    }
    match shows_no_sidecar(call) {
        Ok(directory) => Ok(format!(
            "the API server has refused the plugin's credential for {lasted} s and no node agent listens at {socket}; the \
             pod starts outside of the mesh, because {directory} has no volume of a sidecar; {REMEDY}"
        )),
        Err(why) => Err(format!(
            "no node agent listens at {socket}; this has lasted {lasted} s, so that pods without a sidecar start, but {why}; \
             {REMEDY}"
        )),
    }
}

/// Returns for how many seconds this credential has been refused, according to earlier calls; records the time if none did.
fn refused_seconds(call: &PluginCall, socket: &str) -> io::Result<i64> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let directory = record::run_dir(&call.conf).ok_or_else(missing)?;
    let credential =
        file_fingerprint(Path::new(call.conf.kubernetes.kubeconfig.as_deref().unwrap_or_default()));
    let boot = fs::read_to_string(BOOT_ID)?;
    let refused = format!("{} {credential} {}\n", boot.trim(), file_fingerprint(Path::new(socket)));
    let now = clock_gettime(ClockId::Boottime).tv_sec;
    let note = directory.join(agent_protocol::REFUSED_CREDENTIAL);
    if let Some(since) = recorded_since(&note, &refused)
        && since <= now
    {
        return Ok(now - since);
    }
    let records = directory.join(agent_protocol::RECORDS);
    record::create_directory(directory, 0o755)?; // a reboot may have removed it
    record::create_directory(&records, 0o700)?;
    record::replace_file(&records, &note, format!("{now} {refused}").as_bytes())?;
    Ok(0)
}

/// Returns since when, if the record is about this credential and this boot.
fn recorded_since(path: &Path, refused: &str) -> Option<i64> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    let (since, rest) = text.split_once(' ')?;
    since.parse().ok().filter(|_| rest == refused)
}

/// Returns the directory that proves that the pod has no sidecar.
///
/// # Errors
/// The pod has a sidecar, or that cannot be excluded.
fn shows_no_sidecar(call: &PluginCall) -> Result<String, String> {
    if is_injected(call) {
        return Err("this pod was injected".to_owned());
    }
    let uid = call.uid.as_ref().ok_or("the runtime does not give this pod's UID")?;
    let directory =
        Path::new(&call.conf.kubernetes.kubelet_root_dir).join("pods").join(uid.as_str()).join("volumes");
    let unreadable = |error| format!("{} cannot be read ({error})", directory.display());
    match find_sidecar_volume(&directory).map_err(unreadable)? {
        None => Ok(directory.display().to_string()),
        Some(volume) => Err(format!("{} has {volume}, a volume of a sidecar", directory.display())),
    }
}

/// Finds a sidecar's volume. The directory has a subdirectory for each kind of volume, and that one for each volume.
fn find_sidecar_volume(directory: &Path) -> io::Result<Option<String>> {
    let mut left = MAX_VOLUMES;
    let mut count = || {
        left = left.checked_sub(1).ok_or_else(|| io::Error::other("it has too many entries"))?;
        Ok::<_, io::Error>(())
    };
    for kind in fs::read_dir(directory)? {
        count()?;
        for volume in fs::read_dir(kind?.path())? {
            count()?;
            let name = volume?.file_name().to_string_lossy().into_owned();
            if name.starts_with(PREFIX) || OTHERS.contains(&name.as_str()) {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Volumes as the kubelet lays them out: by the kind's name, then the volume's.
    fn pod(volumes: &[&str]) -> std::path::PathBuf {
        static PODS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = PODS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("volumes-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        volumes.iter().for_each(|volume| fs::create_dir_all(directory.join(volume)).unwrap());
        directory
    }

    #[test]
    fn a_sidecar_shows_in_a_pods_volumes() {
        for (volumes, sidecars) in [
            (&[][..], None),
            (&["kubernetes.io~projected/kube-api-access-x2x4z"], None),
            (&["kubernetes.io~configmap/config", "kubernetes.io~empty-dir/not-istio"], None),
            (&["kubernetes.io~projected/istio-token"], Some("istio-token")),
            (&["kubernetes.io~configmap/istiod-ca-cert"], Some("istiod-ca-cert")),
            (&["kubernetes.io~configmap/config", "kubernetes.io~empty-dir/istio-envoy"], Some("istio-envoy")),
            (&["kubernetes.io~csi/workload-socket"], Some("workload-socket")),
            (&["kubernetes.io~empty-dir/credential-socket"], Some("credential-socket")),
            (&["kubernetes.io~empty-dir/workload-certs"], Some("workload-certs")),
            (&["kubernetes.io~csi/gke-workload-certificate"], Some("gke-workload-certificate")),
        ] {
            let directory = pod(volumes);
            assert_eq!(find_sidecar_volume(&directory).unwrap().as_deref(), sidecars, "{volumes:?}");
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn a_list_that_is_not_complete_shows_nothing() {
        let directory = pod(&[]);
        fs::write(directory.join("file"), "").unwrap();
        assert!(find_sidecar_volume(&directory).is_err(), "not as the kubelet lays it out");
        fs::remove_file(directory.join("file")).unwrap();
        let many = directory.join("kubernetes.io~configmap");
        (0..=MAX_VOLUMES).for_each(|number| fs::create_dir_all(many.join(number.to_string())).unwrap());
        assert!(find_sidecar_volume(&directory).is_err(), "too many");
        fs::remove_dir_all(&directory).unwrap();
        assert!(find_sidecar_volume(&directory).is_err(), "none");
    }
}
