//! Parser of the output of `iptables-save` and `ip6tables-save` of either backend.
//!
//! A rule that the model can express becomes a [`Rule`]; any other is kept as text and counts as foreign. Nothing is
//! guessed: a surplus word, an unknown option or a combination that we never write makes a rule foreign.

mod rule;

use std::collections::BTreeMap;

use crate::{
    ir::{Hook, Rule, Table},
    plan::ChainSet,
};

/// All tables of one family in a save. An absent table was never used by any component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedTables {
    /// Tables by name.
    pub tables: BTreeMap<Table, SavedTable>,
}

/// One table of a save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedTable {
    /// All chains in order, including built-in ones.
    pub chains: Vec<String>,
    /// All rules, in order.
    pub rules: Vec<SavedRule>,
    /// Whether [`SavedTables::parse_for`] has left out chains or rules.
    pub has_others: bool,
}

/// One rule of a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRule {
    /// The chain of the rule.
    pub chain: String,
    /// Text after the chain's name, exactly as in the save.
    pub text: String,
    /// Parsed rule, if the model can express it.
    pub rule: Option<Rule>,
    /// Handle of the rule in nf_tables (`NFTA_RULE_HANDLE`). A tool's save has none.
    pub handle: Option<u64>,
}

/// A text that is not a complete save.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the saved rules: {what}")]
pub struct ParseError {
    /// Line number, counted from 1.
    pub line: usize,
    /// Error in the line.
    pub what: &'static str,
}

impl SavedTable {
    /// Returns the rules of one chain, in order.
    pub fn chain_rules<'a>(&'a self, chain: &'a str) -> impl Iterator<Item = &'a SavedRule> {
        self.rules.iter().filter(move |rule| rule.chain == chain)
    }
}

impl SavedTables {
    /// Parses a complete save.
    ///
    /// Tables other than raw, mangle, filter and nat (`security`) are skipped.
    ///
    /// # Errors
    /// A rule outside of a table, a line that is no save line, two chains with one name, or a table without its
    /// `COMMIT` (a truncated save).
    pub fn parse(text: &str) -> Result<SavedTables, ParseError> {
        SaveReader::default().read_save(text)
    }

    /// Like [`SavedTables::parse`], but keeps only what concerns these owners: built-in chains and the first rule of
    /// each, the owners' chains and their rules, and rules that jump there. All plans of these owners are the same as
    /// with the complete save, while a node's firewall of tens of thousands of rules takes hardly any memory.
    ///
    /// # Errors
    /// As [`SavedTables::parse`].
    pub fn parse_for(text: &str, owners: &[ChainSet]) -> Result<SavedTables, ParseError> {
        SaveReader { builder: SavedTablesBuilder::new(owners), open: None }.read_save(text)
    }

    /// Returns whether no table has a rule or a chain besides empty built-in ones.
    pub fn is_blank(&self) -> bool {
        let blank = |table: &SavedTable| {
            table.rules.is_empty() && !table.has_others && table.chains.iter().all(|chain| is_built_in(chain))
        };
        self.tables.values().all(blank)
    }
}

fn is_built_in(chain: &str) -> bool {
    Hook::from_name(chain).is_some()
}

/// Builds a save from objects of the kernel, keeping only what concerns some owners; see [`SavedTables::parse_for`].
#[derive(Clone, Debug, Default)]
pub struct SavedTablesBuilder<'a> {
    saved: SavedTables,
    /// Owners whose chains are relevant; `None`: all chains are.
    owners: Option<&'a [ChainSet]>,
}

impl<'a> SavedTablesBuilder<'a> {
    /// Creates a builder without any table.
    pub fn new(owners: &'a [ChainSet]) -> SavedTablesBuilder<'a> {
        SavedTablesBuilder { owners: Some(owners), ..SavedTablesBuilder::default() }
    }

    /// Adds an existing table.
    pub fn add_table(&mut self, table: Table) {
        self.saved.tables.entry(table).or_default();
    }

    /// Adds a chain.
    pub fn add_chain(&mut self, table: Table, name: &str) {
        let matters = is_built_in(name) || self.is_relevant_chain(name);
        let table = self.saved.tables.entry(table).or_default();
        if matters {
            table.chains.push(name.to_owned());
        } else {
            table.has_others = true;
        }
    }

    /// Records that a table may contain more than is added.
    pub fn note_foreign(&mut self, table: Table) {
        self.saved.tables.entry(table).or_default().has_others = true;
    }

    /// Appends a rule to its chain; `rule` is called only if the rule is relevant. `jumps_to`: returns whether the rule
    /// may jump to a chain for which the given function returns true.
    pub fn add_rule(
        &mut self,
        table: Table,
        chain: &str,
        jumps_to: impl FnOnce(&dyn Fn(&str) -> bool) -> bool,
        rule: impl FnOnce() -> SavedRule,
    ) {
        let matters = self.is_relevant_chain(chain) || jumps_to(&|name| self.is_relevant_chain(name));
        let table = self.saved.tables.entry(table).or_default();
        if matters || (is_built_in(chain) && table.chain_rules(chain).next().is_none()) {
            table.rules.push(rule());
        } else {
            table.has_others = true;
        }
    }

    /// Returns the tables that were added.
    pub fn build(self) -> SavedTables {
        self.saved
    }

    /// Returns whether a chain's rules are relevant.
    fn is_relevant_chain(&self, chain: &str) -> bool {
        self.owners.is_none_or(|owners| owners.iter().any(|owner| owner.contains(chain)))
    }
}

#[derive(Default)]
struct SaveReader<'a> {
    builder: SavedTablesBuilder<'a>,
    /// The current section; the inner `None` stands for an unknown table.
    open: Option<Option<Table>>,
}

impl SaveReader<'_> {
    fn read_save(mut self, text: &str) -> Result<SavedTables, ParseError> {
        for (index, line) in text.lines().enumerate() {
            self.read_line(line.trim_end()).map_err(|what| ParseError { line: index + 1, what })?;
        }
        match self.open {
            None => Ok(self.builder.build()),
            Some(_) => Err(ParseError {
                line: text.lines().count(),
                what: "a table has no COMMIT: the save was cut short",
            }),
        }
    }

    fn read_line(&mut self, line: &str) -> Result<(), &'static str> {
        match line.as_bytes().first() {
            None | Some(b'#') => Ok(()),
            Some(b'*') => self.begin_table(line.get(1..).unwrap_or_default()),
            Some(b':') => self.read_chain(line.get(1..).unwrap_or_default()),
            Some(b'-') => self.read_rule(line),
            Some(b'[') => self.read_rule(line.split_once("] ").ok_or("a counter is not closed")?.1),
            _ if line == "COMMIT" => self.open.take().map(drop).ok_or("COMMIT without a table"),
            _ => Err("neither a table, a chain, a rule nor COMMIT"),
        }
    }

    fn begin_table(&mut self, name: &str) -> Result<(), &'static str> {
        if self.open.is_some() {
            return Err("a table begins inside another");
        }
        let table = Table::from_name(name.trim());
        if let Some(table) = table {
            self.builder.add_table(table);
        }
        self.open = Some(table);
        Ok(())
    }

    /// Returns the current table; the inner `None` stands for a skipped one.
    fn current_table(&self) -> Result<Option<Table>, &'static str> {
        self.open.ok_or("outside of a table")
    }

    fn read_chain(&mut self, rest: &str) -> Result<(), &'static str> {
        let name = rest.split_whitespace().next().ok_or("a chain without a name")?;
        if let Some(table) = self.current_table()? {
            let found = self.builder.saved.tables.get(&table);
            if found.is_some_and(|found| found.chains.iter().any(|chain| chain == name)) {
                return Err("a second chain with this name: its rules cannot be distinguished");
            }
            self.builder.add_chain(table, name);
        }
        Ok(())
    }

    fn read_rule(&mut self, line: &str) -> Result<(), &'static str> {
        let rest = line.strip_prefix("-A ").ok_or("a rule that does not begin with -A")?;
        let (chain, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some(table) = self.current_table()? else { return Ok(()) };
        self.builder.add_rule(
            table,
            chain,
            |is_owned| target_name(text).is_some_and(|chain| is_owned(&chain)),
            || SavedRule {
                chain: chain.to_owned(),
                text: text.to_owned(),
                rule: parse_line(text),
                handle: None,
            },
        );
        Ok(())
    }
}

/// Parses the text after a chain's name; `None`: the model cannot express it.
pub(crate) fn parse_line(text: &str) -> Option<Rule> {
    rule::parse(&split_arguments(text)?)
}

/// Splits arguments as the restore tools do: blanks separate, double quotes group, a backslash inside quotes escapes.
/// `None` if a quote is not closed.
pub(crate) fn split_arguments(text: &str) -> Option<Vec<String>> {
    let (mut arguments, mut word, mut chars) = (Vec::new(), None::<String>, text.chars());
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => arguments.extend(word.take()),
            '"' => read_quoted(&mut chars, word.get_or_insert_default())?,
            other => word.get_or_insert_default().push(other),
        }
    }
    arguments.extend(word);
    Some(arguments)
}

fn read_quoted(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match chars.next()? {
            '"' => return Some(()),
            '\\' => word.push(chars.next()?),
            other => word.push(other),
        }
    }
}

/// Returns the word after `-j` or `-g` of a rule that is not understood otherwise. A comment may contain `-j`, too; the
/// save quotes it only if it has blanks.
pub(crate) fn target_name(text: &str) -> Option<String> {
    let mut arguments = split_arguments(text)?.into_iter();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--comment" => drop(arguments.next()),
            "-j" | "-g" => return arguments.next(),
            _ => {}
        }
    }
    None
}
