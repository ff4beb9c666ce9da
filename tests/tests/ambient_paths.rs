//! Who talks to whom through what.

use std::net::SocketAddr;

use kit::{Echo, Relayed, Via};

use crate::ambient_stage::{Ambient, MESH, PLAIN, PORT};

const OUTSIDE: u16 = 9000;

fn outbound(relayed: &Relayed, src: std::net::IpAddr, dst: SocketAddr) -> bool {
    relayed.via == Via::Outbound && relayed.src.ip() == src && relayed.dst == dst && relayed.error.is_none()
}

#[test]
fn pods_of_the_mesh_talk_through_ztunnel_and_others_do_not() {
    let mut stage = Ambient::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a");
    let (client, server, plain) =
        (stage.pod(MESH, "client"), stage.pod(MESH, "server"), stage.pod(PLAIN, "plain"));
    let _outside = Echo::tcp(stage.node.outside(), OUTSIDE);
    for v6 in [false, true] {
        let outside = SocketAddr::new(stage.node.outside_ip(v6), OUTSIDE);
        let seen = client
            .tcp(outside)
            .unwrap_or_else(|error| panic!("{error:?}\n{}\n{}", stage.log(), stage.dump()));
        assert_eq!(seen.peer.ip(), client.ip(v6));
        ztunnel.wait_seen(|relayed| outbound(relayed, client.ip(v6), outside));
        let seen = client.tcp(server.at(v6)).unwrap();
        assert_eq!(seen.peer.ip(), client.ip(v6));
        ztunnel.wait_seen(|relayed| outbound(relayed, client.ip(v6), server.at(v6)));
        let before = ztunnel.seen().len();
        assert_eq!(plain.tcp(outside).unwrap().peer.ip(), plain.ip(v6));
        assert_eq!(ztunnel.seen().len(), before, "a pod outside of the mesh");
    }
    let _ = PORT;
}
