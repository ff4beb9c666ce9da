//! The ConfigMap of the node taint controller.

use std::collections::BTreeMap;

use node_taint::{ReadinessConfig, check_selector};

/// Any text is a value of the ConfigMap's key, or an error; the requirements of a valid one are limited, have valid selectors, and
/// parse back to themselves.
pub fn taint_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let values = |text: &str| BTreeMap::from([("config".to_owned(), text.to_owned())]);
    let Ok(config) = ReadinessConfig::parse(&values(text)) else { return };
    // Each costs a watch, which must not fail forever.
    assert!(config.requirements.len() <= 32);
    for one in &config.requirements {
        assert!(!one.selector.trim().is_empty());
        assert_eq!(check_selector(&one.selector), Ok(()), "{one}");
    }
    // The requirements do not depend on the notation.
    let entries = config
        .requirements
        .iter()
        .map(|one| serde_json::json!({"selector": one.selector, "namespace": one.namespace}));
    let written = serde_json::Value::Array(entries.collect()).to_string();
    assert_eq!(ReadinessConfig::parse(&values(&written)), Ok(config), "{written}");
}
