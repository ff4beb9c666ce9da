//! Flags of the individual commands.

use flags::Flag;

pub(crate) const OUTPUT: Flag =
    Flag::with_value("table", "table, wide, json or yaml").long("output").short('o');
/// Flag of `check`.
pub(crate) const CHECK_OUTPUT: Flag = Flag {
    help: "table, wide, json, yaml, junit (a test report for build servers) or sarif (SARIF 2.1.0)",
    ..OUTPUT
};
pub(crate) const FAIL_ON: Flag =
    Flag::with_value("unknown", "lowest severity that fails the command: error, unknown or warning")
        .long("fail-on");
pub(crate) const NO_COLOR: Flag =
    Flag::new_switch("no colours, as with the variable NO_COLOR; only a terminal gets any").long("no-color");
/// Flag of `list`.
pub(crate) const NAMESPACE: Flag =
    Flag::with_value("", "only pods of this namespace").long("namespace").short('n');
pub(crate) const BYPASSING: Flag =
    Flag::new_switch("only pods whose traffic bypasses the mesh, and should not").long("bypassing");
pub(crate) const WITH_STATE: Flag =
    Flag::with_value("", "only pods that are: captured, pending, bypassing, held, outside, leaving, unknown")
        .long("state");
/// Flag of `explain`, `prove` and `simulate`.
pub(crate) const POD_NAMESPACE: Flag = Flag { help: "the pod's namespace", ..NAMESPACE };
/// Flag of `simulate`.
pub(crate) const OVERWRITE: Flag =
    Flag::new_switch("as of kubectl label; a simulation overwrites labels anyway").long("overwrite");
/// Flag of `prove`.
pub(crate) const ALL: Flag =
    Flag::new_switch("every pod of the mesh on this node, or of the namespace of -n").long("all");
/// Flag of `bundle`.
pub(crate) const FILE: Flag = Flag::with_value(
    "",
    "the file, which must not be there; -: standard output; empty: standard output unless that is a \
     terminal, else a new file in this directory",
)
.long("file")
.short('f');
/// Flag of `watch`.
pub(crate) const FOR: Flag =
    Flag::with_value("", "end after this time, such as 500ms, 30s, 5m, 1h; empty: never").long("for");
/// Flag of `uninstall`.
pub(crate) const DRY_RUN: Flag =
    Flag::new_switch("print what would be removed, and change nothing").long("dry-run");
/// All flags of `uninstall`.
pub(crate) const REMOVAL: [Flag; 3] = [DRY_RUN, OUTPUT, NO_COLOR];
