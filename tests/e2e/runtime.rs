//! Container runtimes of the node, and their differences.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::machine::IMAGE;

/// A container runtime, and the CNI version of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Debian's containerd 1.6 with CNI 1.0.
    Containerd1,
    /// containerd 2 with CNI 1.1: it calls STATUS.
    Containerd2,
    /// CRI-O without infra containers, as by default, with CNI 1.1 and a runc that supports user namespaces. CRI-O calls CHECK
    /// after a pod's ADD, and for every pod when it starts.
    Crio,
    /// CRI-O with infra containers, as for pods that share a PID namespace, with CNI 1.0 and Debian's runc.
    CrioInfra,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Containerd1 => "containerd 1.6, CNI 1.0",
            Self::Containerd2 => "containerd 2, CNI 1.1",
            Self::Crio => "CRI-O 1.34, CNI 1.1",
            Self::CrioInfra => "CRI-O 1.34 with infra containers, CNI 1.0",
        }
    }

    /// Name of its program and process.
    pub(crate) fn process(self) -> &'static str {
        if self.is_crio() { "crio" } else { "containerd" }
    }

    pub(crate) fn is_crio(self) -> bool {
        matches!(self, Self::Crio | Self::CrioInfra)
    }

    /// Directory of its program and helpers; `programs` are those that `hack/e2e` built.
    pub(crate) fn directory(self, programs: &Path) -> PathBuf {
        match self {
            Self::Containerd1 => "/usr/bin".into(),
            Self::Containerd2 => programs.into(),
            Self::Crio | Self::CrioInfra => crio_programs(),
        }
    }

    /// Directory of the network's own plugins.
    pub(crate) fn cni(self, programs: &Path) -> PathBuf {
        match self {
            Self::Containerd1 | Self::CrioInfra => "/usr/lib/cni".into(),
            Self::Containerd2 | Self::Crio => programs.into(),
        }
    }

    /// `cniVersion` of the network.
    pub(crate) fn cni_version(self) -> &'static str {
        match self {
            Self::Containerd1 | Self::CrioInfra => "1.0.0",
            Self::Containerd2 | Self::Crio => "1.1.0",
        }
    }

    /// Whether it calls the plugins of a pod's network as of its ADD until the pod ends: the plugin outlives its installation.
    pub(crate) fn keeps_plugin(self) -> bool {
        self.is_crio()
    }

    /// Whether it supports user namespaces for pods.
    pub(crate) fn has_user_namespaces(self) -> bool {
        self == Self::Crio
    }

    /// Interval at which a node on two cores can create pods: CRI-O starts more processes for each.
    pub(crate) fn pod_interval(self) -> Duration {
        Duration::from_millis(if self.is_crio() { 1000 } else { 400 })
    }

    /// Address of its socket for the kubelet.
    pub(crate) fn endpoint(self) -> &'static str {
        if self.is_crio() { CRIO_SOCKET } else { "unix:///run/containerd/containerd.sock" }
    }

    /// Settings files below `/etc`, with their content. CRI-O gives pods the network of this name; without a name, the first one.
    pub(crate) fn settings(self, network: &str) -> Vec<(&'static str, String)> {
        // Without CAP_SYS_RESOURCE, which virtual machines may lack, no OOM score can be lowered.
        let containerd = "containerd/e2e.toml";
        match self {
            Self::Containerd1 => vec![(
                containerd,
                format!(
                    "version = 2\noom_score = 0\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
                     disable_tcp_service = true\nrestrict_oom_score_adj = true\n"
                ),
            )],
            Self::Containerd2 => vec![(
                containerd,
                format!(
                    "version = 3\noom_score = 0\n[plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
                     [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '{IMAGE}'\n\
                     [plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/etc/containerd/certs.d'\n\
                     [plugins.'io.containerd.grpc.v1.cri']\ndisable_tcp_service = true\n"
                ),
            )],
            Self::Crio => crio(true, &crio_programs().join("runc"), network),
            Self::CrioInfra => crio(false, Path::new("/usr/bin/runc"), network),
        }
    }

    /// Shell command on the node that prints the IDs of a pod's sandboxes.
    pub(crate) fn list_sandboxes(self, uid: &str) -> String {
        if self.is_crio() {
            return format!("{} pods --quiet --no-trunc --label io.kubernetes.pod.uid={uid}", crictl());
        }
        let filter =
            format!("labels.\"io.kubernetes.pod.uid\"=={uid},labels.\"io.cri-containerd.kind\"==sandbox");
        format!("ctr --namespace k8s.io containers ls --quiet '{filter}'")
    }

    /// Shell command on the node that kills the process that holds a sandbox's namespaces. Without infra containers there is none,
    /// and the sandbox is stopped.
    pub(crate) fn kill_sandbox(self, id: &str) -> String {
        match self {
            Self::Containerd1 | Self::Containerd2 => {
                format!("ctr --namespace k8s.io tasks kill --signal KILL {id}")
            }
            Self::Crio => format!("{} stopp {id}", crictl()),
            Self::CrioInfra => format!("/usr/bin/runc --root /run/runc kill {id} KILL"),
        }
    }
}

const CRIO_SOCKET: &str = "unix:///run/crio/crio.sock";

/// Directory of the programs that `hack/crio` builds.
fn crio_programs() -> PathBuf {
    std::env::var_os("MILLRACE_CRIO").expect("hack/e2e sets MILLRACE_CRIO").into()
}

fn crictl() -> String {
    format!("{} --runtime-endpoint {CRIO_SOCKET}", crio_programs().join("crictl").display())
}

/// CRI-O's settings. On a machine without `CAP_SYS_RESOURCE` (bit 24), such as a virtual machine, it would still lower OOM scores
/// and give that capability to privileged containers, and has no setting to disable this: a script replaces runc.
fn crio(drop_infra: bool, runc: &Path, network: &str) -> Vec<(&'static str, String)> {
    let runc = format!(
        r#"#!/bin/sh
bounding=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
if [ $((0x$bounding >> 24 & 1)) = 0 ]; then
  for argument; do
    [ "$before" != --bundle ] ||
      sed -i -e 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' -e '/"CAP_SYS_RESOURCE",$/d' "$argument/config.json"
    before=$argument
  done
fi
exec {} "$@"
"#,
        runc.display()
    );
    let settings = format!(
        r#"[crio]
storage_driver = "overlay"
[crio.api]
listen = "/run/crio/crio.sock"
[crio.runtime]
cgroup_manager = "cgroupfs"
drop_infra_ctr = {drop_infra}
apparmor_profile = "unconfined"
hooks_dir = []
pinns_path = "{}"
default_runtime = "runc"
[crio.runtime.runtimes.runc]
runtime_path = "/etc/crio/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{IMAGE}"
pause_command = "/bin/pause"
signature_policy = "/etc/crio/policy.json"
[crio.network]
cni_default_network = "{network}"
plugin_dirs = ["/opt/cni/bin"]
[crio.nri]
enable_nri = false
"#,
        crio_programs().join("pinns").display()
    );
    let policy = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#.to_owned();
    vec![("crio/e2e.toml", settings), ("crio/policy.json", policy), ("crio/runc", runc)]
}
