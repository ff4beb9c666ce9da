//! Istio's own `istio-iptables` compared with ours: the same flags and environment, the same packets, and for each packet the same
//! result, except for the differences listed in docs/compatibility.md. `hack/istio` builds Istio's program.

mod packets;
mod pod;
mod settings;

use std::{
    env,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kit::{Netns, binary};

use self::{
    packets::{Fate, Packet, send},
    pod::{PodNetwork, redirect},
    settings::{Difference, SETTINGS, Setting},
};
use crate::sidecar_kernel::at_once;

const FIXED_SEED: u64 = 0x6d69_6c6c_7261_6365;
/// Number of packets for each setting in each kind of tables.
const PACKETS: usize = 150;
/// Timeout of a packet that is not answered.
const PATIENCE: Duration = Duration::from_millis(250);
/// Timeouts of the repetitions of a packet whose results differed: a busy machine or a lost datagram is no difference.
const REPETITIONS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// Tables that both tools are forced to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    Nft,
    Legacy,
    Native,
}

#[test]
fn packets_go_where_istios_own_rules_send_them_in_nft_tables() {
    compare(Tables::Nft);
}

#[test]
fn packets_go_where_istios_own_rules_send_them_in_legacy_tables() {
    compare(Tables::Legacy);
}

#[test]
fn packets_go_where_istios_own_rules_send_them_in_native_tables() {
    compare(Tables::Native);
}

fn compare(tables: Tables) {
    let Some(programs) = env::var_os("MILLRACE_ISTIO").map(PathBuf::from) else {
        assert!(
            env::var_os("CI").is_none_or(|ci| ci != "true"),
            "CI runs everything, but MILLRACE_ISTIO is not set"
        );
        return kit::skip("MILLRACE_ISTIO is not set; hack/istio prints it");
    };
    if !kit::has_other_users() {
        return kit::skip("the sandbox of a user other than root has no second user for a proxy");
    }
    let random_seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {random_seed:#x}");
    let (istio, ours) = (programs.join("istio-iptables"), binary("istio-iptables"));
    let surprises = Mutex::new(Vec::new());
    at_once(SETTINGS, |setting| {
        let mut packets = Packet::sample(PACKETS / 2, FIXED_SEED);
        packets.extend(Packet::sample(PACKETS / 2, random_seed));
        let found = compare_setting(setting, tables, &packets, [&istio, &ours]);
        surprises.lock().unwrap().extend(found);
    });
    let surprises = surprises.into_inner().unwrap();
    assert!(surprises.is_empty(), "in {tables:?} tables:\n{}", surprises.join("\n"));
}

/// Sets up two equal pods, one with the rules of each tool, and sends each packet in both. Returns unlisted differences, and listed
/// ones that no packet shows.
fn compare_setting(setting: &Setting, tables: Tables, packets: &[Packet], tools: [&Path; 2]) -> Vec<String> {
    let pods = tools.map(|tool| {
        let pod = PodNetwork::new(setting);
        redirect(&pod, tool, setting, tables);
        pod
    });
    let fates = pods.each_ref().map(|pod| send(pod, packets, PATIENCE));
    let suspects: Vec<&Packet> = packets
        .iter()
        .zip(fates[0].iter().zip(&fates[1]))
        .filter(|(_, (a, b))| a != b)
        .map(|(p, _)| p)
        .collect();
    let mut surprises = Vec::new();
    let mut seen: Vec<&Difference> = Vec::new();
    for packet in suspects {
        let listed = setting.differences.iter().find(|difference| (difference.covers)(packet));
        let repetitions = &REPETITIONS[..if listed.is_some() { 1 } else { REPETITIONS.len() }];
        let Some([theirs, ours]) = repeat_packet(&pods, packet, repetitions) else { continue };
        match listed {
            Some(difference) => seen.push(difference),
            None => {
                surprises.push(format!("{}: {packet}\n    Istio: {theirs}\n    ours:  {ours}", setting.name));
            }
        }
    }
    let expected = setting.differences.iter().filter(|difference| difference.is_common);
    let unseen = expected.filter(|difference| !seen.iter().any(|other| std::ptr::eq(*other, *difference)));
    surprises.extend(unseen.map(|difference| {
        format!("{}: no packet shows this difference: {}", setting.name, difference.description)
    }));
    surprises
}

/// Sends a packet again, and returns the results if they still differ. Only a timeout is repeated more than once.
fn repeat_packet(pods: &[PodNetwork; 2], packet: &Packet, timeouts: &[Duration]) -> Option<[Fate; 2]> {
    let mut fates = None;
    for timeout in timeouts {
        let [theirs, ours] =
            pods.each_ref().map(|pod| send(pod, std::slice::from_ref(packet), *timeout).remove(0));
        if theirs == ours {
            return None;
        }
        let is_final = ![&theirs, &ours].contains(&&Fate::Failed(ErrorKind::TimedOut));
        fates = Some([theirs, ours]);
        if is_final {
            break;
        }
    }
    fates
}

/// Contents of a pod's namespace, for the message of a failure.
fn ruleset(netns: &Netns) -> String {
    netns.sh("nft --stateless list ruleset")
}
