use super::*;

fn entry() -> ConflistEntry {
    ConflistEntry::parse(
        r#"{"cniVersion":"0.3.1","type":"istio-cni","a":1,"kubernetes":{"kubeconfig":"/k","x":2}}"#,
    )
    .unwrap()
}

#[test]
fn a_file_name_denotes_its_form() {
    for (name, form) in [
        ("10-calico.conflist", Some(FileForm::Conflist)),
        ("10.bridge.conf", Some(FileForm::Conf)),
        (".conf", Some(FileForm::Conf)),
        ("10-x.json", Some(FileForm::Conf)),
        ("10-x.jsonl", None),
        ("10-x.CONF", None),
        ("10-x.conf.bak", None),
        ("10-x.conflist~", None),
        ("conf", None),
        ("", None),
    ] {
        assert_eq!(FileForm::from_file_name(name), form, "{name}");
    }
}

/// Reads the file as each version does; all must agree.
fn read_alike(form: FileForm, text: &[u8]) -> Result<(), UnusableConf> {
    let [first, second, third] =
        Libcni::ALL.map(|libcni| read_network(form, text, libcni).map(|network| network.plugins));
    assert_eq!((&first, &first), (&second, &third), "{}", String::from_utf8_lossy(text));
    first.map(drop)
}

#[test]
fn runtimes_load_these_files() {
    for (form, text) in [
        (FileForm::Conf, r#"{"type":"bridge"}"#),
        (FileForm::Conf, r#"{"Type":"bridge","plugins":[]}"#),
        (FileForm::Conf, r#"{"type":"istio-cni","name":"x","cniVersion":"9.9","ipam":{},"dns":null}"#),
        (FileForm::Conflist, r#"{"name":"n","plugins":[{"type":"a"}]}"#),
        (FileForm::Conflist, r#"{"name":"","cniVersion":"","disableCheck":true,"plugins":[{"type":"a"}]}"#),
        (
            FileForm::Conflist,
            r#"{"name":"n","type":5,"plugins":[{"type":"a"},{"TYPE":"b","prevResult":{}}]}"#,
        ),
        (
            FileForm::Conflist,
            r#"{"name":"n","plugins":[{"type":"a","capabilities":{"x":true,"y":null},
                "dns":{"nameservers":["1.1.1.1",null],"other":5},"ipam":{"type":"x","n":1e308},"big":1e-400}]}"#,
        ),
    ] {
        assert_eq!(read_alike(form, text.as_bytes()), Ok(()), "{text}");
    }
    assert_eq!(read_alike(FileForm::Conf, b"{\"type\":\"\xff\"}"), Ok(()));
}

#[test]
fn runtimes_refuse_these_single_configurations() {
    for (text, why) in [
        ("", "it is not JSON: line 1, column 1: EOF while parsing a value"),
        (r#"{"type":"bridge"},"#, "it is not JSON: line 1, column 18: trailing characters"),
        (
            "\u{feff}{\"type\":\"bridge\"}",
            "it is not JSON: line 1, column 1: the text starts with a byte order",
        ),
        ("[]", "it is not a JSON object"),
        ("null", "it is not a JSON object"),
        ("{}", "`type` is missing or empty"),
        (r#"{"type":""}"#, "`type` is missing or empty"),
        (r#"{"type":null}"#, "`type` is missing or empty"),
        (r#"{"name":"n","plugins":[{"type":"a"}]}"#, "`type` is missing or empty"),
        (r#"{"type":5}"#, "`type` is not a string"),
        (r#"{"type":"a","name":5}"#, "`name` is not a string"),
        (r#"{"type":"a","CNIVersion":1}"#, "`cniVersion` is not a string"),
        (r#"{"type":"a","capabilities":[]}"#, "`capabilities` is not an object"),
        (r#"{"type":"a","capabilities":{"x":"yes"}}"#, "`capabilities.x` is not a boolean"),
        (r#"{"type":"a","ipam":"x"}"#, "`ipam` is not an object"),
        (r#"{"type":"a","ipam":{"type":[]}}"#, "`ipam.type` is not a string"),
        (r#"{"type":"a","dns":{"nameservers":"x"}}"#, "`dns.nameservers` is not a list of strings"),
        (r#"{"type":"a","dns":{"search":["x",1]}}"#, "`dns.search[1]` is not a string"),
        (r#"{"type":"a","dns":{"options":{}}}"#, "`dns.options` is not a list of strings"),
        (r#"{"type":"a","prevResult":1}"#, "`prevResult` is not an object"),
        (r#"{"type":"a","x":[{"y":1e400}]}"#, "the number 1e400 is out of range"),
    ] {
        let error = read_alike(FileForm::Conf, text.as_bytes()).expect_err(text).to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}

#[test]
fn runtimes_refuse_these_lists() {
    for (text, why) in [
        ("{", "it is not JSON: line 1, column 1: EOF while parsing an object"),
        (r#"[{"type":"a"}]"#, "it is not a JSON object"),
        (r#"{"plugins":[{"type":"a"}]}"#, "`name` is missing or empty"),
        (r#"{"Name":"n","plugins":[{"type":"a"}]}"#, "`name` is missing or empty"),
        (r#"{"name":null,"plugins":[{"type":"a"}]}"#, "`name` is not a string"),
        (r#"{"name":1,"plugins":[{"type":"a"}]}"#, "`name` is not a string"),
        (r#"{"name":"n","cniVersion":1,"plugins":[{"type":"a"}]}"#, "`cniVersion` is not a string"),
        (r#"{"name":"n","cniVersion":null,"plugins":[{"type":"a"}]}"#, "`cniVersion` is not a string"),
        (r#"{"name":"n","disableCheck":null,"plugins":[{"type":"a"}]}"#, "`disableCheck` is not a boolean"),
        (r#"{"name":"n","disableCheck":"yes","plugins":[{"type":"a"}]}"#, "`disableCheck` is not a boolean"),
        (r#"{"name":"n","plugins":{}}"#, "`plugins` is not a list"),
        (r#"{"name":"n","plugins":null}"#, "`plugins` is not a list"),
        (r#"{"name":"n","plugins":[]}"#, "`plugins` is missing or empty"),
        (r#"{"name":"n","plugins":["a"]}"#, "`plugins[0]` is not an object"),
        (r#"{"name":"n","plugins":[{"type":"a"},{}]}"#, "`plugins[1].type` is missing or empty"),
        (
            r#"{"name":"n","plugins":[{"type":"a","dns":{"domain":1}}]}"#,
            "`plugins[0].dns.domain` is not a string",
        ),
        (r#"{"name":"n","x":-1e999,"plugins":[{"type":"a"}]}"#, "the number -1e999 is out of range"),
    ] {
        let error = read_alike(FileForm::Conflist, text.as_bytes()).expect_err(text).to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}

#[test]
fn versions_of_libcni_differ_in_these_lists() {
    let plugins = r#""plugins":[{"type":"a"}]"#;
    let attachments = |value: &str| {
        format!(r#"{{"name":"n","plugins":[{{"type":"a","cni.dev/valid-attachments":{value}}}]}}"#)
    };
    // For libcni 1.1, 1.2 and 1.3.
    for (text, read) in [
        (format!(r#"{{"name":"n","disableCheck":"True",{plugins}}}"#), "011"),
        (format!(r#"{{"name":"n","disableGC":"FALSE",{plugins}}}"#), "111"),
        (format!(r#"{{"name":"n","disableGC":1,{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","disableGC":null,{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersions":["0.4.0","1","1.0","","9.9.9"],{plugins}}}"#), "111"),
        (format!(r#"{{"name":"n","cniVersions":[],"cniVersion":"1.0.0",{plugins}}}"#), "111"),
        (format!(r#"{{"name":"n","cniVersions":[],"cniVersion":"new",{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersion":"new",{plugins}}}"#), "111"),
        (format!(r#"{{"name":"n","cniVersions":"1.0.0",{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersions":null,{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersions":[1],{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersions":["1.0.0.0"],{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","cniVersions":["1."],{plugins}}}"#), "100"),
        (format!(r#"{{"name":"n","loadOnlyInlinedPlugins":"true",{plugins}}}"#), "111"),
        (format!(r#"{{"name":"n","loadOnlyInlinedPlugins":1,{plugins}}}"#), "110"),
        (r#"{"name":"n"}"#.to_owned(), "001"),
        (r#"{"name":"n","type":"a"}"#.to_owned(), "001"),
        (r#"{"name":"n","loadOnlyInlinedPlugins":true}"#.to_owned(), "000"),
        (r#"{"name":"n","plugins":[]}"#.to_owned(), "000"),
        (attachments(r#"[{"containerID":"c","ifname":"eth0"},null]"#), "111"),
        (attachments("{}"), "100"),
        (attachments("[1]"), "100"),
        (attachments(r#"[{"ifName":0}]"#), "100"),
    ] {
        let all = Libcni::ALL.map(|libcni| read_network(FileForm::Conflist, text.as_bytes(), libcni).is_ok());
        assert_eq!(all.map(|read| if read { '1' } else { '0' }).iter().collect::<String>(), read, "{text}");
    }
}

#[test]
fn only_the_newest_libcni_reads_a_plugin_directory() {
    let directory = |text: &str, libcni| {
        read_network(FileForm::Conflist, text.as_bytes(), libcni).unwrap().plugin_directory
    };
    let list = r#"{"name":"n","plugins":[{"type":"a"}]}"#;
    assert_eq!(directory(list, Libcni::V1_1), None);
    assert_eq!(directory(list, Libcni::V1_2), None);
    assert_eq!(directory(list, Libcni::V1_3).as_deref(), Some("n"));
    let inline = r#"{"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}"#;
    assert_eq!(directory(inline, Libcni::V1_3), None);
    let single = read_network(FileForm::Conf, br#"{"name":"n","type":"a"}"#, Libcni::V1_3);
    assert_eq!(single, Ok(NetworkFile { plugins: 1, plugin_directory: None }));

    let unknown = br#"{"type":"a","x":1e999}"#;
    assert_eq!(check_directory_plugin(unknown), Ok(()), "its unknown members are not decoded");
    for text in [r#"{"name":"a"}"#, "[]", "", r#"{"type":"a","prevResult":{"x":1e999}}"#] {
        assert!(check_directory_plugin(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_list_in_a_version_that_our_plugin_does_not_speak_is_recognised() {
    for (members, unknown) in [
        (r#""plugins":[]"#, false),
        (r#""cniVersion":"","plugins":[]"#, false),
        (r#""cniVersion":"1.1.0","plugins":[]"#, false),
        (r#""cniVersion":"1.2.0","plugins":[]"#, true),
        (r#""cniVersion":"1.0","plugins":[]"#, true),
        (r#""cniVersion":"1.2.0","cniVersions":["1.1.0"],"plugins":[]"#, false),
        (r#""cniVersion":"1.2.0","type":"a""#, false),
    ] {
        let list = format!(r#"{{"name":"n",{members}}}"#);
        assert_eq!(unknown_version(list.as_bytes()).is_some(), unknown, "{list}");
    }
}

#[test]
fn standalone_files_hold_our_plugin_alone() {
    assert!(is_standalone(br#"{"type":"istio-cni","cniVersion":5}"#));
    let list = r#"{"name":"n","plugins":[{"type":"istio-cni"}]}"#;
    for text in ["", "[]", "{}", r#"{"type":"bridge"}"#, list] {
        assert!(!is_standalone(text.as_bytes()), "{text}");
    }
}

#[test]
fn an_entry_is_the_template_without_its_version() {
    let parsed = entry();
    let json = r#"{"type":"istio-cni","a":1,"kubernetes":{"kubeconfig":"/k","x":2}}"#;
    assert_eq!(*parsed.as_json(), Json::parse(json.as_bytes()).unwrap());
    let json = r#"{"type":"istio-cni","a":1,"kubernetes":{"x":2}}"#;
    let without = parsed.without_kubeconfig();
    assert_eq!(*without.as_json(), Json::parse(json.as_bytes()).unwrap());
    assert_eq!(without.clone().without_kubeconfig(), without);
    let alike = r#"{"Type":"istio-cni","CNIversion":"1.0.0","Kubernetes":{"KubeConfig":"/k"}}"#;
    let without = ConflistEntry::parse(alike).unwrap().without_kubeconfig();
    assert_eq!(*without.as_json(), Json::parse(br#"{"Type":"istio-cni","Kubernetes":{}}"#).unwrap());
}

#[test]
fn a_template_that_would_stop_pods_is_refused() {
    let deep = format!(r#"{{"type":"istio-cni","x":{}{}}}"#, "[".repeat(126), "]".repeat(126));
    for (text, why) in [
        ("", "the plugin's configuration is not JSON: line 1, column 1"),
        (
            "{\"type\":\"istio-cni\",\n\"log_level\":__LOG_LEVEL__}",
            "the plugin's configuration is not JSON: line 2, column 13",
        ),
        ("[]", "the plugin's configuration is not a JSON object"),
        ("{}", r#"the plugin's configuration needs the `type` "istio-cni", and has none"#),
        (
            r#"{"type":"bridge"}"#,
            r#"the plugin's configuration needs the `type` "istio-cni", and has "bridge""#,
        ),
        (
            r#"{"type":"istio-cni","kubernetes":{"exclude_namespaces":"kube-system"}}"#,
            "the plugin's configuration is refused: cannot decode kubernetes.exclude_namespaces: invalid type",
        ),
        (r#"{"type":"istio-cni","name":"a/b"}"#, "the plugin's configuration is refused: name: "),
        (
            r#"{"type":"istio-cni","cniVersion":"9.9.9"}"#,
            "the plugin's configuration is refused: cniVersion: ",
        ),
        (
            r#"{"type":"istio-cni","capabilities":{"x":1}}"#,
            "the plugin's configuration is refused: `capabilities.x` is not a boolean",
        ),
        (r#"{"type":"istio-cni","x":1e400}"#, "the plugin's configuration is refused: the number 1e400"),
        (&deep, "the configuration is nested too deep to become part of a list"),
    ] {
        let error = ConflistEntry::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}

#[test]
fn the_deepest_entry_can_be_read_in_a_list() {
    let deep = format!(r#"{{"type":"istio-cni","x":{}{}}}"#, "[".repeat(125), "]".repeat(125));
    let deep = ConflistEntry::parse(&deep).unwrap();
    let text = merge_entry(br#"{"type":"a"}"#, &deep).unwrap();
    assert_eq!(entry_status(text.as_bytes(), &deep), Ok(EntryStatus::Current));
}

#[test]
fn what_is_neither_plugin_nor_list_is_not_edited() {
    for (text, error) in [
        ("[]", EditError::NotAnObject),
        ("null", EditError::NotAnObject),
        ("{}", EditError::NoPlugins),
        (r#"{"type":5}"#, EditError::NoPlugins),
        (r#"{"name":"n","Plugins":[{"type":"a"}]}"#, EditError::NoPlugins),
        (r#"{"type":"a","plugins":[{"type":"a"}]}"#, EditError::Both),
        (r#"{"plugins":{}}"#, EditError::PluginsNotAList),
        (r#"{"plugins":null}"#, EditError::PluginsNotAList),
        (r#"{"plugins":[]}"#, EditError::NothingToChain),
        (r#"{"plugins":[{"type":"a"},null]}"#, EditError::EntryNotAnObject(1)),
        (r#"{"plugins":["istio-cni"]}"#, EditError::EntryNotAnObject(0)),
    ] {
        assert_eq!(merge_entry(text.as_bytes(), &entry()), Err(error.clone()), "{text}");
        assert_eq!(entry_status(text.as_bytes(), &entry()), Err(error.clone()), "{text}");
        assert_eq!(without_entry(text.as_bytes()), Err(error), "{text}");
    }
    let error = merge_entry(b"{\"type\":\"a\",\"x\":\"\xe4\"}", &entry()).unwrap_err().to_string();
    assert_eq!(error, "the file is not JSON: line 1, column 18: these bytes are not UTF-8");
}

#[test]
fn our_plugin_is_not_chained_to_itself() {
    let list = br#"{"plugins":[{"type":"istio-cni"}]}"#;
    assert_eq!(merge_entry(list, &entry()), Err(EditError::NothingToChain));
    assert_eq!(entry_status(list, &entry()), Err(EditError::NothingToChain));
    assert_eq!(without_entry(list), Ok(Some("{\n  \"plugins\": []\n}\n".to_owned())));
    let single = br#"{"type":"istio-cni"}"#;
    assert_eq!(merge_entry(single, &entry()), Err(EditError::NothingToChain));
    assert_eq!((entry_status(single, &entry()), without_entry(single)), (Ok(EntryStatus::Absent), Ok(None)));
}

#[test]
fn our_entry_stands_where_it_stands() {
    let now = r#"{"kubernetes":{"x":2,"kubeconfig":"\/k"},"type":"istio-cni","a":1}"#;
    let (old, other) = (now.replace(":1", ":1.0"), r#"{"type":"a"}"#);
    for (plugins, expected) in [
        (vec![other], EntryStatus::Absent),
        (vec![other, r#"{"name":"istio-cni"}"#, r#"{"type":"istio"}"#], EntryStatus::Absent),
        (vec![other, now], EntryStatus::Current),
        (vec![other, &old], EntryStatus::Differs),
        (vec![other, r#"{"type":"istio-cni"}"#], EntryStatus::Differs),
        (vec![now, other], EntryStatus::NotLast),
        (vec![other, &old, other], EntryStatus::NotLast),
        (vec![now, other, now], EntryStatus::Repeated),
        (vec![now, now, other], EntryStatus::Repeated),
        (vec![other, r#"{"Type":"istio-cni"}"#, now], EntryStatus::Repeated),
    ] {
        let text = format!(r#"{{"name":"n","plugins":[{}]}}"#, plugins.join(","));
        assert_eq!(entry_status(text.as_bytes(), &entry()), Ok(expected), "{text}");
        let merged = merge_entry(text.as_bytes(), &entry()).unwrap();
        assert_eq!(entry_status(merged.as_bytes(), &entry()), Ok(EntryStatus::Current), "{merged}");
    }
    assert_eq!(entry_status(br#"{"type":"a"}"#, &entry()), Ok(EntryStatus::Absent));
}

#[test]
fn a_converted_list_speaks_a_version_that_its_plugins_know() {
    for (own, version) in [
        (r#","cniVersion":"0.1.0""#, "0.3.1"),
        (r#","cniVersion":"0.2.0""#, "0.3.1"),
        (r#","cniVersion":"0.3.0""#, "0.3.0"),
        (r#","cniVersion":"0.3.1""#, "0.3.1"),
        (r#","cniVersion":"0.4.0""#, "0.3.1"),
        (r#","cniVersion":"1.0.0""#, "1.0.0"),
        (r#","CNIVersion":"1.1.0""#, "1.1.0"),
        (r#","cniVersion":"7.0.0""#, "0.3.1"),
        (r#","cniVersion":1"#, "0.3.1"),
        ("", "0.3.1"),
    ] {
        let conf = format!(r#"{{"type":"a","name":"own","plugins":5{own}}}"#);
        let merged = merge_entry(conf.as_bytes(), &entry()).unwrap();
        let ours = entry().as_json().to_go_text();
        let expected = format!(
            r#"{{"cniVersion":"{version}","name":"k8s-pod-network",
            "plugins":[{{"type":"a","name":"own","plugins":5}},{ours}]}}"#
        );
        assert_eq!(merged, Json::parse(expected.as_bytes()).unwrap().to_go_text(), "{conf}");
        assert!(is_converted_from(merged.as_bytes(), conf.as_bytes()), "{conf}");
    }
}

#[test]
fn a_configuration_becomes_part_of_a_list_only_if_that_can_be_read() {
    let conf = |levels| format!(r#"{{"type":"a","x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    let text = merge_entry(conf(Json::MAX_DEPTH - 3).as_bytes(), &entry()).unwrap();
    assert_eq!(Json::parse(text.as_bytes()).unwrap().nesting_depth(), Json::MAX_DEPTH);
    let deep = conf(Json::MAX_DEPTH - 2);
    assert_eq!(merge_entry(deep.as_bytes(), &entry()), Err(EditError::TooDeep));
    assert!(!is_converted_from(text.as_bytes(), deep.as_bytes()));
}

#[test]
fn only_an_unchanged_conversion_gives_way_to_the_original() {
    let conf = r#"{"type":"a","cniVersion":"0.4.0","mtu":1500}"#;
    let merged = merge_entry(conf.as_bytes(), &entry()).unwrap();
    let without = without_entry(merged.as_bytes()).unwrap().unwrap();
    for (converted, original, same) in [
        (merged.as_str(), conf, true),
        (&without, conf, true),
        (&merged, r#"{"mtu":1500,"type":"a","cniVersion":"0.3.1"}"#, true),
        (&merged, r#"{"type":"a","cniVersion":"0.4.0","mtu":1400}"#, false),
        (&merged, r#"{"type":"a","cniVersion":"1.0.0","mtu":1500}"#, false),
        (&merged.replace("1500", "1400"), conf, false),
        (&merged.replace("k8s-pod-network", "x"), conf, false),
        (&merged.replace("0.3.1", "0.4.0"), conf, false),
        (&merged.replace("\"plugins\": [", "\"plugins\": [{\"type\":\"b\"},"), conf, false),
        (&merged.replacen('{', "{\"disableCheck\":true,", 1), conf, false),
        (&merged, &merged, false),
        (conf, conf, false),
        (&merged, "", false),
        ("", conf, false),
    ] {
        assert_eq!(
            is_converted_from(converted.as_bytes(), original.as_bytes()),
            same,
            "{converted} {original}"
        );
    }
}

#[test]
fn plugins_are_named_in_order() {
    for (text, types) in [
        (r#"{"name":"n","plugins":[{"type":"b"},{},5,{"type":"a"},{"Type":"b"}]}"#, &["b", "a", "b"][..]),
        (r#"{"type":"istio-cni"}"#, &["istio-cni"]),
        (r#"{"type":"a","plugins":5}"#, &["a"]),
        (r#"{"plugins":[]}"#, &[]),
        ("[]", &[]),
        ("", &[]),
    ] {
        assert_eq!(plugin_types(text.as_bytes()), types, "{text}");
    }
}
