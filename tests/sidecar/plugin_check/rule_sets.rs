//! CHECK of rules that versions of Istio's plugin have created, without a record.

use kit::plugin_rules::{NATIVE, iptables};

use crate::fixtures::plugin::{PluginFixture, V4, bare_pod};

use super::{bypasses, call, record, succeeds};

#[test]
fn rules_of_every_version_that_redirect_are_accepted() {
    let fixture = PluginFixture::new();
    for backend in ["nft", "legacy"] {
        for (version, rules) in iptables() {
            let what = format!("{version}, {backend}");
            let pod = bare_pod(V4);
            pod.pipe(&format!("iptables-{backend}-restore"), &rules);
            let before = fixture.api.requests().len();
            succeeds(&what, &call(&fixture, "CHECK", &pod).run());
            assert_eq!(fixture.api.requests().len(), before, "{what}: nobody is asked");
            pod.sh(&format!("iptables-{backend} -w -t nat -F OUTPUT"));
            bypasses(&what, &call(&fixture, "CHECK", &pod).run(), "outbound");
            assert!(!record(&fixture).exists(), "{what}");
        }
    }
    let pod = bare_pod(V4);
    pod.pipe("nft -f -", NATIVE);
    succeeds("native tables", &call(&fixture, "CHECK", &pod).run());
    pod.sh("nft insert rule inet istio-proxy-nat istio-output accept");
    bypasses("native tables", &call(&fixture, "CHECK", &pod).run(), "outbound");
}

/// An older or newer version of the plugin has created other rules than its record has: traffic that the ADD redirected is still
/// redirected.
#[test]
fn rules_that_another_version_made_in_place_of_those_of_the_add_are_accepted() {
    let fixture = PluginFixture::new();
    for (version, rules) in iptables().into_iter().filter(|(version, _)| *version != "1.24, no inbound ports")
    {
        let pod = bare_pod(V4);
        call(&fixture, "ADD", &pod).run().ok();
        pod.sh("nft flush ruleset");
        pod.pipe("iptables-restore", &rules);
        succeeds(version, &call(&fixture, "CHECK", &pod).run());
    }
}
