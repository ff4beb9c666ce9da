//! Logging flags common to Istio's programs. No variable sets them.

use crate::flag::Flag;

/// Istio's `--log_target`.
pub const LOG_TARGET: Flag =
    Flag::with_value("stdout", "comma-separated outputs: stdout, stderr, or file paths").long("log_target");
/// Istio's `--log_rotate`, without effect: files are not rotated.
pub const LOG_ROTATE: Flag =
    Flag::with_value("", "path of another log file; never rotated").long("log_rotate");
/// Istio's `--log_as_json`.
pub const LOG_AS_JSON: Flag = Flag::new_switch("log one JSON object per line").long("log_as_json");
/// Istio's `--log_output_level`.
pub const LOG_OUTPUT_LEVEL: Flag = Flag::with_value(
    "default:info",
    "comma-separated scope:level; levels: debug, info, warn, error, fatal, none",
)
.long("log_output_level");
/// Istio's `--log_stacktrace_level`.
pub const LOG_STACKTRACE_LEVEL: Flag =
    Flag::with_value("default:none", "accepted for compatibility, without effect")
        .long("log_stacktrace_level");
/// Istio's `--log_caller`.
pub const LOG_CALLER: Flag =
    Flag::with_value("", "comma-separated scopes whose lines include the source location").long("log_caller");

/// Logging flags common to Istio's programs, with its defaults.
pub const LOGGING: &[Flag] = &[
    LOG_TARGET,
    LOG_ROTATE,
    Flag::with_value("30", "ignored: log files are not rotated").long("log_rotate_max_age"),
    Flag::with_value("104857600", "ignored: log files are not rotated").long("log_rotate_max_size"),
    Flag::with_value("1000", "ignored: log files are not rotated").long("log_rotate_max_backups"),
    LOG_AS_JSON,
    LOG_OUTPUT_LEVEL,
    LOG_STACKTRACE_LEVEL,
    LOG_CALLER,
    Flag::with_value("0", "accepted for compatibility, without effect").long("vklog"),
];
