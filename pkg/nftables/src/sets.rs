//! Indexes of sets (ipset): the kernel's rules refer to a set by its index, and people by its name.

/// Names and indexes of sets, as rules need them.
pub(crate) trait SetNumbers {
    /// Returns the index of a set; `None` if there is no such set.
    fn number_by_name(&mut self, name: &str) -> Option<u16>;

    /// Returns the name of a set.
    fn name_by_number(&mut self, number: u16) -> Option<String>;
}

/// The sets of the calling thread's network namespace, each queried once: rules refer to one or two.
#[derive(Debug, Default)]
pub(crate) struct KernelSets {
    known: Vec<(String, u16)>,
    /// First failure to query the kernel.
    failure: Option<netlink::Error>,
}

impl KernelSets {
    /// Checks that the kernel could be queried for all sets so far. Otherwise rules that refer to them look like foreign ones.
    ///
    /// # Errors
    /// The first failure since the last call.
    pub(crate) fn check_queries(&mut self) -> Result<(), netlink::Error> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn keep_failure<T>(&mut self, answer: Result<Option<T>, netlink::Error>) -> Option<T> {
        answer.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            None
        })
    }
}

impl SetNumbers for KernelSets {
    fn number_by_name(&mut self, name: &str) -> Option<u16> {
        if let Some((_, number)) = self.known.iter().find(|(known, _)| known == name) {
            return Some(*number);
        }
        let number = self.keep_failure(ipset::set_number(name))?;
        self.known.push((name.to_owned(), number));
        Some(number)
    }

    fn name_by_number(&mut self, number: u16) -> Option<String> {
        if let Some((name, _)) = self.known.iter().find(|(_, known)| *known == number) {
            return Some(name.clone());
        }
        let name = self.keep_failure(ipset::set_name(number))?;
        self.known.push((name.clone(), number));
        Some(name)
    }
}
