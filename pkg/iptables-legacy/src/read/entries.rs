//! Entries of a legacy table as the kernel returns them: one after the other, each with its counters.

use std::mem::size_of;

use model::Family;

/// Offsets of an entry's fields, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryLayout {
    target: usize,
    next: usize,
    counters: usize,
    /// Offset of the matches.
    pub(super) size: usize,
    /// Size of an address in bytes.
    pub(super) address: usize,
    pub(super) interfaces: usize,
    pub(super) proto: usize,
    pub(super) flags: usize,
    pub(super) invflags: usize,
}

const COUNTERS: usize = size_of::<[u64; 2]>();

impl EntryLayout {
    /// `struct ipt_entry` on 64-bit machines.
    const V4: EntryLayout = EntryLayout {
        target: 88,
        next: 90,
        counters: 96,
        size: 112,
        address: 4,
        interfaces: 16,
        proto: 80,
        flags: 82,
        invflags: 83,
    };
    /// `struct ip6t_entry` on 64-bit machines.
    const V6: EntryLayout = EntryLayout {
        target: 140,
        next: 142,
        counters: 152,
        size: 168,
        address: 16,
        interfaces: 64,
        proto: 128,
        flags: 131,
        invflags: 132,
    };

    pub(super) const fn for_family(family: Family) -> EntryLayout {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }

    /// Returns the offsets of the target of the first entry, and of the entry's end.
    pub(super) fn entry_offsets(&self, entries: &[u8]) -> Result<(usize, usize), &'static str> {
        let (target, next) = (read_offset(entries, self.target)?, read_offset(entries, self.next)?);
        // A smaller offset would loop forever.
        if next < self.size || target < self.size {
            return Err("a rule is shorter than any can be");
        }
        Ok((target, next))
    }

    /// Returns whether an entry of this family has neither conditions nor matches: its target applies to every packet.
    pub(super) fn is_unconditional(&self, entry: &[u8]) -> bool {
        let conditions = self.target - size_of::<u32>(); // except nfcache
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        entry.get(..conditions).is_some_and(is_zero)
            && self.entry_offsets(entry).is_ok_and(|(target, _)| target == self.size)
    }
}

fn read_offset(entries: &[u8], at: usize) -> Result<usize, &'static str> {
    let found = entries.get(at..).and_then(<[u8]>::first_chunk).copied();
    found.map(u16::from_ne_bytes).map(usize::from).ok_or("its last rule is cut off")
}

/// Sets the counters of all entries to zero. The error describes what is malformed.
pub(super) fn clear_counters(mut entries: &mut [u8], layout: &EntryLayout) -> Result<(), &'static str> {
    while !entries.is_empty() {
        let (_, next) = layout.entry_offsets(entries)?;
        let (entry, rest) = entries.split_at_mut_checked(next).ok_or("its last rule is cut off")?;
        let counters = entry.get_mut(layout.counters..).and_then(<[u8]>::first_chunk_mut::<COUNTERS>);
        *counters.ok_or("a rule has no counters")? = [0; COUNTERS];
        entries = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// An entry of this length, all of whose other bytes are 7.
    fn entry(layout: &EntryLayout, length: usize) -> Vec<u8> {
        let mut bytes = vec![7; length];
        bytes[layout.next..layout.next + 2].copy_from_slice(&u16::try_from(length).unwrap().to_ne_bytes());
        bytes
    }

    #[repr(C)]
    struct Ipv4Entry {
        addresses: [u32; 4],
        interfaces: [u8; 64],
        proto: u16,
        flags: u8,
        invflags: u8,
        nfcache: u32,
        target_offset: u16,
        next_offset: u16,
        comefrom: u32,
        counters: [u64; 2],
    }

    #[repr(C)]
    struct Ipv6Entry {
        addresses: [u32; 16],
        interfaces: [u8; 64],
        proto: u16,
        tos: u8,
        flags: u8,
        invflags: u8,
        nfcache: u32,
        target_offset: u16,
        next_offset: u16,
        comefrom: u32,
        counters: [u64; 2],
    }

    macro_rules! layout_of {
        ($entry:ty, $address:literal) => {
            EntryLayout {
                target: offset_of!($entry, target_offset),
                next: offset_of!($entry, next_offset),
                counters: offset_of!($entry, counters),
                size: size_of::<$entry>(),
                address: $address,
                interfaces: offset_of!($entry, interfaces),
                proto: offset_of!($entry, proto),
                flags: offset_of!($entry, flags),
                invflags: offset_of!($entry, invflags),
            }
        };
    }

    #[test]
    fn entries_are_as_the_kernels() {
        assert_eq!(EntryLayout::V4, layout_of!(Ipv4Entry, 4));
        assert_eq!(EntryLayout::V6, layout_of!(Ipv6Entry, 16));
    }

    #[test]
    fn what_is_no_list_of_entries_is_refused() {
        for family in Family::BOTH {
            let layout = EntryLayout::for_family(family);
            let mut short = entry(&layout, layout.size);
            short[layout.next..layout.next + 2].fill(0);
            assert_eq!(clear_counters(&mut short, &layout), Err("a rule is shorter than any can be"));
            let whole = entry(&layout, layout.size + 40);
            for end in 1..whole.len() {
                assert_eq!(
                    clear_counters(&mut whole[..end].to_vec(), &layout),
                    Err("its last rule is cut off")
                );
            }
        }
    }

    proptest! {
        #[test]
        fn only_counters_are_cleared(lengths in vec(0_usize..400, 0..6), v6: bool) {
            let layout = EntryLayout::for_family(if v6 { Family::V6 } else { Family::V4 });
            let entries: Vec<_> = lengths.iter().map(|more| entry(&layout, layout.size + more)).collect();
            let mut cleared = entries.concat();
            prop_assert_eq!(clear_counters(&mut cleared, &layout), Ok(()));
            let mut rest = cleared.as_slice();
            for mut wanted in entries {
                wanted[layout.counters..layout.counters + COUNTERS].fill(0);
                let found;
                (found, rest) = rest.split_at(wanted.len());
                prop_assert_eq!(found, wanted);
            }
        }

        #[test]
        fn nothing_makes_it_panic_or_go_on_for_ever(mut bytes in vec(any::<u8>(), 0..2000), v6: bool) {
            let layout = EntryLayout::for_family(if v6 { Family::V6 } else { Family::V4 });
            let _ = clear_counters(&mut bytes, &layout);
        }

        /// Valid lengths, followed by arbitrary ones.
        #[test]
        fn nor_does_what_begins_well(lengths in vec((0_usize..400, any::<u16>(), 0_u8..8), 0..9), v6: bool) {
            let layout = EntryLayout::for_family(if v6 { Family::V6 } else { Family::V4 });
            let made = lengths.iter().map(|(more, wrong, luck)| {
                let mut one = entry(&layout, layout.size + more);
                if *luck == 0 {
                    one[layout.next..layout.next + 2].copy_from_slice(&wrong.to_ne_bytes());
                }
                one
            });
            let mut bytes: Vec<u8> = made.collect::<Vec<_>>().concat();
            let whole = lengths.iter().all(|(_, _, luck)| *luck > 0);
            let result = clear_counters(&mut bytes, &layout);
            prop_assert!(!whole || result.is_ok());
        }
    }
}
