//! Servers with one thread each, certificates, and a directory with a kubeconfig.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// A server on 127.0.0.1, which runs as long as the process.
pub(crate) struct Stub {
    pub(crate) port: u16,
    tls: bool,
    requests: Arc<AtomicU32>,
}

impl Stub {
    /// Answers each request with the function's response to its head and its number, which counts from 0.
    pub(crate) fn plain(respond: impl Fn(&str, u32) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::serve(None, respond)
    }

    pub(crate) fn tls(
        config: ServerConfig,
        respond: impl Fn(&str, u32) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::serve(Some(Arc::new(config)), respond)
    }

    /// Passes each connection to the function, in a thread of its own.
    pub(crate) fn raw(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let handle = Arc::new(handle);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(stream));
            }
        });
        Stub { port, tls: false, requests: Arc::default() }
    }

    fn serve(
        config: Option<Arc<ServerConfig>>,
        respond: impl Fn(&str, u32) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::new(AtomicU32::new(0));
        let tls = config.is_some();
        let seen = Arc::clone(&requests);
        let stub = Self::raw(move |mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            match &config {
                None => answer_one(&mut stream, &seen, &respond),
                Some(config) => {
                    let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                    let mut stream = rustls::StreamOwned::new(connection, stream);
                    answer_one(&mut stream, &seen, &respond);
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                    // The client reads before the socket is closed.
                    let _ = stream.sock.read(&mut [0; 16]);
                }
            }
        });
        Stub { port: stub.port, tls, requests }
    }

    pub(crate) fn url(&self, host: &str) -> String {
        format!("{}://{host}:{}", if self.tls { "https" } else { "http" }, self.port)
    }

    /// Number of requests received.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// A port without a listener.
    pub(crate) fn closed_port() -> u16 {
        TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }
}

fn answer_one(stream: &mut (impl Read + Write), seen: &AtomicU32, respond: &impl Fn(&str, u32) -> Vec<u8>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.extend(byte),
            _ => return,
        }
    }
    let number = seen.fetch_add(1, Ordering::SeqCst);
    let bytes = respond(&String::from_utf8(head).unwrap(), number);
    let _ = stream.write_all(&bytes);
    let _ = stream.flush();
}

/// A response with these headers, each ended by CRLF.
pub(crate) fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {status}\r\n{headers}\r\n").as_bytes(), body].concat()
}

pub(crate) fn json(status: u16, body: &str) -> Vec<u8> {
    answer(
        &format!("{status} X"),
        &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()),
        body.as_bytes(),
    )
}

/// A CA.
pub(crate) struct Tls {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Tls { issuer: Issuer::new(params, key), pem }
    }

    pub(crate) fn ca_pem(&self) -> String {
        self.pem.clone()
    }

    /// Field of the kubeconfig's cluster with the CA.
    pub(crate) fn ca_line(&self) -> String {
        format!("certificate-authority-data: {}", base64(self.pem.as_bytes()))
    }

    pub(crate) fn server(&self, names: &[&str]) -> ServerConfig {
        let (certificate, key) = self.signed(&CertificateParams::new(owned(names)).unwrap());
        config(None, &certificate, &key)
    }

    /// Offers only cipher suites that no FIPS module approves.
    pub(crate) fn chacha20_server(&self) -> ServerConfig {
        let (certificate, key) = self.signed(&CertificateParams::new(owned(&["127.0.0.1"])).unwrap());
        let cipher_suites = vec![
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        config_with(CryptoProvider { cipher_suites, ..default_provider() }, None, &certificate, &key)
    }

    pub(crate) fn expired_server(&self) -> ServerConfig {
        let mut params = CertificateParams::new(owned(&["127.0.0.1"])).unwrap();
        params.not_before = date_time_ymd(2019, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 1);
        let (certificate, key) = self.signed(&params);
        config(None, &certificate, &key)
    }

    /// Requires a client certificate of this CA.
    pub(crate) fn server_with_client_auth(&self) -> ServerConfig {
        let (certificate, key) = self.signed(&CertificateParams::new(owned(&["127.0.0.1"])).unwrap());
        config(Some(&self.pem), &certificate, &key)
    }

    /// Certificate and key of a client, PEM.
    pub(crate) fn client(&self) -> (String, String) {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.signed(&params)
    }

    fn signed(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn config(clients: Option<&str>, certificate: &str, key: &str) -> ServerConfig {
    config_with(default_provider(), clients, certificate, key)
}

fn config_with(
    provider: CryptoProvider,
    clients: Option<&str>,
    certificate: &str,
    key: &str,
) -> ServerConfig {
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    builder
        .with_single_cert(vec![certificate], PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
        .unwrap()
}

/// Encodes with the least code that is correct.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let groups = bits.as_bytes().chunks(6).map(|group| format!("{:0<6}", str::from_utf8(group).unwrap()));
    let mut text: String = groups
        .map(|group| char::from(*DIGITS.get(usize::from_str_radix(&group, 2).unwrap()).unwrap()))
        .collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// A directory with a kubeconfig; drop removes it.
pub(crate) struct Dir(PathBuf);

impl Dir {
    /// `cluster` and `user` are fields in YAML's flow style.
    pub(crate) fn new(server: &str, cluster: &str, user: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("millrace-apiclient-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let dir = Dir(path);
        dir.write(
            "kubeconfig",
            &format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: '{server}', {cluster}}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n"
            ),
        );
        dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Replaces a file atomically, as the kubelet does.
pub(crate) fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}
