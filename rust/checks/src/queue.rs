//! Checks that wait for a store which answers later: gathered on the door's threads, taken in batches by one that asks.
//!
//! Nothing waits for a batch to fill. What is taken is bounded, and so is what waits and what was taken together.

use std::collections::VecDeque;
use std::mem::{replace, take};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::bound::BoundLimits;
use crate::home::{Due, Home, Told, Wake};
pub use crate::outcome::{Outcome, Outcomes};

/// Checks that are asked for and not answered yet, of all threads; what comes beyond them is left to Python.
pub const MOST_UNANSWERED: usize = 16_384;

/// So many checks that wait are a batch by themselves: for fewer, what a batch costs is worth a turn of a thread.
const MANY: usize = 64;

/// What is asked of a store about one request; nothing of it depends on the request any more.
#[derive(Debug)]
pub struct Asked<C> {
    /// The limits, with what the store's owner knows of them.
    pub bound: Arc<BoundLimits<C>>,
    /// The text of each key.
    pub keys: SmallVec<[Box<str>; 2]>,
    /// For each group of the limits which key it has.
    pub key_of: SmallVec<[usize; 4]>,
    /// For each group what it is charged.
    pub costs: SmallVec<[i64; 4]>,
}

/// The checks of one request to the door, which are decided in their order.
struct Asking<C> {
    checks: SmallVec<[Asked<C>; 1]>,
    answers: oneshot::Sender<Outcomes>,
    /// The thread that waits for the answers; None where it has no event loop.
    home: Option<Home>,
    _place: Place,
}

/// A place among those that are not answered yet.
struct Place {
    unanswered: Arc<AtomicUsize>,
    count: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unanswered.fetch_sub(self.count, Relaxed);
    }
}

/// Checks that wait to be taken.
pub struct Queue<C>(Arc<Inner<C>>);

struct Inner<C> {
    waiting: Mutex<Waiting<C>>,
    unanswered: Arc<AtomicUsize>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Waiting<C> {
    askings: VecDeque<Asking<C>>,
    /// How many checks they are.
    count: usize,
    /// What takes batches has been woken and has not come yet, or a thread will wake it if something waits then.
    is_due: bool,
    /// A batch was taken and is not finished.
    is_under_way: bool,
}

impl<C: Send + Sync + 'static> Queue<C> {
    /// A queue; `wake` is called when something waits, and no batch is under way and none was asked for.
    ///
    /// A thread with an event loop calls it once the tasks that are ready have asked, too; after a batch, a thread that
    /// was told first sends what came of it, so that those who ask again are in the next one.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let waiting = Waiting { askings: VecDeque::new(), count: 0, is_due: false, is_under_way: false };
        Self(Arc::new(Inner { waiting: Mutex::new(waiting), unanswered: Arc::default(), wake: Box::new(wake) }))
    }

    /// Ask about the checks of a request, and get what came of them; None where too many wait already.
    pub fn ask(&self, checks: SmallVec<[Asked<C>; 1]>) -> Option<oneshot::Receiver<Outcomes>> {
        let place = Place { unanswered: Arc::clone(&self.0.unanswered), count: checks.len() };
        if self.0.unanswered.fetch_add(place.count, Relaxed) + place.count > MOST_UNANSWERED {
            return None;
        }
        let (answers, outcomes) = oneshot::channel();
        let home = Home::here();
        let mut waiting = self.0.lock();
        waiting.count += checks.len();
        waiting.askings.push_back(Asking { checks, answers, home: home.clone(), _place: place });
        let due = if waiting.is_under_way { None } else { self.0.due(&mut waiting) };
        drop(waiting);
        if let Some(due) = due {
            match home {
                Some(home) => home.ask(due),
                None => drop(due),
            }
        }
        Some(outcomes)
    }

    /// Take what waits, having been woken: about `most` checks, those of one request together; None where there are
    /// none, and while a batch is under way.
    ///
    /// What nobody waits for any more is dropped.
    pub fn take(&self, most: usize) -> Option<Batch<C>> {
        let mut waiting = self.0.lock();
        waiting.is_due = false;
        self.batch(waiting, most)
    }

    /// The same after a batch: None, too, where few wait and a thread is to wake for them, with what comes until then.
    pub fn take_more(&self, most: usize) -> Option<Batch<C>> {
        let waiting = self.0.lock();
        if waiting.is_due && waiting.count < MANY { None } else { self.batch(waiting, most) }
    }

    fn batch(&self, mut waiting: MutexGuard<'_, Waiting<C>>, most: usize) -> Option<Batch<C>> {
        let (mut askings, mut count) = (Vec::new(), 0);
        while !waiting.is_under_way
            && count < most
            && let Some(asking) = waiting.askings.pop_front()
        {
            waiting.count -= asking.checks.len();
            if !asking.answers.is_closed() {
                count += asking.checks.len();
                askings.push(asking);
            }
        }
        if count == 0 {
            return None;
        }
        waiting.is_under_way = true;
        drop(waiting);
        Some(Batch::new(askings, count, Arc::clone(&self.0)))
    }
}

impl<C: Send + Sync + 'static> Inner<C> {
    fn lock(&self) -> MutexGuard<'_, Waiting<C>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has a batch taken when it is dropped; None where that is to happen already.
    fn due(self: &Arc<Self>, waiting: &mut Waiting<C>) -> Option<Due> {
        (!replace(&mut waiting.is_due, true)).then(|| Due(Arc::clone(self) as Arc<dyn Wake>))
    }
}

impl<C: Send + Sync + 'static> Wake for Inner<C> {
    fn wake(&self) {
        let mut waiting = self.lock();
        waiting.is_due = !waiting.askings.is_empty() && !waiting.is_under_way;
        let is_due = waiting.is_due;
        drop(waiting);
        if is_due {
            (self.wake)();
        }
    }
}

/// Checks that were taken together, by number; dropped, what was decided is told.
pub struct Batch<C: Send + Sync + 'static> {
    askings: Vec<Asking<C>>,
    /// For each check of which asking it is, and which of its checks.
    places: Vec<(usize, usize)>,
    outcomes: Vec<Option<Outcome>>,
    queue: Arc<Inner<C>>,
}

impl<C: Send + Sync + 'static> Batch<C> {
    fn new(askings: Vec<Asking<C>>, count: usize, queue: Arc<Inner<C>>) -> Self {
        let mut places = Vec::with_capacity(count);
        for (number, asking) in askings.iter().enumerate() {
            places.extend((0..asking.checks.len()).map(|check| (number, check)));
        }
        Self { askings, places, outcomes: (0..count).map(|_| None).collect(), queue }
    }

    /// How many checks.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A check; None for a number that is none.
    pub fn check(&self, number: usize) -> Option<&Asked<C>> {
        let (asking, check) = *self.places.get(number)?;
        self.askings.get(asking)?.checks.get(check)
    }

    /// What came of a check, as far as it is known.
    pub fn outcome(&self, number: usize) -> Option<&Outcome> {
        self.outcomes.get(number)?.as_ref()
    }

    /// Take note of what came of a check.
    pub fn settle(&mut self, number: usize, outcome: Outcome) {
        if let Some(place) = self.outcomes.get_mut(number) {
            *place = Some(outcome);
        }
    }
}

impl<C: Send + Sync + 'static> Drop for Batch<C> {
    /// Tell all who wait; each thread is woken once.
    fn drop(&mut self) {
        let mut by_home: Vec<(Home, Vec<Told>)> = Vec::new();
        let mut outcomes = take(&mut self.outcomes).into_iter();
        for asking in take(&mut self.askings) {
            let told =
                Told { outcomes: outcomes.by_ref().take(asking.checks.len()).collect(), answers: asking.answers };
            let Some(home) = asking.home else {
                told.tell();
                continue;
            };
            match by_home.iter_mut().find(|(known, _)| known.is(&home)) {
                Some((_, all)) => all.push(told),
                None => by_home.push((home, vec![told])),
            }
        }
        let mut waiting = self.queue.lock();
        waiting.is_under_way = false;
        let mut due = if by_home.is_empty() { None } else { self.queue.due(&mut waiting) };
        drop(waiting);
        for (home, all) in by_home {
            home.tell(all, due.take());
        }
    }
}
