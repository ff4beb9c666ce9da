use proptest::prelude::*;

use super::*;

#[test]
fn a_full_configuration_is_typed() {
    let conf = NetConf::parse(
        br#"{"cniversion":"1.1.0","Name":"k8s-pod-network","type":"istio-cni","unknown":[1,{}],
        "log_level":"debug","log_uds_address":"/var/run/istio-cni/log.sock","log_file":"/var/log/x",
        "ambient_enabled":true,"pod_namespace":"istio-system",
        "runtimeconfig":{"portMappings":[],"io.kubernetes.cri.pod-annotations":{"a":"b","n":null}},
        "cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"},{"containerid":"c2"}],
        "kubernetes":{"kubeconfig":"/etc/cni/net.d/k","exclude_namespaces":["kube-system"],"node_name":5,
          "cni_bin_dir":"/opt/cni/bin","api_timeout_seconds":7,"kubelet_root_dir":"/data/kubelet"}}"#,
    )
    .unwrap();
    assert_eq!((conf.cni_version, conf.name.as_str()), (CniVersion::V1_1_0, "k8s-pod-network"));
    assert!(conf.ambient_enabled);
    assert_eq!(conf.agent_namespaces[0].as_str(), "istio-system");
    let annotations = conf.pod_annotations.unwrap();
    assert_eq!((annotations["a"].as_str(), annotations["n"].as_str()), ("b", ""));
    assert_eq!(conf.valid_attachments.unwrap()[1].as_str(), "c2");
    assert_eq!(conf.kubernetes.exclude_namespaces, ["kube-system"]);
    assert_eq!(
        (conf.kubernetes.intercept_type.as_str(), conf.kubernetes.api_timeout_seconds),
        ("iptables", 7)
    );
    assert_eq!(conf.kubernetes.kubelet_root_dir, "/data/kubelet");
}

#[test]
fn the_least_configuration_has_the_defaults() {
    let conf = NetConf::parse(br#"{"name":"n","kubernetes":null,"prevResult":null}"#).unwrap();
    assert_eq!(conf.cni_version, CniVersion::V0_1_0);
    assert!(conf.prev_result.is_none() && conf.pod_annotations.is_none() && conf.valid_attachments.is_none());
    // Go encodes an empty list as `null`: no container uses the network.
    let none = NetConf::parse(br#"{"name":"n","cni.dev/valid-attachments":null}"#).unwrap();
    assert_eq!(none.valid_attachments, Some(Vec::new()));
    let former = NetConf::parse(br#"{"name":"n","cni.dev/attachments":[{"containerID":"c"}]}"#).unwrap();
    assert_eq!(former.valid_attachments.unwrap()[0].as_str(), "c");
    let defaults = KubernetesConf {
        kubeconfig: None,
        exclude_namespaces: Vec::new(),
        intercept_type: "iptables".to_owned(),
        api_timeout_seconds: 30,
        kubelet_root_dir: "/var/lib/kubelet".to_owned(),
    };
    assert_eq!(conf.kubernetes, defaults);
    assert_eq!(conf.pass_through().unwrap(), "{\"cniVersion\":\"0.1.0\"}");
}

#[test]
fn newer_keys_mean_the_same_as_older_ones() {
    let conf = NetConf::parse(
        br#"{"name":"istio-cni","type":"istio-cni","ipam":{},"dns":{},
        "plugin_log_level":"debug","cni_agent_run_dir":"/run/here/","ambient_enabled":true,
        "enablement_selectors":[{"podSelector":{"matchLabels":{"a": "b"}},"namespaceSelector":{}}],
        "exclude_namespaces":["kube-system"],"pod_namespace":"istio-system","agent_namespaces":["canary"],"native_nftables":true,
        "enable_ambient_detection_retry":true}"#,
    )
    .unwrap();
    assert_eq!(conf.log_level.as_deref(), Some("debug"));
    assert_eq!(conf.log_uds_address.as_deref(), Some("/run/here/log.sock"));
    assert_eq!(conf.log_file.as_deref(), Some("/run/here/istio-cni.log"));
    assert_eq!(conf.agent_socket.as_deref(), Some("/run/here/agent.sock"));
    assert_eq!(conf.kubernetes.kubeconfig.as_deref(), Some("/run/here/istio-cni-kubeconfig"));
    assert_eq!(conf.kubernetes.exclude_namespaces, ["kube-system"]);
    assert!(conf.ambient_enabled && conf.native_nftables);
    let of_agents: Vec<&str> = conf.agent_namespaces.iter().map(|found| found.as_str()).collect();
    assert_eq!(of_agents, ["istio-system", "canary"]);
    assert_eq!(
        conf.enablement_selectors.unwrap().get(),
        r#"[{"podSelector":{"matchLabels":{"a": "b"}},"namespaceSelector":{}}]"#
    );
    let nulls =
        br#"{"name":"n","exclude_namespaces":null,"enablement_selectors":null,"cni_agent_run_dir":""}"#;
    let conf = NetConf::parse(nulls).unwrap();
    assert!(conf.enablement_selectors.is_none() && conf.log_file.is_none());
    assert_eq!((conf.kubernetes.kubeconfig, conf.kubernetes.exclude_namespaces), (None, Vec::new()));
}

#[test]
fn an_older_key_counts_more_than_the_newer_one() {
    let conf = NetConf::parse(
        br#"{"name":"n","cni_agent_run_dir":"/run/here","plugin_log_level":"debug","log_level":"warn",
        "log_uds_address":"/a","log_file":"/b","agent_socket":"/c","exclude_namespaces":["x"],
        "kubernetes":{"kubeconfig":"/d","exclude_namespaces":[]}}"#,
    )
    .unwrap();
    assert_eq!(conf.log_level.as_deref(), Some("warn"));
    assert_eq!((conf.log_uds_address.as_deref(), conf.log_file.as_deref()), (Some("/a"), Some("/b")));
    assert_eq!(
        (conf.agent_socket.as_deref(), conf.kubernetes.kubeconfig.as_deref()),
        (Some("/c"), Some("/d"))
    );
    assert_eq!(conf.kubernetes.exclude_namespaces, Vec::<String>::new());
    let conf = NetConf::parse(br#"{"name":"n","exclude_namespaces":["x"],"kubernetes":{"node_name":"n"}}"#);
    assert_eq!(conf.unwrap().kubernetes.exclude_namespaces, ["x"]);
}

#[test]
fn what_is_wrong_has_its_code_and_path() {
    for (text, code, part) in [
        ("", ErrorCode::Decode, "not a JSON object"),
        ("[]", ErrorCode::Decode, "not a JSON object"),
        ("{}x", ErrorCode::Decode, "not a JSON object"),
        ("{}", ErrorCode::InvalidConfig, "name"),
        (r#"{"name":""}"#, ErrorCode::InvalidConfig, "name"),
        (r#"{"name":"../x"}"#, ErrorCode::InvalidConfig, "name"),
        (r#"{"name":5}"#, ErrorCode::Decode, "name: invalid type"),
        (r#"{"name":"n","cniVersion":"0.9.0"}"#, ErrorCode::IncompatibleVersion, "0.9.0"),
        (r#"{"name":"n","cniVersion":1}"#, ErrorCode::Decode, "cniVersion"),
        (r#"{"name":"n","ambient_enabled":"yes"}"#, ErrorCode::Decode, "ambient_enabled"),
        (r#"{"name":"n","pod_namespace":"A"}"#, ErrorCode::InvalidConfig, "pod_namespace"),
        (r#"{"name":"n","agent_namespaces":["a","B"]}"#, ErrorCode::InvalidConfig, "agent_namespaces"),
        (r#"{"name":"n","native_nftables":"yes"}"#, ErrorCode::Decode, "native_nftables"),
        (r#"{"name":"n","cni_agent_run_dir":1}"#, ErrorCode::Decode, "cni_agent_run_dir"),
        (r#"{"name":"n","exclude_namespaces":"x"}"#, ErrorCode::Decode, "exclude_namespaces"),
        (r#"{"name":"n","enablement_selectors":{}}"#, ErrorCode::Decode, "enablement_selectors"),
        (r#"{"name":"n","enablement_selectors":["a"]}"#, ErrorCode::Decode, "enablement_selectors[0]"),
        (r#"{"name":"n","kubernetes":[]}"#, ErrorCode::Decode, "kubernetes"),
        (r#"{"name":"n","kubernetes":{"kubeconfig":1}}"#, ErrorCode::Decode, "kubernetes.kubeconfig"),
        (
            r#"{"name":"n","kubernetes":{"exclude_namespaces":"x"}}"#,
            ErrorCode::Decode,
            "kubernetes.exclude_namespaces",
        ),
        (
            r#"{"name":"n","kubernetes":{"api_timeout_seconds":0}}"#,
            ErrorCode::InvalidConfig,
            "api_timeout_seconds",
        ),
        (
            r#"{"name":"n","kubernetes":{"api_timeout_seconds":301}}"#,
            ErrorCode::InvalidConfig,
            "api_timeout_seconds",
        ),
        (r#"{"name":"n","runtimeConfig":5}"#, ErrorCode::Decode, "runtimeConfig"),
        (
            r#"{"name":"n","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":1}}}"#,
            ErrorCode::Decode,
            POD_ANNOTATIONS,
        ),
        (r#"{"name":"n","cni.dev/valid-attachments":{}}"#, ErrorCode::Decode, VALID_ATTACHMENTS),
    ] {
        let error = NetConf::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.code, code, "{text}: {error}");
        assert!(error.msg.contains(part), "{text}: {error}");
    }
    // The maximum of annotations that Kubernetes permits, as Go writes them.
    let greatest = format!(
        r#"{{"name":"n","runtimeConfig":{{"{POD_ANNOTATIONS}":{{"a":"{}"}}}}}}"#,
        r"\u003c".repeat(256 * 1024)
    );
    assert_eq!(NetConf::parse(greatest.as_bytes()).unwrap().pod_annotations.unwrap()["a"].len(), 256 * 1024);
    assert_eq!(NetConf::parse(&[b' '; MAX_STDIN + 1]).unwrap_err().code, ErrorCode::Decode);
    assert_eq!(NetConf::parse(b"{\"name\":\"\xff\"}").unwrap_err().code, ErrorCode::Decode);
}

#[test]
fn an_error_carries_the_version_of_the_configuration() {
    let error = NetConf::parse(br#"{"cniVersion":"0.4.0"}"#).unwrap_err();
    assert_eq!(error.cni_version, CniVersion::V0_4_0);
}

#[test]
fn a_command_needs_a_version_that_has_it() {
    let conf = |version: &str| {
        NetConf::parse(format!(r#"{{"name":"n","cniVersion":"{version}"}}"#).as_bytes()).unwrap()
    };
    assert!(
        conf("0.4.0").check_command(CniCommand::Check).is_ok()
            && conf("1.1.0").check_command(CniCommand::Gc).is_ok()
    );
    assert!(conf("0.1.0").check_command(CniCommand::Add).is_ok());
    let error = conf("0.3.1").check_command(CniCommand::Check).unwrap_err();
    assert_eq!((error.code, error.cni_version), (ErrorCode::IncompatibleVersion, CniVersion::V0_3_1));
    assert!(conf("1.0.0").check_command(CniCommand::Status).is_err());
}

#[test]
fn the_previous_result_keeps_its_bytes() {
    let raw = "{ \"cniVersion\":\"1.0.0\",\n \"x\": 1.00000000000000000000000001e2 }";
    let conf =
        NetConf::parse(format!(r#"{{"cniVersion":"1.0.0","name":"n","prevResult": {raw} }}"#).as_bytes())
            .unwrap();
    assert_eq!(conf.pass_through().unwrap(), raw);
}

proptest! {
    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = NetConf::parse(&bytes);
    }

    #[test]
    fn tokens_never_panic(text in "([{}\\[\\],:]|\"(name|cniVersion|prevResult|ips|interfaces|1.0.0|kubernetes)\"|null|5|true){0,30}") {
        if let Ok(conf) = NetConf::parse(text.as_bytes()) {
            let _ = conf.pass_through();
        }
    }
}
