//! TLS connections to the API server: rustls with the provider selected by [`crate::provider`].

use std::io::{self, Write};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};

use crate::kubeconfig::Kubeconfig;
use crate::provider::choose_provider;
use crate::transport::DeadlineStream;
use crate::{FailureReason, Secret, ServerHost};

/// A TLS connection.
pub(crate) type TlsStream = rustls::StreamOwned<ClientConnection, DeadlineStream>;

/// Performs the handshake and sends `request`, which is sent together with our last handshake message: after the server has
/// authenticated itself, and without waiting for another response.
pub(crate) fn handshake_and_send(
    loaded: &Kubeconfig,
    mut connection: DeadlineStream,
    request: &[u8],
) -> Result<TlsStream, FailureReason> {
    let config = client_config(loaded)?;
    let name = server_name(loaded)?;
    let mut client = ClientConnection::new(Arc::new(config), name)
        .map_err(|error| FailureReason::config_error(format!("TLS cannot be set up: {error}")))?;
    let queued = client.writer().write_all(request);
    queued.map_err(|error| FailureReason::config_error(format!("the request cannot be sent: {error}")))?;
    while client.is_handshaking() || client.wants_write() {
        let moved = client
            .complete_io(&mut connection)
            .map_err(|error| failure_reason(&error, "the TLS handshake"))?;
        if moved == (0, 0) && client.is_handshaking() {
            return Err(FailureReason::Unreachable(
                "the server closed the connection in the TLS handshake".to_owned(),
            ));
        }
    }
    Ok(TlsStream::new(client, connection))
}

/// Returns a configuration that trusts the authority in this PEM text; any certificate, if there is none.
///
/// # Errors
/// The text has no usable certificate, or the TLS provider is rejected ([`crate::confirm_tls_provider`]).
pub fn tls_config(authority: Option<&[u8]>) -> Result<ClientConfig, FailureReason> {
    Ok(trust_builder(authority)?.with_no_client_auth())
}

fn trust_builder(
    authority: Option<&[u8]>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, FailureReason> {
    let provider = Arc::new(choose_provider()?);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| FailureReason::config_error(format!("TLS cannot be set up: {error}")))?;
    Ok(match authority {
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(InsecureVerifier(provider))),
        Some(pem) => builder.with_root_certificates(root_store(pem)?),
    })
}

fn client_config(loaded: &Kubeconfig) -> Result<ClientConfig, FailureReason> {
    let builder = trust_builder(loaded.authority.as_ref().map(Secret::as_bytes))?;
    match &loaded.certificate {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => builder
            .with_client_auth_cert(client_certificates(certificate.as_bytes())?, private_key(key)?)
            .map_err(|error| {
                FailureReason::config_error(format!("the client certificate cannot be used: {error}"))
            }),
    }
}

fn root_store(pem: &[u8]) -> Result<RootCertStore, FailureReason> {
    let (mut roots, mut last) = (RootCertStore::empty(), None);
    // Go, too, ignores those of a bundle that it cannot read.
    for found in CertificateDer::pem_slice_iter(pem) {
        let read = found.map_err(|error| error.to_string());
        let added = read.and_then(|one| roots.add(one).map_err(|error| error.to_string()));
        last = added.err().or(last);
    }
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why =
        last.map_or("is not PEM with a certificate".to_owned(), |error| format!("cannot be used: {error}"));
    Err(FailureReason::config_error(format!("the certificate authority {why}")))
}

fn client_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FailureReason> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(FailureReason::config_error("the client certificate is not PEM with a certificate")),
    }
}

fn private_key(pem: &Secret) -> Result<PrivateKeyDer<'static>, FailureReason> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| FailureReason::config_error("the client key is not PEM with a private key"))
}

fn server_name(loaded: &Kubeconfig) -> Result<ServerName<'static>, FailureReason> {
    match (&loaded.server_name, &loaded.server.host) {
        (None, ServerHost::Ip(ip)) => Ok(ServerName::from(*ip)),
        (Some(name), _) | (None, ServerHost::Name(name)) => ServerName::try_from(name.clone())
            .map_err(|_| FailureReason::config_error(format!("{name:?} is not a valid server name"))),
    }
}

/// Returns the reason for an error on a connection, with TLS or without.
pub(crate) fn failure_reason(error: &io::Error, during: &'static str) -> FailureReason {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => {
            FailureReason::Untrusted(tls.map(ToString::to_string).unwrap_or_default())
        }
        Some(rustls::Error::AlertReceived(alert)) if refuses_client(*alert) => {
            FailureReason::Unauthorized(format!("it refused the client certificate ({alert:?})"))
        }
        Some(other) => FailureReason::Unreachable(format!("{during} failed: {other}")),
        None if error.kind() == io::ErrorKind::TimedOut => FailureReason::TimedOut(during.to_owned()),
        None => FailureReason::Unreachable(format!("{during} failed: {error}")),
    }
}

/// Whether an alert rejects the peer's certificate (RFC 8446, section 6.2), which is ours. `DecryptError` is a signature that does
/// not verify, as when the authority has been replaced by one of the same name.
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

/// Verifier for `insecure-skip-tls-verify: true`: accepts any certificate, but checks that the peer has its key.
#[derive(Debug)]
struct InsecureVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for InsecureVerifier {
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
