use std::{process::Command, thread, time::Duration};

use super::*;

/// Gives a namespace this address.
fn add_address(netns: &Netns, ip: &str) {
    let add = || Command::new("ip").args(["address", "add", ip, "dev", "lo"]).status().unwrap();
    assert!(netns.run_in(add).unwrap().success());
}

/// A namespace with the number of one that has ended; `None`: another process of the machine took it.
fn successor_of(number: NetnsId) -> Option<Netns> {
    let mut others = Vec::new(); // the kernel gives the lowest free number, and frees one shortly after its namespace has ended
    while others.len() < 50 {
        let netns = Netns::create().unwrap();
        if netns.id() == number {
            return Some(netns);
        }
        others.push(netns);
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// The kernel gives the number of a pod that ended to the next one.
#[test]
fn the_successor_of_a_namespace_with_its_number_is_observed_anew() {
    let ips = |ip: &str| [ip.parse().unwrap()];
    let compare = |what: &'static str| {
        move |_: &Netns| Ok(RulesComparison { differences: Vec::new(), in_place: what.to_owned() })
    };
    let observe_successor = || {
        let mut cache = SidecarCache::default();
        // Free numbers below it, for whoever else makes namespaces meanwhile.
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
        assert_eq!(found.netns_of_pod(&ips("10.0.0.1"), None).map(|netns| netns.id()), Some(number));
        drop((found, others));
        let second = successor_of(number)?;
        add_address(&second, "10.0.0.2");
        let found = cache.by_address(vec![(PathBuf::new(), second)]);
        let second = found.netns_of_pod(&ips("10.0.0.2"), None).expect("it has its own address");
        assert!(found.netns_of_pod(&ips("10.0.0.1"), None).is_none());
        assert_eq!(
            cache.compare_cached(second, Vec::new, compare("second"), || false).unwrap().in_place,
            "second"
        );
        Some(())
    };
    assert!((0..10).find_map(|_| observe_successor()).is_some(), "no number is used again");
}
