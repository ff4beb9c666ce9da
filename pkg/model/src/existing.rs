//! What becomes of connections that a pod has when it joins the mesh.

crate::word_enum! {
    /// Handling of a pod's TCP connections that exist when its traffic is redirected for the first time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ExistingConnections {
        /// They go on past the proxy until they close.
        #[default]
        Keep = "keep",
        /// They are closed, so that nothing of the pod stays outside the mesh.
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
