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
        let doing = || format!("run {} in pod {namespace}/{pod}", command.join(" "));
        match tokio::time::timeout(limit, self.run_in_container(namespace, pod, container, command, most))
            .await
        {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(ExecError::Request(cause))) => Err(Error::request(doing(), &cause)),
            Ok(Err(ExecError::Output(cause))) => Err(Error::unavailable(doing(), cause)),
            Err(_) => Err(Error::Timeout { doing: doing(), limit }),
        }
    }

    async fn run_in_container(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
        most: u64,
    ) -> Result<Vec<u8>, ExecError> {
        let pods: Api<Pod> = Api::namespaced(self.kube.clone(), namespace);
        let options = AttachParams::default().container(container).stdin(false).stdout(true).stderr(true);
        let command = command.iter().copied();
        let mut process = pods.exec(pod, command, &options).await.map_err(ExecError::Request)?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let (output, complaint) = tokio::join!(read_limited(stdout, most), read_limited(stderr, COMPLAINT));
        let output = output.map_err(|cause| ExecError::Output(cause.to_string()))?;
        if !output.is_empty() {
            return Ok(output);
        }
        let status = match process.take_status() {
            Some(status) => tokio::time::timeout(REASON, status).await.ok().flatten(),
            None => None,
        };
        let stderr_text = complaint
            .map(|stderr_text| String::from_utf8_lossy(&stderr_text).trim().to_owned())
            .unwrap_or_default();
        let status = status.and_then(|status| status.message).filter(|message| !message.is_empty());
        let parts: Vec<String> = status
            .into_iter()
            .chain(Some(stderr_text).filter(|stderr_text| !stderr_text.is_empty()))
            .collect();
        Err(ExecError::Output(if parts.is_empty() {
            "it wrote nothing".to_owned()
        } else {
            parts.join(": ")
        }))
    }
}

enum ExecError {
    Request(kube::Error),
    Output(String),
}

/// Reads up to one byte more than `most`.
async fn read_limited(stream: Option<impl AsyncRead + Unpin>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(most.saturating_add(1)).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}
