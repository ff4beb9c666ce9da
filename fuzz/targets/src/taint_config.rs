//! The ConfigMap of the node taint controller.

use std::collections::BTreeMap;

use node_taint::{ReadinessConfig, check_selector};

/// The value of a key.
pub fn taint_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let values = |text: &str| BTreeMap::from([("config".to_owned(), text.to_owned())]);
    let Ok(config) = ReadinessConfig::parse(&values(text)) else { return };
    // Each costs a watch, which must not fail for ever.
    assert!(config.requirements().len() <= 32);
    for one in config.requirements() {
        assert!(!one.selector.trim().is_empty());
        assert_eq!(check_selector(&one.selector), Ok(()), "{one}");
    }
    // What is required does not depend on the way it is written.
    let entries = config
        .requirements()
        .iter()
        .map(|one| serde_json::json!({"selector": one.selector, "namespace": one.namespace}));
    let written = serde_json::Value::Array(entries.collect()).to_string();
    assert_eq!(ReadinessConfig::parse(&values(&written)), Ok(config), "{written}");
}
