use proptest::prelude::*;

use super::*;
use crate::ServerHost;

const ISTIO: &str = "apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Y2E=
    server: https://[fd00::1]:443
  name: local
contexts:
- context:
    cluster: local
    user: istio-cni
  name: istio-cni-context
current-context: istio-cni-context
kind: Config
preferences: {}
users:
- name: istio-cni
  user:
    token: s3cret
";

fn parse(text: &str) -> Result<Kubeconfig, ConfigError> {
    let read = |path: &Path| Ok(path.display().to_string().into_bytes());
    Kubeconfig::parse(text, Path::new("/etc/cni/net.d"), &read)
}

fn with(cluster: &str, user: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

#[test]
fn the_installers_file_is_read_and_shows_no_secret() {
    let config = parse(ISTIO).unwrap();
    assert_eq!(config.server.host, ServerHost::Ip("fd00::1".parse().unwrap()));
    assert_eq!(config.authority, Some(Secret::new("ca")));
    assert_eq!(config.authorization, Some(Secret::new("Bearer s3cret")));
    assert!(!format!("{config:?}").contains("s3cret"));
}

#[test]
fn relative_files_stand_beside_the_kubeconfig() {
    let config = parse(&with(
        "server: 'https://a', certificate-authority: ca.crt, tls-server-name: x",
        "tokenFile: /run/token, token: t, client-certificate: c/crt, client-key: c/key",
    ))
    .unwrap();
    assert_eq!(config.authority, Some(Secret::new("/etc/cni/net.d/ca.crt")));
    assert_eq!(config.authorization, Some(Secret::new("Bearer /run/token")));
    let pair = (Secret::new("/etc/cni/net.d/c/crt"), Secret::new("/etc/cni/net.d/c/key"));
    assert_eq!(config.certificate, Some(pair));
    assert_eq!(config.server_name.as_deref(), Some("x"));
}

#[test]
fn json_reads_as_yaml_does() {
    let yaml =
        with("server: 'https://a', insecure-skip-tls-verify: true, proxy-url: ~", "username: u, as: ''");
    let json = serde_json::json!({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://a", "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"username": "u", "exec": null}}],
    });
    let config = parse(&yaml).unwrap();
    assert_eq!((&config.authority, &config.authorization), (&None, &Some(Secret::new("Basic dTo="))));
    assert_eq!(parse(&format!("\n{json:#}")).unwrap(), config);
}

#[test]
fn what_cannot_be_used_is_named() {
    for (text, part) in [
        (String::new(), "invalid YAML"),
        ("a: b".to_owned(), "current-context"),
        (ISTIO.replace("name: istio-cni-context", "name: other"), "\"istio-cni-context\" of contexts"),
        (ISTIO.replace("name: local", "name: other"), "\"local\" of clusters"),
        (ISTIO.replace("name: istio-cni\n", "name: other\n"), "\"istio-cni\" of users"),
        (with("x: y", ""), "cluster.server"),
        (with("server: '10.0.0.1'", ""), "cluster.server"),
        (with("server: 'https://a', certificate-authority-data: '*'", ""), "certificate-authority-data"),
        (with("server: 'https://a', insecure-skip-tls-verify: maybe", ""), "insecure-skip-tls-verify"),
        (with("server: 'https://a', proxy-url: 'http://p'", ""), "cluster.proxy-url is not supported"),
        (with("server: 'https://a'", "exec: {command: s3cret}"), "user.exec is not supported"),
        (with("server: 'https://a'", "auth-provider: {name: s3cret}"), "user.auth-provider is not supported"),
        (with("server: 'http://a'", "client-key-data: czNjcmV0"), "user.client-certificate is missing"),
        (with("server: 'https://a'", "token: [s3cret]"), "cluster.certificate-authority is missing"),
        (with("server: 'http://a'", "token: [s3cret]"), "user.token must be a string"),
        (with("server: 'http://a'", "token: 5"), "user.token must be a string"),
        (with("server: 'http://a'", "token: 's3 cret'"), "user.token is not one line"),
        (with("server: 'http://a', server: 'http://b'", ""), "\"server\" twice"),
        (format!("{ISTIO}---\na: b"), "more than one document"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
    }
}

proptest! {
    #[test]
    fn no_change_of_a_file_panics(at in 0..ISTIO.len(), len in 0usize..20, insert in "[-:\\[\\]{}\"'&*|> \\n\\PC]{0,5}") {
        let end = (at + len).min(ISTIO.len());
        let _ = parse(&format!("{}{insert}{}", &ISTIO[..at], &ISTIO[end..]));
    }
}
