//! The rules of a legacy table by chain. The kernel has one list of entries: a built-in chain begins at its hook's
//! entry point, a user-defined chain after an entry with its name, and a jump is an offset in the list.

use std::collections::BTreeSet;

use super::entries::EntryLayout;

/// `struct ipt_getinfo`: offsets of the table's hooks, and of their entry points.
const HOOKS: usize = 32;
const HOOK_ENTRY: usize = 36;
/// Built-in chains in the order of the kernel's hooks (`NF_INET_*`).
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct xt_entry_target`: offsets of its name and its data, which is a verdict for the standard target, and a
/// chain's name for `ERROR`.
const TARGET_NAME: usize = 2;
pub(super) const TARGET_DATA: usize = 32;
const ERROR: &str = "ERROR";
/// Verdicts of the standard target (`-NF_ACCEPT - 1`, `XT_RETURN`).
pub(super) const ACCEPT: i32 = -2;
pub(super) const RETURN: i32 = -5;

type ParseFailure = &'static str;

/// A rule in its chain.
#[derive(Debug)]
pub struct LegacyRule<'a> {
    /// Name of the chain; empty if it is not UTF-8, or is that of an earlier or a built-in chain.
    pub chain: &'a str,
    /// The chain to which it jumps.
    pub target_chain: Option<&'a str>,
    /// Name of its target; empty for a verdict or a jump.
    pub target: &'a str,
    /// The target's data, as the kernel's structure lays it out.
    pub target_data: &'a [u8],
    /// Whether the rule has no conditions, and accepts or returns, so that every packet leaves the chain.
    pub leaves_chain: bool,
    pub(super) entry: &'a LegacyEntry<'a>,
}

/// Passes on all rules except the chains' policies, in order, and returns the names of the chains. `info` is the result
/// of `IPT_SO_GET_INFO`, `entries` the table's entries with cleared counters. The error describes what is malformed.
pub(super) fn read_chains(
    info: &[u8],
    entries: &[u8],
    layout: &EntryLayout,
    mut note: impl FnMut(&LegacyRule<'_>),
) -> Result<Vec<String>, ParseFailure> {
    let list = split_entries(entries, layout)?;
    let mut chains: Vec<(usize, String)> = built_in(info)?;
    // The kernel accepts several chains with one name. No jump by name leads to the later ones, which are not ours.
    let mut names: BTreeSet<String> = BUILT_IN.map(str::to_owned).into();
    for entry in &list {
        // The last entry has this form, too, and is no chain.
        if let Some(name) = entry.names_chain()?.filter(|name| name != ERROR) {
            let is_first = names.insert(name.clone());
            chains.push((entry.end_offset(), if is_first { name } else { String::new() }));
        }
    }
    chains.sort();
    // Binary search: a pod can have a hundred thousand of each.
    let chain_at = |at: usize| {
        let behind = chains.partition_point(|(begin, _)| *begin <= at);
        behind.checked_sub(1).and_then(|last| chains.get(last)).map(|(_, name)| name.as_str())
    };
    let begins = |at: usize| {
        let found = chains.get(chains.partition_point(|(begin, _)| *begin < at));
        found.filter(|(begin, _)| *begin == at).map(|(_, name)| name.as_str())
    };
    for (entry, next) in list.iter().zip(list.iter().skip(1)) {
        // Each chain ends with its policy, which is no rule: another chain follows, or the end.
        let is_policy = next.names_chain()?.is_some() || begins(next.begin).is_some();
        if is_policy || entry.names_chain()?.is_some() {
            continue;
        }
        // The kernel accepts two unusual lists of other programs: a rule outside of any chain, and a jump into the
        // middle of a chain, whose target then has no name.
        let Some(chain) = chain_at(entry.begin) else { continue };
        let jump = entry.jump_offset()?.filter(|at| *at != entry.end_offset());
        let target_chain = jump.map(|at| begins(at).unwrap_or_default());
        let target_data = entry.target.get(TARGET_DATA..).unwrap_or_default();
        let (target, leaves_chain) = (entry.target_name()?, entry.leaves_chain(layout)?);
        note(&LegacyRule { chain, target_chain, target, target_data, leaves_chain, entry });
    }
    Ok(chains.into_iter().map(|(_, name)| name).collect())
}

#[derive(Debug)]
pub(super) struct LegacyEntry<'a> {
    begin: usize,
    pub(super) bytes: &'a [u8],
    pub(super) target: &'a [u8],
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Result<u32, ParseFailure> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
    found.map(u32::from_ne_bytes).ok_or("an entry is cut off")
}

fn split_entries<'a>(entries: &'a [u8], layout: &EntryLayout) -> Result<Vec<LegacyEntry<'a>>, ParseFailure> {
    let mut list = Vec::new();
    let mut begin = 0;
    while let Some(rest) = entries.get(begin..).filter(|rest| !rest.is_empty()) {
        let (target, next) = layout.entry_offsets(rest)?;
        let bytes = rest.get(..next).ok_or("its last rule is cut off")?;
        let target = bytes.get(target..).ok_or("a target is outside of its rule")?;
        list.push(LegacyEntry { begin, bytes, target });
        begin += next;
    }
    Ok(list)
}

fn built_in(info: &[u8]) -> Result<Vec<(usize, String)>, ParseFailure> {
    let valid = read_u32(info, HOOKS)?;
    let mut chains = Vec::new();
    for (hook, name) in BUILT_IN.into_iter().enumerate().filter(|(hook, _)| valid & (1 << hook) != 0) {
        let at = usize::try_from(read_u32(info, HOOK_ENTRY + 4 * hook)?).map_err(|_| "a hook has no rule")?;
        chains.push((at, name.to_owned()));
    }
    Ok(chains)
}

/// Parses a C string; `None`: not UTF-8.
pub(super) fn parse_c_string(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).ok()
}

impl LegacyEntry<'_> {
    fn end_offset(&self) -> usize {
        self.begin + self.bytes.len()
    }

    pub(super) fn target_name(&self) -> Result<&str, ParseFailure> {
        let name = parse_c_string(self.target.get(TARGET_NAME..TARGET_DATA).ok_or("a target is cut off")?);
        name.ok_or("a target's name is not UTF-8")
    }

    /// Returns the chain that begins after this entry, which then is no rule.
    fn names_chain(&self) -> Result<Option<String>, ParseFailure> {
        let is_name = self.target_name()? == ERROR;
        // The kernel accepts any bytes. A name that is not UTF-8 is not ours.
        let name = || parse_c_string(self.target.get(TARGET_DATA..).unwrap_or_default()).unwrap_or_default();
        Ok(is_name.then(|| name().to_owned()))
    }

    /// Returns the offset to which the entry jumps; verdicts are negative.
    fn jump_offset(&self) -> Result<Option<usize>, ParseFailure> {
        if !self.target_name()?.is_empty() {
            return Ok(None);
        }
        let verdict = read_u32(self.target, TARGET_DATA)?.cast_signed();
        Ok(usize::try_from(verdict).ok())
    }

    fn leaves_chain(&self, layout: &EntryLayout) -> Result<bool, ParseFailure> {
        let is_plain = self.target_name()?.is_empty() && layout.is_unconditional(self.bytes);
        Ok(is_plain && [ACCEPT, RETURN].contains(&read_u32(self.target, TARGET_DATA)?.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use model::Family;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LAYOUT_SIZE: [usize; 2] = [112, 168];

    /// An entry without matches, with this target name and data.
    fn entry(family: Family, name: &str, data: &[u8]) -> Vec<u8> {
        let size = LAYOUT_SIZE[usize::from(family == Family::V6)];
        let mut target = vec![0; TARGET_DATA];
        target[TARGET_NAME..TARGET_NAME + name.len()].copy_from_slice(name.as_bytes());
        target.extend(data);
        target.resize(target.len().next_multiple_of(8), 0);
        let mut bytes = vec![0; size];
        let offsets = if family == Family::V4 { 88 } else { 140 };
        let number = |number: usize| u16::try_from(number).unwrap().to_ne_bytes();
        bytes[offsets..offsets + 2].copy_from_slice(&number(size));
        bytes[offsets + 2..offsets + 4].copy_from_slice(&number(size + target.len()));
        bytes.extend(target);
        bytes
    }

    fn standard(family: Family, verdict: i32) -> Vec<u8> {
        entry(family, "", &verdict.to_ne_bytes())
    }

    /// A table with only OUTPUT.
    fn info() -> Vec<u8> {
        let mut bytes = vec![0; 84];
        bytes[HOOKS..HOOKS + 4].copy_from_slice(&8_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn rules_are_read_by_chain_and_jumps_by_name_wherever_they_lead() {
        for family in Family::BOTH {
            let (layout, rule) = (EntryLayout::for_family(family), |verdict| standard(family, verdict));
            let heads = |name: &str| entry(family, ERROR, format!("{name}\0").as_bytes());
            let read = |more: usize| {
                let mut rules = Vec::new();
                let filler: Vec<u8> = (0..more).flat_map(|_| rule(ACCEPT)).collect();
                let length = |list: &[Vec<u8>]| list.concat().len();
                let at = filler.len() + length(&[rule(0), rule(ACCEPT), heads("OURS")]);
                let list = [
                    filler,
                    rule(i32::try_from(at).unwrap()),
                    rule(ACCEPT),
                    heads("OURS"),
                    rule(ACCEPT),
                    rule(RETURN),
                    heads(ERROR),
                ];
                let chains = read_chains(&info(), &list.concat(), &layout, |rule| {
                    rules.push((rule.chain.to_owned(), rule.target_chain.map(str::to_owned)));
                });
                assert_eq!(chains.unwrap(), ["OUTPUT", "OURS"]);
                rules
            };
            let jump = ("OUTPUT".to_owned(), Some("OURS".to_owned()));
            assert_eq!(read(0), [jump.clone(), ("OURS".to_owned(), None)], "policies are no rules");
            let more = read(3);
            assert!(more.len() == 5 && more.contains(&jump), "other rules move what it leads to");
        }
    }

    /// The kernel compares no names, and a jump leads to one of the chains alone.
    #[test]
    fn rules_of_a_second_chain_with_a_name_are_not_those_of_the_first() {
        for family in Family::BOTH {
            let layout = EntryLayout::for_family(family);
            let heads = |name: &str| entry(family, ERROR, format!("{name}\0").as_bytes());
            let rule = |verdict| standard(family, verdict);
            let begin = |before: &[Vec<u8>]| i32::try_from(before.concat().len()).unwrap();
            let at = begin(&[rule(0), rule(ACCEPT), heads("OURS")]);
            let list = [
                rule(at),
                rule(ACCEPT),
                heads("OURS"),
                rule(RETURN),
                heads("OURS"),
                rule(ACCEPT),
                rule(RETURN),
                heads("OUTPUT"),
                rule(ACCEPT),
                rule(RETURN),
                heads(ERROR),
            ];
            let mut rules = Vec::new();
            let chains = read_chains(&info(), &list.concat(), &layout, |rule| {
                rules.push((rule.chain.to_owned(), rule.target_chain.map(str::to_owned)));
            });
            assert_eq!(chains.unwrap(), ["OUTPUT", "OURS", "", ""]);
            let jump = ("OUTPUT".to_owned(), Some("OURS".to_owned()));
            assert_eq!(rules, [jump, (String::new(), None), (String::new(), None)]);
        }
    }

    fn read_all(info: &[u8], entries: &[u8], layout: &EntryLayout) -> Result<Vec<String>, ParseFailure> {
        read_chains(info, entries, layout, |_| {})
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for family in Family::BOTH {
            let layout = EntryLayout::for_family(family);
            let end = entry(family, ERROR, b"ERROR\0");
            // The kernel accepts a jump into the middle of a chain.
            let middle = i32::try_from(standard(family, 0).len() * 2).unwrap();
            let rules = [middle, -5, -2, -2].map(|verdict| standard(family, verdict)).concat();
            let mut targets = Vec::new();
            let note = |rule: &LegacyRule<'_>| targets.push(rule.target_chain.map(str::to_owned));
            read_chains(&info(), &[rules, end.clone()].concat(), &layout, note).unwrap();
            assert_eq!(targets, [Some(String::new()), None, None]);
            let whole = [standard(family, -2), standard(family, -2), end].concat();
            assert!(read_all(&info(), &whole, &layout).is_ok());
            assert!(read_all(&info()[..40], &whole, &layout).is_err());
            for cut in 1..whole.len() {
                drop(read_all(&info(), &whole[..cut], &layout));
            }
        }
    }

    /// 16 MiB of chains without rules, as a process of a pod can create them: a quadratic scan would take seconds.
    #[test]
    fn tens_of_thousands_of_chains_are_read_in_no_time() {
        let family = Family::V4;
        let layout = EntryLayout::for_family(family);
        let chain = |number: usize| {
            [entry(family, ERROR, format!("C{number}\0").as_bytes()), standard(family, -5)].concat()
        };
        let mut table = standard(family, -2);
        (0..48_000).for_each(|number| table.extend(chain(number)));
        table.extend(entry(family, ERROR, b"ERROR\0"));
        // The best of several: this machine runs other tests, too.
        let took = (0..5).map(|_| {
            let began = std::time::Instant::now();
            assert!(read_all(&info(), &table, &layout).is_ok());
            began.elapsed()
        });
        let best = took.min().unwrap();
        assert!(best < std::time::Duration::from_secs(2), "{} bytes took {best:?}", table.len());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic_or_go_on_for_ever(
            info in vec(any::<u8>(), 0..100),
            mut bytes in vec(any::<u8>(), 0..2000),
            lengths in vec(112_u16..400, 0..6),
            v6: bool,
        ) {
            let family = if v6 { Family::V6 } else { Family::V4 };
            let mut begin = 0;
            for length in lengths {
                for (at, number) in [(88, 112_u16), (90, length)] {
                    if let Some(place) = bytes.get_mut(begin + at..begin + at + 2) {
                        place.copy_from_slice(&number.to_ne_bytes());
                    }
                }
                begin += usize::from(length);
            }
            let _ = read_all(&info, &bytes, &EntryLayout::for_family(family));
        }
    }
}
