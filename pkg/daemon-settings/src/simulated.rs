//! Simulated settings: decisions of an agent that would be started with them.
//!
//! Only settings that decide which pods are captured, and how, are evaluated. None of them names a file or a socket, so a request
//! for a simulation cannot make the agent open anything.

use std::ffi::OsString;

use capture_modes::CaptureSettings;
use flags::{Flag, FlagValues, ParseOutcome, ValueSource};
use report::SettingsChange;

use super::{DaemonSettings, HostEnvironment, SettingsErrors};
use crate::options;

/// Settings that a simulation evaluates.
const EVALUATED: [Flag; 11] = [
    options::AMBIENT_ENABLED,
    options::AMBIENT_CAPTURE,
    options::AMBIENT_ENABLEMENT_SELECTOR,
    options::AMBIENT_DNS_CAPTURE,
    options::AMBIENT_ALLOWED_EXCEPTIONS,
    options::AMBIENT_IPV6,
    options::EXISTING_CONNECTIONS,
    options::EXCLUDE_NAMESPACES,
    options::SYSTEM_NAMESPACE,
    options::ZTUNNEL_SERVICE_ACCOUNT,
    options::ZTUNNEL_LABEL,
];

/// Basis of the decisions of an agent with other settings.
#[derive(Debug)]
pub struct SimulatedSettings {
    /// Whether ambient mode is on.
    pub ambient: bool,
    /// Capture settings, whether ambient mode is on or not.
    pub capture: CaptureSettings,
    /// Settings that would change and are not evaluated, each by its variable or flag.
    pub not_simulated: Vec<String>,
}

impl DaemonSettings {
    /// Returns the decision basis of an agent with these settings.
    ///
    /// # Errors
    /// The mistakes in evaluated settings for which an agent would not start.
    pub fn simulate(
        &self,
        change: &SettingsChange,
        around: &dyn HostEnvironment,
    ) -> Result<SimulatedSettings, SettingsErrors> {
        let other = read_flags(&self.values, change, around)?;
        let mut values = self.values.clone();
        EVALUATED.iter().for_each(|flag| values.copy_from(&other, flag));
        let (settings, _) = DaemonSettings::read(&values, around)?;
        Ok(SimulatedSettings {
            ambient: settings.ambient.is_some(),
            capture: settings.ambient_traces.agent,
            not_simulated: other_changes(&self.values, &other, change, around),
        })
    }
}

/// Parses flags and variables as the agent does at its start.
fn read_flags(
    own: &FlagValues,
    change: &SettingsChange,
    around: &dyn HostEnvironment,
) -> Result<FlagValues, SettingsErrors> {
    let kept = |name: &str| !change.complete || change.inherited.contains(name);
    let inherited = |name: &str| kept(name).then(|| around.variable(name)).flatten();
    let variable = |name: &str| change.variables.get(name).cloned().or_else(|| inherited(name));
    let own = own.iter().filter(|(_, _, source)| !change.complete && *source == ValueSource::Flag);
    let own = own.map(|(long, text, _)| OsString::from(format!("--{long}={text}")));
    let arguments = own.chain(change.arguments.iter().map(OsString::from));
    match flags::parse(options::ALL.as_slice(), options::STYLE, arguments, variable) {
        Ok(ParseOutcome::Run(values)) => Ok(values),
        Ok(ParseOutcome::Help) => Err(SettingsErrors(vec!["--help is not a setting".to_owned()])),
        Err(errors) => Err(SettingsErrors(errors.0)),
    }
}

/// Returns the settings that differ and are not evaluated, and the variables that would be set and that the agent does not know.
fn other_changes(
    own: &FlagValues,
    other: &FlagValues,
    change: &SettingsChange,
    around: &dyn HostEnvironment,
) -> Vec<String> {
    let is_evaluated = |flag: &&Flag| EVALUATED.iter().any(|evaluated| evaluated.long == flag.long);
    let differing = options::ALL.iter().filter(|flag| own.flag_text(flag) != other.flag_text(flag));
    let named = differing.filter(|flag| !is_evaluated(flag)).map(|flag| match flag.env.first() {
        Some(variable) => (*variable).to_owned(),
        None => format!("--{flag}"),
    });
    let known = || options::ALL.iter().chain(options::REMOVED);
    let is_known = |name: &str| known().any(|flag| flag.env.contains(&name));
    let unknown = change
        .variables
        .iter()
        .filter(|(name, value)| !is_known(name) && around.variable(name).unwrap_or_default() != **value);
    named.chain(unknown.map(|(name, _)| format!("{name}, which is not a setting of this agent"))).collect()
}
