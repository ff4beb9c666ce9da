//! `/readyz` never reports success while there is a fault.

use std::fs;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use super::damage::{another_after, entry_removed, network_replaced};
use super::fixture::{Files, HealFixture};
use crate::fixtures::random::random;

const SEED: u64 = 0x7265_6164_795f_6e6f;
const ROUNDS: usize = 60;
/// A change sooner after a repair may be attributed to a conflicting writer.
const PAUSE: Duration = Duration::from_millis(300);

type Act = fn(&Files, usize);
const PLUGIN: [Act; 2] = [removed, overwritten];
const ENTRY: [Act; 3] = [entry_removed, network_replaced, another_after];

/// Damages in bursts, so that they occur during each step of the previous repair.
#[test]
fn readiness_never_lies_even_when_damage_comes_during_a_repair() {
    println!("seed {SEED:#x}");
    thread::scope(|scope| {
        let all: [(u64, &[Act]); 3] = [(1, &PLUGIN), (2, &ENTRY), (3, &ENTRY)];
        let workers = all.map(|(worker, acts)| scope.spawn(move || bursts(acts, SEED + worker)));
        for worker in workers {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

fn bursts(acts: &[Act], mut dice: u64) {
    let fixture = HealFixture::new();
    let mut samples = 0_u32;
    for round in 0..ROUNDS {
        thread::sleep(PAUSE);
        for _ in 0..2 + random(&mut dice, 2) {
            acts[random(&mut dice, acts.len() as u64) as usize](&fixture.files, round);
            let next = Instant::now() + Duration::from_micros(random(&mut dice, 90_000));
            while Instant::now() < next {
                samples += 1;
                fixture.sample();
            }
        }
        fixture.healed(Instant::now());
    }
    println!("{samples} samples during repairs, and no lie");
}

/// The file may not exist any more.
fn removed(files: &Files, _: usize) {
    drop(fs::remove_file(files.plugin()));
}

/// A program that is being executed cannot be written to.
fn overwritten(files: &Files, round: usize) {
    drop(fs::write(files.plugin(), format!("garbage {round}")));
}
