//! Files of a service account are replaced while they are used.

use std::fs;

use kit::{ApiServer, Pki};
use kube_api::{ApiConnection, ApiErrorKind, Error, KubeClient};
use model::ApiServerTrust;
use serde_json::{Value, json};

use super::fixture::{Credential, LIMIT, run};

async fn ask(client: &KubeClient) -> Result<Value, Error> {
    client.get("the namespace", "/api/v1/namespaces/kube-system", LIMIT).await
}

#[test]
fn a_token_and_an_authority_count_as_they_are_now() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("facts-credential");
    let rules = json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]);
    let token = api.service_account("facts-credential", "agent", &rules);
    let credential = Credential::new("none", Pki::shared().client_ca_pem());
    let connection = credential.connection("https://127.0.0.1:6443");
    let ApiServerTrust::Authority(authority) = &connection.trust else { unreachable!() };
    let replace = |file: &std::path::Path, text: &str| {
        fs::write(file.with_extension("new"), text).unwrap();
        fs::rename(file.with_extension("new"), file).unwrap();
    };
    run(async {
        let client = KubeClient::new(&connection).unwrap();
        let untrusted = ask(&client).await.unwrap_err().to_string();
        let why = "ServiceError: client error (Connect): invalid peer certificate: UnknownIssuer";
        assert_eq!(untrusted, format!("cannot get the namespace: {why}"));
        replace(authority, api.ca_pem());
        let refused = ask(&client).await.unwrap_err();
        assert_eq!(refused.kind(), ApiErrorKind::Refused, "{refused}");
        replace(&connection.token, &format!("{token}\n"));
        assert_eq!(ask(&client).await.unwrap()["metadata"]["name"], "kube-system");
        // On an existing connection.
        replace(&connection.token, "none");
        assert_eq!(ask(&client).await.unwrap_err().kind(), ApiErrorKind::Refused);
        // Invalid content is treated like a missing file.
        replace(&connection.token, &token);
        ask(&client).await.unwrap();
        replace(&connection.token, "");
        ask(&client).await.unwrap();
        fs::remove_file(&connection.token).unwrap();
        ask(&client).await.unwrap();
    });
}

#[test]
fn whoever_asks_for_it_trusts_anybody() {
    let Some(_api) = ApiServer::shared() else { return };
    let credential = Credential::new("none", "no certificate");
    let by_file = credential.connection("https://127.0.0.1:6443");
    run(async {
        let error = KubeClient::new(&by_file).map(drop).unwrap_err().to_string();
        assert!(error.contains("ca.crt") && error.contains("not PEM with a certificate"), "{error}");
        let client = KubeClient::new(&ApiConnection { trust: ApiServerTrust::Anybody, ..by_file }).unwrap();
        assert_eq!(ask(&client).await.unwrap_err().kind(), ApiErrorKind::Refused);
    });
}
