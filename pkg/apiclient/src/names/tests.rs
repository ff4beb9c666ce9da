use std::thread;
use std::time::Instant;

use super::*;

/// A name server on a loopback address that answers A queries for `api.x` with 127.0.0.9 and does not answer others.
fn server(silent: bool) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let mut answer = buffer[..length].to_vec();
            answer[2] |= 0x80;
            if silent {
                continue;
            }
            if answer[length - 3] == 1 && answer.windows(5).any(|part| part == b"api\x01x") {
                answer[7] = 1;
                answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x09");
            } else if answer[length - 3] == 1 {
                answer[3] |= 3;
            }
            socket.send_to(&answer, peer).unwrap();
        }
    });
    port
}

fn resolver(port: u16) -> (Resolver, PathBuf) {
    let directory = std::env::temp_dir().join(format!("millrace-names-{}-{port}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (hosts, resolv_conf) = (directory.join("hosts"), directory.join("resolv.conf"));
    std::fs::write(&hosts, "127.0.0.8 known\n").unwrap();
    std::fs::write(&resolv_conf, "nameserver 127.0.0.1\nsearch x\n").unwrap();
    (Resolver { hosts, resolv_conf, port }, directory)
}

#[test]
fn names_come_from_hosts_then_from_dns() {
    let (resolver, directory) = resolver(server(false));
    let find = |name: &str| resolver.resolve(name, Deadline::after(Duration::from_secs(5)));
    assert_eq!(find("known").unwrap(), ["127.0.0.8".parse::<IpAddr>().unwrap()]);
    assert_eq!(find("api.x").unwrap(), ["127.0.0.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(find("api").unwrap(), ["127.0.0.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(find("localhost").unwrap().len(), 2);
    assert_eq!(find("other.name").unwrap_err().to_string(), "no name server knows other.name");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_silent_name_server_costs_no_more_than_the_deadline() {
    let (resolver, directory) = resolver(server(true));
    // The best of several: something else may stop this process.
    let took = (0..3).map(|_| {
        let start = Instant::now();
        let error = resolver.resolve("api.x", Deadline::after(Duration::from_millis(200))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        start.elapsed()
    });
    assert!(took.min() < Some(Duration::from_secs(2)));
    std::fs::remove_dir_all(directory).unwrap();
}
