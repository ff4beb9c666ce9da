//! Protocol versions and the output for `VERSION`.

use std::str::FromStr;

model::word_enum! {
    /// A supported version of the CNI specification, ordered by age.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum CniVersion {
        /// 0.1.0: results with `ip4` and `ip6`.
        V0_1_0 = "0.1.0",
        /// 0.2.0: adds the `VERSION` command.
        V0_2_0 = "0.2.0",
        /// 0.3.0: results with lists of interfaces, ips and routes; chains of plugins.
        V0_3_0 = "0.3.0",
        /// 0.3.1: clarifications of 0.3.0.
        V0_3_1 = "0.3.1",
        /// 0.4.0: adds `CHECK`, and `prevResult` at `DEL`.
        V0_4_0 = "0.4.0",
        /// 1.0.0: removes `version` of ips.
        V1_0_0 = "1.0.0",
        /// 1.1.0: adds `GC` and `STATUS`, and more fields of interfaces and routes.
        V1_1_0 = "1.1.0",
    }
}

/// All supported versions, oldest first, as `VERSION` lists them.
pub const SUPPORTED: [CniVersion; 7] = CniVersion::ALL;

/// A version that is not one of [`SUPPORTED`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CNI version {0:?} is not one of the supported {list}", list = list())]
pub struct UnknownVersion(
    /// Original text, truncated to 64 characters.
    pub String,
);

impl CniVersion {
    /// Version of a configuration that states none (CNI spec 0.2.0, "Network Configuration": added after 0.1.0).
    pub const DEFAULT: CniVersion = CniVersion::V0_1_0;
    /// The newest version.
    pub const LATEST: CniVersion = CniVersion::V1_1_0;
}

impl FromStr for CniVersion {
    type Err = UnknownVersion;

    /// Matches the exact text only; the empty text is the default version (a missing `cniVersion` means 0.1.0).
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        if text.is_empty() {
            return Ok(CniVersion::DEFAULT);
        }
        CniVersion::from_name(text).ok_or_else(|| UnknownVersion(text.chars().take(64).collect()))
    }
}

/// Returns the output of the plugin for `VERSION` (CNI spec 1.1.0, section 2, "VERSION").
pub fn version_output() -> String {
    let list = SUPPORTED.map(|version| format!("\"{version}\"")).join(",");
    format!("{{\"cniVersion\":\"{}\",\"supportedVersions\":[{list}]}}", CniVersion::LATEST)
}

fn list() -> String {
    SUPPORTED.map(CniVersion::as_str).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_supported_version_is_read_back_and_ordered() {
        for version in SUPPORTED {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert!(SUPPORTED.is_sorted());
        assert_eq!("".parse(), Ok(CniVersion::V0_1_0));
    }

    #[test]
    fn other_texts_are_unknown() {
        for text in ["1", "1.0", "v1.0.0", "1.0.0 ", "2.0.0", "0.1.1", "1.2.0"] {
            assert_eq!(text.parse::<CniVersion>(), Err(UnknownVersion(text.to_owned())));
        }
        let all = "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
        let message = UnknownVersion("1".to_owned()).to_string();
        assert_eq!(message, format!("CNI version \"1\" is not one of the supported {all}"));
    }

    #[test]
    fn version_output_is_json_with_all_versions() {
        let value: serde_json::Value = serde_json::from_str(&version_output()).unwrap();
        assert_eq!(value["cniVersion"], "1.1.0");
        assert_eq!(value["supportedVersions"].as_array().unwrap().len(), 7);
    }
}
