//! Input of the plugin from a container runtime.

use cni_types::{CniArgs, CniError, NetConf, SUPPORTED};
use serde_json::Value;

/// Any stdin is a configuration, or an error that prints as JSON; and the output of a pass-through is a JSON object with the
/// configuration's version, which a second pass-through does not change.
///
/// # Panics
/// If one of these does not hold.
pub fn cni_stdin(data: &[u8]) {
    let conf = match NetConf::parse(data) {
        Ok(conf) => conf,
        Err(error) => return prints(&error),
    };
    assert!((1..=300).contains(&conf.kubernetes.api_timeout_seconds));
    match (conf.prev_result(), conf.pass_through()) {
        (Ok(prev), Ok(output)) => {
            is_result(&output);
            let versions = SUPPORTED.iter().filter_map(|version| version.to_string().parse().ok());
            for version in versions.filter(|_| prev.is_some()) {
                prev.iter().flat_map(|prev| prev.output_for(version)).for_each(|text| is_result(&text));
            }
        }
        (Err(error), Err(same)) => {
            assert_eq!(error.to_json(), same.to_json());
            prints(&error);
        }
        (Ok(Some(_)), Err(error)) => prints(&error), // nested too deep to be converted
        (prev, output) => panic!("{prev:?}, but {output:?}"),
    }
}

fn is_result(text: &str) {
    let value: Option<Value> = serde_json::from_str(text).ok();
    assert!(value.as_ref().is_some_and(Value::is_object), "no JSON object: {text}");
}

fn prints(error: &CniError) {
    let value: Option<Value> = serde_json::from_str(&error.to_json()).ok();
    let code = value.as_ref().and_then(|value| value.get("code")).and_then(Value::as_u64);
    assert!(code.is_some_and(|code| code > 0), "no CNI error: {}", error.to_json());
}

/// Any `CNI_ARGS` parse, or are an error that prints as JSON; parsed names are safe in a path.
///
/// # Panics
/// If one of these does not hold.
pub fn cni_args(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match CniArgs::parse(&text) {
        Err(error) => prints(&error),
        Ok(args) => {
            let names = [
                args.pod_name.as_ref().map(|name| name.as_str()),
                args.pod_namespace.as_ref().map(|name| name.as_str()),
                args.pod_uid.as_ref().map(|uid| uid.as_str()),
            ];
            for name in names.into_iter().flatten() {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                assert!(!name.is_empty() && name.bytes().all(plain), "{name:?}");
                assert!(name != "." && name != "..", "{name:?}");
            }
        }
    }
}
