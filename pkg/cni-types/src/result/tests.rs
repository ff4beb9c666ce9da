use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::SUPPORTED;

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

fn converted(value: &Value, to: CniVersion) -> Value {
    let raw = raw(value);
    let prev = PrevResult::parse(&raw, CniVersion::V1_0_0).unwrap();
    serde_json::from_str(&prev.output_for(to).unwrap()).unwrap()
}

fn newest() -> Value {
    json!({"cniVersion": "1.1.0", "x": {"y": 1.5},
        "interfaces": [{"name": "veth1", "u": 1}, {"name": "eth0", "mac": "aa:bb", "sandbox": "/n", "mtu": 1500, "socketPath": "/s", "pciID": "p"}],
        "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 1, "u": true}, {"address": "fd00::5/64", "interface": 1},
                {"address": "10.2.0.5/24"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 9, "table": 5, "u": "v"}, {"dst": "::/0", "priority": 1, "advmss": 2, "scope": 3}],
        "dns": {"nameservers": ["10.0.0.10"], "search": ["x"]}})
}

#[test]
fn a_result_is_typed() {
    let raw = raw(&newest());
    let prev = PrevResult::parse(&raw, CniVersion::V1_1_0).unwrap();
    let result = &prev.result;
    assert_eq!(result.interfaces, ["veth1", "eth0"]);
    assert_eq!(result.ips[0].address.to_string(), "10.1.0.5/24");
    assert_eq!(result.routes[1].prefix_len(), 0);
}

#[test]
fn conversions_down_drop_what_the_version_cannot_hold() {
    let mut one = newest();
    one["cniVersion"] = "1.0.0".into();
    one["interfaces"][1] = json!({"name": "eth0", "mac": "aa:bb", "sandbox": "/n"});
    one["routes"] = json!([{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "u": "v"}, {"dst": "::/0"}]);
    assert_eq!(converted(&newest(), CniVersion::V1_0_0), one);

    let mut zero_four = one.clone();
    zero_four["cniVersion"] = "0.4.0".into();
    for (at, family) in [(0, "4"), (1, "6"), (2, "4")] {
        zero_four["ips"][at]["version"] = family.into();
    }
    assert_eq!(converted(&newest(), CniVersion::V0_4_0), zero_four);
    assert_eq!(converted(&zero_four, CniVersion::V1_0_0), one);

    let zero_two = json!({"cniVersion": "0.2.0", "x": {"y": 1.5},
        "ip4": {"ip": "10.1.0.5/24", "gateway": "10.1.0.1", "u": true, "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "u": "v"}]},
        "ip6": {"ip": "fd00::5/64", "routes": [{"dst": "::/0"}]},
        "dns": {"nameservers": ["10.0.0.10"], "search": ["x"]}});
    for from in [&newest(), &one, &zero_four] {
        assert_eq!(converted(from, CniVersion::V0_2_0), zero_two);
    }
    let up = json!({"cniVersion": "0.3.1", "x": {"y": 1.5},
        "ips": [{"version": "4", "address": "10.1.0.5/24", "gateway": "10.1.0.1", "u": true}, {"version": "6", "address": "fd00::5/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "u": "v"}, {"dst": "::/0"}],
        "dns": {"nameservers": ["10.0.0.10"], "search": ["x"]}});
    assert_eq!(converted(&zero_two, CniVersion::V0_3_1), up);
    assert_eq!(converted(&up, CniVersion::V0_2_0), zero_two);
}

#[test]
fn the_same_version_is_echoed_and_another_keeps_numbers() {
    let text = "{\"IPS\":[ ],\"cniversion\":\"1.0.0\",\"n\":12345678901234567890.123456789012345678901}";
    let raw = RawValue::from_string(text.to_owned()).unwrap();
    let prev = PrevResult::parse(&raw, CniVersion::V1_0_0).unwrap();
    assert_eq!(prev.output_for(CniVersion::V1_0_0).unwrap(), text);
    let other = prev.output_for(CniVersion::V0_4_0).unwrap();
    assert!(other.contains("\"n\": 12345678901234567890.123456789012345678901"), "{other}");
    assert!(other.contains("\"cniVersion\": \"0.4.0\"") && !other.contains("cniversion"), "{other}");
}

#[test]
fn a_result_without_a_version_gets_the_one_of_the_configuration() {
    let raw = raw(&json!({"ips": [{"address": "10.0.0.1/8"}]}));
    let prev = PrevResult::parse(&raw, CniVersion::V1_0_0).unwrap();
    let out: Value = serde_json::from_str(&prev.output_for(CniVersion::V1_0_0).unwrap()).unwrap();
    assert_eq!(out, json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/8"}]}));
}

#[test]
fn pod_ips_are_those_of_the_pods_interface_or_of_none() {
    let value = json!({"cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "eth0"}],
        "ips": [{"address": "10.0.0.1/24", "interface": 0}, {"address": "10.0.0.5/24", "interface": 1},
                {"address": "::ffff:10.0.0.6/120"}, {"address": "fd00::5/64", "interface": 7}, {"address": "10.0.0.7/24", "interface": -1},
                {"address": "10.0.0.5/16", "interface": 1}]});
    let raw = raw(&value);
    let prev = PrevResult::parse(&raw, CniVersion::V1_0_0).unwrap();
    let ips: Vec<String> =
        prev.result.pod_ips(&CniIfName::new("eth0").unwrap()).iter().map(ToString::to_string).collect();
    assert_eq!(ips, ["10.0.0.5", "10.0.0.6", "fd00::5", "10.0.0.7"]);
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    for (value, code, part) in [
        (json!([]), ErrorCode::Decode, "prevResult: "),
        (json!({"cniVersion": "9"}), ErrorCode::IncompatibleVersion, "prevResult.cniVersion"),
        (json!({"ips": {}}), ErrorCode::Decode, "prevResult.ips: "),
        (json!({"ips": [{}]}), ErrorCode::Decode, "prevResult.ips[0].address: is missing"),
        (
            json!({"ips": [{"address": "10.0.0.1/33"}]}),
            ErrorCode::Decode,
            "prevResult.ips[0].address: \"10.0.0.1/33\"",
        ),
        (
            json!({"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}),
            ErrorCode::Decode,
            "prevResult.ips[0].gateway",
        ),
        (
            json!({"ips": [{"address": "10.0.0.1/8", "interface": "0"}]}),
            ErrorCode::Decode,
            "prevResult.ips[0].interface",
        ),
        (json!({"routes": [{"dst": "x"}]}), ErrorCode::Decode, "prevResult.routes[0].dst"),
        (json!({"routes": [{"dst": "::/0", "gw": "x"}]}), ErrorCode::Decode, "prevResult.routes[0].gw"),
        (json!({"interfaces": [{"name": 1}]}), ErrorCode::Decode, "prevResult.interfaces[0].name"),
        (json!({"interfaces": [{"mtu": "1"}]}), ErrorCode::Decode, "prevResult.interfaces[0].mtu"),
        (json!({"interfaces": [{"pciID": 1}]}), ErrorCode::Decode, "prevResult.interfaces[0].pciID"),
        (json!({"dns": {"search": "x"}}), ErrorCode::Decode, "prevResult.dns.search"),
        (json!({"cniVersion": "0.2.0", "ip4": {"routes": []}}), ErrorCode::Decode, "prevResult.ip4.ip"),
    ] {
        let raw = raw(&value);
        let error = PrevResult::parse(&raw, CniVersion::V1_0_0).unwrap_err();
        assert_eq!(error.code, code, "{value}");
        assert!(error.msg.contains(part), "{value}: {}", error.msg);
    }
}

fn any_result() -> impl Strategy<Value = Value> {
    let v4 = (any::<[u8; 4]>(), 0u8..=32)
        .prop_map(|(a, len)| format!("{}.{}.{}.{}/{len}", a[0], a[1], a[2], a[3]));
    let ip = (v4.clone(), any::<bool>(), proptest::option::of(0u8..3)).prop_map(
        |(address, unknown, interface)| {
            let mut ip = json!({"address": address});
            if unknown {
                ip["unknown"] = json!([1, "x"]);
            }
            if let Some(interface) = interface {
                ip["interface"] = interface.into();
            }
            ip
        },
    );
    let list = proptest::collection::vec(ip, 1..4);
    (list, proptest::collection::vec(v4, 1..3), "[a-z0-9]{1,15}").prop_map(|(ips, routes, name)| {
        let routes: Vec<Value> = routes.into_iter().map(|dst| json!({"dst": dst})).collect();
        json!({"cniVersion": "1.0.0", "interfaces": [{"name": name}], "ips": ips, "routes": routes, "own": {"k": 1}})
    })
}

proptest! {
    #[test]
    fn lists_survive_the_way_there_and_back(value in any_result()) {
        for version in SUPPORTED.into_iter().filter(|version| *version >= CniVersion::V0_3_0) {
            prop_assert_eq!(&converted(&converted(&value, version), CniVersion::V1_0_0), &value);
        }
    }

    #[test]
    fn a_first_address_survives_every_version(value in any_result()) {
        for version in SUPPORTED {
            let back = converted(&converted(&value, version), CniVersion::V1_0_0);
            prop_assert_eq!(&back["ips"][0]["address"], &value["ips"][0]["address"]);
            prop_assert_eq!(&back["ips"][0]["unknown"], &value["ips"][0]["unknown"]);
            prop_assert_eq!(&back["routes"], &value["routes"]);
            prop_assert_eq!(&back["own"], &value["own"]);
        }
    }
}
