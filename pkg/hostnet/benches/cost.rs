//! What questions and changes cost: `cargo bench -p hostnet`.
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

fn timed<T>(what: &str, mut run: impl FnMut(u8) -> T) {
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
    Netns::create().unwrap().run_in(measure).unwrap();
}

fn host(family: Family, number: u16, oif: LinkIndex) -> Route {
    let [high, low] = number.to_be_bytes();
    let dst = match family {
        Family::V4 => IpNet::new([10, 7, high, low].into(), 32),
        Family::V6 => IpNet::new([0x2001, 0xdb8, 0, 0, 0, 0, 0, number].into(), 128),
    };
    Route { oif: Some(oif), ..Route::new(family, RouteKind::Local, Some(dst.unwrap()), TableId(300)) }
}

fn measure() {
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
    timed("open a handle", |_| RtnetlinkHandle::open().unwrap());
    timed("list addresses", |_| handle.addresses().unwrap());
    timed("list links", |_| handle.links().unwrap());
    timed("look up a link", |_| handle.link_by_name("lo").unwrap());
    timed("ensure a rule that is there", |_| handle.ensure_rule(&rule(1)).unwrap());
    let _ = handle.delete_rule(&rule(1)).unwrap();
    timed("ensure and delete a new rule", |number| {
        let _ = (handle.ensure_rule(&rule(number)).unwrap(), handle.delete_rule(&rule(number)).unwrap());
    });
    timed("add a route", |number| handle.add_route(&route(number)).unwrap());
    timed("add a route that is there", |_| handle.add_route(&route(1)).unwrap());
    timed("list the 200 routes of a table", |_| handle.routes(Some(TableId(133))).unwrap());
    let _ = handle.set_link_up(lo).unwrap();
    for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
        let changes: Vec<_> =
            (0..1000).map(|number| RouteChange::Replace(host(family, number, lo))).collect();
        timed(&format!("replace 1000 {name} routes"), |_| handle.apply_routes(&changes).unwrap());
    }
    timed("list the 2000 routes of a table", |_| handle.routes(Some(TableId(300))).unwrap());
}
