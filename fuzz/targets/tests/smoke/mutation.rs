//! Inputs that are almost valid for a target.

use std::ops::Range;

/// Marsaglia's xorshift64.
pub(crate) struct XorShift(pub(crate) u64);

impl XorShift {
    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }
}

const WORDS: [&[u8]; 28] = [
    b"\n",
    b"\"",
    b"\\",
    b"'",
    b",",
    b"=",
    b";",
    b":",
    b"/",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"true",
    b"-1",
    b"99999999999999999999",
    b"\xff",
    b"\xc3\xa4",
    b" -j ",
    b"! ",
    b"\0",
    b"&a *a",
    b"  - ",
    b"\xff\xff\xff\xff",
    b"\xff\x7f",
    b"\r\n",
    b"fffffff",
];

/// One to eight changes of a seed.
pub(crate) fn mutated(seeds: &[Vec<u8>], random: &mut XorShift) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(16)).min(data.len());
        match random.below(7) {
            0 if random.below(30) == 0 => repeat(&mut data, at..end, random),
            0 => drop(data.drain(at..end)),
            1 => drop(data.splice(at..at, WORDS[random.below(WORDS.len())].iter().copied())),
            2 => data.truncate(at),
            3 if at < data.len() => data[at] ^= 1 << random.below(8),
            4 => {
                let copy = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                drop(data.splice(to..to, copy));
            }
            5 => lines(&mut data, random),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let part = &other[from..(from + 80).min(other.len())];
                drop(data.splice(at..at, part.iter().copied()));
            }
        }
    }
    data.truncate(64 * 1024);
    data
}

/// Repeats a piece many times, which shows costs that grow faster than the input.
fn repeat(data: &mut Vec<u8>, piece: Range<usize>, random: &mut XorShift) {
    let copy = data[piece.clone()].repeat(1 << random.below(13));
    data.splice(piece, copy);
}

/// Swaps two lines.
fn lines(data: &mut Vec<u8>, random: &mut XorShift) {
    let mut lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(one, other);
    *data = lines.join(&b'\n');
}
