//! The product's source files.

use std::path::{Path, PathBuf};

use crate::repository;

/// Paths of the sources of the product at or below a path, without tests and benchmarks, in order.
pub(crate) fn product_files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if ["benches", "target", "tests", "tests.rs"].contains(&name) {
        return Vec::new();
    }
    if !path.is_dir() {
        return if name.ends_with(".rs") { vec![path.to_owned()] } else { Vec::new() };
    }
    let mut entries: Vec<PathBuf> = path.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries.iter().flat_map(|entry| product_files(entry)).collect()
}

/// Paths of all sources of the product.
pub(crate) fn all_product_files() -> Vec<PathBuf> {
    ["pkg", "cmd", "cni-plugin"].iter().flat_map(|part| product_files(&repository().join(part))).collect()
}
