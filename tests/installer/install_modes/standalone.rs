//! A network of our own, for components that call it by name.

use std::fs;

use kit::NETWORK_CONFIG;

use crate::fixtures::install::{FILE, InstallFixture, NETWORK};

const ALONE: (&str, &str) = ("CHAINED_CNI_PLUGIN", "false");

/// [`NETWORK_CONFIG`] with its placeholders replaced.
fn rendered() -> String {
    NETWORK_CONFIG
        .replace("__LOG_UDS_ADDRESS__", "/var/run/istio-cni/log.sock")
        .replace("__KUBECONFIG_FILEPATH__", "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig")
}

#[test]
fn the_file_is_the_template_as_it_is() {
    for (env, name) in
        [(vec![ALONE], "YYY-istio-cni.conf"), (vec![ALONE, ("CNI_CONF_NAME", "50-a.conf")], "50-a.conf")]
    {
        let fixture = InstallFixture::new(&env).again(&[("CLEANUP_ON_EXIT", "always")]);
        let before = fixture.files();
        let mut daemon = fixture.start_ready();
        assert_eq!(fixture.read(name), rendered());
        assert_eq!(fixture.files()[name].0, 0o644);
        assert_eq!(fixture.read(FILE), NETWORK, "the runtime's network is not touched");
        fs::remove_file(fixture.path(name)).unwrap();
        daemon.wait_for("it is put back", |_| fixture.has(name) && fixture.read(name) == rendered());
        let (status, log) = daemon.terminate();
        assert!(status.success(), "{log}");
        assert_eq!(fixture.files(), before, "{name}");
    }
}

#[test]
fn it_needs_no_other_network() {
    let fixture = InstallFixture::bare(&[ALONE]);
    let _daemon = fixture.start_ready();
    assert_eq!(fixture.read("YYY-istio-cni.conf"), rendered());
}
