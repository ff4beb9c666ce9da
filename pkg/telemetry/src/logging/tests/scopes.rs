use super::super::OutputLevel::{Debug, Error, None, Warn};
use super::*;

#[test]
fn scopes_are_listed_with_what_they_print() {
    let logged = Logged::with(&["--log_output_level=warn,zds:debug,validation:error", "--log_caller=cni"]);
    let told: Vec<(String, OutputLevel, bool)> =
        logged.logger.scopes().into_iter().map(|scope| (scope.name, scope.level, scope.callers)).collect();
    let expected = [
        ("ambient", Warn, false),
        ("cni", Warn, true),
        ("cni-agent", Debug, false),
        ("cni-plugin", Warn, true),
        ("default", Warn, false),
        ("install", Warn, false),
        ("kube", None, false),
        ("repair", Warn, false),
        ("validation", Error, false),
        ("zds", Debug, false),
    ];
    assert_eq!(told, expected.map(|(name, level, callers)| (name.to_owned(), level, callers)));
}

#[test]
fn a_level_is_changed_by_name_and_mistakes_change_nothing() {
    let logged = Logged::with(&[]);
    let logger = &logged.logger;
    assert_eq!(logger.change_level("cni-agent", "debug"), Ok(()));
    let levels =
        ["install", "ambient", "repair", "zds", "cni"].map(|scope| logger.scope_level(scope).as_str());
    assert_eq!(levels, ["debug", "debug", "debug", "debug", "info"]);
    let before = logger.scope_levels();
    for (scope, level, mistake) in [
        (
            "nothing",
            "debug",
            "unknown scope name: nothing (known: ambient, cni, cni-agent, cni-plugin, default, install, kube, repair, zds)",
        ),
        ("cni", "loud", "\"loud\" is not a level (known: none, fatal, error, warn, info, debug)"),
        ("cni", "", "\"\" is not a level (known: none, fatal, error, warn, info, debug)"),
    ] {
        assert_eq!(logger.change_level(scope, level).unwrap_err(), mistake);
    }
    assert_eq!(logger.scope_levels(), before);
    assert_eq!(logger.change_level("all", "error"), Ok(()));
    assert!(logger.scopes().iter().all(|scope| scope.level == Error));
}
