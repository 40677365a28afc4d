//! What callers do in a line: join it, check whether they are first, leave it. The lock of the lines is held.

use smallvec::SmallVec;

use crate::memory::shared::{SharedMap, Taken};
use crate::zone::line_layout::{GROUPS, LinePlaces, MOST_COSTS};
use crate::zone::line_words::{
    BEAT, COSTS, COUNT, EXPELLED, LINE, LineName, LineWords, META, ORDER, ORDERS, OWNER, SERIAL,
};

/// A process without a sign of life for this long, such as a stopped one, loses its places.
const SILENT_US: i64 = 10_000_000;
/// The order number that makes a caller get the costs of all tickets again.
const ALL: u64 = 0;

/// A process that has callers in line: its place, and a serial that distinguishes it from earlier owners of the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The place.
    pub process: usize,
    /// The serial.
    pub serial: u64,
}

/// A place in line, as its caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The process it belongs to.
    pub seat: Seat,
    /// Its number in that process, below 2^48.
    pub number: u64,
    /// The line.
    pub name: LineName,
    /// The ticket; 0 where the caller does not know it.
    pub ticket: u32,
    /// The order of the ticket; 0 where the caller does not know it.
    pub order: u64,
}

/// The costs of a caller, one for each group of limits.
pub type LineCosts = SmallVec<[i64; MOST_COSTS]>;

/// The result of joining a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Joined {
    /// The ticket.
    pub ticket: u32,
    /// Its order number.
    pub order: u64,
    /// The generation of the line.
    pub generation: u64,
    /// Whether it is the first.
    pub is_first: bool,
    /// The costs of the tickets before it that the caller did not know of.
    pub ahead: Vec<LineCosts>,
}

/// The tickets of a zone, whose lock is held; at the moment `now_us` by the monotonic clock.
pub struct Tickets<'zone> {
    /// The words.
    pub words: LineWords<'zone>,
    /// The mapped file.
    pub map: &'zone SharedMap,
    /// The moment.
    pub now_us: i64,
    /// Processes to be woken.
    pub woken: SmallVec<[usize; 4]>,
}

impl<'zone> Tickets<'zone> {
    /// A seat for a process whose callers wait, with the lock it holds as long as it is there; None where all are
    /// taken.
    pub fn claim(&mut self) -> Option<(Seat, Taken<'zone>)> {
        let (process, taken) = (0..self.words.places.processes)
            .find_map(|process| Some((process, self.map.take_line_lock(1 + process)?)))?;
        self.expel(process);
        let serial = self.next_order();
        self.words.put_of_process(process, SERIAL, serial);
        self.words.put_of_process(process, BEAT, self.now_us as u64);
        self.words.put_of_process(process, EXPELLED, 0);
        Some((Seat { process, serial }, taken))
    }

    /// Join the end of a line; None where there is no room. The order of `standing` is ignored.
    ///
    /// `since` is the last order number that the caller knows, of that generation of the line.
    pub fn join(&mut self, standing: &Standing, costs: &[i64], since: u64, generation: u64) -> Option<Joined> {
        let Standing { seat, name, number, .. } = standing;
        self.words.put_of_process(seat.process, BEAT, self.now_us as u64);
        let first = self.first_present(name);
        let ticket = self.words.take().or_else(|| {
            self.expel_absent(seat.process);
            self.words.take()
        })?;
        let (words, order) = (&self.words, self.next_order());
        let (bucket, meta) = (words.bucket_of(name), LineWords::meta(name, costs.len()));
        let renewed = words.generation(bucket);
        let since = if generation == renewed { since } else { ALL };
        let back = first.into_iter().flat_map(|head| words.line_back(head));
        let unknown: Vec<u32> = back.take_while(|ticket| words.of(*ticket, ORDER) > since).collect();
        let ahead = unknown.into_iter().rev().map(|ticket| words.costs(ticket).collect()).collect();
        words.put_of(ticket, OWNER, seat.process as u64 | number << 16);
        words.put_of(ticket, LINE, name.words[0]);
        words.put_of(ticket, LINE + 1, name.words[1]);
        words.put_of(ticket, META, meta);
        for (place, cost) in costs.iter().enumerate().take(MOST_COSTS) {
            words.put_of(ticket, COSTS + place, *cost as u64);
        }
        words.put_of(ticket, ORDER, order);
        words.link(ticket);
        Some(Joined { ticket, order, generation: renewed, is_first: words.head(name) == Some(ticket), ahead })
    }

    /// Whether a ticket is first in line; None where it is no longer in line.
    pub fn is_first(&mut self, standing: &Standing) -> Option<bool> {
        self.words.put_of_process(standing.seat.process, BEAT, self.now_us as u64);
        let first = self.first_present(&standing.name);
        Some(first == Some(self.find(standing)?))
    }

    /// Leave the line and call the first ticket, if that is another one now. Returns the number of the first one if it
    /// is of the same process, which calls it itself.
    ///
    /// `as_planned`: it leaves at the moment that all plans predict. `planned`: the plan of its process includes it, as
    /// do those of other processes if it is not the last.
    pub fn leave(&mut self, standing: &Standing, as_planned: bool, planned: bool) -> Option<u64> {
        let ticket = self.find(standing)?;
        let name = self.words.line_of(ticket);
        let head = self.words.head(&name)?;
        if !as_planned && (planned || self.words.last(head) != ticket) {
            self.words.renew(self.words.bucket_of(&name));
        }
        self.words.unlink(ticket);
        let first = self.first_present(&name)?;
        let (process, number) = self.words.owner(first);
        if process == standing.seat.process {
            return (head == ticket).then_some(number);
        }
        if head == ticket {
            self.call(first);
        }
        None
    }

    /// How many callers are in a line.
    pub fn length(&self, name: &LineName) -> usize {
        self.words.head(name).map_or(0, |head| self.words.line(head).count())
    }

    /// The first ticket of a line whose process is present; those before it are removed.
    pub fn first_present(&mut self, name: &LineName) -> Option<u32> {
        let mut former = None;
        loop {
            let first = self.words.head(name);
            match first.map(|first| self.words.owner(first).0) {
                Some(process) if former != Some(process) && self.is_absent(process) => {
                    self.expel(process);
                    former = Some(process);
                }
                _ => return first,
            }
        }
    }

    /// Call the first of each line of a group, after places were freed.
    pub fn call_group(&mut self, group: usize) {
        self.words.put(LinePlaces::pending(group), 0);
        let waits = |head: &u32| self.words.line_of(*head).for_places;
        let heads = self.words.buckets_of(group).flat_map(|bucket| self.words.heads(bucket)).filter(waits);
        heads.collect::<Vec<_>>().into_iter().for_each(|head| self.call(head));
    }

    /// Call the first of every line.
    pub fn call_all(&mut self) {
        let buckets = (0..GROUPS).flat_map(|group| self.words.buckets_of(group));
        let heads = buckets.flat_map(|bucket| self.words.heads(bucket));
        heads.collect::<Vec<_>>().into_iter().for_each(|head| self.call(head));
    }

    /// One round of a process that listens: show that it is alive, remove the tickets of absent processes, and finish
    /// the calls that those did not. Returns the numbers of its called tickets; None where it was taken for absent
    /// itself.
    pub fn listen(&mut self, process: usize) -> Option<Vec<u64>> {
        self.words.put_of_process(process, BEAT, self.now_us as u64);
        self.expel_absent(process);
        for group in 0..GROUPS {
            if self.words.get(LinePlaces::pending(group)) != 0 {
                self.call_group(group);
            }
        }
        let called: Vec<u32> = self.words.called(process).collect();
        called.iter().for_each(|ticket| self.words.uncall(*ticket));
        let is_expelled = self.words.of_process(process, EXPELLED) != 0;
        self.words.put_of_process(process, EXPELLED, 0);
        (!is_expelled).then(|| called.into_iter().map(|ticket| self.words.owner(ticket).1).collect())
    }

    /// Rebuild all links from the tickets, after a process died while it changed them.
    #[cold]
    pub fn mend(&mut self) {
        self.words.relink(|process| self.is_held(process));
        self.call_all();
    }

    fn next_order(&self) -> u64 {
        let order = self.words.get(ORDERS).wrapping_add(1).max(1);
        self.words.put(ORDERS, order);
        order
    }

    fn find(&self, standing: &Standing) -> Option<u32> {
        let Standing { seat, number, name, ticket, order } = standing;
        if *order != 0 {
            return (self.words.of(*ticket, ORDER) == *order).then_some(*ticket);
        }
        if self.words.of_process(seat.process, SERIAL) != seat.serial {
            return None;
        }
        let head = self.words.head(name)?;
        self.words.line(head).find(|ticket| self.words.owner(*ticket) == (seat.process, *number))
    }

    fn call(&mut self, ticket: u32) {
        let process = self.words.owner(ticket).0;
        if self.words.call(ticket) && process < self.words.places.processes {
            self.map.bell(1 + process).ring();
            self.woken.push(process);
        }
    }

    fn expel_absent(&mut self, own: usize) {
        for process in 0..self.words.places.processes {
            if process != own && self.words.of_process(process, COUNT) != 0 && self.is_absent(process) {
                self.expel(process);
            }
        }
    }

    fn is_absent(&self, process: usize) -> bool {
        let silent_us = self.now_us.wrapping_sub(self.words.of_process(process, BEAT) as i64);
        silent_us > SILENT_US || !self.is_held(process)
    }

    /// Whether the thread that took the place of a process is alive.
    fn is_held(&self, process: usize) -> bool {
        process < self.words.places.processes && self.map.take_line_lock(1 + process).is_none()
    }

    /// Remove all tickets of a process, and call the tickets that are first now.
    #[cold]
    fn expel(&mut self, process: usize) {
        self.words.put_of_process(process, EXPELLED, 1);
        for ticket in self.words.ever_taken() {
            if self.words.of(ticket, ORDER) == 0 || self.words.owner(ticket).0 != process {
                continue;
            }
            let name = self.words.line_of(ticket);
            let was_first = self.words.head(&name) == Some(ticket);
            self.words.renew(self.words.bucket_of(&name));
            self.words.unlink(ticket);
            match self.words.head(&name) {
                Some(first) if was_first && self.words.owner(first).0 != process => self.call(first),
                _ => {}
            }
        }
    }
}
