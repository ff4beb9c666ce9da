//! Assembly of the daemon's parts: one thread for the installer, one runtime for everything asynchronous.

use std::{
    collections::BTreeMap,
    fs,
    future::Future,
    io,
    net::{Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use agent::{MeshPodMetrics, PluginMetrics};
use anyhow::{Context as _, Result, bail};
use axum::Router;
use daemon_settings::{DaemonSettings, HEALTH_PORT};
use installer::{Installer, InstallerHandle, InstallerMetrics, InstallerStatus};
use model::Notice;
use node_status::{SidecarDriftChecker, SidecarDriftMetrics};
use prometheus_client::registry::Registry;
use repair::RepairMetrics;
use report::Observed;
use retry::LastError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use telemetry::{
    debug, http,
    local::{RootServer, SocketError},
    log_server::{self, LogMetrics},
    logging::{LogOptions, Logger},
    metrics,
};
use tokio::{
    runtime,
    sync::{mpsc, oneshot, watch},
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};
use tracing::{debug, error, info, warn};

use crate::{
    annotations,
    cluster::{self, ClusterAccess},
    condition,
    events::EventServer,
    health::HealthProbe,
    node_agent::{self, RunningAgent},
    node_lock::NodeLock,
    notices::{NOTICES, NoticeReceivers},
    pod_repair, pod_source,
    preflight::{self, PreflightOutcome},
    proof_sampler::{ProofMetrics, ProofSampler},
    shutdown::{self, ShutdownVerdict, TerminationSignals},
    state_collector::StateCollector,
    supervise::{self, VitalTasks, restart_on_panic},
    uninstall::Uninstallation,
    version,
};

/// Time for which rules are kept while annotations are still being removed: 250 take 16 round trips.
const ANNOTATIONS: Duration = Duration::from_secs(1);
/// Time for the installer to finish a pass. The kubelet grants five seconds in all.
const LAST_PASS: Duration = Duration::from_secs(2);

/// Runs until a termination signal.
///
/// # Errors
/// An essential part fails at the start, or the installer ends by itself.
pub(crate) fn run(mut settings: DaemonSettings, log: LogOptions) -> Result<ExitCode> {
    let (runtime, signals, logger) = supervise::start_process(log)?;
    let tls_provider = kube_api::describe_tls_provider();
    info!(target: "install", version = env!("CARGO_PKG_VERSION"), tls_provider, node = settings.identity.node, "install-cni (Millrace) starts");
    if !settings.chosen.is_empty() {
        info!(target: "install", settings = settings.chosen.join(", "), "settings that differ from the defaults");
    }
    settings.warnings.iter().for_each(|warning| warn!(target: "install", warning, "check the settings"));

    allow_many_files();
    // Taken before anything is changed, and held until the process ends.
    let lock = lock_node(&settings)?;
    for (family, source) in node_status::detect_probe_sources(&mut settings) {
        match source {
            Ok(source) => info!(target: "install", %family, %source, "source of the node's probes detected"),
            Err(error) => {
                warn!(target: "install", %family, error, "cannot detect the source of the node's probes");
            }
        }
    }
    // The plugin may decide without an agent while a refusal of our credential persists; from now on an agent runs.
    drop(fs::remove_file(settings.refused_credential()));
    // Checked before the agent opens its own ports.
    let ports = node_status::taken_ports(&settings.listening_ports());
    let (settings, cluster) = (Arc::new(settings), Arc::new(ClusterAccess::default()));
    if settings.ambient.is_none() && Uninstallation::new(Arc::clone(&settings)).is_ambient {
        warn!(target: "install", "an agent with ambient mode ran on this node: pods may still be captured");
    }
    let done = runtime.block_on(async {
        // Started before anything slow: our own pod decides what a SIGTERM means.
        let owner = tokio::spawn(cluster::follow_owner(Arc::clone(&settings), Arc::clone(&cluster)));
        let (daemon, parts) = spawn_blocking(move || start_parts(settings, ports, cluster, logger, lock))
            .await
            .context("the start panicked")??;
        daemon.serve_until_stopped(parts, owner, signals).await
    });
    runtime.shutdown_background(); // requests to the agent that are still pending are abandoned
    done
}

/// Takes the node's lock. An agent that captures no pod starts without it where its directory cannot be created: it serves no socket
/// there either.
fn lock_node(settings: &DaemonSettings) -> Result<Option<NodeLock>> {
    match NodeLock::acquire(&settings.lock_file()) {
        Err(error) if settings.ambient.is_none() && error.is::<io::Error>() => {
            warn!(target: "install", error = model::describe_error(&*error), "cannot lock the node: a second agent would not be noticed");
            Ok(None)
        }
        lock => lock.map(Some),
    }
}

/// Starts to listen for the plugin's log lines, if configured. Without ambient mode, a directory that cannot be created is no error.
fn bind_log_server(settings: &DaemonSettings) -> Result<Option<RootServer>> {
    match settings.log_socket.as_deref().map(RootServer::bind).transpose() {
        Err(error @ SocketError::System { .. }) if settings.ambient.is_none() => {
            warn!(target: "install", %error, "cannot serve the plugin's log lines");
            Ok(None)
        }
        bound => bound.context("cannot serve the plugin's log lines"),
    }
}

/// Raises the limit of open files: the network namespaces of all mesh pods are held open and watched, and container runtimes set
/// limits as low as 1024.
pub(crate) fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        debug!(target: "install", %error, "cannot raise the limit of open files");
    }
}

/// Opens everything and starts the threads; called within the runtime.
fn start_parts(
    settings: Arc<DaemonSettings>,
    ports: Observed<Vec<String>>,
    cluster: Arc<ClusterAccess>,
    logger: Logger,
    lock: Option<NodeLock>,
) -> Result<(Daemon, DaemonParts)> {
    let (vital, dead) = VitalTasks::new();
    let preflight = preflight::start_checks(&settings, ports, vital.clone())?;
    let mut registry = Registry::default();
    metrics::register_process(&mut registry);
    let installer_metrics = InstallerMetrics::register(&mut registry);
    let log_metrics = LogMetrics::register(&mut registry);
    let mesh_pods = MeshPodMetrics::register(&mut registry, settings.metrics_by_namespace);
    let plugin = PluginMetrics::register(&mut registry);
    let checker = SidecarDriftChecker::new(SidecarDriftMetrics::register(&mut registry, mesh_pods.clone()));
    let repair = settings.repair.is_some().then(|| RepairMetrics::register(&mut registry));
    let proofs = settings.proof_interval.map(|interval| (interval, ProofMetrics::register(&mut registry)));
    let agent = node_agent::start_reconciler(&settings, &mut registry, mesh_pods)?;
    let log_server = bind_log_server(&settings)?;
    let (sender, notices) = mpsc::channel(NOTICES);
    let status = Arc::new(InstallerStatus::default());
    let notify = Box::new(move |notice| drop(sender.try_send(notice)));
    let (installer, handle) =
        Installer::new(settings.installer.clone(), installer_metrics, Arc::clone(&status), notify)?;
    let work = start_installer(installer, handle)?;
    let runtime = runtime::Handle::current();
    let fetch = pod_source::pod_fetcher(&settings, Arc::clone(&cluster), runtime);
    let events = node_agent::serve_plugin(&settings, &agent, plugin, fetch, vital.clone())?;
    let log_server = log_server.map(|server| (server, log_metrics));
    let daemon = Daemon { settings, cluster, status, preflight, registry: Arc::new(registry), logger, lock };
    let vital = (vital, dead);
    Ok((daemon, DaemonParts { work, agent, events, notices, checker, repair, proofs, log_server, vital }))
}

/// Started parts that the daemon serves.
struct DaemonParts {
    work: InstallerThread,
    agent: RunningAgent,
    events: Option<EventServer>,
    notices: mpsc::Receiver<Notice>,
    checker: SidecarDriftChecker,
    repair: Option<RepairMetrics>,
    /// Interval of the sampled proofs, and their metrics.
    proofs: Option<(Duration, ProofMetrics)>,
    log_server: Option<(RootServer, LogMetrics)>,
    /// Reports panics of what the process cannot do without, and receives them.
    vital: (VitalTasks, mpsc::Receiver<String>),
}

/// Handle of the installer's thread.
struct InstallerThread {
    handle: InstallerHandle,
    /// Yields the installer when its loop has ended; an error if it panicked.
    ended: oneshot::Receiver<Installer>,
}

fn start_installer(mut installer: Installer, handle: InstallerHandle) -> Result<InstallerThread> {
    let (sender, ended) = oneshot::channel();
    let started = thread::Builder::new().name("installer".to_owned()).spawn(move || {
        installer.run();
        drop(sender.send(installer)); // the receiver is dropped once the daemon has ended
    });
    started.context("cannot start a thread")?;
    Ok(InstallerThread { handle, ended })
}

/// State with the lifetime of the process.
struct Daemon {
    settings: Arc<DaemonSettings>,
    cluster: Arc<ClusterAccess>,
    status: Arc<InstallerStatus>,
    preflight: Arc<PreflightOutcome>,
    registry: Arc<Registry>,
    logger: Logger,
    lock: Option<NodeLock>,
}

impl Daemon {
    async fn serve_until_stopped(
        self,
        parts: DaemonParts,
        owner: JoinHandle<()>,
        mut signals: TerminationSignals,
    ) -> Result<ExitCode> {
        let DaemonParts { mut work, agent, events, notices, checker, repair, proofs, log_server, vital } =
            parts;
        let RunningAgent { handle, mut ended, marks, notices: agent_notices, status, inspector } = agent;
        let (stop, stopped) = watch::channel(());
        let (installer, is_ambient) = (Arc::clone(&self.status), self.settings.ambient.is_some());
        let preflight = Arc::clone(&self.preflight);
        let probe = HealthProbe { installer, agent: status, preflight, is_ambient };
        let condition = self.follow_condition(probe.clone());
        let (sender, drift_notices) = mpsc::channel(NOTICES);
        let (repair_notices, repairs) = mpsc::channel(NOTICES);
        let (set_unstable, unstable) = watch::channel(BTreeMap::new());
        if let Some(metrics) = repair {
            pod_repair::start(&self.settings, metrics, probe.clone(), repair_notices, set_unstable);
        }
        let collector = StateCollector::new(Arc::clone(&self.settings), probe.clone(), inspector, unstable);
        let collector = Arc::new(collector);
        let (vital, mut dead) = vital;
        let watched = Arc::clone(&collector);
        let watch_node = tokio::spawn(async move {
            restart_on_panic("the watch over the node", checker, |checker| {
                Box::pin(Arc::clone(&watched).keep_watch(checker, sender.clone()))
            })
            .await;
        });
        if let Some((interval, metrics)) = proofs {
            let sampler = ProofSampler::new(Arc::clone(&collector), interval, metrics);
            tokio::spawn(restart_on_panic("the periodic proof", sampler, |sampler| Box::pin(sampler.run())));
        }
        self.serve_debug(collector, &stopped, &vital);
        let health = http::health_router(Arc::new(probe));
        let health = serve_http(HEALTH_PORT, health, shutdown_signal(stopped.clone()));
        tokio::spawn(vital.clone().watch_task("the server of /healthz", health));
        if let Some(port) = self.settings.monitoring_port {
            let metrics = http::metrics_router(Arc::clone(&self.registry));
            let metrics = serve_http(port, metrics, shutdown_signal(stopped.clone()));
            tokio::spawn(vital.clone().watch_task("the server of /metrics", metrics));
        }
        let logs = log_server.map(|(server, metrics)| {
            let run = log_server::serve_log_lines(
                server,
                self.logger.clone(),
                metrics,
                shutdown_signal(stopped.clone()),
            );
            tokio::spawn(vital.clone().watch_task("the log server", async { drop(run.await) }))
        });
        let events = events.map(|events| events.run(shutdown_signal(stopped.clone())));
        let events =
            events.map(|run| tokio::spawn(vital.clone().watch_task("the server of Istio's plugin", run)));
        let (settings, cluster) = (Arc::clone(&self.settings), Arc::clone(&self.cluster));
        let sources = NoticeReceivers {
            installer: notices,
            agent: agent_notices,
            sidecar_drift: drift_notices,
            repairs,
            history: handle.clone(),
        };
        let follow = cluster::follow_resources(settings, cluster, work.handle.clone(), sources, owner);
        tokio::spawn(vital.clone().watch_task("the connection to the API server", follow));

        tokio::spawn(pod_source::follow_facts(Arc::clone(&self.settings), handle.clone()));
        let marker = tokio::spawn(annotations::write_annotations(Arc::clone(&self.settings), marks));

        tokio::spawn(watch_sockets(served_sockets(&self.settings), vital));
        let name = wait_for_shutdown(&mut signals, &mut work.ended, &mut ended, &mut dead).await?;
        info!(target: "install", signal = name, "shutting down");
        watch_node.abort(); // it would write the state that is about to be removed
        if let Some(condition) = condition {
            condition.abort(); // a shutdown is not a fault of the node
        }
        let done = self.shut_down(work, AgentThread { handle, ended, marker }).await;
        drop(stop);
        let last = async {
            for server in [logs, events].into_iter().flatten() {
                drop(server.await);
            }
        };
        drop(timeout(LAST_PASS, last).await); // ending removes their sockets
        done
    }

    /// Serves the debug state over HTTP, and to root on a socket.
    fn serve_debug(&self, collector: Arc<StateCollector>, stopped: &watch::Receiver<()>, vital: &VitalTasks) {
        let router = debug::debug_router(collector, self.logger.clone(), version::build_info());
        match RootServer::bind(&self.settings.debug_socket) {
            Ok(server) => {
                let run =
                    server.run(router.clone(), debug::MAX_CONNECTIONS, shutdown_signal(stopped.clone()));
                drop(tokio::spawn(vital.clone().watch_task("the server of the debug state", async {
                    drop(run.await); // logged by the server
                })));
            }
            Err(error) => error!(target: "install", %error, "cannot serve the debug state to commands"),
        }
        if let Some(address) = self.settings.debug {
            let run = serve_debug_http(address, router, shutdown_signal(stopped.clone()));
            tokio::spawn(vital.clone().watch_task("the HTTP server of the debug state", run));
        } else {
            let socket = self.settings.debug_socket.display();
            info!(target: "install", %socket, "debug port closed; the debug state is served on the Unix socket only");
        }
    }

    /// Keeps the node's condition up to date, if configured.
    fn follow_condition(&self, probe: HealthProbe) -> Option<JoinHandle<()>> {
        let (cluster, node) = (Arc::clone(&self.cluster), self.settings.identity.node.clone());
        self.settings.node_condition.then(|| {
            tokio::spawn(restart_on_panic("the node's condition", (), move |()| {
                Box::pin(condition::keep_updated(probe.clone(), Arc::clone(&cluster), node.clone()))
            }))
        })
    }

    /// Stops everything, and removes everything if this is an uninstallation.
    async fn shut_down(&self, work: InstallerThread, agent: AgentThread) -> Result<ExitCode> {
        let (client, identity) = (self.cluster.client(), &self.settings.identity);
        // Without ambient mode the agent captures nothing, and answers the plugin until the process ends.
        let ambient = self.settings.ambient.as_ref().map(|_| agent);
        // The agent keeps serving meanwhile, so that an upgrade interrupts it as briefly as possible.
        let verdict = shutdown::decide_verdict(
            self.settings.cleanup,
            client.as_ref(),
            &self.cluster.memory,
            identity,
            ambient.is_some(),
        )
        .await;
        work.handle.stop();
        if let Some(agent) = &ambient {
            agent.handle.stop();
        }
        let installer = timeout(LAST_PASS, work.ended).await;
        let uninstallation = Uninstallation::new(Arc::clone(&self.settings));
        match verdict {
            ShutdownVerdict::Keep(why) => {
                info!(target: "install", reason = why, "the plugin stays installed");
                if ambient.is_some() {
                    info!(target: "ambient", "enrolled pods stay captured");
                }
                Ok(ExitCode::SUCCESS)
            }
            ShutdownVerdict::EndAmbient(why) => {
                info!(target: "install", reason = why, "the plugin stays installed");
                let Some(agent) = ambient else { return Ok(ExitCode::SUCCESS) };
                let mut errors = remove_capture(&uninstallation, Some(agent)).await;
                if errors.is_empty() {
                    // What it still has of ztunnels that ended before concerns nobody.
                    let journal = hostfs::remove(&self.settings.ambient_traces.agent.journal);
                    errors.extend(journal.err().map(|error| error.to_string()));
                }
                errors.iter().for_each(|error| error!(target: "ambient", %error, "not removed"));
                Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            ShutdownVerdict::CleanUp(why) => {
                info!(target: "install", reason = why, "the plugin is removed");
                let Ok(Ok(mut installer)) = installer else {
                    bail!("the installer does not stop: nothing is removed")
                };
                let mut errors: Vec<String> = installer.clean_up().iter().map(ToString::to_string).collect();
                errors.extend(remove_capture(&uninstallation, ambient).await);
                let errors = uninstallation.remove_evidence(errors, self.lock.as_ref());
                errors.iter().for_each(|error| error!(target: "install", %error, "not removed"));
                if let Some(client) = client.filter(|_| self.settings.node_condition)
                    && let Err(error) = condition::publish_uninstalled(&client, &identity.node).await
                {
                    warn!(target: "install", %error, "cannot remove the node condition");
                }
                Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
        }
    }
}

/// Removes capture: that of this agent, after withdrawing its pods' annotations, or what an agent with ambient mode left.
async fn remove_capture(uninstallation: &Uninstallation, agent: Option<AgentThread>) -> Vec<String> {
    let withdrawing = match agent {
        Some(agent) => match withdraw_annotations(agent).await {
            Ok(left) => left,
            Err(error) => return vec![error],
        },
        None if uninstallation.is_ambient => None,
        // An agent without ambient mode may lack the permission to inspect the node's network.
        None => return Vec::new(),
    };
    let uninstallation = uninstallation.clone();
    let removed = spawn_blocking(move || uninstallation.remove_capture()).await;
    if let Some(left) = withdrawing
        && timeout(LAST_PASS, left).await.is_err()
    {
        warn!(target: "ambient", "annotations of some pods were not removed");
    }
    removed.unwrap_or_else(|error| vec![error.to_string()])
}

/// Withdraws the annotations of all pods: clients send HBONE to an annotated pod, where nothing accepts it without rules. Returns
/// the task if it is unfinished after a moment, because pod traffic must not wait for a slow API server.
async fn withdraw_annotations(agent: AgentThread) -> Result<Option<JoinHandle<()>>, String> {
    let AgentThread { ended, mut marker, .. } = agent;
    let Ok(Ok(mut owner)) = timeout(LAST_PASS, ended).await else {
        return Err("the agent does not stop, so the node path stays".to_owned());
    };
    owner.remove_annotations();
    let finished = spawn_blocking(move || {
        owner.finish_work();
        drop(owner); // closes the list of annotations
    });
    finished.await.map_err(|error| error.to_string())?;
    Ok(timeout(ANNOTATIONS, &mut marker).await.err().map(|_| marker))
}

/// The agent's thread, as far as the shutdown needs it.
struct AgentThread {
    handle: agent::AgentHandle,
    ended: oneshot::Receiver<agent::Reconciler>,
    marker: JoinHandle<()>,
}

/// Interval at which the agent's sockets are looked for: without them, no plugin reaches the agent.
const SOCKET_CHECK: Duration = Duration::from_secs(5);

/// Returns the paths of the sockets on which this agent listens.
fn served_sockets(settings: &DaemonSettings) -> Vec<PathBuf> {
    let events = settings.ambient.as_ref().and_then(|ambient| ambient.events.as_ref());
    let all = [&settings.agent_socket, &settings.debug_socket].into_iter().chain(&settings.log_socket);
    let all = all.chain(events.map(|events| &events.socket)).cloned();
    all.filter(|path| !is_missing(path)).collect()
}

/// Ends the process once another program has removed one of the sockets: the next agent creates them again.
async fn watch_sockets(sockets: Vec<PathBuf>, vital: VitalTasks) {
    loop {
        sleep(SOCKET_CHECK).await;
        if let Some(path) = sockets.iter().find(|path| is_missing(path)) {
            return vital.end_process(format!("{} was removed", path.display())).await;
        }
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Completes at shutdown.
async fn shutdown_signal(mut stopped: watch::Receiver<()>) {
    drop(stopped.changed().await); // an error means that the sender was dropped: shutdown, too
}

/// Returns the name of the signal received.
async fn wait_for_shutdown(
    signals: &mut TerminationSignals,
    installer: &mut oneshot::Receiver<Installer>,
    agent: &mut oneshot::Receiver<agent::Reconciler>,
    dead: &mut mpsc::Receiver<String>,
) -> Result<&'static str> {
    tokio::select! {
        signal = signals.next_signal() => Ok(signal),
        _ = installer => bail!("the installer ended unexpectedly"),
        _ = agent => bail!("the agent's reconciler ended unexpectedly"),
        Some(what) = dead.recv() => bail!("{what}: exiting, to be restarted"),
    }
}

/// Delay before a port that another process holds is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Serves as soon as the port is free.
async fn serve_http(port: u16, router: Router, until: impl Future<Output = ()> + Send + 'static) {
    let listener = bind_when_free((Ipv6Addr::UNSPECIFIED, port).into()).await;
    log_if_failed(port, http::serve(listener, router, until).await);
}

/// Serves the debug state, as soon as the port is free.
async fn serve_debug_http(
    address: SocketAddr,
    router: Router,
    until: impl Future<Output = ()> + Send + 'static,
) {
    let listener = bind_when_free(address).await;
    log_if_failed(address.port(), debug::serve(listener, router, until).await);
}

/// Binds a port; while another process holds it, retries without blocking any other part.
async fn bind_when_free(address: SocketAddr) -> TcpListener {
    let mut last = LastError::default();
    loop {
        match http::bind(address) {
            Ok(listener) => return listener,
            Err(error) => {
                if last.replace(&error.kind()) {
                    let port = address.port();
                    error!(target: "install", port, %error, "cannot listen; trying again");
                }
                sleep(AGAIN).await;
            }
        }
    }
}

fn log_if_failed(port: u16, served: io::Result<()>) {
    if let Err(error) = served {
        error!(target: "install", port, %error, "cannot serve");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_the_installer_or_the_reconciler_ends_the_process() {
        let mut signals = TerminationSignals::listen().unwrap();
        for (is_installer, ends) in
            [(true, "the installer ended unexpectedly"), (false, "the agent's reconciler ended unexpectedly")]
        {
            let (installs, mut installer) = oneshot::channel();
            let (reconciles, mut agent) = oneshot::channel();
            let (_vital, mut dead) = VitalTasks::new();
            // A thread that panics drops its sender.
            let (_installs, _reconciles) =
                ((!is_installer).then_some(installs), is_installer.then_some(reconciles));
            let ended = wait_for_shutdown(&mut signals, &mut installer, &mut agent, &mut dead).await;
            assert_eq!(ended.unwrap_err().to_string(), ends);
        }
    }
}
