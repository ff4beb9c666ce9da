//! The kubeconfig.

use std::fs;
use std::time::{Duration, Instant};

use crate::fixtures::install::{FILE, InstallFixture, KUBECONFIG};

const ROTATIONS: &str = "istio_cni_token_rotations_total";

#[test]
fn only_its_owner_may_read_it_unless_another_mode_is_set() {
    for (env, mode) in [(None, 0o600), (Some("0640"), 0o640), (Some("384"), 0o600), (Some("0o644"), 0o644)] {
        let env: Vec<_> = env.iter().map(|mode| ("KUBECONFIG_MODE", *mode)).collect();
        let fixture = InstallFixture::new(&env);
        let _daemon = fixture.start_ready();
        assert_eq!(fixture.files()[KUBECONFIG].0, mode, "{env:?}");
    }
}

/// Variables, texts that the file then has, and texts that it has not.
type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static [&'static str]);

#[test]
fn it_says_what_the_environment_says() {
    let cases: [Case; 4] = [
        (
            &[],
            &["server: https://10.96.0.1:6443\n", "certificate-authority-data: bm8gY2VydGlmaWNhdGU=\n"],
            &["insecure"],
        ),
        (
            &[("SKIP_TLS_VERIFY", "true")],
            &["insecure-skip-tls-verify: true\n", "token: a.token.of-nobody\n"],
            &["certificate-authority"],
        ),
        (
            &[("KUBE_CA_FILE", "/etc/hosts")],
            &["certificate-authority-data: MTI3LjAuMC4xIGxvY2FsaG9zdAo=\n"],
            &[],
        ),
        (
            &[
                ("KUBERNETES_SERVICE_HOST", "fd00:96::1"),
                ("KUBERNETES_SERVICE_PORT", "443"),
                ("KUBERNETES_SERVICE_PROTOCOL", ""),
            ],
            &["server: https://[fd00:96::1]:443\n"],
            &[],
        ),
    ];
    for (env, has, has_not) in cases {
        let fixture = InstallFixture::new(env);
        let _daemon = fixture.start_ready();
        let text = fixture.read(KUBECONFIG);
        assert!(has.iter().all(|part| text.contains(part)), "{env:?}: {text}");
        assert!(!has_not.iter().any(|part| text.contains(part)), "{env:?}: {text}");
    }
}

#[test]
fn it_can_have_another_name() {
    let fixture = InstallFixture::new(&[("KUBECFG_FILE_NAME", "mine"), ("CNI_NET_DIR", "/var/net.d/")]);
    let _daemon = fixture.start_ready();
    assert!(fixture.has("mine") && !fixture.has(KUBECONFIG));
    assert_eq!(fixture.entry(FILE)["kubernetes"]["kubeconfig"], "/var/net.d/mine");
}

#[test]
fn switched_off_it_is_neither_there_nor_named_and_an_old_one_is_removed() {
    let fixture = InstallFixture::new(&[]);
    fixture.start_ready().kill();
    assert!(fixture.has(KUBECONFIG));
    let fixture = fixture.again(&[("WRITE_KUBECONFIG", "false")]);
    let mut daemon = fixture.start_ready();
    assert!(!fixture.has(KUBECONFIG));
    let entry = fixture.entry(FILE);
    assert_eq!(entry["kubernetes"].get("kubeconfig"), None, "{entry}");
    assert_eq!(entry["kubernetes"]["cni_bin_dir"], "/opt/cni/bin");
    fixture.write(KUBECONFIG, "from elsewhere");
    daemon.wait_for("it is removed again", |_| !fixture.has(KUBECONFIG));
}

#[test]
fn a_new_token_is_taken_over_within_a_second_and_never_shown() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.start_ready();
    daemon.wait_for("none is counted", |daemon| daemon.metric(ROTATIONS) == Some(0.0));
    let tokens = [(1.0, "a.token.of-somebody"), (2.0, "b.token.of-somebody"), (3.0, "c.token.of-somebody")];
    let mut times = tokens.map(|(count, token)| {
        fixture.container.set_account(token, "no certificate");
        let rotated = Instant::now();
        daemon.wait_for("it is rewritten", |_| fixture.token(KUBECONFIG) == token);
        let took = rotated.elapsed();
        daemon.wait_for("it is counted", |daemon| daemon.metric(ROTATIONS) == Some(count));
        daemon.wait_until_ready();
        took
    });
    times.sort_unstable();
    assert!(times[1] < Duration::from_secs(1), "{times:?}"); // the machine may have stalled in one
    fixture.container.set_account("c.token.of-somebody", "a new certificate");
    daemon.wait_for("so is a new authority", |_| {
        fixture.document(KUBECONFIG)["clusters"][0]["cluster"]["certificate-authority-data"]
            == "YSBuZXcgY2VydGlmaWNhdGU="
    });
    daemon.wait_until_ready();
    assert_eq!(daemon.metric(ROTATIONS), Some(3.0), "that is no rotation");
    assert_eq!(
        daemon.metric("istio_cni_restores_total{cause=\"kubeconfig\"}"),
        None,
        "and none was a damage"
    );
    let (_, log) = daemon.terminate();
    assert!(!log.contains(".token.of-"), "{log}");
    assert_eq!(fixture.files()[KUBECONFIG].0, 0o600);
}

/// Even if the agent was not running meanwhile.
#[test]
fn a_token_that_changed_before_the_start_is_taken_over_at_once() {
    let fixture = InstallFixture::new(&[]);
    fixture.start_ready().kill();
    fixture.container.set_account("a.token.of-somebody", "no certificate");
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.token(KUBECONFIG), "a.token.of-somebody");
    assert!(fs::read_to_string(fixture.path(KUBECONFIG)).unwrap().ends_with('\n'));
}
