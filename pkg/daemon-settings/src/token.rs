//! Claims of the service account's token.

use std::{fs, io};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

use crate::SERVICE_ACCOUNT;

/// Returns the name of the pod that a token is bound to; `None` for a token that is bound to no pod, or is no JWT. The signature is
/// not verified: the token is our own, from the kubelet.
pub(super) fn pod_name(token: &str) -> Option<String> {
    let claims = read_claims(token)?;
    let name = claims.pointer("/kubernetes.io/pod/name")?.as_str()?;
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

/// Returns when the service account's token was issued, and when it expires, in seconds since 1970; `None`: the token has no such
/// times.
///
/// # Errors
/// The token cannot be read.
pub fn token_times() -> io::Result<Option<(i64, i64)>> {
    let token = fs::read_to_string(format!("{SERVICE_ACCOUNT}/token"))?;
    let claims = read_claims(&token).unwrap_or_default();
    let [issued, expires] = ["iat", "exp"].map(|name| claims.get(name).and_then(Value::as_i64));
    Ok(issued.zip(expires))
}

/// Returns a token's claims (RFC 7519), with those that Kubernetes adds to a bound one (KEP 1205).
fn read_claims(token: &str) -> Option<Value> {
    let payload = token.trim().split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_bound_token_names_its_pod_and_nothing_else_does() {
        let bound = r#"{"kubernetes.io":{"namespace":"istio-system","pod":{"name":"istio-cni-node-x7k2p","uid":"1"}}}"#;
        for (token, expected) in [
            (token(bound), Some("istio-cni-node-x7k2p")),
            (format!("{}\n", token(bound)), Some("istio-cni-node-x7k2p")),
            (token(r#"{"kubernetes.io":{"namespace":"istio-system"}}"#), None),
            (token(r#"{"kubernetes.io":{"pod":{"name":""}}}"#), None),
            (token("[]"), None),
            ("a.token.of-nobody".to_owned(), None),
            ("opaque".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(pod_name(&token).as_deref(), expected, "{token}");
        }
    }
}
