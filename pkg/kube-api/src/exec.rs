//! Commands in containers of pods (`pods/exec`, over WebSocket).

use std::{io, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::AttachParams};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{Error, KubeClient, forward::REASON};

/// Maximum length of a command's standard error, in bytes.
const COMPLAINT: u64 = 4096;

impl KubeClient {
    /// Runs a command in a container, and returns at most `most` bytes of its standard output. The exit status is ignored: a
    /// command that reports a finding with it has written its output as well.
    ///
    /// # Errors
    /// The API server or the kubelet refuses, the command cannot be started or writes nothing, or all of this takes longer than
    /// `limit`.
    pub async fn exec_output(
        &self,
        (namespace, pod, container): (&str, &str, &str),
        command: &[&str],
        most: u64,
        limit: Duration,
    ) -> Result<Vec<u8>, Error> {
        let doing = format!("run {} in pod {namespace}/{pod}", command.join(" "));
        let run = self.run_in_container(&doing, (namespace, pod, container), command, most);
        let output = tokio::time::timeout(limit, run).await;
        output.unwrap_or(Err(Error::Timeout { doing, limit }))
    }

    async fn run_in_container(
        &self,
        doing: &str,
        (namespace, pod, container): (&str, &str, &str),
        command: &[&str],
        most: u64,
    ) -> Result<Vec<u8>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.kube.clone(), namespace);
        let options = AttachParams::default().container(container).stdin(false).stdout(true).stderr(true);
        let command = command.iter().copied();
        let process = pods.exec(pod, command, &options).await;
        let mut process = process.map_err(|cause| Error::request(doing.to_owned(), &cause))?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let (output, complaint) = tokio::join!(read_limited(stdout, most), read_limited(stderr, COMPLAINT));
        let output = output.map_err(|cause| Error::unavailable(doing, cause.to_string()))?;
        if !output.is_empty() {
            return Ok(output);
        }
        let status = match process.take_status() {
            Some(status) => tokio::time::timeout(REASON, status).await.ok().flatten(),
            None => None,
        };
        let message = status.and_then(|status| status.message).unwrap_or_default();
        let complaint = complaint.unwrap_or_default();
        let complaint = String::from_utf8_lossy(&complaint);
        let mut parts = vec![message.as_str(), complaint.trim()];
        parts.retain(|part| !part.is_empty());
        let why = if parts.is_empty() { "it wrote nothing".to_owned() } else { parts.join(": ") };
        Err(Error::unavailable(doing, why))
    }
}

/// Reads up to one byte more than `most`.
async fn read_limited(stream: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(most.saturating_add(1)).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}
