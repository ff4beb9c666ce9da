//! Entry points for fuzz targets only.

use model::Family;

use crate::read;

/// Parses the rules of a legacy table from the results of `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`: the chain of
/// each, and its text.
///
/// # Errors
/// The table is malformed.
pub fn legacy_table(
    family: Family,
    info: &[u8],
    entries: &mut [u8],
) -> Result<Vec<(String, String)>, &'static str> {
    read::parse_table(family, info, entries)
}
