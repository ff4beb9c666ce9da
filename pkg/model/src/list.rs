/// Returns the elements of a comma-separated list, trimmed, without empty ones. Templates may leave empty elements
/// (`15090,15021,`), which Istio drops, too (`Split` of `tools/common/config`).
pub fn list_elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_elements_are_dropped_and_blanks_around_the_others() {
        for text in ["a,b", "a,b,", ",a,,b", " a , b ,\t, "] {
            assert_eq!(list_elements(text).collect::<Vec<_>>(), ["a", "b"], "{text:?}");
        }
        for text in ["", " ", ",", " ,, "] {
            assert_eq!(list_elements(text).count(), 0, "{text:?}");
        }
    }
}
