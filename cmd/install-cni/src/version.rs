//! `install-cni version`, in Istio's output formats.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use flags::{Flag, FlagValues};
use telemetry::debug::BuildInfo;

const SHORT: Flag = Flag::new_switch("one line").long("short").short('s');
const OUTPUT: Flag = Flag::with_value("", "json or yaml").long("output").short('o');

/// Flags of the command.
pub(crate) const FLAGS: &[Flag] = &[SHORT, OUTPUT];

/// Usage text that `--help` shows.
pub(crate) const USAGE: &str = "install-cni version prints the version of this program.

Usage: install-cni version [flags]

Examples:
  install-cni version --short
  install-cni version -o yaml

Exit status 0: printed; 1: usage error.";

/// Version of the programs.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the source, set by `hack/build`. A change of it makes Cargo rebuild this crate and no other.
pub(crate) const REVISION: &str = known_value(option_env!("MILLRACE_REVISION"));

/// Whether the source tree matched the commit: `Clean` or `Modified`.
pub(crate) const STATUS: &str = known_value(option_env!("MILLRACE_STATUS"));

/// Commit time in UTC, not build time, so that a commit always produces the same bytes.
pub(crate) const DATE: &str = known_value(option_env!("MILLRACE_DATE"));

/// Returns a value set by the build, if it is not empty.
const fn known_value(value: Option<&'static str>) -> &'static str {
    match value {
        Some(value) if !value.is_empty() => value,
        _ => "unknown",
    }
}

/// Returns the version in the requested format.
///
/// # Errors
/// The format is unknown.
pub(crate) fn render_text(values: &FlagValues) -> Result<String> {
    let build = build_info();
    Ok(match (values.flag_text(&OUTPUT), values.flag_text(&SHORT)) {
        ("json", _) => serde_json::to_string_pretty(&BTreeMap::from([("clientVersion", &build)]))? + "\n",
        ("yaml", _) => {
            let members = serde_json::to_value(&build)?; // sorted by name, as in Go
            let members = members.as_object().into_iter().flatten();
            let lines = members.map(|(name, value)| format!("  {name}: {value}\n"));
            format!("clientVersion:\n{}", lines.collect::<String>())
        }
        ("", "true") => format!("{VERSION}-{REVISION}-{STATUS}\n"),
        ("", _) => format!(
            "version.BuildInfo{{Version:\"{VERSION}\", GitRevision:\"{REVISION}\", GolangVersion:\"\", \
             BuildStatus:\"{STATUS}\", GitTag:\"{VERSION}\", CommitDate:\"{DATE}\", TLSProvider:\"{}\"}}\n",
            build.tls_provider
        ),
        (other, _) => bail!("--output: {other:?} is neither json nor yaml"),
    })
}

/// Returns build information for scripts that query ControlZ.
pub(crate) fn build_info() -> BuildInfo {
    let tls_provider = kube_api::describe_tls_provider();
    let (version, golang_version, tag) = (VERSION, "", VERSION);
    BuildInfo { version, revision: REVISION, golang_version, status: STATUS, tag, date: DATE, tls_provider }
}
