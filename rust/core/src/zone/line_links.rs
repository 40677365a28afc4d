//! The links of tickets: to lines, to the list of called ones, and to the free list. The lock is held.
//!
//! A ticket is in line from the moment its order is written until that is 0 again. All else follows from the tickets,
//! and is rebuilt from them where a process died while it changed something: see `relink`. Every walk ends, whatever is
//! written.

use crate::zone::line_layout::{GROUPS, LinePlaces};
use crate::zone::line_words::{
    CALLED, COUNT, HEAD, IS_CALLED, LINKS, LineName, LineWords, META, ORDER, ORDERS, TICKETS,
};
use crate::zone::pool::{halves, word_of};

impl LineWords<'_> {
    /// All tickets that were ever taken.
    pub fn ever_taken(&self) -> impl Iterator<Item = u32> + use<> {
        1..=halves(self.get(TICKETS)).1.min(self.places.tickets as u32)
    }

    /// The first tickets of all lines in a bucket.
    pub fn heads(&self, bucket: usize) -> impl Iterator<Item = u32> {
        self.walk(self.get(bucket) as u32, |ticket| self.of(ticket, HEAD) as u32)
    }

    /// The first ticket of a line.
    pub fn head(&self, name: &LineName) -> Option<u32> {
        self.heads(self.bucket_of(name)).find(|head| self.line_of(*head).words == name.words)
    }

    /// The tickets of a line, from its first on.
    pub fn line(&self, head: u32) -> impl Iterator<Item = u32> {
        self.walk(head, |ticket| self.of(ticket, LINKS) as u32)
    }

    /// The tickets of a line, from its last one on.
    pub fn line_back(&self, head: u32) -> impl Iterator<Item = u32> {
        self.walk(self.last(head), |ticket| halves(self.of(ticket, LINKS)).1)
    }

    /// The last ticket of a line.
    pub fn last(&self, head: u32) -> u32 {
        halves(self.of(head, HEAD)).1
    }

    fn walk(&self, first: u32, next: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
        let mut at = first;
        (0..self.places.tickets).map_while(move |_| {
            let ticket = at;
            at = next(ticket);
            (ticket != 0).then_some(ticket)
        })
    }

    /// Take a free ticket; None where there is none.
    pub fn take(&self) -> Option<u32> {
        let (free, ever_taken) = halves(self.get(TICKETS));
        if self.is_ticket(free) {
            self.put(TICKETS, word_of(self.of(free, LINKS) as u32, ever_taken));
            return Some(free);
        }
        let fresh = ever_taken.saturating_add(1);
        self.put(TICKETS, word_of(0, if self.is_ticket(fresh) { fresh } else { ever_taken }));
        self.is_ticket(fresh).then_some(fresh)
    }

    fn give(&self, ticket: u32) {
        let (free, ever_taken) = halves(self.get(TICKETS));
        self.put_of(ticket, LINKS, u64::from(free));
        self.put(TICKETS, word_of(ticket, ever_taken));
    }

    /// Put a ticket last in its line.
    pub fn link(&self, ticket: u32) {
        let name = self.line_of(ticket);
        if let Some(head) = self.head(&name) {
            let last = self.last(head);
            self.put_of(last, LINKS, word_of(ticket, halves(self.of(last, LINKS)).1));
            self.put_of(ticket, LINKS, word_of(0, last));
            self.put_of(head, HEAD, word_of(self.of(head, HEAD) as u32, ticket));
        } else {
            let bucket = self.bucket_of(&name);
            self.put_of(ticket, LINKS, 0);
            self.put_of(ticket, HEAD, word_of(self.get(bucket) as u32, ticket));
            self.put(bucket, u64::from(ticket));
        }
        self.count(ticket, &name, 1);
    }

    /// Remove a ticket from its line, and free it.
    pub fn unlink(&self, ticket: u32) {
        self.put_of(ticket, ORDER, 0);
        let name = self.line_of(ticket);
        let (next, former) = halves(self.of(ticket, LINKS));
        match self.head(&name) {
            Some(head) if head == ticket => {
                let (next_line, last) = halves(self.of(ticket, HEAD));
                if next != 0 {
                    self.put_of(next, LINKS, u64::from(self.of(next, LINKS) as u32));
                    self.put_of(next, HEAD, word_of(next_line, last));
                }
                self.replace_head(&name, ticket, if next == 0 { next_line } else { next });
            }
            Some(head) => {
                self.put_of(former, LINKS, word_of(next, halves(self.of(former, LINKS)).1));
                if next == 0 {
                    self.put_of(head, HEAD, word_of(self.of(head, HEAD) as u32, former));
                } else {
                    self.put_of(next, LINKS, word_of(self.of(next, LINKS) as u32, former));
                }
            }
            None => {}
        }
        self.uncall(ticket);
        self.count(ticket, &name, -1);
        self.give(ticket);
    }

    fn replace_head(&self, name: &LineName, head: u32, by: u32) {
        let bucket = self.bucket_of(name);
        if self.get(bucket) as u32 == head {
            self.put(bucket, u64::from(by));
        } else if let Some(before) = self.heads(bucket).find(|before| self.of(*before, HEAD) as u32 == head) {
            self.put_of(before, HEAD, word_of(by, self.last(before)));
        }
    }

    fn count(&self, ticket: u32, name: &LineName, more: i64) {
        let process = self.owner(ticket).0;
        self.put_of_process(process, COUNT, self.of_process(process, COUNT).saturating_add_signed(more));
        if name.for_places {
            let waited = LinePlaces::waited(name.group);
            self.put(waited, self.get(waited).saturating_add_signed(more));
        }
    }

    /// Mark a ticket as called; returns whether that is new.
    pub fn call(&self, ticket: u32) -> bool {
        let (meta, process) = (self.of(ticket, META), self.owner(ticket).0);
        if meta & IS_CALLED != 0 {
            return false;
        }
        let next = self.of_process(process, CALLED) as u32;
        self.put_of(ticket, META, word_of(meta as u32, next) | IS_CALLED);
        self.put_of_process(process, CALLED, u64::from(ticket));
        true
    }

    /// The tickets of a process that are called.
    pub fn called(&self, process: usize) -> impl Iterator<Item = u32> {
        self.walk(self.of_process(process, CALLED) as u32, |ticket| halves(self.of(ticket, META)).1)
    }

    /// Mark a ticket as no longer called.
    pub fn uncall(&self, ticket: u32) {
        let (meta, process) = (self.of(ticket, META), self.owner(ticket).0);
        if meta & IS_CALLED == 0 {
            return;
        }
        let next = halves(meta).1;
        if self.of_process(process, CALLED) as u32 == ticket {
            self.put_of_process(process, CALLED, u64::from(next));
        } else if let Some(before) = self.called(process).find(|each| halves(self.of(*each, META)).1 == ticket) {
            self.put_of(before, META, word_of(self.of(before, META) as u32, next));
        }
        self.put_of(ticket, META, u64::from(meta as u32) & !IS_CALLED);
    }

    /// Rebuild all links from the tickets of the processes that are present.
    #[cold]
    pub fn relink(&self, is_present: impl Fn(usize) -> bool) {
        let present: Vec<bool> = (0..self.places.processes).map(is_present).collect();
        for process in 0..self.places.processes {
            self.put_of_process(process, CALLED, 0);
            self.put_of_process(process, COUNT, 0);
        }
        for group in 0..GROUPS {
            self.put(LinePlaces::waited(group), 0);
            for bucket in self.buckets_of(group) {
                self.put(bucket, 0);
                self.renew(bucket);
            }
        }
        self.put(TICKETS, word_of(0, halves(self.get(TICKETS)).1.min(self.places.tickets as u32)));
        let mut waiting = Vec::new();
        for ticket in self.ever_taken() {
            let (order, meta) = (self.of(ticket, ORDER), self.of(ticket, META));
            self.put_of(ticket, META, u64::from(meta as u32) & !IS_CALLED);
            if order != 0 && present.get(self.owner(ticket).0) == Some(&true) {
                waiting.push((order, ticket));
            } else {
                self.put_of(ticket, ORDER, 0);
                self.give(ticket);
            }
        }
        waiting.sort_unstable();
        if let Some((order, _)) = waiting.last() {
            self.put(ORDERS, self.get(ORDERS).max(*order));
        }
        waiting.into_iter().for_each(|(_, ticket)| self.link(ticket));
    }
}
