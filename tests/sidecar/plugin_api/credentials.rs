//! Kinds of credentials and trust anchors, and ADD's errors about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use kit::{Auth, NodeOptions, Pki, istio};
use serde_json::json;

use super::Cluster;
use crate::fixtures::plugin::{V4, bare_pod, plugin_auth, tables};

fn token(cluster: &Cluster) -> String {
    match plugin_auth(cluster.api) {
        Auth::Token(token) => token,
        _ => unreachable!("the plugin's tests use a token"),
    }
}

/// The kubeconfig with this file as its CA.
fn with_authority(kubeconfig: &str, file: &Path) -> String {
    let line = |line: &str| match line.trim_start().starts_with("certificate-authority-data:") {
        true => format!("    certificate-authority: {}\n", file.display()),
        false => format!("{line}\n"),
    };
    kubeconfig.lines().map(line).collect()
}

#[test]
fn every_kind_of_credential_works() {
    let Some(cluster) = Cluster::start("credentials", NodeOptions::default()) else { return };
    cluster.create("web", |pod| pod);
    let file = |name: &str, text: &str| istio::write_file(&cluster.node, name, text);
    let token_file = file("token", &format!("{}\n", token(&cluster)));
    let admin = Auth::ClientCert { user: "root".into(), group: "system:masters".into() };
    let auth = plugin_auth(cluster.api);
    let plain = cluster.api.kubeconfig(&auth);
    let authority = file("ca.pem", cluster.api.ca_pem());
    for (name, kubeconfig) in [
        ("token", plain.clone()),
        ("token file", cluster.api.kubeconfig(&Auth::TokenFile(token_file))),
        ("client certificate", cluster.api.kubeconfig(&admin)),
        ("insecure", cluster.api.kubeconfig(&Auth::Insecure(token(&cluster)))),
        ("authority in a file", with_authority(&plain, &authority)),
        ("authority in a relative file", with_authority(&plain, Path::new("ca.pem"))),
        ("IPv6", plain.replace(&cluster.api.url(), &cluster.api.url_v6())),
    ] {
        let pod = bare_pod(V4);
        let path = file("kubeconfig-tried", &kubeconfig);
        let outcome = cluster.add(&pod, "web").kubeconfig(&path).run();
        assert!(outcome.0.status.success(), "{name}: {outcome}");
        assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"), "{name}");
    }
}

#[test]
fn what_is_wrong_with_a_credential_is_said_and_the_credential_is_not() {
    let Some(cluster) = Cluster::start("credentials-wrong", NodeOptions::default()) else { return };
    cluster.create("web", |pod| pod);
    let account = cluster.api.admin().get("/api/v1/namespaces/kube-system/serviceaccounts/plugin-tests");
    let _ = token(&cluster);
    let uid = account["metadata"]["uid"].as_str().unwrap().to_owned();
    let past = SystemTime::now() - Duration::from_secs(600);
    let expired = cluster.api.mint_token("kube-system", "plugin-tests", &uid, past);
    let powerless = cluster.api.service_account(cluster.namespace, "powerless", &json!([]));
    let wrong_ca = istio::write_file(&cluster.node, "wrong-ca.pem", Pki::shared().client_ca_pem());
    let nobody = Auth::ClientCert { user: "nobody".into(), group: "nobodies".into() };
    let good = token(&cluster);
    for (kubeconfig, parts) in [
        (
            cluster.api.kubeconfig(&Auth::Token(expired.clone())),
            ["does not accept our credential (401)", "tried"],
        ),
        (cluster.api.kubeconfig(&Auth::Token("nonsense".into())), ["(401)", "Unauthorized"]),
        (cluster.api.kubeconfig(&Auth::Token(powerless.clone())), ["forbids this (403)", "powerless"]),
        (cluster.api.kubeconfig(&Auth::Anonymous), ["forbids this (403)", "system:anonymous"]),
        (cluster.api.kubeconfig(&nobody), ["forbids this (403)", "nobody"]),
        (
            with_authority(&cluster.api.kubeconfig(&Auth::Token(good.clone())), &wrong_ca),
            ["is not trusted", "certificate"],
        ),
    ] {
        let pod = bare_pod(V4);
        let path = istio::write_file(&cluster.node, "kubeconfig-tried", &kubeconfig);
        let call = cluster.add(&pod, "web").kubeconfig(&path).kubernetes("api_timeout_seconds", json!(1));
        let outcome = call.run();
        let error = outcome.refused();
        assert_eq!(error.code, 11, "{error:?}");
        for part in ["GET pods credentials-wrong/web", "https://10.96.0.1:6443", parts[0], parts[1]] {
            assert!(error.msg.contains(part), "no {part:?}: {error:?}");
        }
        for secret in [&expired, &powerless, &good] {
            assert!(!format!("{outcome}").contains(secret.as_str()), "{outcome}");
        }
        assert!(outcome.wall() < Duration::from_secs(5), "{:?}", outcome.wall());
        assert_eq!(tables(&pod), "");
    }
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named_at_once() {
    let Some(cluster) = Cluster::start("credentials-broken", NodeOptions::default()) else { return };
    let file = |name: &str, text: &str| istio::write_file(&cluster.node, name, text);
    let text = cluster.api.kubeconfig(&Auth::TokenFile("/nonexistent/token".into()));
    let exec = text.replace("tokenFile: /nonexistent/token", "exec: {command: /bin/sh}");
    for (path, part) in [
        (file("empty", ""), "it is empty"),
        (file("blank", "{}"), "current-context"),
        (file("nonsense", "{[}"), "invalid YAML"),
        (file("huge", &"#".repeat(2 << 20)), "huge"),
        (file("no-token", &text), "/nonexistent/token"),
        (file("exec", &exec), "user.exec"),
        (PathBuf::from("/dev/zero"), "/dev/zero"),
        (cluster.node.net_d(), "net.d"),
    ] {
        let pod = bare_pod(V4);
        let outcome = cluster.add(&pod, "web").kubeconfig(&path).run();
        let error = outcome.refused();
        assert!(error.code == 11 && error.msg.contains(part), "{part}: {error:?}");
        assert!(outcome.wall() < Duration::from_secs(8), "{part}: {:?}", outcome.wall());
        assert_eq!(tables(&pod), "");
    }
}

/// Runs ADD while a file has the wrong content, with which it cannot succeed, and replaces it a moment later.
fn rotated(cluster: &Cluster, kubeconfig: &Path, file: &Path, right: &str) {
    let pod = bare_pod(V4);
    thread::scope(|scope| {
        let add = scope.spawn(|| cluster.add(&pod, "web").kubeconfig(kubeconfig).run());
        thread::sleep(Duration::from_millis(500)); // a waiting call shows no sign
        let new = file.with_extension("new");
        fs::write(&new, right).unwrap();
        fs::rename(&new, file).unwrap();
        add.join().unwrap().ok();
    });
    assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"));
}

#[test]
fn a_token_or_an_authority_that_changes_meanwhile_is_read_afresh() {
    let Some(cluster) = Cluster::start("credentials-rotated", NodeOptions::default()) else { return };
    cluster.create("web", |pod| pod);
    let file = |name: &str, text: &str| istio::write_file(&cluster.node, name, text);
    let token_file = file("token", "old");
    let by_file = file("by-token-file", &cluster.api.kubeconfig(&Auth::TokenFile(token_file.clone())));
    rotated(&cluster, &by_file, &token_file, &token(&cluster));
    let authority = file("ca.pem", Pki::shared().client_ca_pem());
    let text = with_authority(&cluster.api.kubeconfig(&plugin_auth(cluster.api)), &authority);
    rotated(&cluster, &file("by-authority", &text), &authority, cluster.api.ca_pem());
    let whole = file("whole", &cluster.api.kubeconfig(&Auth::Token("old".into())));
    rotated(&cluster, &whole, &whole, &cluster.api.kubeconfig(&plugin_auth(cluster.api)));
}
