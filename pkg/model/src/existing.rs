//! Treatment of connections that exist when a pod joins the mesh.

crate::word_enum! {
    /// Treatment of a pod's TCP connections that exist when its traffic is redirected for the first time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ExistingConnections {
        /// Bypass the proxy until they close.
        #[default]
        Keep = "keep",
        /// Reset, so that no traffic of the pod stays outside the mesh.
        Reset = "reset",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_are_read_and_nothing_else_is() {
        for (text, one) in [("keep", ExistingConnections::Keep), ("reset", ExistingConnections::Reset)] {
            assert_eq!(ExistingConnections::from_name(text), Some(one));
        }
        for text in ["", "Keep", "close", " reset"] {
            assert_eq!(ExistingConnections::from_name(text), None);
        }
    }
}
