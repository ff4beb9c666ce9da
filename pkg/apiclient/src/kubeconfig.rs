//! The kubeconfig, as far as a `GET` needs it (kubernetes.io, "kubeconfig (v1)").

mod load;
mod yaml;

use std::fmt;
use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::{Secret, ServerUrl};
pub(crate) use load::{LoadedKubeconfig, LoadedTrust, load_kubeconfig};
use yaml::YamlNode;

/// The greatest size of a kubeconfig, token, certificate or key file, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// Settings of the current context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// `cluster.server`.
    pub server: ServerUrl,
    /// `cluster.certificate-authority(-data)` or `insecure-skip-tls-verify`; matters with https only.
    pub trust: ServerTrust,
    /// `cluster.tls-server-name`: the name that the certificate must have, in place of the host.
    pub server_name: Option<String>,
    /// `user.tokenFile`, which wins, or `user.token`.
    pub token: Option<CredentialSource>,
    /// `user.username` and `user.password`; used when there is no token.
    pub basic: Option<(String, Secret)>,
    /// `user.client-certificate(-data)` and `user.client-key(-data)`.
    pub certificate: Option<(CredentialSource, CredentialSource)>,
}

/// Whom to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTrust {
    /// Certificates signed by these authorities (PEM), and no others.
    Authority(CredentialSource),
    /// Anybody.
    Insecure,
    /// Nobody: the kubeconfig names no authority. An error with https.
    Nobody,
}

/// Where some bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// In the kubeconfig.
    Inline(Secret),
    /// In a file; a relative path has been taken from the kubeconfig's directory.
    File(PathBuf),
}

/// Why a kubeconfig cannot be used. Never shows a value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read, or is too large or empty.
    #[error("cannot use the file {path}: {why}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Neither YAML nor JSON.
    #[error("it is no YAML: {0}")]
    Syntax(String),
    /// A member is missing.
    #[error("{0} is missing or empty")]
    Missing(String),
    /// A member has a wrong value.
    #[error("{key} {why}")]
    Invalid {
        /// The member's path.
        key: String,
        /// Why the value is wrong.
        why: String,
    },
    /// A member asks for something that this client does not do.
    #[error("{0} is not supported here; use a token or a client certificate, and no proxy")]
    Unsupported(String),
}

impl ConfigError {
    fn invalid_value(key: &str, why: impl fmt::Display) -> Self {
        ConfigError::Invalid { key: key.to_owned(), why: why.to_string() }
    }
}

impl Kubeconfig {
    /// Parses YAML or JSON. `directory` is where the file stands.
    ///
    /// # Errors
    /// When the text is no YAML, the current context leads nowhere, or something that is not supported is asked for
    /// (`exec`, `auth-provider`, impersonation, `proxy-url`).
    pub fn parse(text: &str, directory: &Path) -> Result<Self, ConfigError> {
        let root = YamlNode::parse(text).map_err(ConfigError::Syntax)?;
        let current = required_text(&root, "current-context", "current-context")?;
        let context = named_entry(&root, "contexts", "context", &current)?;
        let cluster = named_entry(
            &root,
            "clusters",
            "cluster",
            &required_text(context, "cluster", "context.cluster")?,
        )?;
        let user = match text_of(context, "user", "context.user")? {
            Some(name) => named_entry(&root, "users", "user", &name)?,
            None => &YamlNode::NOTHING,
        };
        refuse_keys(cluster, "cluster", &["proxy-url"])?;
        refuse_keys(user, "user", &["exec", "auth-provider", "as", "as-uid", "as-groups", "as-user-extra"])?;
        Ok(Kubeconfig {
            server: required_text(cluster, "server", "cluster.server")?
                .parse()
                .map_err(|error| ConfigError::invalid_value("cluster.server", error))?,
            trust: server_trust(cluster, directory)?,
            server_name: text_of(cluster, "tls-server-name", "cluster.tls-server-name")?,
            token: token_source(user, directory)?,
            basic: basic_credentials(user)?,
            certificate: client_certificate(user, directory)?,
        })
    }
}

fn server_trust(cluster: &YamlNode, directory: &Path) -> Result<ServerTrust, ConfigError> {
    if boolean_value(cluster, "insecure-skip-tls-verify", "cluster.insecure-skip-tls-verify")? {
        return Ok(ServerTrust::Insecure);
    }
    let source = credential_source(cluster, "cluster", "certificate-authority", directory)?;
    Ok(source.map_or(ServerTrust::Nobody, ServerTrust::Authority))
}

fn token_source(user: &YamlNode, directory: &Path) -> Result<Option<CredentialSource>, ConfigError> {
    if let Some(path) = text_of(user, "tokenFile", "user.tokenFile")? {
        return Ok(Some(CredentialSource::File(directory.join(path))));
    }
    Ok(text_of(user, "token", "user.token")?.map(|token| CredentialSource::Inline(Secret::new(token))))
}

fn basic_credentials(user: &YamlNode) -> Result<Option<(String, Secret)>, ConfigError> {
    let password = text_of(user, "password", "user.password")?.unwrap_or_default();
    Ok(text_of(user, "username", "user.username")?.map(|name| (name, Secret::new(password))))
}

fn client_certificate(
    user: &YamlNode,
    directory: &Path,
) -> Result<Option<(CredentialSource, CredentialSource)>, ConfigError> {
    let certificate = credential_source(user, "user", "client-certificate", directory)?;
    let key = credential_source(user, "user", "client-key", directory)?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ConfigError::Missing("user.client-key".to_owned())),
        (None, Some(_)) => Err(ConfigError::Missing("user.client-certificate".to_owned())),
    }
}

/// `<key>-data`, which wins, or the file `<key>`.
fn credential_source(
    map: &YamlNode,
    path: &str,
    key: &str,
    directory: &Path,
) -> Result<Option<CredentialSource>, ConfigError> {
    let data_path = format!("{path}.{key}-data");
    if let Some(data) = text_of(map, &format!("{key}-data"), &data_path)? {
        // A block of YAML, or a tool, may have wrapped the lines.
        let data: String = data.split_ascii_whitespace().collect();
        let bytes =
            BASE64.decode(data).map_err(|_| ConfigError::invalid_value(&data_path, "is no Base64"))?;
        return Ok(Some(CredentialSource::Inline(Secret::new(bytes))));
    }
    let file = text_of(map, key, &format!("{path}.{key}"))?;
    Ok(file.map(|file| CredentialSource::File(directory.join(file))))
}

/// The `part` of the element of a list that has this name.
fn named_entry<'a>(
    root: &'a YamlNode,
    list: &str,
    part: &str,
    name: &str,
) -> Result<&'a YamlNode, ConfigError> {
    let shown: String = name.chars().take(80).collect();
    let entry = root
        .get(list)
        .into_iter()
        .flat_map(YamlNode::elements)
        .find(|entry| entry.get("name").and_then(YamlNode::scalar_text).is_some_and(|text| text == name));
    let entry = entry.ok_or_else(|| ConfigError::Missing(format!("the entry {shown:?} of {list}")))?;
    Ok(entry.get(part).unwrap_or(&YamlNode::NOTHING))
}

fn required_text(map: &YamlNode, key: &str, path: &str) -> Result<String, ConfigError> {
    text_of(map, key, path)?.ok_or_else(|| ConfigError::Missing(path.to_owned()))
}

/// A text; none when it is absent, null or empty.
fn text_of(map: &YamlNode, key: &str, path: &str) -> Result<Option<String>, ConfigError> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => {
            let text = value.scalar_text().ok_or_else(|| ConfigError::invalid_value(path, "is no text"))?;
            Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
        }
    }
}

fn boolean_value(map: &YamlNode, key: &str, path: &str) -> Result<bool, ConfigError> {
    match map.get(key).map(YamlNode::scalar_text) {
        None | Some(Some("false")) => Ok(false),
        Some(Some("true")) => Ok(true),
        Some(_) => Err(ConfigError::invalid_value(path, "is neither true nor false")),
    }
}

fn refuse_keys(map: &YamlNode, path: &str, keys: &[&str]) -> Result<(), ConfigError> {
    let used = |key: &&&str| map.get(key).is_some_and(|value| !value.is_empty());
    match keys.iter().find(used) {
        Some(key) => Err(ConfigError::Unsupported(format!("{path}.{key}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
