//! The parts of the table against plain models, under long random histories.

#![allow(clippy::expect_used, clippy::panic)] // a test says so when it fails

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use headgate_core::algorithms::log_view::LogCharge;
use headgate_core::algorithms::transition::StateUpdate;
use headgate_core::encoding::slot::Slot;
use headgate_core::encoding::slot_entries::{Chain, NO_CHAIN};
use headgate_core::limit::{Algorithm, Limit};
use headgate_core::memory::Slots;
use headgate_core::process::backing::{ProcessBacking, range_for};
use headgate_core::process::registry::Registry;
use headgate_core::shard::backing::Backing;
use headgate_core::shard::registered::{Definition, Registered};
use headgate_core::shard::{Place, Shard};
use headgate_core::shard::{log_pool, log_reader};
use headgate_core::{encoding::slot::MOST_LIMITS, hash::Seed};

/// A small generator (xorshift64*), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn registered(registry: &Registry) -> Arc<Registered> {
    let limit = Limit::new(Algorithm::FixedWindow, 1, 100, 1_000_000, 0).expect("a limit");
    registry
        .register(&mut registry.lock(), &Seed::new([1; 16]), Definition { scope: "scope", text: "", limit })
        .expect("room for a limit")
}

#[test]
fn a_slot_gives_back_what_was_put_in() {
    let most = (1_i64 << 53) - 1;
    for fields in [[0, 0, 0], [most, -most - 1, most], [-1, 1, -1], [1 << 52, -(1 << 52), 7]] {
        for limit in [0, 1, 1023, 1024, MOST_LIMITS as u32 - 1] {
            let mut slot = Slot::new(u64::MAX, fields, limit);
            assert_eq!((slot.fields(), slot.limit(), slot.refused()), (fields, limit, false));
            slot.mark_refused();
            assert_eq!((slot.fields(), slot.limit(), slot.refused()), (fields, limit, true));
        }
    }
    assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (32, 32));
}

#[test]
fn a_shard_finds_exactly_what_it_holds() {
    for seed in 1..40_u64 {
        let mut random = Random(seed);
        let registry = Registry::default();
        let limit = registered(&registry);
        let mut shard: Shard<ProcessBacking> = Shard::default();
        let mut model: HashMap<u64, i64> = HashMap::new();
        // Tags of a narrow range crowd together and run into the tail; wide ones spread.
        let spread = if seed % 3 == 0 { 1 << 60 } else { u64::MAX - 1 };
        let base = if seed % 2 == 0 { u64::MAX - spread } else { 1 };
        for step in 1..4000 {
            let tag = if !model.is_empty() && random.below(3) == 0 {
                *model.keys().nth(random.below(model.len() as u64) as usize).expect("a tag")
            } else {
                base + random.below(spread)
            };
            if random.below(4) == 0 {
                let gone = shard.forget(tag, &registry, 0);
                assert_eq!(gone, model.remove(&tag).is_some(), "seed {seed} step {step}");
            } else {
                while shard.find(tag) == Place::Absent && !shard.can_take(tag, 1, 1) {
                    let homes = (shard.homes() * 4 / 3).max(8);
                    let slots = Slots::map(1, range_for(homes)).expect("memory").remove(0);
                    shard.move_to(slots);
                }
                let place = shard.find(tag);
                shard.write_state(place, tag, &limit, StateUpdate::Numbers([5, step, 0]));
                model.insert(tag, step);
            }
            assert_eq!(shard.len(), model.len());
        }
        for (tag, step) in &model {
            let Place::Found(index) = shard.find(*tag) else { panic!("seed {seed}: tag {tag} is lost") };
            assert_eq!(shard.numbers(index, &limit), Some([5, *step, 0]));
        }
    }
}

#[test]
fn a_sweep_sees_every_slot_in_turn_and_frees_the_expired() {
    let registry = Registry::default();
    let limit = registered(&registry);
    let mut shard: Shard<ProcessBacking> = Shard::default();
    shard.move_to(Slots::map(1, range_for(200)).expect("memory").remove(0));
    let mut random = Random(9);
    for number in 0..120 {
        let tag = random.next() | 1;
        // Half of the states are of window 0, which has passed at the moment of the sweep.
        shard.write_state(Place::Absent, tag, &limit, StateUpdate::Numbers([number % 2 * 5, 1, 0]));
    }
    let mut expired = 0;
    for _ in 0..12 {
        expired += shard.sweep(10, usize::MAX, &registry, 5_500_000, |_| false).expired;
    }
    assert_eq!((expired, shard.len()), (60, 60));
}

#[test]
fn log_chains_hold_what_a_queue_holds() {
    for seed in 1..30 {
        let mut random = Random(seed);
        let mut heap = ProcessBacking::default();
        let mut chains: Vec<Chain> = vec![NO_CHAIN; 5];
        let mut models: Vec<VecDeque<(i64, i64)>> = vec![VecDeque::new(); 5];
        for time in 0..3000 {
            let key = random.below(5) as usize;
            let model = &mut models[key];
            match random.below(13) {
                0 => {
                    log_pool::release(&mut heap, std::mem::replace(&mut chains[key], NO_CHAIN));
                    model.clear();
                }
                12 if !model.is_empty() => {
                    let retained = random.below(model.len() as u64 + 1) as usize;
                    let mut moved: Vec<_> = model.drain(retained..).filter(|_| random.below(3) > 0).collect();
                    if let Some((_, cost)) = moved.first_mut() {
                        *cost += 1;
                    }
                    model.extend(&moved);
                    chains[key] = log_pool::rewrite(&mut heap, chains[key], retained, &moved);
                }
                action => {
                    let expired = random.below(model.len() as u64 + 1) as usize * usize::from(action < 4);
                    let shift = if action == 5 && expired < model.len() { -1 } else { 0 };
                    let cost = random.below(9) as i64 + 1 + if random.below(20) == 0 { 1 << 27 } else { 0 };
                    let time = 10_000 + time / 3 + shift;
                    model.drain(..expired);
                    for entry in model.iter_mut() {
                        entry.0 += shift;
                    }
                    match model.back_mut() {
                        Some(newest) if newest.0 == time => newest.1 += cost,
                        _ => model.push_back((time, cost)),
                    }
                    let charge = LogCharge { expired, shift, time, cost };
                    let (made, held) = (heap.made_blocks(), heap.head().held as usize);

                    let takes_block = log_pool::takes_block(heap.blocks(), chains[key], &charge);
                    match log_pool::shifted(chains[key], shift) {
                        Some(chain) => chains[key] = chain,
                        None => heap.shift(chains[key], shift),
                    }
                    chains[key] = log_pool::record(&mut heap, chains[key], &charge).expect("a block");
                    let more = heap.made_blocks() > made || heap.head().held as usize > held;
                    assert!(takes_block || !more, "a block that was not announced, seed {seed}");
                }
            }
            for (chain, model) in chains.iter().zip(&models) {
                let damage = Cell::new(false);
                let read = log_reader::read(heap.blocks(), *chain, &damage);
                assert!(!damage.get());
                let Some(log) = read else {
                    assert!(model.is_empty());
                    continue;
                };
                assert_eq!(log.entries.collect::<Vec<_>>(), Vec::from(model.clone()), "seed {seed}");
                assert_eq!(log.used, model.iter().map(|(_, cost)| cost).sum::<i64>());
                assert_eq!(Some(log.last), model.back().map(|(time, _)| *time));
            }
        }
        for chain in chains {
            log_pool::release(&mut heap, chain);
        }
        assert_eq!((heap.head().held, heap.made_blocks()), (0, 0), "blocks are lost");
    }
}
