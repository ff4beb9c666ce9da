//! The plugin while the agent is unavailable, hangs, or is kept busy.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kit::{ApiServer, Auth, Echo, Pod, istio};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer};
use crate::fixtures::plugin::tables;

/// Namespaces of this module in the API server; the first one is labelled.
const AWAY: [&str; 2] = ["ambient-away", "ambient-away-plain"];

/// A node whose agent has ended, and pods in the API server.
struct Away {
    fixture: Ambient,
    api: &'static ApiServer,
    plugin: Value,
}

impl Away {
    fn new(suffix: &str) -> Option<Self> {
        let api = ApiServer::shared()?;
        let mut fixture = Ambient::new(&[]);
        let namespaces = AWAY.map(|name| format!("{name}-{suffix}"));
        let token = {
            for (name, mode) in namespaces.iter().zip(["ambient", "none"]) {
                api.create_namespace(name);
                let labels = json!({"metadata": {"labels": {"istio.io/dataplane-mode": mode}}});
                api.admin().patch(&format!("/api/v1/namespaces/{name}"), &labels);
                fixture.manifests.put_namespace(name, &[("istio.io/dataplane-mode", mode)]);
            }
            api.service_account(&namespaces[0], "plugin", &istio::plugin_rules())
        };
        // Not the agent's own kubeconfig, which has no credential.
        let kubeconfig = istio::write_file(&fixture.node, "kubeconfig", &api.kubeconfig(&Auth::Token(token)));
        let mut plugin = fixture.plugin();
        plugin["kubernetes"]["kubeconfig"] = json!(kubeconfig);
        fixture.settle();
        Some(Self { fixture, api, plugin })
    }

    /// Creates a pod in the API server.
    fn create(&self, namespace: &str, name: &str) -> Pod {
        Pod::from_object(&self.api.create_pod(&ApiServer::pod(namespace, name)))
    }

    fn start(&self, pod: Pod) -> Result<Peer, Box<kit::ChainError>> {
        let chain = self.fixture.node.conflist(std::slice::from_ref(&self.plugin));
        self.fixture.node.add_pod(&self.fixture.node.runtime(), &chain, pod).map(Peer::new)
    }

    fn asked(&self, name: &str) -> usize {
        self.api
            .requests_with(&format!("/pods/{name}"))
            .iter()
            .filter(|one| one.user_agent == "istio-cni")
            .count()
    }
}

#[test]
fn a_pod_is_enrolled_without_the_agent_which_adopts_it_later() {
    let Some(mut away) = Away::new("adopted") else { return };
    let _ztunnel = away.fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(away.fixture.node.outside(), PORT);
    away.fixture.settle();
    away.fixture.daemon.take().unwrap().kill();
    let [mesh, plain] = AWAY.map(|name| format!("{name}-adopted"));
    let web = away.start(away.create(&mesh, "alone-web")).unwrap_or_else(|error| panic!("{error}"));
    let mut gone = away.start(away.create(&mesh, "alone-gone")).unwrap_or_else(|error| panic!("{error}"));
    let other = away.start(away.create(&plain, "alone-other")).unwrap_or_else(|error| panic!("{error}"));
    let fixture = &away.fixture;
    assert!(
        fixture.is_captured(&web) && fixture.is_reached_through_ztunnel(&web) && !fixture.is_captured(&other)
    );
    fixture.assert_owned(&web);
    web.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
    gone.sandbox.delete().unwrap();
    fixture.assert_free(&gone);
    fixture.node.netns().wait_until_addresses_are_usable(); // otherwise there are tentative ones
    let before = fixture.dump();
    // The new agent knows the pod without an address at first.
    fixture.manifests.put_pod(&crate::fixtures::ambient::starting(&web.sandbox.pod));
    away.fixture.start();
    let fixture = &mut away.fixture;
    assert_eq!(fixture.dump(), before, "nothing to do");
    fixture.settle();
    fixture.assert_owned(&web);
    fixture.manifests.put_pod(&web.sandbox.manifest());
    fixture.settle();
    fixture.assert_owned(&web);
    fixture.assert_free(&gone);
    assert!(fixture.is_captured(&web) && !fixture.is_captured(&other));
    let captured = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"captured\"}";
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(captured) >= Some(1.0));
    web.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn without_agent_and_node_path_a_pod_of_the_mesh_does_not_start() {
    let Some(mut away) = Away::new("refused") else { return };
    away.plugin["kubernetes"]["api_timeout_seconds"] = json!(4); // otherwise each waits 8 s for an agent that does not start
    let [mesh, plain] = AWAY.map(|name| format!("{name}-refused"));
    away.fixture.daemon.take().unwrap().kill();
    let file = away.fixture.config_file();
    let good = fs::read(&file).unwrap();
    let mut one_family: Value = serde_json::from_slice(&good).unwrap();
    one_family["node"]["families"] = json!([4]);
    let upstream = br#"{"ztunnelReady":true,"redirectMode":"iptables"}"#.to_vec();
    let contents: [(Option<Vec<u8>>, &str); 4] = [
        (None, "No such file"),
        (Some(b"{".to_vec()), "config.json"),
        (Some(upstream), "describes no node path"),
        (Some(one_family.to_string().into_bytes()), "no ambient path for IPv6"),
    ];
    for (number, (content, words)) in contents.into_iter().enumerate() {
        match content {
            Some(content) => fs::write(&file, content).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let error = away.start(away.create(&mesh, &format!("refused-{number}"))).unwrap_err();
        assert_eq!(error.code(), Some(11), "{error}");
        let text = error.error["msg"].as_str().unwrap();
        for part in [
            "and could not be enrolled: the node agent is unavailable (nothing is listening on /",
            "), and ",
            words,
        ] {
            assert!(text.contains(part), "no {part:?}: {text}");
        }
        drop(
            away.start(away.create(&plain, &format!("fine-{number}")))
                .unwrap_or_else(|error| panic!("{error}")),
        );
    }
}

#[test]
fn sidecar_and_plain_pods_are_decided_by_the_agent_without_a_request() {
    let Some(mut away) = Away::new("decided") else { return };
    let _ztunnel = away.fixture.ztunnel("ztunnel-a");
    let [mesh, plain] = AWAY.map(|name| format!("{name}-decided"));
    let stored = away.api.create_pod(&istio::injected_pod(&mesh, "decided-sidecar"));
    let sidecar = Pod::from_object(&stored);
    let mut manifest = stored;
    manifest["spec"]["nodeName"] = json!(kit::NODE_NAME);
    away.fixture.manifests.put_pod(&manifest);
    let (web, other) = (away.create(&mesh, "decided-web"), away.create(&plain, "decided-other"));
    for pod in [&web, &other] {
        away.fixture.manifests.put_pod(&crate::fixtures::ambient::starting(pod));
    }
    let started = [sidecar, web, other].map(|pod| away.start(pod).unwrap_or_else(|error| panic!("{error}")));
    let [sidecar, web, other] = &started;
    let redirect = "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert!(sidecar.sandbox.netns.has_rule("iptables-save", redirect));
    away.fixture.assert_free(sidecar);
    away.fixture.assert_owned(web);
    away.fixture.assert_free(other);
    assert_eq!(tables(&web.sandbox.netns) + &tables(&other.sandbox.netns), "");
    for peer in &started {
        peer.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
    }
    for name in ["decided-sidecar", "decided-web", "decided-other"] {
        assert_eq!(away.asked(name), 0, "{name}");
    }
    away.fixture.daemon.take().unwrap().kill();
    let alone = away.start(away.create(&plain, "decided-alone")).unwrap_or_else(|error| panic!("{error}"));
    kit::until("requests are counted", || away.asked("decided-alone") > 0); // the audit log is written after the answer
    drop(alone);
}

/// An agent that hangs is treated as unavailable: after a timeout, the plugin acts alone. Its earlier requests have no effect when
/// the agent continues.
#[test]
fn an_agent_that_hangs_is_given_up_and_does_nothing_late() {
    let Some(mut away) = Away::new("hangs") else { return };
    let _ztunnel = away.fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(away.fixture.node.outside(), PORT);
    let mesh = format!("{}-hangs", AWAY[0]);
    let pods = ["hangs-stays", "hangs-goes"].map(|name| away.create(&mesh, name));
    for pod in &pods {
        away.fixture.manifests.put_pod(&crate::fixtures::ambient::starting(pod));
    }
    away.fixture.settle();
    away.fixture.daemon().signal(Signal::STOP);
    let started = Instant::now();
    let [stays, mut goes] = std::thread::scope(|scope| {
        let away = &away;
        pods.map(|pod| scope.spawn(move || away.start(pod).unwrap_or_else(|error| panic!("{error}"))))
            .map(|thread| thread.join().unwrap())
    });
    // Each waits for it once, 10 s.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(away.fixture.is_captured(&stays));
    goes.sandbox.delete().unwrap();
    away.fixture.assert_free(&goes);
    away.fixture.daemon().signal(Signal::CONT);
    // Its threads handle the old requests before any new one.
    away.fixture.daemon().wait_for("it goes on", |daemon| daemon.is_ready());
    away.fixture.settle();
    away.fixture.assert_owned(&stays);
    away.fixture.assert_free(&goes);
    away.fixture.manifests.put_pod(&goes.sandbox.manifest());
    away.fixture.settle();
    away.fixture.assert_owned(&stays);
    assert!(away.fixture.is_captured(&stays));
}

/// The DEL of CNI 0.3 has no result: the addresses are those of the ADD's record.
#[test]
fn a_del_without_a_result_releases_the_pod_without_the_agent() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let mut chain = fixture.node.conflist(&[fixture.plugin()]);
    chain["cniVersion"] = json!("0.3.1");
    let mut pod = fixture.add(Pod::new(MESH, "web"), &chain).unwrap_or_else(|error| panic!("{error}"));
    fixture.assert_owned(&pod);
    fixture.daemon.take().unwrap().kill();
    pod.sandbox.delete().unwrap();
    fixture.assert_free(&pod);
}

#[test]
fn hostile_clients_of_the_socket_disturb_nobody() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let socket = fixture.node.run_dir().join("agent.sock");
    let connect = |first: &[u8]| {
        let mut client = UnixStream::connect(&socket).unwrap();
        // The agent may have closed the connection already.
        let _ = client.write_all(first);
        client
    };
    let answer = |mut client: UnixStream| {
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        text
    };
    for garbage in
        [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"[[[[[[[[", b"{\"verb\":\"add\"}\n", b"GET / HTTP/1.1\r\n\r\n"]
    {
        let client = connect(garbage);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let text = answer(client);
        let error = serde_json::from_str::<Value>(&text).map(|answer| answer["error"].is_string());
        assert!(text.is_empty() || error.is_ok_and(|is_there| is_there), "{text}");
    }
    let endless = vec![b'x'; 4 << 20];
    assert!(answer(connect(&endless)).len() < 4096);

    let slow = std::thread::spawn({
        let clients: Vec<_> = (0..20).map(|_| connect(b"{")).collect();
        move || {
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                clients.iter().for_each(|mut client| drop(client.write(b" ")));
                std::thread::sleep(Duration::from_millis(100)); // the delay of this slow client
            }
            clients.into_iter().map(answer).map(|text| text.len()).max()
        }
    });
    // One attempt has to be undisturbed: this machine runs other tests.
    let mut took = (0..3).map(|number| {
        let _idle: Vec<_> = (0..300).map(|_| connect(b"")).collect();
        let pod = fixture.pod(MESH, &format!("web-{number}"));
        fixture.assert_owned(&pod);
        pod.sandbox.calls.iter().find(|call| call.plugin == "istio-cni").unwrap().output.wall
    });
    assert!(took.any(|took| took < Duration::from_secs(2)), "{}", fixture.log());
    assert!(slow.join().unwrap().unwrap() < 4096, "they are not waited for");
    let _other = fixture.pod(PLAIN, "other");
    assert!(fixture.daemon().is_ready());
    let tasks = format!("/proc/{}/task", fixture.daemon().pid());
    kit::until("few threads are left", || fs::read_dir(&tasks).unwrap().count() < 30);
    fixture.refuses_others(&socket, b"{\"verb\":\"status\"}\n");
}
