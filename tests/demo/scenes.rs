//! The scenes, in order.

use kit::{Daemon, Echo, Netns, Pod, PodSandbox, Proto, Seen, Serve, TrafficClient, istio};

use crate::{
    cluster::{Cluster, gateway, logged, plain},
    show::Show,
};

/// The pods that remain for the following scenes.
pub(crate) struct Pods {
    pub(crate) sidecar: PodSandbox,
    pub(crate) plain: PodSandbox,
    others: Vec<PodSandbox>,
}

/// The plugin's decision for each kind of pod, with its reason.
pub(crate) fn decisions(cluster: &Cluster, daemon: &mut Daemon, show: &mut Show) -> Pods {
    show.chapter("what the plugin decides, and why");
    let mut start = |object, expected: &str| {
        let pod = cluster.start_pod(&object).unwrap_or_else(|error| panic!("{error}"));
        let decision = logged(daemon, &pod.pod);
        let name = format!("{}/{}", pod.pod.namespace, pod.pod.name);
        show.check(decision.contains(expected), format!("{name:<20} {decision}"));
        pod
    };
    let sidecar = istio::with_proxy_env(istio::injected_pod("shop", "web"), "ISTIO_DUAL_STACK", "true");
    let none = istio::annotated(
        istio::injected_pod("shop", "opted-out"),
        "sidecar.istio.io/interceptionMode",
        "NONE",
    );
    let sidecar = start(sidecar, "redirected to its sidecar");
    let plain_pod = start(plain("shop", "plain"), "was not injected");
    let others = vec![
        start(none, "interceptionMode is NONE"),
        start(gateway("shop", "gateway"), "is not a sidecar"),
        start(plain("kube-system", "dns"), "exclude_namespaces"),
    ];
    let asked = cluster.api.requests_to_pods("istio-cni");
    show.check(asked.len() == 2, format!("the plugin asked the API server {} times for these 5 pods: for the two that the runtime's annotations do not decide", asked.len()));
    Pods { sidecar, plain: plain_pod, others }
}

/// Shows which server answers each connection.
pub(crate) fn traffic(cluster: &Cluster, pods: &Pods, show: &mut Show) {
    show.chapter("live traffic");
    let _outside = Echo::start(cluster.node.outside(), &Serve::new(Proto::Tcp, 80).named("outside host"));
    let mut servers = Vec::new();
    for pod in [&pods.sidecar, &pods.plain] {
        servers.push(Echo::start(&pod.netns, &Serve::new(Proto::Tcp, 8080).named("application")));
    }
    for port in [istio::OUTBOUND, istio::INBOUND] {
        let proxy = Serve::new(Proto::Tcp, port).named("proxy").owned_by(istio::PROXY_ID, istio::PROXY_ID);
        servers.push(Echo::start(&pods.sidecar.netns, &proxy));
    }
    for v6 in [false, true] {
        let outside = (cluster.node.outside_ip(v6), 80).into();
        let mut call =
            |from: &Netns, who: &str, uid: u32, to: std::net::SocketAddr, answers: (&str, u16), why: &str| {
                let client = TrafficClient::new(Proto::Tcp).owned_by(uid, uid);
                let seen = client.connect(from, to);
                let right = seen.as_ref().is_ok_and(|seen| (seen.server.as_str(), seen.listener) == answers);
                show.check(right, format!("{who} -> {to}: {} ({why})", words(seen)));
            };
        let node = &cluster.node;
        let (web, plain) = (&pods.sidecar, &pods.plain);
        call(
            node.outside(),
            "outside host",
            0,
            (web.ip(v6), 8080).into(),
            ("proxy", istio::INBOUND),
            "inbound, captured",
        );
        call(
            &web.netns,
            "web's application",
            1000,
            outside,
            ("proxy", istio::OUTBOUND),
            "outbound, captured",
        );
        call(
            &web.netns,
            "web's proxy",
            istio::PROXY_ID,
            outside,
            ("outside host", 80),
            "the proxy's own, not captured",
        );
        call(
            node.outside(),
            "outside host",
            0,
            (plain.ip(v6), 8080).into(),
            ("application", 8080),
            "plain pod, not captured",
        );
        call(
            &plain.netns,
            "plain's application",
            1000,
            outside,
            ("outside host", 80),
            "plain pod, not captured",
        );
    }
}

fn words(seen: Result<Seen, kit::Failure>) -> String {
    match seen {
        Err(failure) => format!("no answer: {failure}"),
        Ok(seen) => {
            let meant =
                seen.original_dst.map(|to| format!(", which sees that {to} was meant")).unwrap_or_default();
            format!("answered by {} on port {}{meant}", seen.server, seen.listener)
        }
    }
}

/// ADD again, CHECK, damage, CHECK, ADD.
pub(crate) fn repetition(pods: &Pods, show: &mut Show) {
    show.chapter("again, and after damage");
    let pod = &pods.sidecar;
    let save = || ["iptables-save", "ip6tables-save"].map(|tool| without_counters(&pod.netns.sh(tool)));
    let call = |command: &str| pod.single(command, "istio-cni").output;
    let before = save();
    show.check(
        call("ADD").status.success() && save() == before,
        "ADD for the same pod succeeds again and changes nothing",
    );
    show.check(call("CHECK").status.success(), "CHECK finds the traffic redirected");
    pod.netns.sh("iptables -t nat -D OUTPUT -p tcp -j ISTIO_OUTPUT");
    let check = call("CHECK");
    let details = check.json()["details"].as_str().unwrap_or_default().to_owned();
    let named = !check.status.success() && details == "no rule redirects IPv4 outbound";
    show.check(named, format!("one rule deleted by hand: CHECK fails and says: {details}"));
    let mended = call("ADD").status.success() && save() == before;
    show.check(mended && call("CHECK").status.success(), "ADD puts it back, and CHECK is content");
}

/// Rules and chains without the tools' comments and counters.
fn without_counters(save: &str) -> String {
    save.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(" [").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Errors that a person has to understand.
pub(crate) fn mistakes(cluster: &Cluster, show: &mut Show) {
    show.chapter("what cannot work says why");
    let bad = istio::annotated(
        istio::injected_pod("shop", "typo"),
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        "80;443",
    );
    refused(show, "excludeOutboundPorts", cluster.start_pod(&bad));
    let mut ghost = Pod::new("shop", "ghost");
    ghost = ghost.annotation("sidecar.istio.io/status", "{}");
    refused(show, "pods shop/ghost", cluster.start_sandbox(ghost));
}

fn refused(show: &mut Show, expected: &str, started: Result<PodSandbox, Box<kit::ChainError>>) {
    let message = started.err().map(|error| error.error["msg"].as_str().unwrap_or_default().to_owned());
    let right = message.as_ref().is_some_and(|message| message.contains(expected));
    show.check(right, format!("ADD fails: {}", message.unwrap_or_default()));
}

/// DEL for every pod.
pub(crate) fn end(pods: Pods, show: &mut Show) {
    show.chapter("pods end");
    let mut all = vec![pods.sidecar, pods.plain];
    all.extend(pods.others);
    let count = all.len();
    let clean = all.iter_mut().all(|pod| pod.delete().is_ok() && pod.delete_again().is_ok());
    show.check(
        clean,
        format!("DEL succeeded for {count} pods, also when it was repeated without a namespace"),
    );
}
