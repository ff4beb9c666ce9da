//! The logging flags that every program of Istio takes.

use crate::flag::Flag;

/// Istio's `--log_target`.
pub const LOG_TARGET: Flag = Flag {
    long: "log_target",
    default: "stdout",
    help: "comma-separated outputs: stdout, stderr, or file paths",
    ..Flag::VALUE
};
/// Istio's `--log_rotate`, of a file that is not rotated.
pub const LOG_ROTATE: Flag =
    Flag { long: "log_rotate", help: "path of another log file; never rotated", ..Flag::VALUE };
/// Istio's `--log_rotate_max_age`, without effect, as are the next two.
pub const LOG_ROTATE_MAX_AGE: Flag = Flag {
    long: "log_rotate_max_age",
    default: "30",
    help: "ignored: log files are not rotated",
    ..Flag::VALUE
};
/// Istio's `--log_rotate_max_size`.
pub const LOG_ROTATE_MAX_SIZE: Flag = Flag {
    long: "log_rotate_max_size",
    default: "104857600",
    help: "ignored: log files are not rotated",
    ..Flag::VALUE
};
/// Istio's `--log_rotate_max_backups`.
pub const LOG_ROTATE_MAX_BACKUPS: Flag = Flag {
    long: "log_rotate_max_backups",
    default: "1000",
    help: "ignored: log files are not rotated",
    ..Flag::VALUE
};
/// Istio's `--log_as_json`.
pub const LOG_AS_JSON: Flag =
    Flag { long: "log_as_json", help: "log one JSON object per line", ..Flag::SWITCH };
/// Istio's `--log_output_level`.
pub const LOG_OUTPUT_LEVEL: Flag = Flag {
    long: "log_output_level",
    default: "default:info",
    help: "comma-separated scope:level; levels: debug, info, warn, error, fatal, none",
    ..Flag::VALUE
};
/// Istio's `--log_stacktrace_level`.
pub const LOG_STACKTRACE_LEVEL: Flag = Flag {
    long: "log_stacktrace_level",
    default: "default:none",
    help: "accepted for compatibility, without effect",
    ..Flag::VALUE
};
/// Istio's `--log_caller`.
pub const LOG_CALLER: Flag = Flag {
    long: "log_caller",
    help: "comma-separated scopes whose lines include the source location",
    ..Flag::VALUE
};
/// Istio's `--vklog`.
pub const VKLOG: Flag =
    Flag { long: "vklog", default: "0", help: "accepted for compatibility, without effect", ..Flag::VALUE };

/// The logging flags that every program of Istio takes, with its defaults.
pub const LOGGING: &[Flag] = &[
    LOG_TARGET,
    LOG_ROTATE,
    LOG_ROTATE_MAX_AGE,
    LOG_ROTATE_MAX_SIZE,
    LOG_ROTATE_MAX_BACKUPS,
    LOG_AS_JSON,
    LOG_OUTPUT_LEVEL,
    LOG_STACKTRACE_LEVEL,
    LOG_CALLER,
    VKLOG,
];
