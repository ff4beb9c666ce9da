//! Network namespaces that exist as long as a value.

use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::libc;
use nix::net::if_::InterfaceFlags;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::artefacts::require_sandbox;
use crate::wait::until;

/// A network namespace with `lo` up, bound to `/run/netns/<name>` (so that `ip -n <name>` works, too). Drop removes it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: File,
}

const DIRECTORY: &str = "/run/netns";

impl Netns {
    /// Creates a namespace. The name starts with `prefix` and is unique in the sandbox.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        Self::named(format!("{prefix}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)))
    }

    /// Creates a namespace with exactly this name.
    #[must_use]
    pub fn named(name: String) -> Self {
        require_sandbox();
        let path = Path::new(DIRECTORY).join(&name);
        File::create_new(&path).unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
        thread::scope(|scope| scope.spawn(|| bind_new_namespace(&path)).join().expect("cannot make a netns"));
        let netns = Self { name, handle: File::open(&path).expect("a bound namespace can be opened") };
        netns.settle();
        netns
    }

    /// The namespace at a path such as `/proc/PID/ns/net`, without a name: drop does not remove it.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn at(path: &str) -> Self {
        let handle = File::open(path).unwrap_or_else(|e| panic!("cannot open {path}: {e}"));
        Self { name: String::new(), handle }
    }

    /// A second handle without a name, whose drop removes nothing.
    #[must_use]
    pub fn second_handle(&self) -> Self {
        Self { name: String::new(), handle: self.handle.try_clone().expect("a file can be shared") }
    }

    /// Name below `/run/netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path, as a runtime passes it to a plugin.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&self.name)
    }

    /// Runs `work` in a new thread inside the namespace, and passes on its value or its panic.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            self.enter();
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Moves the calling thread into the namespace permanently.
    #[allow(clippy::disallowed_methods, reason = "kit does not use pkg/netns, which it helps to test")]
    pub fn enter(&self) {
        use std::os::fd::AsFd;
        rustix::thread::move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|e| panic!("cannot enter netns {}: {e}", self.name));
    }

    /// Starts a command inside the namespace.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Child {
        self.run(|| command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}")))
    }

    /// Runs a command inside the namespace to its end, whatever its exit status.
    pub fn output(&self, command: &mut Command) -> Output {
        self.run(|| command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}")))
    }

    /// Runs a command line (words separated by blanks), which must succeed; returns its stdout.
    ///
    /// # Panics
    /// If it fails, with its stderr.
    pub fn sh(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("an empty command"));
        succeeded(line, &self.output(command.args(words)))
    }

    /// Runs a command with `input` on stdin; it must succeed. Returns its stdout. For `iptables-restore`, `ip -batch -` and the
    /// like: the input must fit into a pipe's buffer.
    pub fn pipe(&self, line: &str, input: &str) -> String {
        self.run(|| pipe_here(line, input))
    }

    /// Sets a sysctl, given as a path below `/proc/sys`: `net/ipv4/ip_forward`.
    pub fn sysctl(&self, path: &str, value: &str) {
        let file = Path::new("/proc/sys").join(path);
        self.run(|| fs::write(&file, value)).unwrap_or_else(|e| panic!("cannot set {}: {e}", file.display()));
    }

    /// Reads a sysctl.
    #[must_use]
    pub fn read_sysctl(&self, path: &str) -> String {
        let file = Path::new("/proc/sys").join(path);
        let text = self.run(|| fs::read_to_string(&file));
        text.unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display())).trim().to_owned()
    }

    /// Global addresses of all links except `lo`, as the kernel reports them.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let links: serde_json::Value =
            serde_json::from_str(&self.sh("ip -json address show scope global")).expect("ip writes JSON");
        let infos = links.as_array().into_iter().flatten().filter(|link| link["ifname"] != "lo");
        infos
            .flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default())
            .filter_map(|info| info["local"].as_str().and_then(|text| text.parse().ok()))
            .collect()
    }

    /// Whether the output of a tool such as `iptables-save` has exactly this rule.
    ///
    /// # Panics
    /// If the tool fails.
    #[must_use]
    pub fn has_rule(&self, save: &str, rule: &str) -> bool {
        self.sh(save).lines().any(|line| line == rule)
    }

    /// Packet counts of an nft table, in the order of its rules.
    ///
    /// # Panics
    /// If the table does not exist.
    #[must_use]
    pub fn packets(&self, table: &str) -> Vec<u64> {
        let shown = self.sh(&format!("nft list table {table}"));
        let words: Vec<&str> = shown.split_whitespace().collect();
        let counters = words.windows(2).filter(|pair| pair[0] == "packets");
        counters.map(|pair| pair[1].parse().expect("nft counts in numbers")).collect()
    }

    /// Waits until a link that was set up carries packets of both families. The kernel starts to forward a while after both ends
    /// are up (`net/core/link_watch.c`), and until then drops packets; a lost SYN costs a second. A worker makes global IPv6
    /// addresses usable, also without duplicate address detection (`net/ipv6/addrconf.c`).
    ///
    /// # Panics
    /// If it takes longer than 20 seconds.
    pub fn wait_until_running(&self, link: &str) {
        let runs = |one: &InterfaceAddress| {
            one.interface_name == link && one.flags.contains(InterfaceFlags::IFF_RUNNING)
        };
        self.run(|| {
            until(format_args!("link {link} in {} runs", self.name), || {
                getifaddrs().expect("links can be listed").any(|one| runs(&one))
                    && !has_tentative_address(link)
            });
        });
    }

    /// Waits until the kernel has finished duplicate address detection, and has noticed the carrier of every veth link that is up,
    /// whose IPv6 routes may change then: workers do both, under the RTNL lock that all namespaces share.
    ///
    /// # Panics
    /// If it takes longer than 20 seconds, as with a link whose peer is down.
    pub fn wait_until_addresses_are_usable(&self) {
        until(format_args!("all links and addresses in {} are usable", self.name), || {
            let links = self.sh("ip -oneline link show up type veth");
            links.lines().all(|link| link.split(' ').any(|word| word == "UP"))
                && self.sh("ip -6 -oneline address show tentative").is_empty()
        });
    }

    /// Sets sysctls: a namespace's defaults depend on the machine's, which tests must not.
    fn settle(&self) {
        self.run(set_loopback_up);
        for scope in ["all", "default"] {
            self.sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), "0");
            // Duplicate address detection keeps every address tentative for a second or more.
            self.sysctl(&format!("net/ipv6/conf/{scope}/accept_dad"), "0");
            self.sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0");
        }
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if self.name.is_empty() {
            return; // the sandbox's own namespace
        }
        let path = self.path();
        let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
        let _ = fs::remove_file(&path);
    }
}

/// Moves the calling thread, which must end soon, into a new namespace, and binds the namespace to `path`.
#[allow(clippy::disallowed_methods, reason = "kit does not use pkg/netns, which it helps to test")]
#[allow(unsafe_code, reason = "rustix offers unshare only as unsafe")]
fn bind_new_namespace(path: &Path) {
    // SAFETY: NEWNET changes only this thread's network namespace; the hazards that make the function unsafe are those of FILES and
    // FS, which are not requested.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("cannot unshare the network");
    rustix::mount::mount_bind("/proc/thread-self/ns/net", path).expect("cannot bind a netns");
}

/// Whether a link of the calling thread's namespace has a global IPv6 address that is not usable yet, but will be.
fn has_tentative_address(link: &str) -> bool {
    const TENTATIVE: u32 = 0x40;
    const FAILED: u32 = 0x08;
    // Address, number of the link, length of the prefix, scope, flags, link; there is no such file without IPv6.
    let table = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(words[4], 16).expect("flags are hexadecimal");
        words[3] == "00" && words[5] == link && flags & (TENTATIVE | FAILED) == TENTATIVE
    })
}

nix::ioctl_write_ptr_bad!(set_link_flags, libc::SIOCSIFFLAGS, libc::ifreq);

/// Sets `lo` of the calling thread's namespace up (`netdevice(7)`), without running `ip`: there are thousands of namespaces.
#[allow(unsafe_code, reason = "nothing that tests have offers this call")]
fn set_loopback_up() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("cannot make a socket");
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16 },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is initialised and of the type that this ioctl reads; the socket is open.
    unsafe { set_link_flags(socket.as_raw_fd(), &request) }.expect("cannot set lo up");
}

/// Runs `work` in the sandbox's own namespace, whichever namespace the caller is in: threads enter others, but the first thread of
/// the process never does.
pub(crate) fn in_sandbox<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    sandbox().run(work)
}

/// The sandbox's own namespace.
pub(crate) fn sandbox() -> Netns {
    require_sandbox();
    Netns { name: String::new(), handle: File::open("/proc/self/ns/net").expect("proc is mounted") }
}

/// [`Netns::pipe`] in the caller's own namespace.
pub(crate) fn pipe_here(line: &str, input: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("an empty command"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {line}: {e}"));
    let written = child.stdin.take().expect("stdin is a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("a child can be waited for");
    let text = succeeded(&format!("{line}` on `{input}"), &output);
    written.unwrap_or_else(|e| panic!("{line} did not read its input: {e}"));
    text
}

/// Stdout of a command, which must have succeeded.
fn succeeded(line: &str, output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{line}` failed ({}): {stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
