//! Files of the archive.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use bundle::redact;
use daemon_settings::DaemonSettings;
use report::{Comparison, FirewallRule, StateReport, explain_pod, tables};

/// Only the last part of a longer log is included, in bytes.
const MAX_LOG: u64 = 4 * 1024 * 1024;

const README: &str = "State of this node when the bundle was written. Secrets have been left out.

state.json        everything, as /debug/state has it
summary.txt       a summary of the node
pods.txt          its pods, the worst first
explanations.txt  each pod explained
differences.txt   differences from the desired state, and what is unknown
plan.txt          what would be done
history.txt       what was done, newest first
config.txt        effective settings
network/          objects of ours in the kernel: desired and observed
firewall/         rules of ours in the kernel, as iptables-save has them
logs/             the agent's last lines, and the plugin's from while the agent was unavailable
versions.txt      of the programs and the kernel
";

/// Returns names and contents of the files; each is redacted of credentials.
pub(super) fn archive_files(
    state: &StateReport,
    settings: &DaemonSettings,
    time: &str,
) -> Vec<(String, String)> {
    let pods: Vec<_> = state.pods.iter().collect();
    let explanations: String =
        pods.iter().map(|pod| format!("{}\n", explain_pod(state, &pod.namespace, &pod.name))).collect();
    let mut files = vec![
        ("README.txt".to_owned(), README.to_owned()),
        ("versions.txt".to_owned(), versions_text(state, time)),
        ("summary.txt".to_owned(), tables::render_summary(state, false)),
        ("pods.txt".to_owned(), tables::pods_table(state, &pods, true, false)),
        ("explanations.txt".to_owned(), explanations),
        ("differences.txt".to_owned(), tables::differences_table(state, false)),
        ("plan.txt".to_owned(), tables::render_plan(state, false)),
        ("history.txt".to_owned(), tables::history_table(&state.history, false)),
        ("config.txt".to_owned(), config_text(state)),
    ];
    files.extend(network_files(state));
    files.extend(iptables_saves(&state.network.firewall));
    files.push(("logs/agent.log".to_owned(), agent_log(settings)));
    files.extend(plugin_log_files(settings));
    for (_, text) in &mut files {
        *text = redact::text(text);
    }
    files.push(("state.json".to_owned(), redact::json(state)));
    files
}

fn versions_text(state: &StateReport, time: &str) -> String {
    format!(
        "this program   {}\nthe document   {} by {} ({:?} observed at {})\nkernel         {} {}\nmachine        {}\ntime           {time}\n",
        env!("CARGO_PKG_VERSION"),
        state.schema,
        state.version,
        state.observation.observer,
        state.observation.observed_at,
        read_kernel_setting("osrelease"),
        read_kernel_setting("version"),
        std::env::consts::ARCH,
    )
}

fn read_kernel_setting(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"));
    text.map_or_else(|error| format!("unknown: {error}"), |text| text.trim().to_owned())
}

fn config_text(state: &StateReport) -> String {
    state
        .config
        .iter()
        .map(|setting| format!("{}={:?} ({})\n", setting.name, setting.value, setting.source))
        .collect()
}

fn network_files(state: &StateReport) -> Vec<(String, String)> {
    let network = &state.network;
    let foreign = join_lines(&network.foreign);
    vec![
        ("network/ipsets.txt".to_owned(), comparison_text(&network.ipsets)),
        ("network/rules.txt".to_owned(), comparison_text(&network.rules)),
        ("network/routes.txt".to_owned(), comparison_text(&network.routes)),
        ("network/links.txt".to_owned(), comparison_text(&network.links)),
        ("network/sysctls.txt".to_owned(), comparison_text(&network.sysctls)),
        ("network/firewall.txt".to_owned(), comparison_text(&network.firewall)),
        ("network/foreign.txt".to_owned(), foreign),
    ]
}

fn comparison_text<T: Display>(compared: &Comparison<T>) -> String {
    let observed = match &compared.observed {
        Some(observed) => format!("# observed\n{}", join_lines(observed)),
        None => "# observed: unknown\n".to_owned(),
    };
    format!(
        "# desired\n{}{observed}# difference\n{}",
        join_lines(&compared.desired),
        join_lines(&compared.differences)
    )
}

fn join_lines<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| format!("{one}\n")).collect()
}

/// Returns one file per network namespace and family, in the format of `iptables-save`.
fn iptables_saves(firewall: &Comparison<FirewallRule>) -> Vec<(String, String)> {
    let mut saves: BTreeMap<String, BTreeMap<&str, Vec<&FirewallRule>>> = BTreeMap::new();
    for rule in firewall.observed.iter().flatten() {
        let place: String =
            rule.netns.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
        let name = format!("firewall/{place}-v{}.save", rule.family);
        saves.entry(name).or_default().entry(&rule.table).or_default().push(rule);
    }
    let rule = |rule: &FirewallRule| format!("-A {} {}", rule.chain, rule.rule);
    let table = |(table, rules): (&str, Vec<&FirewallRule>)| {
        format!("*{table}\n{}COMMIT\n", join_lines(rules.into_iter().map(rule)))
    };
    let save = |tables: BTreeMap<&str, Vec<&FirewallRule>>| tables.into_iter().map(table).collect();
    saves.into_iter().map(|(name, tables)| (name, save(tables))).collect()
}

/// Returns the agent's most recent log lines, which it keeps in memory: only the container runtime knows where its output is
/// stored.
fn agent_log(settings: &DaemonSettings) -> String {
    match node_status::fetch(&settings.debug_socket, "/debug/lines", node_status::LIMIT) {
        Ok(lines) => String::from_utf8_lossy(&lines).into_owned(),
        Err(error) => format!(
            "the agent's last lines are unknown: {}\nkubectl logs, or the container runtime's log on the node, has them\n",
            model::describe_error(&error)
        ),
    }
}

fn plugin_log_files(settings: &DaemonSettings) -> Vec<(String, String)> {
    let logs = ["logs/plugin.log", "logs/plugin.log.1"].into_iter().zip(settings.plugin_logs());
    let read = logs.filter_map(|(name, path)| match read_tail(&path) {
        Ok(text) => Some((name.to_owned(), text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some((name.to_owned(), format!("cannot be read: {error}\n"))),
    });
    read.collect()
}

fn read_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
