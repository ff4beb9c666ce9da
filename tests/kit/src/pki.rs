//! Certificates and tokens of a cluster that exists only in one test process.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The key, PEM (PKCS #8).
    pub key_pem: String,
    cert_der: Vec<u8>,
    key_der: Vec<u8>,
}

/// The CAs of a cluster: for servers, for clients, and for service account tokens.
pub struct Pki {
    server_ca: Authority,
    client_ca: Authority,
    token_key: KeyPair,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Issuer of service account tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";

impl Pki {
    /// The PKI of this process, common to all its API servers, real or fake.
    pub fn shared() -> &'static Self {
        static PKI: OnceLock<Pki> = OnceLock::new();
        PKI.get_or_init(|| Self {
            server_ca: Authority::new("kit server CA"),
            client_ca: Authority::new("kit client CA"),
            token_key: KeyPair::generate().expect("cannot make a key"),
        })
    }

    /// Certificate of the CA that signs servers, PEM.
    #[must_use]
    pub fn server_ca_pem(&self) -> &str {
        &self.server_ca.pem
    }

    /// Certificate of the CA that signs clients, PEM.
    #[must_use]
    pub fn client_ca_pem(&self) -> &str {
        &self.client_ca.pem
    }

    /// A server certificate for these addresses and the names of an API server.
    #[must_use]
    pub fn server(&self, addresses: &[IpAddr]) -> Certificate {
        let names = ["localhost", "kubernetes.default.svc", "kubernetes.default", "kubernetes"];
        let mut params = CertificateParams::new(names.map(String::from).to_vec()).expect("names are fine");
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.server_ca.sign(params, &[(DnType::CommonName, "kube-apiserver")])
    }

    /// A client certificate with a user and one group.
    #[must_use]
    pub fn client(&self, user: &str, group: &str) -> Certificate {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.client_ca.sign(params, &[(DnType::CommonName, user), (DnType::OrganizationName, group)])
    }

    /// Public and private key of service account tokens, PEM.
    #[must_use]
    pub fn token_keys_pem(&self) -> (String, String) {
        (self.token_key.public_key_pem(), self.token_key.serialize_pem())
    }

    /// A service account token as the API server would sign it, which expires at `expiry`, possibly in the past.
    #[must_use]
    pub fn token(&self, namespace: &str, account: &str, uid: &str, expiry: SystemTime) -> String {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let issued = seconds(expiry.min(SystemTime::now()) - Duration::from_secs(3600));
        let claims = json!({
            "iss": ISSUER, "aud": [ISSUER], "sub": format!("system:serviceaccount:{namespace}:{account}"),
            "iat": issued, "nbf": issued, "exp": seconds(expiry),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": account, "uid": uid}},
        });
        let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "ES256", "typ": "JWT"})), part(&claims));
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_FIXED_SIGNING,
            &self.token_key.serialize_der(),
            &random,
        );
        let signature = key.expect("our own key").sign(&random, signed.as_bytes()).expect("cannot sign");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pki")
    }
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished(&[(DnType::CommonName, name)]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("cannot make a key");
        let pem = params.self_signed(&key).expect("cannot sign").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, mut params: CertificateParams, subject: &[(DnType, &str)]) -> Certificate {
        params.distinguished_name = distinguished(subject);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("cannot make a key");
        let cert = params.signed_by(&key, &self.issuer).expect("cannot sign");
        Certificate {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            cert_der: cert.der().to_vec(),
            key_der: key.serialize_der(),
        }
    }
}

impl Certificate {
    /// Configuration of a TLS server with this certificate.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(self.key_der.clone().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("ring can do TLS").with_no_client_auth();
        let config = builder.with_single_cert(vec![self.cert_der.clone().into()], key);
        Arc::new(config.expect("our own certificate"))
    }
}

impl Certificate {
    /// Configuration of a TLS server that requires a client certificate of this cluster.
    pub(crate) fn server_config_for_clients(&self, pki: &Pki) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(self.key_der.clone().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(pki.client_ca_pem().as_bytes());
        roots.add(authority.expect("our own authority")).expect("our own authority");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().expect("an authority is enough");
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("ring can do TLS").with_client_cert_verifier(verifier);
        let config = builder.with_single_cert(vec![self.cert_der.clone().into()], key);
        Arc::new(config.expect("our own certificate"))
    }
}

fn distinguished(entries: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, text) in entries {
        name.push(kind.clone(), *text);
    }
    name
}
