//! One connection between two threads that sleep and wake as client and server do: what a user of the network experiences. The
//! caller selects their CPUs. With one for each, a round trip takes five times as long, most of it until a CPU has woken, and
//! varies more.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use kit::{Netns, Node};

/// A client in this thread, a server in its own. The first byte of a request selects the server's answer.
pub(crate) struct Talk {
    client: TcpStream,
    server: Option<JoinHandle<()>>,
}

/// Kind of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    /// One byte there, one byte back.
    RoundTrips,
    /// As many bytes as possible to the server.
    Stream,
}

/// Bytes of one write, and number of writes that the server answers.
const PIECE: usize = 64 << 10;
const PIECES: usize = 64;

impl Speech {
    pub(crate) const ALL: [Speech; 2] = [Speech::RoundTrips, Speech::Stream];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Speech::RoundTrips => "round trips",
            Speech::Stream => "stream, per MiB",
        }
    }
}

impl Talk {
    /// Opens a connection from a pod to the external host of its node.
    pub(crate) fn open(pod: &Netns, node: &Node, v6: bool) -> Talk {
        let any: IpAddr = if v6 { [0; 16].into() } else { [0; 4].into() };
        let listener = node.outside().run(|| TcpListener::bind((any, 0)).unwrap());
        let target = SocketAddr::new(node.outside_ip(v6), listener.local_addr().unwrap().port());
        let client = pod.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(10)).unwrap());
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_nodelay(true).unwrap();
        }
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let server = thread::spawn(move || serve(server));
        let mut talk = Talk { client, server: Some(server) };
        for speech in Speech::ALL {
            let _ = talk.carry(speech); // until windows are open and caches are warm
        }
        talk
    }

    /// Microseconds for each round trip, or each MiB.
    pub(crate) fn carry(&mut self, speech: Speech) -> f64 {
        let began = Instant::now();
        let units = match speech {
            Speech::RoundTrips => {
                for _ in 0..100 {
                    self.client.write_all(b"r").unwrap();
                    self.client.read_exact(&mut [0]).unwrap();
                }
                100.0
            }
            Speech::Stream => {
                static WRITTEN: [u8; PIECE] = [b's'; PIECE];
                for _ in 0..PIECES {
                    self.client.write_all(&WRITTEN).unwrap();
                }
                self.client.read_exact(&mut [0]).unwrap();
                (PIECE * PIECES) as f64 / f64::from(1 << 20)
            }
        };
        began.elapsed().as_secs_f64() * 1e6 / units
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        drop(self.client.shutdown(std::net::Shutdown::Both));
        drop(self.server.take().map(JoinHandle::join));
    }
}

/// Answers each `r`, and each whole stream, until the client closes.
fn serve(mut server: TcpStream) {
    let (mut read, mut streamed) = (vec![0; PIECE], 0);
    while let Ok(length @ 1..) = server.read(&mut read) {
        if read[0] == b'r' {
            server.write_all(b"r").unwrap();
        } else {
            streamed += length;
        }
        if streamed == PIECE * PIECES {
            streamed = 0;
            server.write_all(b"s").unwrap();
        }
    }
}
