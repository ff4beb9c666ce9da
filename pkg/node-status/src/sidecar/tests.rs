use std::{cmp::Ordering, process::Command, thread, time::Duration};

use super::*;

/// Adds an address to a namespace.
fn add_address(netns: &Netns, ip: &str) {
    let add = || Command::new("ip").args(["address", "add", ip, "dev", "lo"]).status().unwrap();
    assert!(netns.run_in(add).unwrap().success());
}

/// A namespace with the number of one that has ended; `None` means that another process of the machine got it.
fn successor_of(number: NetnsId) -> Option<Netns> {
    // The kernel assigns the lowest free number. It frees one after its namespace has ended, later if many end at the same time.
    let mut lower = Vec::new();
    for _ in 0..200 {
        let netns = Netns::create().unwrap();
        match netns.id().cmp(&number) {
            Ordering::Equal => return Some(netns),
            Ordering::Less => lower.push(netns),
            Ordering::Greater => thread::sleep(Duration::from_millis(10)), // for the kernel to free it
        }
    }
    None
}

/// The kernel reuses the number of a pod that ended for the next one.
#[test]
fn the_successor_of_a_namespace_with_its_number_is_observed_anew() {
    let ips = |ip: &str| [ip.parse().unwrap()];
    let compare = |what: &'static str| {
        move |_: &Netns| Ok(RulesComparison { differences: Vec::new(), in_place: what.to_owned() })
    };
    let observe_successor = || {
        let mut cache = SidecarCache::default();
        // Lower free numbers, for other processes that create namespaces meanwhile.
        let others: Vec<Netns> = (0..32).map(|_| Netns::create().unwrap()).collect();
        let first = Netns::create().unwrap();
        add_address(&first, "10.0.0.1");
        let number = first.id();
        for what in ["first", "again"] {
            let compared = cache.compare_cached(&first, Vec::new, compare(what), || false).unwrap();
            assert_eq!(compared.in_place, "first", "nothing has changed in between");
        }
        let missing_routes = || vec!["a route".to_owned()];
        let compared = cache.compare_cached(&first, missing_routes, compare("without"), || false).unwrap();
        assert_eq!(compared.in_place, "without", "no rule has changed");
        let found = cache.by_address(vec![(PathBuf::new(), first)]);
        assert_eq!(
            found.find_pod_netns(&ips("10.0.0.1"), None, |_| false).map(|netns| netns.id()),
            Some(number)
        );
        drop((found, others));
        let second = successor_of(number)?;
        add_address(&second, "10.0.0.2");
        let found = cache.by_address(vec![(PathBuf::new(), second)]);
        let second = found.find_pod_netns(&ips("10.0.0.2"), None, |_| false).expect("it has its own address");
        assert!(found.find_pod_netns(&ips("10.0.0.1"), None, |_| false).is_none());
        assert_eq!(
            cache.compare_cached(second, Vec::new, compare("second"), || false).unwrap().in_place,
            "second"
        );
        Some(())
    };
    // Beside tests that create namespaces continuously, most attempts find the number in use.
    assert!((0..50).find_map(|_| observe_successor()).is_some(), "no number is used again");
}

/// A pod that may add addresses in its namespace can add those of another pod.
#[test]
fn an_address_that_another_pod_gave_itself_is_no_witness() {
    let listed = |all: &[&Netns]| {
        let all = all
            .iter()
            .map(|netns| (PathBuf::new(), netns.run_in(Netns::current).unwrap().unwrap()))
            .collect();
        SidecarCache::default().by_address(all)
    };
    let (victim, attacker, unknown) =
        (Netns::create().unwrap(), Netns::create().unwrap(), Netns::create().unwrap());
    [&victim, &attacker, &unknown].iter().for_each(|netns| add_address(netns, "10.0.0.1"));
    let ips = ["10.0.0.1".parse().unwrap()];
    let record = |name: &str, netns: &Netns, at: &str| {
        let NetnsId { dev, ino } = netns.id();
        Arc::new(PodRecord {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            at: at.to_owned(),
            netns_file: Some(agent_protocol::NetnsFile { dev, ino }),
            ..PodRecord::default()
        })
    };
    // The victim started before the plugin was installed. A pod that has ended had the attacker's number.
    let owners =
        NetnsOwners::from_records(&[record("attacker", &attacker, "2"), record("victim", &attacker, "1")]);
    let of_victim = |found: &NetnsByAddress| {
        let belongs_to_another = |netns| owners.belongs_to_another(netns, "shop", "victim");
        found.find_pod_netns(&ips, None, belongs_to_another).map(|netns| netns.id())
    };
    assert_eq!(of_victim(&listed(&[&victim, &attacker])), Some(victim.id()));
    assert_eq!(of_victim(&listed(&[&attacker])), None, "its own is not listed");
    assert_eq!(of_victim(&listed(&[&victim, &unknown])), None, "which one is not known");
}

/// A record shows no change after the ADD.
#[test]
fn only_a_pod_whose_rules_were_observed_is_in_its_state_since_its_add() {
    let pod = || PodState {
        uid: "u".into(),
        mode: Some(RedirectionMode::Sidecar),
        last_transition_time: Some("2026-11-21T01:00:00Z".into()),
        ..PodState::default()
    };
    let in_place = RulesComparison { differences: Vec::new(), in_place: "all".to_owned() };
    for (comparison, is_kept) in [(Ok(in_place), true), (Err("no such namespace".to_owned()), false)] {
        let mut pod = pod();
        add_comparison(&mut pod, PodLife::Running, comparison);
        assert_eq!(pod.last_transition_time.is_some(), is_kept, "{pod:?}");
    }
    let mut state = StateReport { pods: vec![pod()], ..StateReport::default() };
    add_repairs(&BTreeMap::from([("u".into(), 3)]), &mut state);
    assert_eq!(state.pods[0].last_transition_time, None);
}
