//! With the kernel, in our own network namespaces.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stderr, reason = "tests")]

#[path = "named/bind.rs"]
mod bind;
#[path = "fresh/create.rs"]
mod create;

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use netns::{BindMount, Error, MountSandbox, Netns};

use bind::{bind_new_netns, unbind_netns};
use create::create_or_skip;

/// A temporary directory; drop removes it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("netns-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn link(of: &str) -> PathBuf {
    fs::read_link(format!("/proc/thread-self/{of}")).unwrap()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_closure_runs_inside_and_the_caller_stays_outside() {
    let Some(netns) = create_or_skip() else { return };
    let outside = link("ns/net");
    let inside = netns.run_in(|| link("ns/net")).unwrap();
    assert_eq!(inside, Path::new(&format!("net:[{}]", netns.id().ino)));
    assert_ne!(inside, outside);
    assert_eq!(link("ns/net"), outside);
    let child = netns.run_in(|| run("readlink", &["/proc/self/ns/net"])).unwrap();
    assert_eq!(child.trim_end(), inside.to_str().unwrap());
}

#[test]
fn one_thread_visits_namespaces_one_after_the_other() {
    let (Some(one), Some(two)) = (create_or_skip(), create_or_skip()) else { return };
    let outside = link("ns/net");
    let visited = Netns::run_in_each(&[&one, &two, &one], |place| (place, Netns::current().unwrap().id()));
    let visited: Vec<_> = visited.unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(visited, [(0, one.id()), (1, two.id()), (2, one.id())]);
    assert_eq!(link("ns/net"), outside);
}

#[test]
fn identity_does_not_depend_on_the_path() {
    let Some(netns) = create_or_skip() else { return };
    let current = Netns::current().unwrap();
    assert_eq!(current.id(), Netns::open("/proc/self/ns/net").unwrap().id());
    assert_ne!(current.id(), netns.id());
    assert_eq!(netns.run_in(|| Netns::current().unwrap().id()).unwrap(), netns.id());
}

#[test]
fn the_namespaces_of_a_directory_are_listed_and_nothing_else_there() {
    if create_or_skip().is_none() {
        return;
    }
    let scratch = Scratch::new("list");
    assert!(Netns::list_directory(&scratch.0).unwrap().is_empty());
    let names = ["b", "a"].map(|name| scratch.0.join(name));
    let ids = names.clone().map(|name| bind_new_netns(&name).id());
    let file = scratch.file("plain", "");
    fs::create_dir(scratch.0.join("directory")).unwrap();
    run("mkfifo", &[scratch.0.join("pipe").to_str().unwrap()]);
    let _socket = std::os::unix::net::UnixListener::bind(scratch.0.join("socket")).unwrap();
    for (target, name) in [("nowhere", "dangling"), ("loop", "loop"), ("/proc/self/ns/mnt", "mounts")] {
        std::os::unix::fs::symlink(target, scratch.0.join(name)).unwrap();
    }
    let found = Netns::list_directory(&scratch.0).unwrap();
    let found: Vec<_> = found.iter().map(|(path, netns)| (path.clone(), netns.id())).collect();
    assert_eq!(found, [(names[1].clone(), ids[1]), (names[0].clone(), ids[0])]);
    names.iter().for_each(|name| unbind_netns(name));
    assert!(Netns::list_directory(&scratch.0).unwrap().is_empty());
    assert!(Netns::list_directory(&scratch.0.join("gone")).unwrap().is_empty());
    let words = Netns::list_directory(&file).unwrap_err().to_string();
    assert!(
        words.starts_with(&format!("cannot list the network namespaces in {}: ", file.display())),
        "{words}"
    );
}

#[test]
fn what_is_no_network_namespace_is_named() {
    let scratch = Scratch::new("kinds");
    let file = scratch.file("plain", "");
    let words = |path: &Path| Netns::open(path).unwrap_err().to_string();
    let pipe = scratch.0.join("pipe");
    run("mkfifo", &[pipe.to_str().unwrap()]);
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    for (path, kind) in [
        (file.as_path(), "an ordinary file or directory"),
        (&scratch.0, "an ordinary file or directory"),
        (&pipe, "an ordinary file or directory"), // opening it does not wait for a writer
        ("/proc/self/ns/mnt".as_ref(), "a mount namespace"),
        ("/proc/self/ns/uts".as_ref(), "a UTS namespace"),
    ] {
        assert_eq!(words(path), format!("{} is {kind}, not a network namespace", path.display()));
    }
    assert_eq!(words("/proc/0/ns/net".as_ref()), "no network namespace at /proc/0/ns/net");
}

#[test]
fn a_panic_goes_on_in_the_caller() {
    let Some(netns) = create_or_skip() else { return };
    let outside = link("ns/net");
    let panicked = std::panic::catch_unwind(|| netns.run_in(|| -> () { panic!("inside") })).unwrap_err();
    assert_eq!(panicked.downcast_ref::<&str>(), Some(&"inside"));
    assert_eq!(link("ns/net"), outside);
    assert!(netns.run_in(|| ()).is_ok());
}

#[test]
fn mounts_of_a_sandbox_are_seen_by_the_children_of_its_closure() {
    let Some(netns) = create_or_skip() else { return };
    let scratch = Scratch::new("sandbox");
    let (source, target) = (scratch.file("source", "private"), scratch.file("target", "host"));
    let sandbox = MountSandbox { binds: vec![BindMount { source, target: target.clone(), read_only: true }] };
    let seen = netns.run_in_sandbox(&sandbox, || {
        let refused = fs::write(&target, "changed").unwrap_err();
        (run("cat", &[target.to_str().unwrap()]), refused.kind(), link("ns/net"))
    });
    let (content, refused, net) = seen.unwrap();
    assert_eq!(content, "private");
    assert_eq!(refused, std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(net, Path::new(&format!("net:[{}]", netns.id().ino)));
    assert_eq!(fs::read_to_string(&target).unwrap(), "host");
}

#[test]
fn other_threads_keep_their_mounts_and_directory_while_a_sandbox_is_open() {
    let Some(netns) = create_or_skip() else { return };
    let scratch = Scratch::new("open");
    let (source, target) = (scratch.file("source", "private"), scratch.file("target", "host"));
    let sandbox =
        MountSandbox { binds: vec![BindMount { source, target: target.clone(), read_only: false }] };
    let before = (link("ns/mnt"), link("cwd"));
    let (ready, is_ready) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let within = || {
        std::env::set_current_dir("/proc").unwrap();
        let seen = (link("ns/mnt"), link("cwd"), fs::read_to_string(&target).unwrap());
        ready.send(()).unwrap();
        seen
    };
    let (netns, sandbox, within) = (&netns, &sandbox, &within);
    thread::scope(|scope| {
        let inside =
            scope.spawn(move || netns.run_in_sandbox(sandbox, move || (within(), may_leave.recv()).0));
        is_ready.recv().unwrap();
        assert_eq!((link("ns/mnt"), link("cwd")), before);
        assert_eq!(fs::read_to_string(&target).unwrap(), "host");
        assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(target.to_str().unwrap()));
        leave.send(()).unwrap();
        let (mounts, directory, content) = inside.join().unwrap().unwrap();
        assert_ne!(mounts, before.0);
        assert_eq!((directory.as_path(), content.as_str()), (Path::new("/proc"), "private"));
    });
    assert_eq!((link("ns/mnt"), link("cwd")), before);
}

#[test]
fn a_sandbox_that_cannot_be_made_is_told_apart_and_runs_nothing() {
    let Some(netns) = create_or_skip() else { return };
    let missing = PathBuf::from("/nowhere/file");
    let sandbox = MountSandbox {
        binds: vec![BindMount { source: "/dev/null".into(), target: missing, read_only: false }],
    };
    let mut ran = false;
    let error = netns.run_in_sandbox(&sandbox, || ran = true).unwrap_err();
    assert!(matches!(error, Error::Sandbox { .. }));
    assert!(
        error.to_string().starts_with("cannot prepare private mounts: show /dev/null on /nowhere/file: ")
    );
    assert!(!ran);
}

#[test]
fn dev_null_hides_a_file() {
    let Some(netns) = create_or_skip() else { return };
    let scratch = Scratch::new("null");
    let target = scratch.file("nsswitch.conf", "hosts: dns");
    let bind = BindMount { source: "/dev/null".into(), target: target.clone(), read_only: true };
    let seen =
        netns.run_in_sandbox(&MountSandbox { binds: vec![bind] }, || run("cat", &[target.to_str().unwrap()]));
    assert_eq!(seen.unwrap(), "");
}

/// A process in a network namespace of its own; drop ends it.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start(arguments: &[&str]) -> Option<Sleeper> {
        let _ = create_or_skip()?; // without permission to create namespaces, it could not either
        let child = Command::new("unshare").args(arguments).args(["sleep", "600"]).spawn().unwrap();
        let sleeper = Sleeper(child);
        let program = || fs::read_to_string(format!("/proc/{}/comm", sleeper.0.id())).unwrap();
        let start = Instant::now();
        while program() != "sleep\n" {
            assert!(start.elapsed() < Duration::from_secs(10), "its exec is still pending");
            thread::sleep(Duration::from_millis(1)); // between two polls
        }
        Some(sleeper)
    }

    fn netns(&self) -> Netns {
        Netns::open(format!("/proc/{}/ns/net", self.0.id())).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_owner_is_told_where_it_is_another_user_namespace() {
    let Some(own) = create_or_skip() else { return };
    assert!(own.foreign_owner().unwrap().is_none());
    let Some(sleeper) = Sleeper::start(&["--user", "--net"]) else { return };
    let owner = sleeper.netns().foreign_owner().unwrap().unwrap();
    let expected = fs::read_link(format!("/proc/{}/ns/user", sleeper.0.id())).unwrap();
    assert_eq!(fs::read_link(owner.path()).unwrap(), expected);
}

/// The agent uses this to find the pod of a ztunnel that connects to its socket.
#[test]
fn an_accepted_connection_belongs_to_the_netns_of_who_connected() {
    let Some(client) = create_or_skip() else { return };
    let scratch = Scratch::new("of-socket");
    let path = scratch.0.join("listener.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let connected = client.run_in(|| std::os::unix::net::UnixStream::connect(&path).unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(Netns::from_socket(&accepted).unwrap().id(), client.id());
    assert_eq!(Netns::from_socket(&connected).unwrap().id(), client.id());
    assert_eq!(Netns::from_socket(&listener).unwrap().id(), Netns::current().unwrap().id());
    let file = fs::File::open(scratch.file("plain", "")).unwrap();
    assert!(Netns::from_socket(&file).is_err());
}

/// `node-status` tests that a successor with its number is not the same instance.
#[test]
fn an_instance_is_the_same_by_every_path() {
    let (Some(first), Some(second)) = (create_or_skip(), create_or_skip()) else { return };
    let file = format!("/proc/self/fd/{}", first.as_fd().as_raw_fd());
    assert_eq!(Netns::open(file).unwrap().instance(), first.instance());
    assert_ne!(second.instance(), first.instance());
}
