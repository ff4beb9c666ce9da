//! Indexes of sets (ipset): the kernel's rules refer to a set by its index, and people by its name.

/// Names and indexes of sets, as rules need them.
pub(crate) trait SetNumbers {
    /// Returns the index of a set; `None` if there is no such set, or the kernel does not report it.
    fn number_by_name(&mut self, name: &str) -> Option<u16>;

    /// Returns the name of a set.
    fn name_by_number(&mut self, number: u16) -> Option<String>;
}

/// The sets of the calling thread's network namespace, each queried once: rules refer to one or two.
#[derive(Debug, Default)]
pub(crate) struct KernelSets(Vec<(String, u16)>);

impl SetNumbers for KernelSets {
    fn number_by_name(&mut self, name: &str) -> Option<u16> {
        if let Some((_, number)) = self.0.iter().find(|(known, _)| known == name) {
            return Some(*number);
        }
        let number = ipset::set_number(name)?;
        self.0.push((name.to_owned(), number));
        Some(number)
    }

    fn name_by_number(&mut self, number: u16) -> Option<String> {
        if let Some((name, _)) = self.0.iter().find(|(_, known)| *known == number) {
            return Some(name.clone());
        }
        let name = ipset::set_name(number)?;
        self.0.push((name.clone(), number));
        Some(name)
    }
}
