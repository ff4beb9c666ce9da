//! One call of the plugin: what the runtime passes by the environment and stdin.

use std::{ffi::OsString, io::Read, path::PathBuf};

use cni_types::{CniArgs, CniCommand, CniEnvironment, CniError, ErrorCode, MAX_STDIN, NetConf};
use enrolment::selector::Enablement;
use model::{PodName, PodUid};

/// A call about one container, understood.
#[derive(Debug)]
pub struct PluginCall {
    /// The variables.
    pub environment: CniEnvironment,
    /// The configuration.
    pub conf: NetConf,
    /// The pod, when `CNI_ARGS` names one.
    pub pod: Option<PodName>,
    /// The pod's UID, when `CNI_ARGS` has it.
    pub uid: Option<PodUid>,
    /// `enablement_selectors`, read; `None`: labels tell who belongs to ambient mode.
    pub enablement: Option<Vec<Enablement>>,
    /// `DRY_RUN_FILE_PATH`: write the restore input there and change nothing.
    pub dry_run: Option<PathBuf>,
}

/// Reads the configuration, and no more of stdin than one may be long.
///
/// # Errors
/// It cannot be read, or is invalid.
pub(crate) fn read_configuration(stdin: &mut impl Read) -> Result<NetConf, CniError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_STDIN).unwrap_or(u64::MAX).saturating_add(1);
    let read = stdin.take(limit).read_to_end(&mut bytes);
    read.map_err(|error| {
        CniError::new(ErrorCode::Io, format!("cannot read the configuration from stdin: {error}"))
    })?;
    NetConf::parse(&bytes)
}

impl PluginCall {
    /// Reads a call about one container.
    ///
    /// # Errors
    /// Something is missing or invalid, or the configuration does not allow the command.
    pub(crate) fn read(
        command: CniCommand,
        lookup: impl Fn(&str) -> Option<OsString>,
        stdin: &mut impl Read,
    ) -> Result<PluginCall, CniError> {
        let dry_run = lookup("DRY_RUN_FILE_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        let environment = CniEnvironment::parse(command, lookup)?;
        let conf = read_configuration(stdin)?;
        conf.check_command(command)?;
        let args = environment.parse_args().map_err(|error| error.with_version(conf.cni_version))?;
        let enablement = match parse_enablement(&conf) {
            // A pod that runs does not bypass the mesh by a setting that was changed since.
            Err(_) if command == CniCommand::Check => Some(Vec::new()),
            read => read.map_err(|error| error.with_version(conf.cni_version))?,
        };
        Ok(PluginCall { environment, conf, pod: pod_name(&args), uid: args.pod_uid, enablement, dry_run })
    }
}

/// The configured `enablement_selectors`, checked; `None`: there are none.
///
/// # Errors
/// They are invalid.
pub(crate) fn parse_enablement(conf: &NetConf) -> Result<Option<Vec<Enablement>>, CniError> {
    let Some(raw) = &conf.enablement_selectors else { return Ok(None) };
    let invalid = |code, why: String| CniError::new(code, format!("enablement_selectors: {why}"));
    let selectors: Vec<Enablement> =
        serde_json::from_str(raw.get()).map_err(|error| invalid(ErrorCode::Decode, error.to_string()))?;
    selectors
        .iter()
        .try_for_each(Enablement::check_selectors)
        .map_err(|why| invalid(ErrorCode::InvalidConfig, why.into()))?;
    Ok(Some(selectors))
}

/// The pod, when both of its names are there.
fn pod_name(args: &CniArgs) -> Option<PodName> {
    let namespace = args.pod_namespace.as_ref()?.as_str().to_owned();
    Some(PodName { namespace, name: args.pod_name.as_ref()?.as_str().to_owned() })
}
