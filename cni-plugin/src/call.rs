//! A call of the plugin: the runtime's input by environment and stdin.

use std::{ffi::OsString, io::Read, path::PathBuf};

use cni_types::{CniArgs, CniCommand, CniEnvironment, CniError, ErrorCode, MAX_STDIN, NetConf};
use enrolment::selector::{Enablement, parse_enablement};
use model::{PodName, PodUid};

/// A validated call about one container.
#[derive(Debug)]
pub struct PluginCall {
    /// Environment variables.
    pub environment: CniEnvironment,
    /// Configuration.
    pub conf: NetConf,
    /// Pod, if `CNI_ARGS` names one.
    pub pod: Option<PodName>,
    /// UID of the pod, if `CNI_ARGS` has it.
    pub uid: Option<PodUid>,
    /// `enablement_selectors`, parsed; `None`: membership in ambient mode is determined by labels. An error matters only where they
    /// are needed.
    pub enablement: Result<Option<Vec<Enablement>>, CniError>,
    /// `DRY_RUN_FILE_PATH`: file for the restore input; nothing is changed.
    pub dry_run: Option<PathBuf>,
}

/// Reads the configuration, limiting stdin to its maximum size.
///
/// # Errors
/// The configuration cannot be read, or is invalid.
pub(crate) fn read_configuration(stdin: &mut impl Read) -> Result<NetConf, CniError> {
    let mut bytes = Vec::new();
    let read = stdin.take(MAX_STDIN as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        CniError::new(ErrorCode::Io, format!("cannot read the configuration from stdin: {error}"))
    })?;
    NetConf::parse(&bytes)
}

impl PluginCall {
    /// Reads a call about one container.
    ///
    /// # Errors
    /// A value is missing or invalid, or the configuration does not support the command.
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
        let enablement = parse_enablement(&conf);
        Ok(PluginCall { environment, conf, pod: pod_name(&args), uid: args.pod_uid, enablement, dry_run })
    }
}

/// Returns the pod, if both of its names are set.
fn pod_name(args: &CniArgs) -> Option<PodName> {
    let namespace = args.pod_namespace.as_ref()?.as_str().to_owned();
    Some(PodName { namespace, name: args.pod_name.as_ref()?.as_str().to_owned() })
}
