//! Port forwarding to pods through the API server and the kubelet (`pods/portforward`, over WebSocket).

use std::{io, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::Portforwarder};
use model::describe_error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::{Error, KubeClient};

/// Wait for the kubelet's error after a connection ended without a response: the error follows immediately or never.
pub(crate) const REASON: Duration = Duration::from_millis(200);

/// Connection to a port on a pod's loopback interface. Closed when dropped.
pub struct ForwardedPort {
    stream: DuplexStream,
    port: u16,
    forwarder: Portforwarder,
}

impl KubeClient {
    /// Connects to a port of a pod. A port without a listener is no error yet: see [`ForwardedPort::failure_reason`].
    ///
    /// # Errors
    /// The API server or the kubelet refuses, or does not respond within `limit`.
    pub async fn forward_port(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
        limit: Duration,
    ) -> Result<ForwardedPort, Error> {
        let doing = || format!("connect to port {port} of pod {namespace}/{pod}");
        let pods: Api<Pod> = Api::namespaced(self.kube.clone(), namespace);
        let ports = [port];
        let asked = pods.portforward(pod, &ports);
        let Ok(answer) = tokio::time::timeout(limit, asked).await else {
            return Err(Error::Timeout { doing: doing(), limit });
        };
        let mut forwarder = answer.map_err(|cause| Error::request(doing(), &cause))?;
        match forwarder.take_stream(port) {
            Some(stream) => Ok(ForwardedPort { stream, port, forwarder }),
            None => Err(Error::unavailable(doing(), "the API server forwards another port")),
        }
    }
}

impl ForwardedPort {
    /// Sends a request, and reads the response up to the end of the connection, or to one byte more than `most`.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn exchange(&mut self, request: &[u8], most: u64) -> io::Result<Vec<u8>> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let mut answer = Vec::new();
        (&mut self.stream).take(most.saturating_add(1)).read_to_end(&mut answer).await?;
        Ok(answer)
    }

    /// Returns why the connection ended without a response, from the kubelet or the connection to the API server; `None`: unknown.
    pub async fn failure_reason(mut self) -> Option<String> {
        let message = self.forwarder.take_error(self.port);
        if let Some(message) = message
            && let Ok(Some(message)) = tokio::time::timeout(REASON, message).await
        {
            return Some(message);
        }
        drop(self.stream);
        match tokio::time::timeout(REASON, self.forwarder.join()).await {
            Ok(Err(cause)) => Some(describe_error(&cause)),
            Ok(Ok(())) | Err(_) => None,
        }
    }
}
