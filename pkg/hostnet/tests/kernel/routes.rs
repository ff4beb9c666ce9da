//! Routes.

use hostnet::{
    ChangeOutcome, Family, Route, RouteChange, RouteKind, RouteProtocol, RouteScope, RtnetlinkHandle, TableId,
};

use crate::{addr, at_one_moment, in_fresh_netns, index, ip, prefix, shown};

/// Routes of every kind that the node path and the sidecar's TPROXY need, in one table.
fn samples(handle: &mut RtnetlinkHandle, table: TableId) -> Vec<Route> {
    ip("addr replace 10.1.0.1/24 dev va");
    ip("addr replace 2001:db8::1/64 dev va nodad");
    let (a, lo) = (Some(index(handle, "va")), Some(index(handle, "lo")));
    let mut routes = Vec::new();
    let v4 = |kind, dst: Option<&str>| Route::new(Family::V4, kind, dst.map(prefix), table);
    let v6 = |kind, dst: Option<&str>| Route::new(Family::V6, kind, dst.map(prefix), table);
    use RouteKind::{Blackhole, Local, Unicast, Unreachable};
    routes.push(Route { oif: lo, ..v4(Local, None) });
    routes.push(Route { oif: lo, ..v6(Local, None) });
    let gateway = Some(addr("10.1.0.2"));
    let prefsrc = Some(addr("10.1.0.1"));
    routes.push(Route { oif: a, gateway, prefsrc, ..v4(Unicast, Some("10.7.0.1/32")) });
    routes.push(Route { metric: Some(4096), ..v4(Blackhole, Some("10.7.0.1/32")) });
    routes.push(Route { metric: Some(4096), ..v6(Blackhole, Some("2001:db8:7::1/128")) });
    routes.push(Route { metric: Some(77), ..v4(Unreachable, Some("10.8.0.0/16")) });
    routes.push(Route { metric: Some(77), ..v6(Unreachable, Some("2001:db8:8::/48")) });
    let far = Some(addr("172.16.9.9"));
    routes.push(Route { oif: a, gateway: far, onlink: true, ..v4(Unicast, Some("10.9.0.0/24")) });
    routes.push(Route { oif: a, ..v4(Unicast, Some("10.10.0.0/24")) });
    routes.push(Route { oif: a, scope: Some(RouteScope::UNIVERSE), ..v4(Unicast, Some("10.11.0.0/24")) });
    let gateway = Some(addr("2001:db8::2"));
    routes.push(Route { oif: a, gateway, ..v6(Unicast, Some("2001:db8:7::1/128")) });
    let far = Some(addr("fd00:9::9"));
    routes.push(Route { oif: a, gateway: far, onlink: true, ..v6(Unicast, Some("2001:db8:9::/64")) });
    routes.push(v4(Blackhole, Some("10.13.0.0/16")));
    routes.push(v6(Blackhole, Some("2001:db8:13::/48")));
    routes.push(v6(Unreachable, Some("2001:db8:14::/48")));
    routes.push(v4(RouteKind::Other(8), Some("10.15.0.0/16")));
    routes.push(v6(RouteKind::Other(8), Some("2001:db8:15::/48")));
    routes.push(v6(RouteKind::Other(9), Some("2001:db8:16::/48")));
    let protocol = RouteProtocol(200);
    routes.push(Route { oif: a, protocol, ..v4(Unicast, Some("10.12.0.0/24")) });
    routes
}

fn count(table: TableId) -> usize {
    ["-4", "-6"].iter().map(|family| shown(&format!("{family} route show table {}", table.0)).len()).sum()
}

#[test]
fn routes_are_added_once_read_back_equal_and_deleted_once() {
    in_fresh_netns(|handle| {
        for table in [TableId(133), TableId(300), TableId(70_000)] {
            let samples = samples(handle, table);
            for route in &samples {
                assert_eq!(handle.add_route(route).unwrap(), ChangeOutcome::Yes, "{route}");
                assert_eq!(handle.add_route(route).unwrap(), ChangeOutcome::No, "{route}");
            }
            assert_eq!(count(table), samples.len());
            let found = handle.list_routes(Some(table)).unwrap();
            for route in &samples {
                assert!(found.contains(route), "{route} is not in {found:#?}");
            }
            assert_eq!(found.len(), samples.len());
            for (rest, route) in (0..samples.len()).rev().zip(&samples) {
                assert_eq!(handle.delete_route(route).unwrap(), ChangeOutcome::Yes, "{route}");
                assert_eq!(handle.delete_route(route).unwrap(), ChangeOutcome::No, "{route}");
                assert_eq!(count(table), rest, "exactly one was deleted: {route}");
            }
        }
    });
}

#[test]
fn a_route_is_what_ip_would_have_made() {
    in_fresh_netns(|handle| {
        let (ours, theirs) = (TableId(133), TableId(134));
        for route in samples(handle, ours) {
            let _ = handle.add_route(&route).unwrap();
        }
        for (family, route) in [
            ("-4", "local default dev lo"),
            ("-6", "local default dev lo"),
            ("-4", "10.7.0.1/32 via 10.1.0.2 dev va src 10.1.0.1"),
            ("-4", "blackhole 10.7.0.1/32 metric 4096"),
            ("-6", "blackhole 2001:db8:7::1/128 metric 4096"),
            ("-4", "unreachable 10.8.0.0/16 metric 77"),
            ("-6", "unreachable 2001:db8:8::/48 metric 77"),
            ("-4", "10.9.0.0/24 via 172.16.9.9 dev va onlink"),
            ("-4", "10.10.0.0/24 dev va"),
            ("-4", "10.11.0.0/24 dev va scope global"),
            ("-6", "2001:db8:7::1/128 via 2001:db8::2 dev va"),
            ("-6", "2001:db8:9::/64 via fd00:9::9 dev va onlink"),
            ("-4", "blackhole 10.13.0.0/16"),
            ("-6", "blackhole 2001:db8:13::/48"),
            ("-6", "unreachable 2001:db8:14::/48"),
            ("-4", "prohibit 10.15.0.0/16"),
            ("-6", "prohibit 2001:db8:15::/48"),
            ("-6", "throw 2001:db8:16::/48"),
            ("-4", "10.12.0.0/24 dev va proto 200"),
        ] {
            ip(&format!("{family} route add {route} table {}", theirs.0));
        }
        for family in ["-4", "-6"] {
            let list = |table: TableId| ip(&format!("{family} -N -details route show table {}", table.0));
            assert_eq!(list(ours), list(theirs));
        }
        let read = |handle: &mut RtnetlinkHandle, table| {
            let routes = handle.list_routes(Some(table)).unwrap().into_iter();
            routes.map(|route| Route { table: ours, ..route }).collect::<Vec<_>>()
        };
        assert_eq!(read(handle, ours), read(handle, theirs));
    });
}

#[test]
fn replacing_switches_the_next_hop_in_place() {
    in_fresh_netns(|handle| {
        ip("addr add 10.1.0.1/24 dev va");
        let (table, a, b) = (TableId(101), index(handle, "va"), index(handle, "vb"));
        let old = Route { oif: Some(a), ..Route::new(Family::V4, RouteKind::Unicast, None, table) };
        let new = Route { oif: Some(b), ..old.clone() };
        let fallback =
            Route { metric: Some(4096), ..Route::new(Family::V4, RouteKind::Blackhole, None, table) };
        let _ = (handle.add_route(&old).unwrap(), handle.add_route(&fallback).unwrap());
        let change = [RouteChange::Replace(new.clone())];
        assert_eq!(handle.apply_routes(&change).unwrap(), 1);
        assert_eq!(handle.apply_routes(&change).unwrap(), 1);
        assert_eq!(handle.list_routes(Some(table)).unwrap(), [new, fallback]);
    });
}

#[test]
fn a_table_that_does_not_exist_has_no_routes_and_nothing_to_delete() {
    in_fresh_netns(|handle| {
        let table = TableId(9999);
        assert_eq!(handle.list_routes(Some(table)).unwrap(), []);
        for family in [Family::V4, Family::V6] {
            let route = Route::new(family, RouteKind::Blackhole, None, table);
            assert_eq!(handle.delete_route(&route).unwrap(), ChangeOutcome::No);
        }
    });
}

#[test]
fn deleting_without_a_metric_leaves_those_of_other_metrics() {
    in_fresh_netns(|handle| {
        let dst = Some(prefix("2001:db8::/64"));
        let plain = Route::new(Family::V6, RouteKind::Blackhole, dst, TableId(300));
        let plain = |metric| Route { metric, ..plain.clone() };
        let other = plain(Some(7));
        let _ = handle.add_route(&other).unwrap();
        for metric in [None, Some(0), Some(1024)] {
            assert_eq!(handle.delete_route(&plain(metric)).unwrap(), ChangeOutcome::No, "{metric:?}");
        }
        assert_eq!(handle.list_routes(Some(TableId(300))).unwrap(), [other]);
    });
}

#[test]
fn all_tables_together_are_those_that_ip_shows() {
    in_fresh_netns(|handle| {
        let tables = [TableId(120), TableId(300), TableId(70_000)];
        let ours = tables.map(|table| samples(handle, table).remove(0));
        for route in &ours {
            let _ = handle.add_route(route).unwrap();
        }
        let count =
            || ["-4", "-6"].iter().map(|family| shown(&format!("{family} route show table all")).len()).sum();
        let (all, expected): (_, usize) =
            at_one_moment(|| handle.list_routes(None).unwrap(), count, |_| true);
        assert_eq!(all.len(), expected);
        assert!(ours.iter().all(|route| all.contains(route)), "{all:#?}");
        assert!(
            all.iter().any(|route| route.table == TableId::LOCAL && route.dst == Some(prefix("10.1.0.1/32")))
        );
    });
}

#[test]
fn a_refused_route_says_what_and_why_in_the_kernels_words() {
    in_fresh_netns(|handle| {
        let a = Some(index(handle, "va"));
        let route = Route::new(Family::V4, RouteKind::Unicast, Some(prefix("10.1.2.3/32")), TableId(100));
        let route = Route { oif: a, gateway: Some(addr("10.99.0.1")), ..route };
        assert_eq!(
            handle.add_route(&route).unwrap_err().to_string(),
            "cannot add route 10.1.2.3/32 via 10.99.0.1 dev va table 100: \
             kernel: Nexthop has invalid gateway (ENETUNREACH)"
        );
        let (oif, prefsrc) = (Some(index(handle, "lo")), Some(addr("9.9.9.9")));
        let local = Route { oif, prefsrc, ..Route::new(Family::V4, RouteKind::Local, None, TableId(133)) };
        assert_eq!(
            handle.add_route(&local).unwrap_err().to_string(),
            "cannot add route local default dev lo table 133 src 9.9.9.9: \
             kernel: Invalid prefsrc address (EINVAL)"
        );
    });
}

#[test]
fn a_direct_link_is_one_that_the_address_itself_is_on_and_sources_are_those_of_packets() {
    in_fresh_netns(|handle| {
        ip("addr add 10.1.0.1/24 dev va");
        ip("addr add 2001:db8::1/64 dev va nodad");
        ip("link set va up");
        ip("link set vb up");
        ip("route add 10.7.0.1 dev vb");
        ip("route add 10.8.0.0/16 via 10.1.0.2");
        ip("route add 10.9.0.0/16 via inet6 2001:db8::2 dev va");
        ip("route add blackhole 10.10.0.0/16");
        ip("route add unreachable 10.11.0.0/16");
        ip("route add prohibit 10.12.0.0/16");
        ip("route add 2001:db8:7::1 dev vb");
        ip("route add 2001:db8:8::/48 via 2001:db8::2");
        ip("route add blackhole 2001:db8:9::/48");
        ip("rule add to 10.13.0.1 lookup 133");
        ip("route add 10.13.0.1 dev vb table 133");
        let (va, vb) = (Some(index(handle, "va")), Some(index(handle, "vb")));
        let table = [
            ("10.1.0.2", va),
            ("2001:db8::2", va),
            ("10.7.0.1", vb),
            ("2001:db8:7::1", vb),
            ("10.13.0.1", vb),
            ("10.1.0.1", None),
            ("2001:db8::1", None),
            ("10.8.0.1", None),
            ("2001:db8:8::1", None),
            ("10.9.0.1", None),
            ("10.10.0.1", None),
            ("10.11.0.1", None),
            ("10.12.0.1", None),
            ("2001:db8:9::1", None),
            ("192.0.2.1", None),
            ("2001:db8:ffff::1", None),
        ];
        for (ip, expected) in table {
            assert_eq!(handle.direct_link(addr(ip)).unwrap(), expected, "{ip}");
        }
        for (ip, expected) in [
            ("10.1.0.2", Some("10.1.0.1")),
            ("10.8.0.1", Some("10.1.0.1")),
            ("10.9.0.1", Some("10.1.0.1")),
            ("2001:db8::2", Some("2001:db8::1")),
            ("2001:db8:8::1", Some("2001:db8::1")),
            ("10.1.0.1", Some("10.1.0.1")),
            ("10.10.0.1", None),
            ("10.11.0.1", None),
            ("192.0.2.1", None),
            ("2001:db8:9::1", None),
        ] {
            assert_eq!(handle.source_to(addr(ip)).unwrap(), expected.map(addr), "{ip}");
        }
    });
}
