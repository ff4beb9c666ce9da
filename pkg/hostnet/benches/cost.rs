//! Cost of queries and changes: `cargo bench -p hostnet`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement"
)]

use std::time::{Duration, Instant};

use hostnet::{
    Family, IpNet, LinkIndex, Mark, PolicyRule, Route, RouteChange, RouteKind, RtnetlinkHandle, TableId,
};
use netns::Netns;

fn measure_operation<T>(what: &str, mut run: impl FnMut(u8) -> T) {
    let once = |number| {
        let start = Instant::now();
        let _done = run(number);
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..=200).map(once).collect();
    times.sort();
    println!("{what}: median {:?}, p90 {:?}", times[100], times[180]);
}

fn main() {
    Netns::create().unwrap().run_in(run_measurements).unwrap();
}

fn host_route(family: Family, number: u16, oif: LinkIndex) -> Route {
    let [high, low] = number.to_be_bytes();
    let dst = match family {
        Family::V4 => IpNet::new([10, 7, high, low].into(), 32),
        Family::V6 => IpNet::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, number].into(), 128),
    };
    Route { oif: Some(oif), ..Route::new(family, RouteKind::Local, Some(dst.unwrap()), TableId(300)) }
}

fn run_measurements() {
    let handle = &mut RtnetlinkHandle::open().unwrap();
    let lo = handle.link_by_name("lo").unwrap().unwrap().index;
    let rule = |number: u8| PolicyRule {
        fwmark: Some(Mark { value: u32::from(number), mask: 0xfff }),
        ..PolicyRule::new(Family::V4, Some(100), hostnet::RuleAction::Lookup(TableId(133)))
    };
    let route = |number: u8| {
        let dst = IpNet::new([10, 0, number, 0].into(), 24).unwrap();
        Route { oif: Some(lo), ..Route::new(Family::V4, RouteKind::Local, Some(dst), TableId(133)) }
    };
    measure_operation("open a handle", |_| RtnetlinkHandle::open().unwrap());
    measure_operation("list addresses", |_| handle.list_addresses().unwrap());
    measure_operation("list links", |_| handle.list_links().unwrap());
    measure_operation("look up a link", |_| handle.link_by_name("lo").unwrap());
    measure_operation("ensure a rule that is there", |_| handle.ensure_rule(&rule(1)).unwrap());
    let _ = handle.delete_rule(&rule(1)).unwrap();
    measure_operation("ensure and delete a new rule", |number| {
        let _ = (handle.ensure_rule(&rule(number)).unwrap(), handle.delete_rule(&rule(number)).unwrap());
    });
    measure_operation("add a route", |number| handle.add_route(&route(number)).unwrap());
    measure_operation("add a route that is there", |_| handle.add_route(&route(1)).unwrap());
    measure_operation("list the 200 routes of a table", |_| handle.list_routes(Some(TableId(133))).unwrap());
    let _ = handle.set_link_up(lo).unwrap();
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let changes: Vec<_> =
            (0..1000).map(|number| RouteChange::Replace(host_route(family, number, lo))).collect();
        measure_operation(&format!("replace 1000 {name} routes"), |_| handle.apply_routes(&changes).unwrap());
    }
    measure_operation("list the 2000 routes of a table", |_| handle.list_routes(Some(TableId(300))).unwrap());
}
