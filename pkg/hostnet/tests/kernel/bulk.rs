//! Many changes of routes together.

use std::time::{Duration, Instant};

use hostnet::{ChangeOutcome, Error, Family, IpNet, Route, RouteChange, RouteKind, RtnetlinkHandle, TableId};
use netlink::Errno;

use crate::{errno, in_fresh_netns, index, ip};

const TABLE: TableId = TableId(300);
use RouteChange::{Delete, Replace};

/// A host route for one of 2^16 addresses of a family, through a link.
fn route(handle: &mut RtnetlinkHandle, family: Family, number: u16, link: &str) -> Route {
    let [high, low] = number.to_be_bytes();
    let dst = match family {
        Family::V4 => IpNet::new([10, 7, high, low].into(), 32),
        Family::V6 => IpNet::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, number].into(), 128),
    };
    let oif = Some(index(handle, link));
    Route { oif, ..Route::new(family, RouteKind::Unicast, Some(dst.unwrap()), TABLE) }
}

fn routes(handle: &mut RtnetlinkHandle, numbers: std::ops::Range<u16>, link: &str) -> Vec<Route> {
    let both = |number| Family::BOTH.map(|family| (family, number));
    numbers.flat_map(both).map(|(family, number)| route(handle, family, number, link)).collect()
}

fn found(handle: &mut RtnetlinkHandle) -> Vec<Route> {
    handle.list_routes(Some(TABLE)).unwrap()
}

/// Whether the table has exactly these routes.
fn holds(handle: &mut RtnetlinkHandle, wanted: &[Route]) -> bool {
    let found = found(handle);
    found.len() == wanted.len() && wanted.iter().all(|wanted| found.contains(wanted))
}

#[test]
fn many_are_added_replaced_and_deleted_each_once() {
    in_fresh_netns(|handle| {
        let (old, new) = (routes(handle, 0..150, "va"), routes(handle, 0..150, "vb"));
        let all = |routes: &[Route], change: fn(Route) -> RouteChange| -> Vec<_> {
            routes.iter().cloned().map(change).collect()
        };
        assert_eq!(handle.apply_routes(&all(&old, Replace)).unwrap(), 300);
        assert!(holds(handle, &old));
        for _ in 0..2 {
            assert_eq!(handle.apply_routes(&all(&new, Replace)).unwrap(), 300);
            assert!(holds(handle, &new));
        }
        for expected in [300, 0] {
            assert_eq!(handle.apply_routes(&all(&new, Delete)).unwrap(), expected);
        }
        assert_eq!(found(handle), []);
        assert_eq!(handle.apply_routes(&[]).unwrap(), 0);
    });
}

#[test]
fn changes_are_made_in_their_order() {
    in_fresh_netns(|handle| {
        let (old, new) = (route(handle, Family::V4, 1, "va"), route(handle, Family::V4, 1, "vb"));
        let put = |route: &Route| Replace(route.clone());
        let changes = [put(&old), put(&new), Delete(old), Delete(new.clone()), put(&new)];
        assert_eq!(handle.apply_routes(&changes).unwrap(), 4);
        assert_eq!(found(handle), [new]);
    });
}

#[test]
fn the_first_refusal_is_told_and_the_others_are_made() {
    in_fresh_netns(|handle| {
        let good = routes(handle, 0..100, "va");
        let bad = Route { gateway: Some([10, 99, 0, 1].into()), ..route(handle, Family::V4, 500, "va") };
        let mut changes: Vec<_> = good.iter().cloned().map(Replace).collect();
        changes.insert(70, Replace(bad.clone()));
        changes.insert(130, Replace(bad));
        changes.push(Replace(good[0].clone()));
        let error = handle.apply_routes(&changes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot replace route 10.7.1.244/32 via 10.99.0.1 dev va table 300 (number 71 of 203, 2 of them refused): \
             kernel: Nexthop has invalid gateway (ENETUNREACH)"
        );
        assert_eq!(errno(&error), Some(Errno(101)));
        assert!(matches!(error, Error::ApplyRoutes { index: 70, count: 203, applied: 201, failed: 2, .. }));
        assert!(holds(handle, &good), "those before and after");
    });
}

#[test]
fn each_of_many_can_be_refused() {
    in_fresh_netns(|handle| {
        let routes = routes(handle, 0..200, "va").into_iter();
        let bad = |route: Route| Route { oif: None, ..route };
        let changes: Vec<_> = routes.map(bad).map(Replace).collect();
        let error = handle.apply_routes(&changes).unwrap_err();
        assert!(matches!(error, Error::ApplyRoutes { index: 0, applied: 0, failed: 400, .. }), "{error}");
        assert_eq!(found(handle), [], "and the handle still works");
    });
}

#[test]
fn one_sort_of_route_takes_the_place_of_another() {
    in_fresh_netns(|handle| {
        ip("addr add 10.1.0.1/24 dev va");
        ip("addr add 2001:db8:1::1/64 dev va nodad");
        for (family, gateway) in [(Family::V4, "10.1.0.2"), (Family::V6, "2001:db8:1::2")] {
            let onto = route(handle, family, 1, "va");
            let via = Route { gateway: Some(gateway.parse().unwrap()), ..onto.clone() };
            let dropped = Route { kind: RouteKind::Blackhole, oif: None, ..onto.clone() };
            for route in [&onto, &via, &dropped, &via, &onto, &dropped, &onto] {
                assert_eq!(handle.apply_routes(&[Replace(route.clone())]).unwrap(), 1, "{route}");
                assert_eq!(found(handle), std::slice::from_ref(route), "{route}");
            }
            assert_eq!(handle.delete_route(&onto).unwrap(), ChangeOutcome::Yes);
        }
    });
}

#[test]
fn a_thousand_take_no_time_that_anybody_notices() {
    in_fresh_netns(|handle| {
        let routes = routes(handle, 0..500, "va");
        let changes: Vec<_> = routes.iter().cloned().map(Replace).collect();
        let deletions: Vec<_> = routes.into_iter().map(Delete).collect();
        // The best of several rounds: this machine runs other tests, too.
        let mut best = [Duration::MAX; 2];
        for _ in 0..5 {
            for best in &mut best {
                let start = Instant::now();
                assert_eq!(handle.apply_routes(&changes).unwrap(), 1000);
                *best = start.elapsed().min(*best);
            }
            assert_eq!(handle.apply_routes(&deletions).unwrap(), 1000);
        }
        assert!(best.iter().all(|best| best.as_millis() < 500), "{best:?}");
    });
}
