//! Container runtimes of the node, and in what they differ.

use std::path::{Path, PathBuf};

use crate::machine::IMAGE;

/// A container runtime, and the version of CNI that its network has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Debian's containerd 1.6 with CNI 1.0.
    Containerd1,
    /// containerd 2 with CNI 1.1: it asks plugins for their STATUS.
    Containerd2,
}

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Containerd1 => "containerd 1.6, CNI 1.0",
            Self::Containerd2 => "containerd 2, CNI 1.1",
        }
    }

    /// Name of its program and process.
    pub(crate) fn process(self) -> &'static str {
        "containerd"
    }

    /// Directory of its program, and of those that it starts; `programs` are those that `hack/e2e` built.
    pub(crate) fn directory(self, programs: &Path) -> PathBuf {
        match self {
            Self::Containerd1 => "/usr/bin".into(),
            Self::Containerd2 => programs.into(),
        }
    }

    /// Directory of the network's own plugins.
    pub(crate) fn cni(self, programs: &Path) -> PathBuf {
        match self {
            Self::Containerd1 => "/usr/lib/cni".into(),
            Self::Containerd2 => programs.into(),
        }
    }

    /// `cniVersion` of the network.
    pub(crate) fn cni_version(self) -> &'static str {
        match self {
            Self::Containerd1 => "1.0.0",
            Self::Containerd2 => "1.1.0",
        }
    }

    /// Address of its socket for the kubelet.
    pub(crate) fn endpoint(self) -> &'static str {
        "unix:///run/containerd/containerd.sock"
    }

    /// Path of its settings below `/etc`.
    pub(crate) fn settings_file(self) -> &'static str {
        "containerd/e2e.toml"
    }

    /// Content of that file.
    pub(crate) fn settings(self) -> String {
        // Without CAP_SYS_RESOURCE, which virtual machines may lack, no score can be lowered.
        match self {
            Self::Containerd1 => format!(
                "version = 2\noom_score = 0\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{IMAGE}\"\n\
                 disable_tcp_service = true\nrestrict_oom_score_adj = true\n"
            ),
            Self::Containerd2 => format!(
                "version = 3\noom_score = 0\n[plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
                 [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '{IMAGE}'\n\
                 [plugins.'io.containerd.grpc.v1.cri']\ndisable_tcp_service = true\n"
            ),
        }
    }

    /// Command line on the node that prints the IDs of a pod's sandboxes.
    pub(crate) fn list_sandboxes(self, uid: &str) -> String {
        let filter =
            format!("labels.\"io.kubernetes.pod.uid\"=={uid},labels.\"io.cri-containerd.kind\"==sandbox");
        format!("ctr --namespace k8s.io containers ls --quiet '{filter}'")
    }

    /// Command line on the node that kills what holds a sandbox's namespaces.
    pub(crate) fn kill_sandbox(self, id: &str) -> String {
        format!("ctr --namespace k8s.io tasks kill --signal KILL {id}")
    }
}
