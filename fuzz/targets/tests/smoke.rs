//! Every fuzz target on its seeds and some thousand mutations of them, the same ones each time, for at most two seconds
//! each. The stable compiler is enough.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const MUTATIONS: usize = 4000;
const LIMIT: Duration = Duration::from_secs(2);

#[test]
fn saved_rules() {
    smoke("saved_rules", fuzz_targets::saved_rules);
}

#[test]
fn annotations() {
    smoke("annotations", fuzz_targets::annotations);
}

#[test]
fn cni_stdin() {
    smoke("cni_stdin", fuzz_targets::cni_stdin);
}

#[test]
fn cni_args() {
    smoke("cni_args", fuzz_targets::cni_args);
}

#[test]
fn conflist() {
    smoke("conflist", fuzz_targets::conflist);
}

#[test]
fn set_replies() {
    smoke("set_replies", fuzz_targets::set_replies);
}

#[test]
fn kubeconfig() {
    smoke("kubeconfig", fuzz_targets::kubeconfig);
}

fn smoke(target: &str, run: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(seeds.len() >= 3, "{target} has {} seeds", seeds.len());
    for input in seeds.iter().map(Vec::as_slice).chain([&b""[..], b"\0", &[0xff; 64], &[b'"'; 9]]) {
        run(input);
    }
    let (start, mut random) = (Instant::now(), XorShift(0x9e37_79b9_7f4a_7c15));
    for _ in 0..MUTATIONS {
        if start.elapsed() > LIMIT {
            break;
        }
        let input = mutated(&seeds, &mut random);
        let shown = String::from_utf8_lossy(&input).into_owned();
        // A panic shows the input: the message is the only thing that a failing run leaves behind.
        let report = Report { target, input: shown };
        run(&input);
        drop(report);
    }
}

/// Says, when dropped in a panic, which input it was.
struct Report<'a> {
    target: &'a str,
    input: String,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a failing test says what it was given")]
            {
                eprintln!("{} failed on {:?}", self.target, self.input);
            }
        }
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Marsaglia's xorshift64.
struct XorShift(u64);

impl XorShift {
    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(end).unwrap()).unwrap()
    }
}

const WORDS: [&[u8]; 24] = [
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
];

/// One to eight changes of a seed.
fn mutated(seeds: &[Vec<u8>], random: &mut XorShift) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(16)).min(data.len());
        match random.below(7) {
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

/// Swaps two lines.
fn lines(data: &mut Vec<u8>, random: &mut XorShift) {
    let mut lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let (one, other) = (random.below(lines.len()), random.below(lines.len()));
    lines.swap(one, other);
    *data = lines.join(&b'\n');
}
