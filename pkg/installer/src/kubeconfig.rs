//! The plugin's credential: a kubeconfig made from the pod's service account, byte for byte as Istio writes it.

use std::{
    iter,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use model::ApiServerTrust;

use crate::Error;

/// Settings of the kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeconfigSettings {
    /// Permission bits of the file.
    pub mode: u32,
    /// URL of the API server.
    pub server: String,
    /// How the plugin verifies the API server's certificate.
    pub trust: ApiServerTrust,
    /// File with the service account's token.
    pub token: PathBuf,
}

/// Line that identifies a kubeconfig of the plugin's, whatever its name.
const CONTEXT: &str = "current-context: istio-cni-context\n";

/// Returns the plugin's kubeconfigs in a directory: their name is a setting, which may be unknown.
pub(crate) fn find_kubeconfigs(directory: &Path) -> Vec<PathBuf> {
    let names = hostfs::list(directory).unwrap_or_default();
    names.into_iter().map(|name| directory.join(name)).filter(|path| is_kubeconfig(path)).collect()
}

fn is_kubeconfig(path: &Path) -> bool {
    let text = hostfs::read(path, MAX_KUBECONFIG).unwrap_or_default();
    !path.is_symlink() && String::from_utf8_lossy(&text).split_inclusive('\n').any(|line| line == CONTEXT)
}

/// Maximum size of the kubeconfig that is read back, in bytes.
pub(crate) const MAX_KUBECONFIG: usize = 4 * 1024 * 1024;
/// Maximum size of a token or certificate bundle, in bytes: a Secret or ConfigMap holds no more.
const MAX_INPUT: usize = 1024 * 1024;

impl KubeconfigSettings {
    /// Returns the files that the kubeconfig is made from.
    pub(crate) fn input_files(&self) -> impl Iterator<Item = &PathBuf> {
        let authority = match &self.trust {
            ApiServerTrust::Authority(file) => Some(file),
            ApiServerTrust::Anybody => None,
        };
        iter::once(&self.token).chain(authority)
    }

    /// Returns the kubeconfig's text, and the token in it.
    ///
    /// # Errors
    /// The token or the certificates cannot be read.
    pub(crate) fn render(&self) -> Result<(String, Vec<u8>), Error> {
        let token = hostfs::read(&self.token, MAX_INPUT)?;
        let authority = match &self.trust {
            ApiServerTrust::Authority(file) => {
                format!("certificate-authority-data: {}", STANDARD.encode(hostfs::read(file, MAX_INPUT)?))
            }
            ApiServerTrust::Anybody => "insecure-skip-tls-verify: true".to_owned(),
        };
        let text = format!(
            "apiVersion: v1\n\
             clusters:\n\
             - cluster:\n    {authority}\n    server: {}\n  name: local\n\
             contexts:\n\
             - context:\n    cluster: local\n    user: istio-cni\n  name: istio-cni-context\n\
             {CONTEXT}\
             kind: Config\n\
             preferences: {{}}\n\
             users:\n\
             - name: istio-cni\n  user:\n    token: {}\n",
            self.server,
            yaml_scalar(&String::from_utf8_lossy(&token), 6),
        );
        Ok((text, token))
    }
}

/// Formats a YAML string as Go's library does. Tokens and URLs are plain; one that ends with a newline becomes a block; everything
/// else is quoted, which any parser accepts.
fn yaml_scalar(text: &str, indent: usize) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~+/=".contains(c);
    let body = text.strip_suffix('\n').unwrap_or(text);
    let letters = body.chars().any(|c| c.is_ascii_alphabetic());
    let starts = body.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !body.chars().all(is_plain) || !letters || !starts || body.len() < 16 {
        return quote_scalar(text); // short plain scalars may have another type: null, true, 1e5
    }
    match text.ends_with('\n') {
        true => format!("|\n{}{body}", " ".repeat(indent)),
        false => text.to_owned(),
    }
}

fn quote_scalar(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".to_owned(),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln-_";

    fn render(token: &str, ca: &str, insecure: bool, server: &str) -> String {
        let files = tempfile::tempdir().unwrap();
        let (token_file, ca_file) = (files.path().join("token"), files.path().join("ca.crt"));
        fs::write(&token_file, token).unwrap();
        fs::write(&ca_file, ca).unwrap();
        let trust = if insecure { ApiServerTrust::Anybody } else { ApiServerTrust::Authority(ca_file) };
        let settings =
            KubeconfigSettings { mode: 0o600, server: server.to_owned(), trust, token: token_file };
        let (text, read) = settings.render().unwrap();
        assert_eq!(read, token.as_bytes());
        text
    }

    #[test]
    fn it_is_istios_to_the_byte() {
        let expected = format!(
            "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: LS0tQ0EtLS0K
    server: https://[fd00::1]:443
  name: local
contexts:
- context:
    cluster: local
    user: istio-cni
  name: istio-cni-context
current-context: istio-cni-context
kind: Config
preferences: {{}}
users:
- name: istio-cni
  user:
    token: {TOKEN}
"
        );
        assert_eq!(render(TOKEN, "---CA---\n", false, "https://[fd00::1]:443"), expected);
        let insecure = expected
            .replace("certificate-authority-data: LS0tQ0EtLS0K", "insecure-skip-tls-verify: true")
            .replace("[fd00::1]", "10.96.0.1");
        assert_eq!(render(TOKEN, "", true, "https://10.96.0.1:443"), insecure);
    }

    #[test]
    fn a_token_is_told_unchanged_whatever_is_in_it() {
        let line = |token: &str| {
            let text = render(token, "", true, "https://10.96.0.1:443");
            text.split_once("token: ").unwrap().1.to_owned()
        };
        assert_eq!(line(&format!("{TOKEN}\n")), format!("|\n      {TOKEN}\n"), "as Go prints it");
        assert_eq!(line("true"), "\"true\"\n");
        assert_eq!(line("1234567890123456"), "\"1234567890123456\"\n");
        assert_eq!(line(""), "\"\"\n");
        assert_eq!(line("a: \"b\"\\c\td#0123456789"), "\"a: \\\"b\\\"\\\\c\\u0009d#0123456789\"\n");
    }
}
