//! What tests of in-pod capture share: a node whose agent captures pods so, ztunnels that speak with it, and a
//! list of processes.

use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kit::{InpodOptions, InpodZtunnel, Netns, NodeOptions, Pod, TempDir};

use crate::ambient_stage::{Ambient, MESH, Peer, dump_of};

/// Ports of ztunnel's onward connections to pods.
pub(crate) const RELAYED: std::ops::Range<u16> = 16000..30000;

/// A node whose agent captures from within.
pub(crate) struct InPod {
    ambient: Ambient,
    sockets: TempDir,
    pub(crate) processes: Processes,
    created: u32,
}

/// What the agent takes for the node's `/proc`.
pub(crate) struct Processes {
    directory: TempDir,
    last: u32,
}

impl Processes {
    fn new() -> Self {
        Self { directory: TempDir::new().unwrap(), last: 100 }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A process of a pod in a namespace; each one that is told is younger than those before. Answers with its number.
    pub(crate) fn add(&mut self, uid: &str, netns: &Netns) -> u32 {
        self.add_named(uid, Path::new(netns.name()));
        self.last
    }

    /// The same in a namespace that is only a name.
    pub(crate) fn add_named(&mut self, uid: &str, netns: &Path) {
        self.last += 1;
        let slice = uid.replace('-', "_");
        let cgroup = format!("0::/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-0123.scope\n");
        self.write_named(self.last, &cgroup, netns);
    }

    pub(crate) fn write(&mut self, pid: u32, cgroup: &str, netns: &Netns) {
        self.write_named(pid, cgroup, Path::new(netns.name()));
    }

    fn write_named(&mut self, pid: u32, cgroup: &str, netns: &Path) {
        let building = self.path().join(format!("new-{pid}"));
        std::fs::create_dir_all(building.join("ns")).unwrap();
        std::fs::write(building.join("cgroup"), cgroup).unwrap();
        let fields = (4..22).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        std::fs::write(building.join("stat"), format!("{pid} (app) S {fields} {pid}00 0\n")).unwrap();
        symlink(Path::new("/var/run/netns").join(netns), building.join("ns/net")).unwrap();
        std::fs::rename(building, self.path().join(pid.to_string())).unwrap();
    }

    pub(crate) fn remove(&self, pid: u32) {
        std::fs::remove_dir_all(self.path().join(pid.to_string())).unwrap();
    }
}

impl Deref for InPod {
    type Target = Ambient;

    fn deref(&self) -> &Ambient {
        &self.ambient
    }
}

impl DerefMut for InPod {
    fn deref_mut(&mut self) -> &mut Ambient {
        &mut self.ambient
    }
}

impl InPod {
    /// A node whose agent runs; nobody is there yet.
    pub(crate) fn new(env: &[(&str, &str)]) -> Self {
        let mut stage = Self::stopped(NodeOptions::default(), env);
        stage.start();
        stage
    }

    /// The same before the agent was started.
    pub(crate) fn stopped(options: NodeOptions, env: &[(&str, &str)]) -> Self {
        let (sockets, processes) = (TempDir::new().unwrap(), Processes::new());
        let always = [
            ("AMBIENT_CAPTURE", "in-pod"),
            ("ZTUNNEL_UDS_ADDRESS", "/ztunnel/ztunnel.sock"),
            ("HOST_PROC", "/hostproc"),
        ];
        let env: Vec<_> = always.into_iter().chain(env.iter().copied()).collect();
        let mut ambient = Ambient::stopped(options, &env);
        ambient.mount(sockets.path(), "/ztunnel");
        ambient.mount(processes.path(), "/hostproc");
        Self { ambient, sockets, processes, created: 0 }
    }

    /// The node, and what the agent takes for its processes, each to be used while the other is.
    pub(crate) fn split(&mut self) -> (&mut Ambient, &mut Processes) {
        (&mut self.ambient, &mut self.processes)
    }

    /// Where ztunnels find the agent.
    pub(crate) fn socket(&self) -> PathBuf {
        self.sockets.path().join("ztunnel.sock")
    }

    /// Starts a ztunnel, and waits until it has the snapshot.
    pub(crate) fn ztunnel(&mut self, name: &str, options: InpodOptions) -> InpodZtunnel {
        let ztunnel = InpodZtunnel::start(&self.node, name, &self.socket(), options);
        ztunnel.wait_for_snapshots(1);
        self.created += 1;
        let mut manifest = ztunnel.manifest();
        manifest["metadata"]["creationTimestamp"] = format!("2026-01-01T00:00:{:02}Z", self.created).into();
        self.manifests.put_pod(&manifest);
        ztunnel
    }

    /// Starts a ztunnel of old, and waits until new connections go there.
    pub(crate) fn ambient_ztunnel(&mut self, name: &str) -> kit::Ztunnel {
        self.ambient.ztunnel(name)
    }

    /// A pod of the mesh that starts through the plugin, and has a process.
    pub(crate) fn mesh_pod(&mut self, name: &str) -> Peer {
        let peer = self.ambient.pod(MESH, name);
        self.processes.add(&peer.sandbox.pod.uid, &peer.sandbox.netns);
        peer
    }

    /// A pod that runs already, without us.
    pub(crate) fn running_pod(&mut self, namespace: &str, name: &str) -> Peer {
        let sandbox = self.node.pod(Pod::new(namespace, name), &[]);
        self.processes.add(&sandbox.pod.uid, &sandbox.netns);
        self.manifests.put_pod(&sandbox.manifest());
        Peer::new(sandbox)
    }

    /// Whether the node's probes of an address are exempt, by the ipset tool.
    pub(crate) fn is_probed(&self, ip: IpAddr) -> bool {
        let set = if ip.is_ipv4() { "istio-inpod-probes-v4" } else { "istio-inpod-probes-v6" };
        let mut command = std::process::Command::new("ipset");
        command.args(["test", set, &ip.to_string()]);
        self.node.netns().run(|| command.output().unwrap().status.success())
    }

    /// Whether a pod's namespace has all rules of ours: in both families, with their policy routes.
    pub(crate) fn is_ruled(&self, peer: &Peer) -> bool {
        ours(peer) == [8, 2, 2]
    }

    /// Whether it has none.
    pub(crate) fn is_bare(&self, peer: &Peer) -> bool {
        ours(peer) == [0, 0, 0]
    }

    /// Waits until the agent has said of a pod that it is captured.
    pub(crate) fn wait_captured(&mut self, peer: &Peer) {
        let pod = &peer.sandbox.pod;
        self.wait_logged("pod captured", &format!("namespace={} pod={}", pod.namespace, pod.name));
    }

    /// Waits until ztunnel serves a pod where it is now.
    pub(crate) fn wait_served(&self, ztunnel: &InpodZtunnel, peer: &Peer) {
        let _ = ztunnel.wait_for_workload(&peer.sandbox.pod.uid);
    }
}

/// Waits until ztunnel says that it relayed a connection of this client to that address.
pub(crate) fn wait_relayed(ztunnel: &InpodZtunnel, src: IpAddr, dst: SocketAddr) {
    let _ = ztunnel.wait_seen(|one| one.src.ip() == src && one.dst == dst);
}

/// ztunnel has relayed a connection of this client to that address.
pub(crate) fn relayed(ztunnel: &InpodZtunnel, src: IpAddr, dst: SocketAddr) -> bool {
    ztunnel.seen().iter().any(|one| one.src.ip() == src && one.dst == dst)
}

/// Jumps, policy rules and routes of ours in a pod without options.
pub(crate) fn ours(peer: &Peer) -> [usize; 3] {
    let dump = dump_of(&peer.sandbox.netns);
    let jumps = dump.matches("-j ISTIO_OUTPUT").count() + dump.matches("-j ISTIO_PRERT").count();
    [
        jumps,
        dump.matches("fwmark 0x111/0xfff lookup 100").count(),
        dump.matches("local default dev lo table 100").count(),
    ]
}
