//! What fuzz targets feed; nobody else calls it.

use model::Family;

use crate::read;

/// Reads the rules of a legacy table from the answers to `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`: the chain of each, and its
/// text.
///
/// # Errors
/// What is wrong with it.
pub fn legacy_table(
    family: Family,
    info: &[u8],
    entries: &mut [u8],
) -> Result<Vec<(String, String)>, &'static str> {
    read::parse_table(family, info, entries)
}
