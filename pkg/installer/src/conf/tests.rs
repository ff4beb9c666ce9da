use std::{fs, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;
use crate::{
    EntryTemplate,
    cleanup::{clean_up, list_removals},
    entry::EntryCache,
    kubeconfig::KubeconfigSettings,
};

const LIST: &str = r#"{"name":"kit","cniVersion":"1.0.0","plugins":[{"type":"bridge", "mtu": 1500}]}"#;
const SINGLE: &str = r#"{"name":"kit", "type":"bridge", "mtu": 1500}"#;
const TEMPLATE: &str = r#"{"cniVersion": "0.4.0", "name": "istio-cni",  "type": "istio-cni"}"#;
/// Name of the file of [`Chaining::Own`] that the settings do not have by default.
const OTHER_OWN: &str = "00-istio.conflist";

/// Settings without any that an agent had: as for the command after a reboot.
fn settings(directory: &TempDir) -> InstallerSettings {
    let path = |name: &str| directory.path().join(name);
    InstallerSettings {
        source: path("missing"),
        targets: Vec::new(),
        conf_dir: directory.path().to_owned(),
        chaining: Chaining::Primary { name: None },
        template: EntryTemplate { text: TEMPLATE.to_owned(), ..EntryTemplate::default() },
        defaults: Vec::new(),
        kubeconfig: None,
        kubeconfig_path: path("ZZZ-istio-cni-kubeconfig"),
        former_kubeconfigs: Vec::new(),
        own_name: "02-istio-cni.conflist".to_owned(),
        own_mode: None,
        keeps_plugin: false,
    }
}

/// Settings of a copy with another name.
fn own_settings(directory: &TempDir) -> InstallerSettings {
    let chaining = Chaining::Own { primary: None };
    InstallerSettings { chaining, own_name: OTHER_OWN.to_owned(), ..settings(directory) }
}

fn standalone_settings(directory: &TempDir, name: &str) -> InstallerSettings {
    InstallerSettings { chaining: Chaining::Standalone { name: name.to_owned() }, ..settings(directory) }
}

fn write_file(directory: &TempDir, name: &str, text: &str) {
    fs::write(directory.path().join(name), text).unwrap();
}

/// The content of each file; that of a link is its target.
fn files(directory: &TempDir) -> Vec<(String, String)> {
    let names = network::file_names(directory.path()).unwrap();
    let read = |name: String| {
        let path = directory.path().join(&name);
        let target = fs::read_link(&path).map(|target| format!("->{}", target.display()));
        (name, target.unwrap_or_else(|_| fs::read_to_string(path).unwrap()))
    };
    names.into_iter().map(read).collect()
}

/// Installs the entry, and returns the file with it; panics unless nothing is left to do then.
fn install(settings: &InstallerSettings) -> PathBuf {
    let mut entries = EntryCache::default();
    entries.reload_template(settings).unwrap();
    let current = entries.current.unwrap();
    let plan = || match plan_changes(settings, &current.entry, &current.text).unwrap() {
        ConfPlan::Do { holder, changes } => (holder, changes),
        ConfPlan::Wait(why) => panic!("{why}"),
    };
    let (holder, changes) = plan();
    changes.iter().for_each(|(_, change)| apply(change).unwrap());
    let (again, left) = plan();
    assert_eq!((&again, left.len()), (&holder, 0), "{left:?}");
    holder
}

#[test]
fn an_uninstallation_finds_what_any_mode_left_without_knowing_its_settings() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let before = files(&directory);
    let modes = [
        settings(&directory),
        own_settings(&directory),
        standalone_settings(&directory, "istio-cni.conf"),
        standalone_settings(&directory, "YYY-istio-cni.conf"),
    ];
    for mode in modes {
        install(&mode);
        assert_ne!(files(&directory), before);
        let token = directory.path().join("token");
        fs::write(&token, "secret").unwrap();
        let server = "https://10.96.0.1:443".to_owned();
        let trust = model::ApiServerTrust::Anybody;
        let kubeconfig = KubeconfigSettings { mode: 0o600, server, trust, token: token.clone() };
        write_file(&directory, "chosen-kubeconfig", &kubeconfig.render().unwrap().0);
        fs::remove_file(token).unwrap();
        let (listed, unknown) = list_removals(&settings(&directory));
        let changed = files(&directory).into_iter().filter(|file| !before.contains(file));
        let names = changed.map(|(name, _)| directory.path().join(name).display().to_string());
        let unlisted = names
            .filter(|name| !listed.iter().any(|line| line.split([' ', ':']).nth(1) == Some(name.as_str())));
        assert_eq!((unlisted.collect::<Vec<_>>(), unknown.len()), (Vec::new(), 0), "{listed:?}");
        assert!(clean_up(&settings(&directory)).is_empty());
        assert_eq!(files(&directory), before, "{:?}", mode.chaining);
    }
}

#[test]
fn a_copy_under_another_name_is_never_the_primary_network() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let (own, default) = (own_settings(&directory), settings(&directory));
    let copy = install(&own);
    assert!(is_owned_copy(OTHER_OWN, &fs::read(&copy).unwrap()));
    let renamed = InstallerSettings { own_name: "01-istio.conflist".to_owned(), ..own.clone() };
    install(&renamed);
    assert!(!copy.exists(), "the copy has another name now");
    install(&own);
    let chaining = Chaining::Primary { name: Some(OTHER_OWN.to_owned()) };
    let named = InstallerSettings { chaining, ..settings(&directory) };
    let entry = ConflistEntry::parse(TEMPLATE).unwrap();
    assert!(matches!(plan_changes(&named, &entry, TEMPLATE).unwrap(), ConfPlan::Wait(_)));
    assert_eq!(install(&default), directory.path().join("10-kit.conflist"));
    assert!(!copy.exists());
    let primary = fs::read(directory.path().join("10-kit.conflist")).unwrap();
    assert!(!is_owned_copy("10-kit.conflist", &primary));
    assert!(clean_up(&default).is_empty());
    assert_eq!(files(&directory), [("10-kit.conflist".to_owned(), LIST.to_owned())]);
}

/// Istio's charts set the name by a variable that Istio's agent does not read, and ours does.
#[test]
fn a_copy_of_istios_agent_is_not_the_primary_network_where_ours_has_another_name() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", &LIST.replace("1500", "1400"));
    let before = files(&directory);
    let entry = ConflistEntry::parse(TEMPLATE).unwrap();
    let istios = merge_entry(LIST.as_bytes(), &entry).unwrap();
    write_file(&directory, "02-istio-cni.conflist", &istios);
    let copy = fs::read(install(&own_settings(&directory))).unwrap();
    assert_eq!(
        without_entry(&copy).unwrap(),
        without_entry(istios.replace("1500", "1400").as_bytes()).unwrap()
    );
    assert!(!directory.path().join("02-istio-cni.conflist").exists());
    write_file(&directory, "02-istio-cni.conflist", &istios);
    assert!(clean_up(&own_settings(&directory)).is_empty());
    assert_eq!(files(&directory), before);
}

#[test]
fn a_network_of_its_own_never_replaces_that_of_other_plugins() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let standalone = standalone_settings(&directory, "10-kit.conflist");
    let entry = ConflistEntry::parse(TEMPLATE).unwrap();
    let refused = || matches!(plan_changes(&standalone, &entry, TEMPLATE), Err(Error::ForeignNetwork { .. }));
    assert!(refused());
    install(&settings(&directory));
    assert!(refused(), "with our entry in it, too");
    write_file(&directory, "20-kit.conf", "{");
    install(&standalone_settings(&directory, "20-kit.conf"));
}

/// containerd would load nothing at a list in a `.conf`, and no pod of the node would start; a file of any other name is not read.
#[test]
fn a_network_of_our_own_is_not_written_to_a_file_that_runtimes_would_not_read_as_one() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let copies = ["02-istio.conf", "02-istio.json", "02-istio", "02-istio.conflist.x"]
        .map(|name| InstallerSettings { own_name: name.to_owned(), ..own_settings(&directory) });
    let alone = ["istio-cni.conflist", "istio-cni"].map(|name| standalone_settings(&directory, name));
    let entry = ConflistEntry::parse(TEMPLATE).unwrap();
    for settings in copies.iter().chain(&alone) {
        let planned = plan_changes(settings, &entry, TEMPLATE);
        assert!(matches!(planned, Err(Error::Extension(..))), "{settings:?}: {planned:?}");
    }
    install(&standalone_settings(&directory, "istio-cni.json"));
}

/// As of a node's Multus, while the copy is of another network.
#[test]
fn a_network_ahead_of_the_copy_of_a_named_one_is_reported() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let chaining = Chaining::Own { primary: Some("10-kit.conflist".to_owned()) };
    let named = InstallerSettings { chaining, ..settings(&directory) };
    let holder = install(&named);
    assert_eq!(default_conflict(&named, &holder), None);
    write_file(&directory, "00-multus.conf", SINGLE);
    assert!(default_conflict(&named, &install(&named)).is_some());
    assert!(matches!(crate::inspect_network(&named), Ok(Some(Err(_)))));
}

/// The primary CNI plugin has written it again since it was converted.
#[test]
fn a_newer_single_configuration_is_not_replaced_by_our_backup() {
    let newer = SINGLE.replace("1500", "1400");
    for name in ["10-kit.conf", "10-kit.json"] {
        let directory = TempDir::new().unwrap();
        write_file(&directory, name, SINGLE);
        install(&settings(&directory));
        write_file(&directory, name, &newer);
        assert!(clean_up(&settings(&directory)).is_empty());
        assert_eq!(files(&directory), [(name.to_owned(), newer.clone())]);
    }
}

#[test]
fn a_link_to_a_single_configuration_is_converted_and_restored_and_its_target_stays() {
    let newer = SINGLE.replace("1500", "1400");
    for text in [SINGLE, &newer] {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        let target = directory.path().join("below/kit.data");
        fs::write(&target, SINGLE).unwrap();
        symlink("below/kit.data", directory.path().join("10-kit.conf")).unwrap();
        assert_eq!(install(&settings(&directory)), directory.path().join("10-kit.conflist"));
        assert!(!directory.path().join("10-kit.conf").is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), SINGLE);
        fs::write(&target, text).unwrap(); // perhaps a newer one
        assert!(clean_up(&settings(&directory)).is_empty());
        let link = ("10-kit.conf".to_owned(), "->below/kit.data".to_owned());
        assert_eq!(files(&directory).first(), Some(&link));
        assert_eq!(fs::read_to_string(target).unwrap(), text);
        assert_eq!(files(&directory).len(), if text == SINGLE { 1 } else { 2 }, "{:?}", files(&directory));
    }
}

#[test]
fn a_converted_link_is_followed_to_its_changed_target_if_that_is_a_network_and_the_list_is_unmodified() {
    let newer = SINGLE.replace("1500", "1400");
    for (target, list, expected) in
        [(newer.as_str(), None, newer.as_str()), ("{", None, SINGLE), (&newer, Some(LIST), LIST)]
    {
        let directory = TempDir::new().unwrap();
        write_file(&directory, "kit.data", SINGLE);
        symlink("kit.data", directory.path().join("10-kit.conf")).unwrap();
        let holder = install(&settings(&directory));
        list.into_iter().for_each(|list| fs::write(&holder, list).unwrap());
        write_file(&directory, "kit.data", target);
        assert_eq!(install(&settings(&directory)), holder);
        let entry = ConflistEntry::parse(TEMPLATE).unwrap();
        let expected_list = merge_entry(expected.as_bytes(), &entry).unwrap();
        assert_eq!(fs::read_to_string(&holder).unwrap(), expected_list);
        assert!(clean_up(&settings(&directory)).is_empty());
        let link = ("10-kit.conf".to_owned(), "->kit.data".to_owned());
        assert_eq!(files(&directory).first(), Some(&link));
        assert_eq!(holder.exists(), expected != target, "{target} {list:?}");
    }
}

/// Killed between the restoration of the original and the removal of the list.
#[test]
fn an_interrupted_release_is_completed() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conf", SINGLE);
    let holder = install(&settings(&directory));
    let single = directory.path().join("10-kit.conf");
    fs::rename(saved::original_path(&single), &single).unwrap();
    saved::release_entry(&holder).unwrap();
    assert_eq!(files(&directory), [("10-kit.conf".to_owned(), SINGLE.to_owned())]);
}

#[test]
fn files_that_an_installation_ignores_block_no_uninstallation() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    install(&settings(&directory));
    symlink("../outside", directory.path().join("90-link.conflist")).unwrap();
    write_file(&directory, "91-large.conflist", &" ".repeat(MAX_NETWORK + 1));
    let errors = clean_up(&settings(&directory));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(fs::read_to_string(directory.path().join("10-kit.conflist")).unwrap(), LIST);
    assert!(directory.path().join("90-link.conflist").is_symlink());
}

/// Its own uninstallation gives the file its name back.
#[test]
fn an_uninstallation_takes_our_entry_out_of_a_file_that_cilium_has_set_aside() {
    let directory = TempDir::new().unwrap();
    write_file(&directory, "10-kit.conflist", LIST);
    let settings = settings(&directory);
    let holder = install(&settings);
    let aside = directory.path().join("10-kit.conflist.cilium_bak");
    fs::rename(holder, &aside).unwrap();
    let entry = crate::inspect_installation(&settings, false).pop().unwrap();
    assert_eq!((entry.kind.as_str(), entry.correct), ("entry", false));
    assert!(clean_up(&settings).is_empty());
    assert_eq!(without_entry(&fs::read(aside).unwrap()), Ok(None));
    assert_eq!(files(&directory).len(), 1);
}

/// An uninstallation could not read it either, and would leave our entry there.
#[test]
fn a_network_that_would_be_too_large_with_our_entry_stays_as_it_is() {
    let directory = TempDir::new().unwrap();
    let list = LIST.replace("1500", &format!("[{}1]", "1,".repeat(200_000)));
    write_file(&directory, "10-kit.conflist", &list);
    let entry = ConflistEntry::parse(TEMPLATE).unwrap();
    let plan = plan_changes(&settings(&directory), &entry, TEMPLATE).unwrap();
    let ConfPlan::Do { changes, .. } = plan else { panic!("there is a network") };
    assert!(matches!(apply(&changes[0].1), Err(Error::TooLarge(_))));
    assert_eq!(files(&directory), [("10-kit.conflist".to_owned(), list)]);
}

#[test]
fn a_network_of_its_own_has_the_members_that_settings_add_or_remove() {
    let directory = TempDir::new().unwrap();
    let plain = standalone_settings(&directory, "istio-cni.conf");
    let file = install(&plain);
    assert_eq!(fs::read_to_string(&file).unwrap(), TEMPLATE, "as it is");
    let defaults = vec![("agent_socket", Json::String("/run/a.sock".to_owned()))];
    install(&InstallerSettings { defaults, ..plain });
    let written = Json::parse(&fs::read(file).unwrap()).unwrap();
    let text = |key: &str| written.get(key).and_then(Json::as_str);
    assert_eq!([text("cniVersion"), text("name")], [Some("0.4.0"), Some("istio-cni")]);
    assert_eq!([text("type"), text("agent_socket")], [Some("istio-cni"), Some("/run/a.sock")]);
}
