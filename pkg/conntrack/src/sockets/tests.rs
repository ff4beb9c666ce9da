use super::*;

const THEIRS: &str = "127.0.0.1:40000";
const OURS: &str = "127.0.0.1:9876";

fn socket(state: TcpState, local: &str, remote: &str, inode: u32) -> TcpSocket {
    let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
    TcpSocket { local, remote, state, user: 7, inode, mark: 0, family: AF_INET, id: [0; 48] }
}

#[test]
fn only_a_process_that_holds_the_very_socket_is_its_user() {
    let held = |socket: TcpSocket| is_held(&socket, THEIRS.parse().unwrap(), OURS.parse().unwrap());
    for state in [TcpState::Established, TcpState::FinWait1, TcpState::FinWait2] {
        assert!(held(socket(state, THEIRS, OURS, 99)), "{state:?}");
        assert!(!held(socket(state, THEIRS, OURS, 0)), "{state:?}: nobody's");
    }
    for state in [TcpState::TimeWait, TcpState::Listen, TcpState::SynReceived, TcpState::Closed] {
        assert!(!held(socket(state, THEIRS, OURS, 99)), "{state:?}");
    }
    assert!(!held(socket(TcpState::Established, THEIRS, "127.0.0.1:80", 99)), "another connection");
    assert!(!held(socket(TcpState::Established, "127.0.0.1:40001", OURS, 99)), "another client");
}
