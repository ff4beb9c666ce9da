//! TLS towards the API server: rustls with ring, chosen here and nowhere process-wide.

use std::io::{self, Write};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};

use crate::kubeconfig::{Loaded, LoadedTrust};
use crate::transport::Connection;
use crate::{Host, Reason, Secret};

/// A connection with TLS on it.
pub(crate) type Stream = rustls::StreamOwned<ClientConnection, Connection>;

/// Makes the handshake and sends `request`, which leaves together with our last words of the handshake: after the
/// server has proved who it is, and without waiting for another answer.
pub(crate) fn send(loaded: &Loaded, mut connection: Connection, request: &[u8]) -> Result<Stream, Reason> {
    let config = config(loaded)?;
    let name = server_name(loaded)?;
    let mut client = ClientConnection::new(Arc::new(config), name)
        .map_err(|error| Reason::config(format!("TLS cannot be set up: {error}")))?;
    let queued = client.writer().write_all(request);
    queued.map_err(|error| Reason::config(format!("the request cannot be sent: {error}")))?;
    while client.is_handshaking() || client.wants_write() {
        let moved =
            client.complete_io(&mut connection).map_err(|error| reason(&error, "the TLS handshake"))?;
        if moved == (0, 0) && client.is_handshaking() {
            return Err(Reason::Unreachable(
                "the server closed the connection in the TLS handshake".to_owned(),
            ));
        }
    }
    Ok(Stream::new(client, connection))
}

/// TLS towards whoever has a certificate of the authority in this PEM text; towards anybody, if there is none.
///
/// # Errors
/// The text holds no certificate that can be used.
pub fn tls_config(authority: Option<&[u8]>) -> Result<ClientConfig, Reason> {
    Ok(trusting(authority)?.with_no_client_auth())
}

fn trusting(authority: Option<&[u8]>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Reason> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Reason::config(format!("TLS cannot be set up: {error}")))?;
    Ok(match authority {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Some(pem) => builder.with_root_certificates(roots(pem)?),
    })
}

fn config(loaded: &Loaded) -> Result<ClientConfig, Reason> {
    let builder = trusting(match &loaded.trust {
        LoadedTrust::Insecure => None,
        LoadedTrust::Authority(pem) => Some(pem.bytes()),
    })?;
    match &loaded.certificate {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                certificates(certificate.bytes(), "client certificate")?,
                private_key(key)?,
            )
            .map_err(|error| Reason::config(format!("the client certificate cannot be used: {error}"))),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Reason> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "certificate authority")? {
        roots
            .add(certificate)
            .map_err(|error| Reason::config(format!("the certificate authority cannot be used: {error}")))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Reason> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(Reason::config(format!("the {what} is no PEM with a certificate"))),
    }
}

fn private_key(pem: &Secret) -> Result<PrivateKeyDer<'static>, Reason> {
    PrivateKeyDer::from_pem_slice(pem.bytes())
        .map_err(|_| Reason::config("the client key is no PEM with a private key"))
}

fn server_name(loaded: &Loaded) -> Result<ServerName<'static>, Reason> {
    match (&loaded.server_name, &loaded.server.host) {
        (None, Host::Ip(ip)) => Ok(ServerName::from(*ip)),
        (Some(name), _) | (None, Host::Name(name)) => ServerName::try_from(name.clone())
            .map_err(|_| Reason::config(format!("{name:?} is no name for a certificate"))),
    }
}

/// What an error on a connection, with TLS or without, means.
pub(crate) fn reason(error: &io::Error, during: &'static str) -> Reason {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            Reason::Untrusted(tls.map(ToString::to_string).unwrap_or_default())
        }
        Some(rustls::Error::AlertReceived(alert)) if refuses_client(*alert) => {
            Reason::Unauthorized(format!("it refused the client certificate ({alert:?})"))
        }
        Some(other) => Reason::Unreachable(format!("{during} failed: {other}")),
        None if error.kind() == io::ErrorKind::TimedOut => Reason::TimedOut(during.to_owned()),
        None => Reason::Unreachable(format!("{during} failed: {error}")),
    }
}

/// Alerts about the certificate of the peer (RFC 8446, section 6.2), who are we. `DecryptError` is a signature that does
/// not verify: so it is when the authority has been replaced by one of the same name.
fn refuses_client(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError
    )
}

/// For `insecure-skip-tls-verify: true`: takes any certificate, still checks that the peer has its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
