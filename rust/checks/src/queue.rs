//! Checks that wait for a store which answers later: gathered on the door's threads, taken in batches by one that asks.
//!
//! Nothing waits for a batch to fill. What is taken is bounded, and so is what waits and what was taken together.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headgate_core::table::answer::Answer;
use headgate_server::decide::Reply;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::bound::BoundLimits;

/// Checks that are asked for and not answered yet, of all threads; what comes beyond them is left to Python.
pub const MOST_UNANSWERED: usize = 16_384;

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

/// What came of a check.
#[derive(Debug)]
pub enum Outcome {
    /// A decision, and what made it in place of the store: `local`, `open`, `closed`, else empty.
    Decided(Answer, &'static str),
    /// A failure, with the response that tells of it.
    Failed(Reply),
}

/// What came of each check of a request; None where that is lost.
pub type Outcomes = SmallVec<[Option<Outcome>; 1]>;

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
pub struct Queue<C> {
    waiting: Mutex<VecDeque<Asking<C>>>,
    unanswered: Arc<AtomicUsize>,
    /// Batches that were taken and are not finished.
    under_way: Arc<AtomicUsize>,
    wake: Wake,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

impl<C> Queue<C> {
    /// A queue; `wake` is called when something waits where nothing did before, and no batch is under way: whoever takes
    /// batches looks again when one is finished.
    ///
    /// A thread with an event loop calls it once the tasks that are ready have asked, too.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { waiting: Mutex::default(), unanswered: Arc::default(), under_way: Arc::default(), wake: Arc::new(wake) }
    }

    /// Ask about the checks of a request, and get what came of them; None where too many wait already.
    pub fn ask(&self, checks: SmallVec<[Asked<C>; 1]>) -> Option<oneshot::Receiver<Outcomes>> {
        let place = Place { unanswered: Arc::clone(&self.unanswered), count: checks.len() };
        if self.unanswered.fetch_add(place.count, Relaxed) + place.count > MOST_UNANSWERED {
            return None;
        }
        let (answers, outcomes) = oneshot::channel();
        let home = Home::here();
        let mut waiting = self.lock();
        let was_empty = waiting.is_empty();
        waiting.push_back(Asking { checks, answers, home: home.clone(), _place: place });
        drop(waiting);
        if was_empty && self.under_way.load(SeqCst) == 0 {
            match home {
                Some(home) => home.wake(&self.wake),
                None => (self.wake)(),
            }
        }
        Some(outcomes)
    }

    /// Take what waits: about `most` checks, those of one request together; None where there are none.
    ///
    /// What nobody waits for any more is dropped.
    pub fn take(&self, most: usize) -> Option<Batch<C>> {
        let (mut askings, mut count) = (Vec::new(), 0);
        let mut waiting = self.lock();
        while count < most
            && let Some(asking) = waiting.pop_front()
        {
            if !asking.answers.is_closed() {
                count += asking.checks.len();
                askings.push(asking);
            }
        }
        drop(waiting);
        (count > 0).then(|| Batch::new(askings, count, Arc::clone(&self.under_way)))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Asking<C>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that were taken together, by number; dropped, what was decided is told.
pub struct Batch<C> {
    askings: Vec<Asking<C>>,
    /// For each check of which asking it is, and which of its checks.
    places: Vec<(usize, usize)>,
    outcomes: Vec<Option<Outcome>>,
    under_way: Arc<AtomicUsize>,
}

impl<C> Batch<C> {
    fn new(askings: Vec<Asking<C>>, count: usize, under_way: Arc<AtomicUsize>) -> Self {
        under_way.fetch_add(1, SeqCst);
        let mut places = Vec::with_capacity(count);
        for (number, asking) in askings.iter().enumerate() {
            places.extend((0..asking.checks.len()).map(|check| (number, check)));
        }
        Self { askings, places, outcomes: (0..count).map(|_| None).collect(), under_way }
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

impl<C> Drop for Batch<C> {
    /// Tell all who wait; each thread is woken once.
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, SeqCst);
        let mut by_home: Vec<(Home, Vec<Told>)> = Vec::new();
        let mut outcomes = take(&mut self.outcomes).into_iter();
        for asking in take(&mut self.askings) {
            let told =
                Told { outcomes: outcomes.by_ref().take(asking.checks.len()).collect(), answers: asking.answers };
            let Some(home) = asking.home else {
                told.tell();
                continue;
            };
            match by_home.iter_mut().find(|(known, _)| known.0.same_channel(&home.0)) {
                Some((_, all)) => all.push(told),
                None => by_home.push((home, vec![told])),
            }
        }
        for (home, all) in by_home {
            let _ = home.0.send(Errand::Tell(all)); // a thread that has ended waits for nothing
        }
    }
}

/// What is told to one request.
struct Told {
    outcomes: Outcomes,
    answers: oneshot::Sender<Outcomes>,
}

impl Told {
    fn tell(self) {
        let _ = self.answers.send(self.outcomes); // whoever has gone does not wait for it
    }
}

/// A thread with an event loop, which tells its own tasks: to wake each of them from elsewhere is a system call.
#[derive(Clone)]
struct Home(mpsc::UnboundedSender<Errand>);

/// What such a thread does when it is its turn.
enum Errand {
    Tell(Vec<Told>),
    Wake(Wake),
}

impl Home {
    /// The calling thread, if it has an event loop.
    fn here() -> Option<Self> {
        thread_local! {
            static HERE: RefCell<Option<Home>> = const { RefCell::new(None) };
        }
        let runtime = Handle::try_current().ok()?;
        HERE.with_borrow_mut(|here| {
            if let Some(home) = here
                && !home.0.is_closed()
            {
                return Some(home.clone());
            }
            let (sender, mut errands) = mpsc::unbounded_channel();
            runtime.spawn(async move {
                while let Some(errand) = errands.recv().await {
                    match errand {
                        Errand::Tell(all) => all.into_iter().for_each(Told::tell),
                        Errand::Wake(wake) => wake(),
                    }
                }
            });
            *here = Some(Self(sender));
            here.clone()
        })
    }

    /// Wake what takes batches after the tasks of this thread that are ready now.
    fn wake(&self, wake: &Wake) {
        if self.0.send(Errand::Wake(Arc::clone(wake))).is_err() {
            wake();
        }
    }
}
