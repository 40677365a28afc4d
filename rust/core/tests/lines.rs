//! The waiting lines of a zone against a model, a list of callers; and lines with arbitrary words.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::expect_used, clippy::panic)] // what they fail on is what they test

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use headgate_core::table::answer::OnFull;
use headgate_core::zone::header::Birth;
use headgate_core::zone::layout::Layout;
use headgate_core::zone::line_layout::{GROUPS, LinePlaces};
use headgate_core::zone::lines::{LineName, Seat, Standing};
use headgate_core::zone::storage::ZoneStorage;

const SIZE: usize = 128 << 10;
const NOW_US: i64 = 1_000_000;

fn zone(name: &str) -> (File, ZoneStorage) {
    let path = std::env::temp_dir().join(format!("headgate-lines-{}-{name}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.set_len(SIZE as u64).expect("room");
    fs::remove_file(path).expect("its name to go");
    let birth = Birth { seed: [3; 16], boot: [4; 16], anchor_us: 5, created_us: 6 };
    ZoneStorage::format(&file, &Layout::new(SIZE, 25, 64).expect("a layout"), &birth).expect("a zone");
    let zone = ZoneStorage::open(&file, OnFull::Refuse, Some(4)).expect("a file").expect("a zone");
    (file, zone)
}

/// Pseudo-random numbers, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn name(line: u64) -> LineName {
    LineName { words: [line, line + 7], group: line as usize % 3, for_places: line.is_multiple_of(2) }
}

#[test]
fn callers_pass_in_the_order_of_their_arrival_whichever_leaves() {
    let (_file, zone) = zone("order");
    let (lines, map) = zone.lines();
    let (seat, _taken) = lines.with(map, NOW_US, |tickets| tickets.claim()).expect("a lock").expect("a seat");
    let (mut chance, mut waiting, mut number) = (Chance(7), Vec::<(Standing, i64)>::new(), 0);
    let (most, _) = lines.room();
    for _ in 0..20_000 {
        if chance.below(waiting.len() as u64 + 12) < 8 {
            number += 1;
            let (name, cost) = (name(chance.below(9)), chance.below(100) as i64);
            let standing = Standing { seat, number, name, ticket: 0, order: 0 };
            let joined = lines.with(map, NOW_US, |tickets| tickets.join(&standing, &[cost, 1], 0, 0)).expect("a lock");
            assert_eq!(joined.is_none(), waiting.len() == most);
            let Some(joined) = joined else { continue };
            let before: Vec<i64> = waiting.iter().filter(|each| each.0.name == name).map(|each| each.1).collect();
            assert_eq!(joined.is_first, before.is_empty());
            assert_eq!(joined.ahead.iter().map(|costs| costs[0]).collect::<Vec<_>>(), before);
            waiting.push((Standing { ticket: joined.ticket, order: joined.order, ..standing }, cost));
        } else if !waiting.is_empty() {
            let (leaving, _) = waiting.remove(chance.below(waiting.len() as u64) as usize);
            let known = chance.below(2) == 0;
            let standing = if known { leaving } else { Standing { ticket: 0, order: 0, ..leaving } };
            lines.with(map, NOW_US, |tickets| tickets.leave(&standing, false, true)).expect("a lock");
            assert_eq!(lines.with(map, NOW_US, |tickets| tickets.is_first(&leaving)).expect("a lock"), None);
        }
        if chance.below(100) == 0 {
            lines.forget_all(map); // as if a process had died while it changed something: the seat is held on
        }
        if let Some((standing, _)) = waiting.get(chance.below(waiting.len().max(1) as u64) as usize) {
            let first = waiting.iter().find(|each| each.0.name == standing.name).map(|each| each.0);
            let is_first = lines.with(map, NOW_US, |tickets| tickets.is_first(standing)).expect("a lock");
            assert_eq!(is_first, Some(first == Some(*standing)));
        }
    }
    for line in 0..9 {
        let count = waiting.iter().filter(|each| each.0.name == name(line)).count();
        assert_eq!(lines.with(map, NOW_US, |tickets| tickets.length(&name(line))).expect("a lock"), count);
    }
}

#[test]
fn a_caller_gets_the_costs_that_it_does_not_know_unless_the_line_has_changed() {
    let (_file, zone) = zone("ahead");
    let (lines, map) = zone.lines();
    let (seat, _taken) = lines.with(map, NOW_US, |tickets| tickets.claim()).expect("a lock").expect("a seat");
    let join = |number, since, generation| {
        let standing = Standing { seat, number, name: name(2), ticket: 0, order: 0 };
        let joined = lines.with(map, NOW_US, |tickets| tickets.join(&standing, &[number as i64], since, generation));
        let joined = joined.expect("a lock").expect("room");
        let ahead: Vec<i64> = joined.ahead.iter().map(|costs| costs[0]).collect();
        (Standing { ticket: joined.ticket, order: joined.order, ..standing }, joined.generation, ahead)
    };
    let (first, generation, ahead) = join(1, 0, 0);
    assert_eq!(ahead, []);
    let (second, _, ahead) = join(2, first.order, generation);
    assert_eq!(ahead, []);
    assert_eq!(join(3, first.order, generation).2, [2]);
    lines.with(map, NOW_US, |tickets| tickets.leave(&first, true, true)).expect("a lock");
    assert_eq!(join(4, second.order, generation).2, [3]);
    lines.with(map, NOW_US, |tickets| tickets.leave(&second, false, true)).expect("a lock");
    let (last, generation, ahead) = join(5, second.order, generation);
    assert_eq!(ahead, [3, 4]);
    lines.with(map, NOW_US, |tickets| tickets.leave(&last, false, false)).expect("a lock"); // which no plan counts on
    let (last, renewed, ahead) = join(6, last.order, generation);
    assert_eq!((renewed, ahead), (generation, vec![]));
    lines.with(map, NOW_US, |tickets| tickets.leave(&last, false, true)).expect("a lock");
    assert_ne!(join(7, last.order, generation).1, generation);
}

#[test]
fn callers_of_a_process_that_is_gone_or_silent_are_passed_over() {
    let (_file, zone) = zone("gone");
    let (lines, map) = zone.lines();
    let claim = || lines.with(map, NOW_US, |tickets| tickets.claim()).expect("a lock").expect("a seat");
    let ((gone, taken), (here, _taken)) = (claim(), claim());
    let join = |seat: Seat, now_us| {
        let standing = Standing { seat, number: 1, name: name(2), ticket: 0, order: 0 };
        let joined = lines.with(map, now_us, |tickets| tickets.join(&standing, &[1], 0, 0)).expect("a lock");
        joined.expect("room").is_first
    };
    assert!(join(gone, NOW_US));
    assert!(!join(here, NOW_US));
    assert!(!join(here, NOW_US + 9_000_000));
    assert_eq!(lines.with(map, NOW_US, |tickets| tickets.length(&name(2))).expect("a lock"), 3);
    drop(taken);
    assert!(lines.is_waited_for(map, &name(2), NOW_US).expect("a lock"));
    assert_eq!(lines.with(map, NOW_US, |tickets| tickets.length(&name(2))).expect("a lock"), 2);
    let later_us = NOW_US + 20_000_000;
    assert!(!lines.is_waited_for(map, &name(2), later_us).expect("a lock"));
    assert_eq!(lines.with(map, later_us, |tickets| tickets.listen(here.process)).expect("a lock"), None);
    assert_eq!(lines.with(map, later_us, |tickets| tickets.listen(here.process)).expect("a lock"), Some(vec![]));
}

#[test]
fn whatever_is_written_in_the_lines_every_call_ends() {
    let (file, zone) = zone("noise");
    let (lines, map) = zone.lines();
    let (seat, _taken) = lines.with(map, NOW_US, |tickets| tickets.claim()).expect("a lock").expect("a seat");
    let layout = zone.layout().shards.lines;
    let (words_at, mut chance) = (layout.at + layout.locks * 64, Chance(11));
    let places = LinePlaces::new(&layout);
    assert!(places.ticket(places.tickets as u32) + 12 <= layout.words);
    for round in 0..3_000 {
        for _ in 0..chance.below(40) {
            let word = chance.below(layout.words as u64);
            let small = chance.below(60) | chance.below(60) << 32;
            let value = if chance.below(2) == 0 { small } else { chance.below(u64::MAX >> 1) << 1 };
            file.write_all_at(&value.to_ne_bytes(), words_at as u64 + word * 8).expect("to write");
        }
        let standing = Standing { seat, number: round, name: name(chance.below(9)), ticket: 0, order: 0 };
        let joined = lines.with(map, NOW_US, |tickets| tickets.join(&standing, &[1], 0, 0)).expect("a lock");
        let standing = joined.map_or(standing, |joined| Standing { ticket: joined.ticket, ..standing });
        lines.with(map, NOW_US, |tickets| tickets.is_first(&standing)).expect("a lock");
        lines.with(map, NOW_US, |tickets| tickets.listen(seat.process)).expect("a lock");
        lines.with(map, NOW_US, |tickets| tickets.leave(&standing, false, false)).expect("a lock");
        (0..GROUPS).for_each(|group| lines.freed(map, group, NOW_US));
    }
}
