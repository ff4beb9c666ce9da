//! Kubeconfig, reduced to what a `GET` needs (kubernetes.io, "kubeconfig (v1)").

mod load;

use std::path::{Path, PathBuf};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value};

use crate::server::parse_server_url;
use crate::yaml::parse_yaml;
use crate::{Secret, ServerUrl};
pub(crate) use load::load_kubeconfig;

/// Maximum size of a kubeconfig, token, certificate or key file, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;

/// Settings of the current context, with the contents of the files that it names: everything that one request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// `cluster.server`.
    pub server: ServerUrl,
    /// `cluster.tls-server-name`: name that the certificate must have, instead of the host.
    pub server_name: Option<String>,
    /// `cluster.certificate-authority(-data)`: PEM of the only trusted authorities; `None`: any certificate is accepted
    /// (`insecure-skip-tls-verify`), or TLS is not used.
    pub authority: Option<Secret>,
    /// Value of the header `Authorization`: of `user.tokenFile`, which takes precedence, `user.token`, or else `user.username` and
    /// `user.password`.
    pub authorization: Option<Secret>,
    /// `user.client-certificate(-data)` and `user.client-key(-data)`, PEM.
    pub certificate: Option<(Secret, Secret)>,
}

/// Reason why a kubeconfig cannot be used. Never contains a value that may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read, or is too large or empty.
    #[error("cannot use the file {path}: {why}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
    /// The text is neither YAML nor JSON, or a member is missing, has a wrong value, or requests a feature that this client does
    /// not support.
    #[error("{0}")]
    Content(String),
}

/// Reads a file that a kubeconfig names.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> Result<Vec<u8>, ConfigError>;

impl Kubeconfig {
    /// Parses YAML or JSON. `directory` is that of the file, to which paths are relative.
    ///
    /// # Errors
    /// The text is no YAML, the current context does not exist, an unsupported feature is requested (`exec`, `auth-provider`,
    /// impersonation, `proxy-url`), or a file that it names cannot be used.
    pub fn parse(text: &str, directory: &Path, read: ReadFile<'_>) -> Result<Self, ConfigError> {
        let root =
            parse_document(text).map_err(|why| ConfigError::Content(format!("invalid YAML: {why}")))?;
        let root = Section { name: "", members: &root, directory, read };
        let context = root.find_entry("contexts", "context", root.required_text("current-context")?)?;
        let cluster = root.find_entry("clusters", "cluster", context.required_text("cluster")?)?;
        let user = match context.optional_text("user")? {
            Some(name) => root.find_entry("users", "user", name)?,
            None => Section { name: "user", members: &Value::Null, ..root },
        };
        cluster.refuse_keys(&["proxy-url"])?;
        user.refuse_keys(&["exec", "auth-provider", "as", "as-uid", "as-groups", "as-user-extra"])?;
        let server = parse_server_url(cluster.required_text("server")?)
            .ok_or_else(|| cluster.invalid_value("server", "is not a URL of the form https://host:port"))?;
        let is_verified = server.https && !cluster.boolean("insecure-skip-tls-verify")?;
        Ok(Kubeconfig {
            server_name: cluster.optional_text("tls-server-name")?.map(str::to_owned),
            authority: is_verified.then(|| cluster.required_content("certificate-authority")).transpose()?,
            authorization: user.authorization_header()?,
            certificate: user.client_certificate()?,
            server,
        })
    }
}

/// Parses JSON, or the only document of a YAML text.
fn parse_document(text: &str) -> Result<Value, String> {
    // YAML in flow style begins like JSON.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    let mut documents = parse_yaml(text)?;
    let document = documents.pop().ok_or("it is empty")?;
    if documents.is_empty() { Ok(document) } else { Err("it has more than one document".to_owned()) }
}

/// A map in the kubeconfig, and the function that reads its files.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: &'static str,
    members: &'a Value,
    directory: &'a Path,
    read: ReadFile<'a>,
}

impl<'a> Section<'a> {
    fn key_path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn invalid_value(&self, key: &str, why: &str) -> ConfigError {
        ConfigError::Content(format!("{} {why}", self.key_path(key)))
    }

    fn missing_value(&self, key: &str) -> ConfigError {
        self.invalid_value(key, "is missing or empty")
    }

    /// Returns a text; `None`: it is absent, null or empty.
    fn optional_text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.members.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
            Some(_) => Err(self.invalid_value(key, "must be a string")),
        }
    }

    fn required_text(&self, key: &str) -> Result<&'a str, ConfigError> {
        self.optional_text(key)?.ok_or_else(|| self.missing_value(key))
    }

    fn boolean(&self, key: &str) -> Result<bool, ConfigError> {
        match self.members.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => {
                value.as_bool().ok_or_else(|| self.invalid_value(key, "is neither true nor false"))
            }
        }
    }

    fn refuse_keys(&self, keys: &[&str]) -> Result<(), ConfigError> {
        let nothing = [Value::Null, "".into(), Value::Array(Vec::new()), Value::Object(Map::new())];
        match keys.iter().find(|key| self.members.get(key).is_some_and(|value| !nothing.contains(value))) {
            Some(key) => {
                let why = "is not supported here; use a token or a client certificate, and no proxy";
                Err(self.invalid_value(key, why))
            }
            None => Ok(()),
        }
    }

    /// Returns the `part` of the list element with this name.
    fn find_entry(&self, list: &str, part: &'static str, name: &str) -> Result<Section<'a>, ConfigError> {
        let mut entries = self.members.get(list).and_then(Value::as_array).into_iter().flatten();
        let entry = entries.find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
        let shown: String = name.chars().take(80).collect();
        let missing = || ConfigError::Content(format!("the entry {shown:?} of {list} is missing or empty"));
        let entry = entry.ok_or_else(missing)?;
        Ok(Section { name: part, members: entry.get(part).unwrap_or(&Value::Null), ..*self })
    }

    fn read_file(&self, name: &str) -> Result<Secret, ConfigError> {
        (self.read)(&self.directory.join(name)).map(Secret::new)
    }

    /// Returns `<key>-data`, which takes precedence, or the content of the file `<key>`.
    fn optional_content(&self, key: &str) -> Result<Option<Secret>, ConfigError> {
        let data_key = format!("{key}-data");
        let Some(data) = self.optional_text(&data_key)? else {
            return self.optional_text(key)?.map(|name| self.read_file(name)).transpose();
        };
        // A YAML block, or a tool, may have wrapped the lines.
        let data: String = data.split_ascii_whitespace().collect();
        let bytes = BASE64.decode(data).map_err(|_| self.invalid_value(&data_key, "is not valid Base64"))?;
        Ok(Some(Secret::new(bytes)))
    }

    fn required_content(&self, key: &str) -> Result<Secret, ConfigError> {
        self.optional_content(key)?.ok_or_else(|| self.missing_value(key))
    }

    fn client_certificate(&self) -> Result<Option<(Secret, Secret)>, ConfigError> {
        let (certificate, key) = ("client-certificate", "client-key");
        match (self.optional_content(certificate)?, self.optional_content(key)?) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.missing_value(key)),
            (None, Some(_)) => Err(self.missing_value(certificate)),
        }
    }

    fn authorization_header(&self) -> Result<Option<Secret>, ConfigError> {
        let file = self.optional_text("tokenFile")?;
        let token = match file {
            Some(name) => Some(self.read_file(name)?),
            None => self.optional_text("token")?.map(Secret::new),
        };
        if let Some(token) = token {
            let why = "is not one line of printable characters";
            let text = token.header_text().ok_or_else(|| match file {
                Some(name) => ConfigError::File { path: self.directory.join(name), why: format!("it {why}") },
                None => self.invalid_value("token", why),
            })?;
            return Ok(Some(Secret::new(format!("Bearer {text}"))));
        }
        // RFC 7617: the user name must not contain a colon.
        let password = self.optional_text("password")?.unwrap_or_default();
        let user = self.optional_text("username")?;
        Ok(user.map(|user| Secret::new(format!("Basic {}", BASE64.encode(format!("{user}:{password}"))))))
    }
}

#[cfg(test)]
mod tests;
