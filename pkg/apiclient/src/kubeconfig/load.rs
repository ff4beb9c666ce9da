//! Reading a kubeconfig and the files that it names. They are read again at each try, because they rotate.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use super::{ConfigError, CredentialSource, Kubeconfig, MAX_FILE, ServerTrust};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::{Secret, ServerUrl};

/// All that one request needs.
pub(crate) struct LoadedKubeconfig {
    pub(crate) server: ServerUrl,
    pub(crate) server_name: Option<String>,
    /// The `Authorization` header's value.
    pub(crate) authorization: Option<Secret>,
    pub(crate) trust: LoadedTrust,
    /// PEM of the client's certificates and of its key.
    pub(crate) certificate: Option<(Secret, Secret)>,
}

/// [`ServerTrust`], read.
pub(crate) enum LoadedTrust {
    Authority(Secret),
    Insecure,
}

/// Reads everything.
pub(crate) fn load_kubeconfig(path: &Path) -> Result<LoadedKubeconfig, ConfigError> {
    let bytes = read_file(path)?;
    let file = |why: String| ConfigError::File { path: path.to_owned(), why };
    let text = str::from_utf8(&bytes).map_err(|_| file("it is not UTF-8".to_owned()))?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let config = Kubeconfig::parse(text, directory).map_err(|error| file(error.to_string()))?;
    let trust = match &config.trust {
        _ if !config.server.https => LoadedTrust::Insecure,
        ServerTrust::Insecure => LoadedTrust::Insecure,
        ServerTrust::Authority(source) => LoadedTrust::Authority(read_credential(source)?),
        ServerTrust::Nobody => {
            return Err(file("cluster.certificate-authority is missing or empty".to_owned()));
        }
    };
    let certificate = match &config.certificate {
        Some((certificate, key)) => Some((read_credential(certificate)?, read_credential(key)?)),
        None => None,
    };
    let authorization = authorization_header(&config)?;
    Ok(LoadedKubeconfig {
        server: config.server,
        server_name: config.server_name,
        authorization,
        trust,
        certificate,
    })
}

fn authorization_header(config: &Kubeconfig) -> Result<Option<Secret>, ConfigError> {
    if let Some(source) = &config.token {
        let token = read_credential(source)?;
        let text = token.header_text().ok_or_else(|| match source {
            CredentialSource::Inline(_) => {
                ConfigError::invalid_value("user.token", "is not one line of printable characters")
            }
            CredentialSource::File(path) => ConfigError::File {
                path: path.clone(),
                why: "it is not one line of printable characters".to_owned(),
            },
        })?;
        return Ok(Some(Secret::new(format!("Bearer {text}"))));
    }
    // RFC 7617: the user's name must not have a colon.
    Ok(config.basic.as_ref().map(|(user, password)| {
        let pair = [user.as_bytes(), b":", password.as_bytes()].concat();
        Secret::new(format!("Basic {}", BASE64.encode(&pair)))
    }))
}

fn read_credential(source: &CredentialSource) -> Result<Secret, ConfigError> {
    match source {
        CredentialSource::Inline(bytes) => Ok(bytes.clone()),
        CredentialSource::File(path) => read_file(path).map(Secret::new),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let fail = |why: String| ConfigError::File { path: path.to_owned(), why };
    let mut bytes = Vec::new();
    let limit = MAX_FILE as u64 + 1;
    // Before opening: to open a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(|error| fail(error.to_string()))?.is_file() {
        return Err(fail("it is no regular file".to_owned()));
    }
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    file.take(limit).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
    match bytes.len() {
        0 => Err(fail("it is empty".to_owned())),
        len if len > MAX_FILE => Err(fail(format!("it is larger than {MAX_FILE} bytes"))),
        _ => Ok(bytes),
    }
}
