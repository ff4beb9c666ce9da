//! The rules of a legacy table by their chains. The kernel has one list of entries: a built-in chain begins where its hook
//! enters, a user's chain behind an entry with its name, and a jump is a place in the list.

use crate::{
    captured::RuleEffect,
    digest::{DigestedRule, FnvHash},
};

use super::entries::EntryLayout;

/// `struct ipt_getinfo`: which hooks a table has, and where each enters.
const HOOKS: usize = 32;
const HOOK_ENTRY: usize = 36;
/// In the order of the kernel's hooks (`NF_INET_*`).
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// `struct xt_entry_target`: its name, and its data, which of the standard target is a verdict, of `ERROR` a chain's name.
const TARGET_NAME: usize = 2;
const TARGET_DATA: usize = 32;
const ERROR: &str = "ERROR";
/// Verdicts of the standard target (`-NF_ACCEPT - 1`, `XT_RETURN`).
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

type ParseFailure = &'static str;

/// All rules but the chains' policies, in their order. `info` is the answer to `IPT_SO_GET_INFO`, `entries` what the kernel
/// gives out of the table, without its counters. An error says what is wrong with them.
pub(super) fn read(
    info: &[u8],
    entries: &[u8],
    layout: &EntryLayout,
) -> Result<Vec<DigestedRule>, ParseFailure> {
    let mut rules = Vec::new();
    read_targets(info, entries, layout, |rule, _, _| rules.push(rule))?;
    Ok(rules)
}

/// Hands over the same rules as `read`, each with its target's name and data.
pub(super) fn read_targets(
    info: &[u8],
    entries: &[u8],
    layout: &EntryLayout,
    mut note: impl FnMut(DigestedRule, &str, &[u8]),
) -> Result<(), ParseFailure> {
    let list = split(entries, layout)?;
    let mut chains: Vec<(usize, String)> = built_in(info)?;
    for entry in &list {
        // The last entry is such a one, too, and no chain.
        chains.extend(entry.names_chain()?.filter(|name| name != ERROR).map(|name| (entry.end(), name)));
    }
    chains.sort();
    // By halves: a pod can have a hundred thousand of each.
    let chain_at = |at: usize| {
        let behind = chains.partition_point(|(begin, _)| *begin <= at);
        behind.checked_sub(1).and_then(|last| chains.get(last)).map(|(_, name)| name)
    };
    let begins = |at: usize| {
        let found = chains.get(chains.partition_point(|(begin, _)| *begin < at));
        found.filter(|(begin, _)| *begin == at).map(|(_, name)| name.clone())
    };
    for (entry, next) in list.iter().zip(list.iter().skip(1)) {
        // Each chain ends in its policy, which is no rule: what follows is another chain, or the end.
        let is_policy = next.names_chain()?.is_some() || begins(next.begin).is_some();
        if is_policy || entry.names_chain()?.is_some() {
            continue;
        }
        let chain = chain_at(entry.begin).ok_or("a rule is in no chain")?.clone();
        let jumps_to = match entry.jump()? {
            Some(at) if at != entry.end() => Some(begins(at).ok_or("a jump leads to no chain")?),
            _ => None,
        };
        let hash = entry.hash(jumps_to.as_deref(), layout)?;
        let data = entry.target.get(TARGET_DATA..).unwrap_or_default();
        let effect = entry.effect(layout)?;
        note(DigestedRule { chain, jumps_to, hash, effect }, entry.target_name()?, data);
    }
    Ok(())
}

struct LegacyEntry<'a> {
    begin: usize,
    bytes: &'a [u8],
    target: &'a [u8],
}

fn number(bytes: &[u8], at: usize) -> Result<u32, ParseFailure> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk).copied();
    found.map(u32::from_ne_bytes).ok_or("something is cut off")
}

fn split<'a>(entries: &'a [u8], layout: &EntryLayout) -> Result<Vec<LegacyEntry<'a>>, ParseFailure> {
    let mut list = Vec::new();
    let mut begin = 0;
    while let Some(rest) = entries.get(begin..).filter(|rest| !rest.is_empty()) {
        let (target, next) = layout.offsets(rest)?;
        let bytes = rest.get(..next).ok_or("its last rule is cut off")?;
        let target = bytes.get(target..).ok_or("a target is outside of its rule")?;
        list.push(LegacyEntry { begin, bytes, target });
        begin += next;
    }
    Ok(list)
}

fn built_in(info: &[u8]) -> Result<Vec<(usize, String)>, ParseFailure> {
    let valid = number(info, HOOKS)?;
    let mut chains = Vec::new();
    for (hook, name) in BUILT_IN.into_iter().enumerate().filter(|(hook, _)| valid & (1 << hook) != 0) {
        let at = usize::try_from(number(info, HOOK_ENTRY + 4 * hook)?).map_err(|_| "a hook is nowhere")?;
        chains.push((at, name.to_owned()));
    }
    Ok(chains)
}

fn text(bytes: &[u8]) -> Result<&str, ParseFailure> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(text).map_err(|_| "a name is not UTF-8")
}

impl LegacyEntry<'_> {
    fn end(&self) -> usize {
        self.begin + self.bytes.len()
    }

    fn target_name(&self) -> Result<&str, ParseFailure> {
        text(self.target.get(TARGET_NAME..TARGET_DATA).ok_or("a target is cut off")?)
    }

    /// The chain that begins behind this entry, which is no rule then.
    fn names_chain(&self) -> Result<Option<String>, ParseFailure> {
        let is_name = self.target_name()? == ERROR;
        let name = || text(self.target.get(TARGET_DATA..).unwrap_or_default()).map(str::to_owned);
        is_name.then(name).transpose()
    }

    /// Where it jumps to; verdicts are negative.
    fn jump(&self) -> Result<Option<usize>, ParseFailure> {
        if !self.target_name()?.is_empty() {
            return Ok(None);
        }
        let verdict = number(self.target, TARGET_DATA)?.cast_signed();
        Ok(usize::try_from(verdict).ok())
    }

    fn effect(&self, layout: &EntryLayout) -> Result<RuleEffect, ParseFailure> {
        let name = self.target_name()?;
        if RuleEffect::is_redirection(name) {
            return Ok(RuleEffect::Redirects);
        }
        let leaves = name.is_empty()
            && matches!(number(self.target, TARGET_DATA)?.cast_signed(), ACCEPT | RETURN)
            && layout.is_unconditional(self.bytes);
        Ok(if leaves { RuleEffect::Leaves } else { RuleEffect::None })
    }

    /// Of a jump the name stands for the place, which other rules move.
    fn hash(&self, jumps_to: Option<&str>, layout: &EntryLayout) -> Result<u64, ParseFailure> {
        let conditions = self.bytes.len() - self.target.len();
        let mut bytes = self.bytes.get(..conditions).unwrap_or_default().to_vec();
        layout.clear_origin(&mut bytes)?;
        let mut hash = FnvHash::default();
        hash.bytes(&bytes);
        match (jumps_to, self.jump()?) {
            (Some(chain), _) => hash.bytes(chain.as_bytes()),
            (None, Some(_)) => hash.bytes(b""), // goes on with the next rule
            (None, None) => hash.bytes(self.target),
        }
        Ok(hash.0)
    }
}

#[cfg(test)]
mod tests {
    use model::Family;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const LAYOUT_SIZE: [usize; 2] = [112, 168];

    /// An entry without matches, whose target has this name and data.
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

    /// A table with OUTPUT alone.
    fn info() -> Vec<u8> {
        let mut bytes = vec![0; 84];
        bytes[HOOKS..HOOKS + 4].copy_from_slice(&8_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn rules_are_read_by_chain_and_jumps_by_name_wherever_they_lead() {
        for family in Family::BOTH {
            let (layout, rule) = (EntryLayout::of(family), |verdict| standard(family, verdict));
            let heads = |name: &str| entry(family, ERROR, format!("{name}\0").as_bytes());
            let read = |more: usize| {
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
                read(&info(), &list.concat(), &layout).unwrap()
            };
            let few = read(0);
            let chains: Vec<_> =
                few.iter().map(|rule| (rule.chain.as_str(), rule.jumps_to.as_deref())).collect();
            assert_eq!(chains, [("OUTPUT", Some("OURS")), ("OURS", None)], "policies are no rules");
            let more = read(3);
            assert_eq!(more.len(), 5);
            let hash =
                |rules: &[DigestedRule]| rules.iter().find(|rule| rule.jumps_to.is_some()).unwrap().hash;
            assert_eq!(hash(&few), hash(&more), "other rules move what it leads to");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for family in Family::BOTH {
            let layout = EntryLayout::of(family);
            let end = entry(family, ERROR, b"ERROR\0");
            let nowhere = [standard(family, 7), standard(family, -2), end.clone()].concat();
            assert_eq!(read(&info(), &nowhere, &layout).unwrap_err(), "a jump leads to no chain");
            let whole = [standard(family, -2), standard(family, -2), end].concat();
            assert!(read(&info(), &whole, &layout).is_ok());
            assert!(read(&info()[..40], &whole, &layout).is_err());
            for cut in 1..whole.len() {
                drop(read(&info(), &whole[..cut], &layout));
            }
        }
    }

    /// 16 MiB of chains without rules, as a process of a pod can make them: a look at each for each takes seconds.
    #[test]
    fn tens_of_thousands_of_chains_are_read_in_no_time() {
        let family = Family::V4;
        let layout = EntryLayout::of(family);
        let chain = |number: usize| {
            [entry(family, ERROR, format!("C{number}\0").as_bytes()), standard(family, -5)].concat()
        };
        let mut table = standard(family, -2);
        (0..48_000).for_each(|number| table.extend(chain(number)));
        table.extend(entry(family, ERROR, b"ERROR\0"));
        let began = std::time::Instant::now();
        assert!(read(&info(), &table, &layout).unwrap().is_empty());
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(2), "{} bytes took {took:?}", table.len());
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
            let _ = read(&info, &bytes, &EntryLayout::of(family));
        }
    }
}
