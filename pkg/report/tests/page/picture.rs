//! The screenshot of the page in the documentation, and the page that it shows.

use std::path::{Path, PathBuf};

use report::StateReport;

/// The node in the screenshot.
pub(crate) fn pictured() -> StateReport {
    super::fixtures::bypassing()
}

/// Path of the screenshot.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|dir| dir.join("docs/page.png"))
        .find(|it| it.exists())
        .unwrap()
}

/// The file beside the screenshot with the digest of its page.
pub(crate) fn digest_path() -> PathBuf {
    path().with_extension("png.digest")
}

/// A digest of the page and of its document (FNV-1a): it only distinguishes versions, and is not cryptographic.
pub(crate) fn digest() -> String {
    let mut state = pictured();
    state.fill_conclusions();
    let shown = report::PAGE.to_owned() + &serde_json::to_string(&state).unwrap();
    let hash = shown.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}\n")
}
