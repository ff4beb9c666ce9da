//! The commands' own flags.

use flags::Flag;

pub(crate) const OUTPUT: Flag = Flag {
    long: "output",
    short: Some('o'),
    default: "table",
    help: "table, wide, json or yaml",
    ..Flag::VALUE
};
/// Of `check`.
pub(crate) const CHECK_OUTPUT: Flag = Flag {
    help: "table, json, yaml, junit (a test report for build servers) or sarif (SARIF 2.1.0)",
    ..OUTPUT
};
pub(crate) const FAIL_ON: Flag = Flag {
    long: "fail-on",
    default: "unknown",
    help: "what makes the exit status other than 0, with everything that is worse: error, unknown or warning",
    ..Flag::VALUE
};
pub(crate) const NO_COLOR: Flag = Flag {
    long: "no-color",
    help: "no colours, as with the variable NO_COLOR; only a terminal gets any",
    ..Flag::SWITCH
};
/// Of `list`.
pub(crate) const NAMESPACE: Flag =
    Flag { long: "namespace", short: Some('n'), help: "only pods of this namespace", ..Flag::VALUE };
pub(crate) const BYPASSING: Flag = Flag {
    long: "bypassing",
    help: "only pods whose traffic bypasses the mesh, and should not",
    ..Flag::SWITCH
};
pub(crate) const WITH_STATE: Flag = Flag {
    long: "state",
    help: "only pods that are: captured, pending, bypassing, held, outside, leaving, unknown",
    ..Flag::VALUE
};
/// Of `explain` and `prove`.
pub(crate) const POD_NAMESPACE: Flag =
    Flag { long: "namespace", short: Some('n'), help: "the pod's namespace", ..Flag::VALUE };
/// Of `prove`.
pub(crate) const ALL: Flag = Flag {
    long: "all",
    help: "every pod of the mesh on this node, or of the namespace of -n",
    ..Flag::SWITCH
};
/// Of `bundle`.
pub(crate) const FILE: Flag = Flag {
    long: "file",
    short: Some('f'),
    help: "the file, which must not be there; -: standard output; empty: standard output unless that is a \
           terminal, else a new file in this directory",
    ..Flag::VALUE
};
/// Of `watch`.
pub(crate) const FOR: Flag = Flag {
    long: "for",
    help: "end after this time, such as 500ms, 30s, 5m, 1h; empty: never",
    ..Flag::VALUE
};
/// Of `uninstall`.
pub(crate) const DRY_RUN: Flag =
    Flag { long: "dry-run", help: "print what would be removed, and change nothing", ..Flag::SWITCH };
/// All of `uninstall`.
pub(crate) const REMOVAL: [Flag; 3] = [DRY_RUN, OUTPUT, NO_COLOR];
