//! Credentials that are missing or cannot be read.

use std::fs;
use std::path::Path;

use super::fault::{CREDENTIAL, Fault, each};
use crate::fixtures::install::{FILE, InstallFixture, KUBECONFIG, NETWORK};

const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

fn directory(path: &Path) {
    fs::create_dir(path).unwrap();
}

fn nothing(_: &Path) {}

#[test]
fn a_token_or_authority_that_cannot_be_read_is_told_and_used_when_it_is_there() {
    type Put = fn(&Path);
    let cases: [(&str, Put, &'static [&'static str]); 4] = [
        ("token", nothing, &[TOKEN, "No such file or directory"]),
        ("ca.crt", nothing, &[CA, "No such file or directory"]),
        ("token", directory, &[TOKEN, "it is a directory"]),
        ("ca.crt", directory, &[CA, "it is a directory"]),
    ];
    each(cases, |(name, put, says)| {
        let fixture = InstallFixture::new(&[]);
        let account = fixture.container.account_dir();
        let file = account.join("..data").join(name);
        fs::remove_file(&file).unwrap();
        put(&file);
        Fault { result: CREDENTIAL, says }.shows_and_heals(&mut fixture.container.start(), || {
            assert!(!fixture.has(KUBECONFIG), "none is better than half of one");
            assert_eq!(fixture.read(FILE), NETWORK, "no entry without its credential");
            fixture.container.set_account("a.token.of-somebody", "a certificate");
        });
        assert_eq!(fixture.token(KUBECONFIG), "a.token.of-somebody", "{name}");
        assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
    });
}

/// The old one may still be valid, and without it no pod starts.
#[test]
fn a_token_that_vanishes_leaves_the_kubeconfig_and_the_entry_in_place() {
    let fixture = InstallFixture::new(&[]);
    fixture.start_ready().kill();
    let before = fixture.files();
    fs::remove_file(fixture.container.account_dir().join("..data/token")).unwrap();
    let mut daemon = fixture.container.start();
    Fault { result: CREDENTIAL, says: &[TOKEN, "No such file or directory"] }.shows_and_heals(
        &mut daemon,
        || {
            assert_eq!(fixture.files(), before);
            fixture.container.set_account("a.token.of-somebody", "a certificate");
        },
    );
    assert_eq!(fixture.token(KUBECONFIG), "a.token.of-somebody");
}

#[test]
fn a_missing_authority_file_of_ones_own_is_told_by_its_name() {
    let fixture = InstallFixture::new(&[("KUBE_CA_FILE", "/etc/authority/ca.pem")]);
    let says = &["/etc/authority/ca.pem", "No such file or directory"];
    Fault { result: CREDENTIAL, says }.shows_and_heals(&mut fixture.container.start(), || {
        let directory = fixture.container.root().join("etc/authority");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("ca.pem"), "a certificate").unwrap();
    });
}
