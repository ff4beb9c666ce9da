//! Output of ADD: the result of the previous plugins, unchanged.

use serde_json::{Value, json};

use crate::fixtures::plugin::{PluginFixture, V4, bare_pod};

/// A result that equals only its own bytes.
const ODD: &str = r#"{ "Unknown": {"b":1, "a":[1.0, 1e2, 12345678901234567890123456789]},
	"dns":{}, "cniVersion"  :"1.0.0", "routes":[ {"dst":"0.0.0.0\/0","x":null}],
	"ips":[{"address":"10.244.1.2/24","interface":0,"vendor.io/x":"\u0041\ud83d\ude00"}],
	"interfaces":[{"Name":"eth0","sandbox":"/run/netns/x","mtu":1450}], "ips6": [], "Unknown": 2 }"#;

fn conf(version: &str, prev_result: &str) -> String {
    let head = format!(r#"{{"cniVersion":"{version}","name":"net","type":"istio-cni","log_level":"error","#);
    let annotations = r#""runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"note":"plain"}}"#;
    format!(r#"{head}{annotations},"prevResult":{prev_result}}}"#)
}

#[test]
fn a_result_of_the_configured_version_is_echoed_byte_by_byte() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let call = || fixture.call("ADD", &pod);
    assert_eq!(call().stdin(conf("1.0.0", ODD)).run().ok(), ODD);
    // As above, for a redirected pod.
    let kubeconfig = fixture.kubeconfig.to_str().unwrap();
    let redirected = conf("1.0.0", ODD)
        .replace(r#"{"note":"plain"}"#, r#"{"sidecar.istio.io/status":"{}"}"#)
        .replacen('{', &format!(r#"{{"kubernetes":{{"kubeconfig":"{kubeconfig}"}},"#), 1);
    assert_eq!(call().stdin(redirected).run().ok(), ODD);
    assert!(kit::plugin_rules::is_redirected(&pod, "iptables-save"));
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.1.0"] {
        let empty = format!("{{ \"cniVersion\": \"{version}\"}}");
        assert_eq!(call().stdin(conf(version, &empty)).run().ok(), empty);
    }
}

#[test]
fn without_a_result_one_that_says_only_the_version_is_printed() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    for version in ["0.1.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let output = fixture.call("ADD", &pod).stdin(conf(version, "null")).run().ok();
        assert_eq!(serde_json::from_str::<Value>(&output).unwrap(), json!({"cniVersion": version}));
    }
}

#[test]
fn a_result_is_converted_when_it_must_be_and_unknown_members_stay() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let v4 = json!({"address": "10.0.0.5/24", "gateway": "10.0.0.1", "interface": 0, "x": 1});
    let v6 = json!({"address": "fd00::5/64", "interface": 0});
    let versioned = |mut ip: Value, version: &str| {
        ip["version"] = json!(version);
        ip
    };
    let new = |version: &str| {
        json!({"cniVersion": version, "interfaces": [{"name": "eth0", "y": 2}], "ips": [v4, v6],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}, {"dst": "::/0"}], "dns": {"nameservers": ["10.0.0.9"]},
            "z": {"deep": [1]}})
    };
    let old = |version: &str| {
        let mut result = new(version);
        result["ips"] = json!([versioned(v4.clone(), "4"), versioned(v6.clone(), "6")]);
        result
    };
    let oldest = |version: &str| {
        json!({"cniVersion": version,
            "ip4": {"ip": "10.0.0.5/24", "gateway": "10.0.0.1", "x": 1, "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]},
            "ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0"}]},
            "dns": {"nameservers": ["10.0.0.9"]}, "z": {"deep": [1]}})
    };
    let mut unstated = new("1.0.0");
    unstated.as_object_mut().unwrap().remove("cniVersion");
    let mut newest = new("1.1.0");
    newest["interfaces"][0]["mtu"] = json!(1450);
    newest["routes"][0]["table"] = json!(7);
    for (wanted, given, printed) in [
        ("1.0.0", old("0.4.0"), new("1.0.0")),
        ("1.1.0", old("0.3.1"), new("1.1.0")),
        ("0.3.1", new("1.0.0"), old("0.3.1")),
        ("0.4.0", new("1.1.0"), old("0.4.0")),
        ("0.4.0", old("0.3.1"), old("0.4.0")),
        ("1.1.0", new("1.0.0"), new("1.1.0")),
        ("1.0.0", newest, new("1.0.0")),
        ("0.2.0", new("1.0.0"), oldest("0.2.0")),
        ("0.1.0", oldest("0.2.0"), oldest("0.1.0")),
        ("1.0.0", unstated, new("1.0.0")),
    ] {
        let output = fixture.call("ADD", &pod).stdin(conf(wanted, &given.to_string())).run().ok();
        let output: Value = serde_json::from_str(&output).unwrap();
        assert_eq!(output, printed, "{given} as {wanted}");
    }
    let up = fixture.call("ADD", &pod).stdin(conf("1.0.0", &oldest("0.2.0").to_string())).run().ok();
    let up: Value = serde_json::from_str(&up).unwrap();
    assert_eq!(
        (&up["ips"][0]["address"], &up["ips"][1]["address"]),
        (&json!("10.0.0.5/24"), &json!("fd00::5/64"))
    );
    assert_eq!((&up["z"], up["routes"].as_array().unwrap().len()), (&json!({"deep": [1]}), 2));
}

#[test]
fn a_result_that_cannot_be_read_stops_add_before_anything_is_changed() {
    let fixture = PluginFixture::new();
    let pod = bare_pod(V4);
    let object = "expected an object at line 1 column";
    let undecodable = |why: &str| (6, format!("cannot decode prevResult{why}"));
    let version =
        "CNI version \"7.0.0\" is not one of the supported 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
    for (version, prev_result, expected) in [
        ("1.0.0", "[]", undecodable(&format!(": invalid type: sequence, {object} 0"))),
        ("1.0.0", "7", undecodable(&format!(": invalid type: integer `7`, {object} 1"))),
        ("1.0.0", r#""text""#, undecodable(&format!(": invalid type: string \"text\", {object} 6"))),
        (
            "1.0.0",
            r#"{"cniVersion":"1.0.0","ips":{}}"#,
            undecodable(".ips: invalid type: map, expected a sequence at line 1 column 0"),
        ),
        (
            "1.0.0",
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/33"}]}"#,
            undecodable(".ips[0].address: \"10.0.0.1/33\" is not an address with a prefix length"),
        ),
        (
            "1.0.0",
            r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8","interface":"eth0"}]}"#,
            undecodable(".ips[0].interface: invalid type: string \"eth0\", expected i64 at line 1 column 6"),
        ),
        ("1.0.0", r#"{"cniVersion":"1.0.0","routes":[{}]}"#, undecodable(".routes[0].dst: is missing")),
        (
            "0.2.0",
            r#"{"cniVersion":"0.2.0","ip4":"10.0.0.1"}"#,
            undecodable(&format!(".ip4: invalid type: string \"10.0.0.1\", {object} 10")),
        ),
        ("1.0.0", r#"{"cniVersion":"7.0.0"}"#, (1, format!("prevResult.cniVersion: {version}"))),
    ] {
        let call = fixture.call("ADD", &pod);
        let sidecar = conf(version, prev_result).replace("\"note\"", "\"sidecar.istio.io/status\"");
        let error = call.stdin(sidecar).run().refused();
        assert_eq!((error.code, error.msg), expected, "{prev_result}");
    }
    assert_eq!((crate::fixtures::plugin::tables(&pod), fixture.api.requests().len()), (String::new(), 0));
}
