//! `istio-cni-taint`: the node taint controller of Istio up to 1.17. `install-cni` runs as it under this name, so that the image
//! has each library once.

use std::{
    ffi::OsString, fs, io, io::Write as _, path::Path, process::ExitCode, sync::LazyLock, time::Duration,
};

use anyhow::{Context as _, Result, bail};
use daemon_settings::{HostEnvironment as _, ProcessEnvironment, in_cluster};
use flags::{Flag, FlagStyle, FlagValues, ParseOutcome};
use kube_api::{ApiConnection, LeaseElector};
use model::parse_go_bool;
use node_taint::{TaintController, TaintOptions, check_selector, lease_options, run_while_leading};
use telemetry::logging::LogOptions;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{cluster, shutdown::TerminationSignals, supervise};

/// Program name in Istio's manifests.
const PROGRAM: &str = "istio-cni-taint";
/// Timeout for releasing the Lease at the end: the kubelet grants a few seconds.
const RELEASE: Duration = Duration::from_secs(3);
/// Source of a unique identity for this process.
const RANDOM_ID: &str = "/proc/sys/kernel/random/uuid";

const USAGE: &str = "istio-cni-taint keeps the taint NodeReadiness:NoSchedule on each node that is not ready, or that lacks a ready
pod of a selector in its ConfigMap.

Usage: istio-cni-taint [flags]

Each flag can also be given by the variable that is shown in brackets; the flag wins.";

// The first three flags are Istio's.
flags::flag_table!(
    CONTROLLER_FLAGS,
    CONFIGMAP_NAMESPACE = Flag::with_value("kube-system", "namespace of the ConfigMap with the selectors")
        .env(&["TAINT_CONFIGMAP-NAMESPACE"]),
    CONFIGMAP_NAME = Flag::with_value("single", "name of that ConfigMap").env(&["TAINT_CONFIGMAP-NAME"]),
    RUN_AS_DAEMON = Flag::new_switch_on("keep running; false: evaluate every node once, then exit")
        .env(&["TAINT_RUN-AS-DAEMON"]),
    NODE_SELECTOR = Flag::with_value("", "label selector of the nodes to manage; empty: all")
        .env(&["TAINT_NODE-SELECTOR"]),
    LEASE_NAME =
        Flag::with_value("istio-taint-lock", "name of the Lease in kube-system by which one replica leads")
            .env(&["TAINT_LEASE-NAME"]),
);

static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| [CONTROLLER_FLAGS, flags::LOGGING].concat());

/// The validated values.
#[derive(Debug)]
struct TaintSettings {
    options: TaintOptions,
    lease_name: String,
    run_as_daemon: bool,
    api: ApiConnection,
}

/// Whether the process was started as `istio-cni-taint`.
pub(crate) fn is_meant(program: &OsString) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == PROGRAM)
}

/// Runs until a termination signal, or once.
pub(crate) fn main(arguments: Vec<OsString>) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::print_message(PROGRAM, &model::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<OsString>) -> Result<()> {
    let around = |name: &str| ProcessEnvironment.variable(name);
    match flags::parse(FLAGS.as_slice(), FlagStyle::default(), arguments, around)? {
        ParseOutcome::Help => {
            Ok(io::stdout().write_all(flags::help_text(USAGE, FLAGS.as_slice()).as_bytes())?)
        }
        ParseOutcome::Run(values) => {
            let (settings, log) =
                parse_settings(&values).map_err(|mistakes| anyhow::anyhow!(mistakes.join("\n")))?;
            start_controller(settings, log)
        }
    }
}

fn parse_settings(values: &FlagValues) -> Result<(TaintSettings, LogOptions), Vec<String>> {
    let text = |flag: &Flag| values.flag_text(flag).to_owned();
    let mut mistakes = Vec::new();
    let run_as_daemon = parse_go_bool(values.flag_text(&RUN_AS_DAEMON));
    if run_as_daemon.is_none() {
        mistakes.push(format!("--{RUN_AS_DAEMON}: {:?} is neither true nor false", text(&RUN_AS_DAEMON)));
    }
    for flag in [CONFIGMAP_NAMESPACE, CONFIGMAP_NAME, LEASE_NAME] {
        if !report::is_object_name(values.flag_text(&flag)) {
            mistakes.push(format!("--{flag}: {:?} is not a valid object name", text(&flag)));
        }
    }
    let selector = check_selector(values.flag_text(&NODE_SELECTOR));
    mistakes.extend(selector.err().map(|error| format!("--{NODE_SELECTOR}: {error}")));
    let api = in_cluster(&ProcessEnvironment, PROGRAM).map_err(|mistake| mistakes.push(mistake.into()));
    let log = LogOptions::parse(values).map_err(|mistake| mistakes.push(mistake));
    let (Ok(api), Ok(log), Some(run_as_daemon), true) = (api, log, run_as_daemon, mistakes.is_empty()) else {
        return Err(mistakes);
    };
    let options = TaintOptions {
        config_namespace: text(&CONFIGMAP_NAMESPACE),
        config_name: text(&CONFIGMAP_NAME),
        node_selector: text(&NODE_SELECTOR),
    };
    Ok((TaintSettings { options, lease_name: text(&LEASE_NAME), run_as_daemon, api }, log))
}

fn start_controller(settings: TaintSettings, mut log: LogOptions) -> Result<()> {
    let warnings = std::mem::take(&mut log.warnings);
    let (runtime, signals, _) = supervise::start_process(log)?;
    info!(
        target: "taint",
        version = env!("CARGO_PKG_VERSION"),
        tls_provider = kube_api::describe_tls_provider(),
        configmap = format!("{}/{}", settings.options.config_namespace, settings.options.config_name),
        "istio-cni-taint (Millrace) starts"
    );
    warnings.iter().for_each(|warning| warn!(target: "taint", warning, "check the settings"));
    let done = runtime.block_on(run_controller(settings, signals));
    runtime.shutdown_background();
    done
}

async fn run_controller(settings: TaintSettings, mut signals: TerminationSignals) -> Result<()> {
    let Some(client) = run_until_signal(&mut signals, cluster::connect_to_api(&settings.api)).await else {
        return Ok(());
    };
    let controller = TaintController { client: client.clone(), options: settings.options };
    if !settings.run_as_daemon {
        let Some(done) = run_until_signal(&mut signals, controller.run_once()).await else {
            bail!("a signal came before all nodes were evaluated");
        };
        return done.map_err(anyhow::Error::msg);
    }
    let identity = fs::read_to_string(RANDOM_ID).with_context(|| format!("cannot read {RANDOM_ID}"))?;
    let mut elector = LeaseElector::new(client, lease_options(&settings.lease_name, identity.trim()));
    run_until_signal(&mut signals, run_while_leading(&mut elector, || controller.run())).await;
    release_lease(&elector).await;
    Ok(())
}

async fn release_lease(elector: &LeaseElector) {
    match timeout(RELEASE, elector.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(target: "taint", %error, "cannot release the Lease"),
        Err(_) => warn!(target: "taint", seconds = RELEASE.as_secs(), "cannot release the Lease in time"),
    }
}

/// Returns the result of the work; `None` if a signal arrived first.
async fn run_until_signal<T>(signals: &mut TerminationSignals, work: impl Future<Output = T>) -> Option<T> {
    let signal = tokio::select! {
        done = work => return Some(done),
        signal = signals.next_signal() => signal,
    };
    info!(target: "taint", signal, "the controller ends");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_meant_by_its_name_wherever_it_lies() {
        for (program, expected) in [
            ("istio-cni-taint", true),
            ("/opt/local/bin/istio-cni-taint", true),
            ("install-cni", false),
            ("/istio-cni-taint/install-cni", false),
            ("", false),
        ] {
            assert_eq!(is_meant(&program.into()), expected, "{program}");
        }
    }
}
