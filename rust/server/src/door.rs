//! The front door: its threads, and the operations on it while they run.
//!
//! Each thread has an event loop of its own, with the connections that it has accepted; docs/decisions/0062 says why.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::runtime;
use tokio::sync::watch;

use crate::accepting::run;
use crate::bounds::Bounds;
use crate::decide::Decide;
use crate::deciding::Deciding;
use crate::forward::{Forward, Turns};
use crate::registry::Registry;
use crate::stats::{Figures, Stats};
use crate::tls::Tls;
use crate::worker::{Shared, Worker};

/// The options of a door.
pub struct Options {
    /// The private socket of the Python service, a path that no other user may reach.
    pub python_socket: PathBuf,
    /// How many threads serve, at least 1.
    pub threads: usize,
    /// The CPU that each thread runs on, by its number; threads beyond these run wherever the process may.
    pub cpus: Vec<usize>,
    /// What clients may take.
    pub bounds: Bounds,
    /// Its certificate and client authority; None serves without TLS.
    pub tls: Option<Tls>,
}

/// An open door. Dropping it closes it at once.
pub struct Door {
    shared: Arc<Shared>,
    ending: watch::Sender<Option<Duration>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Door {
    /// Serve connections to these listening sockets, which become non-blocking; threads beyond their number share them.
    ///
    /// Errors: there is no socket or thread in the options, or the system has no threads or descriptors left.
    pub fn open(listeners: Vec<TcpListener>, options: Options, decider: Box<dyn Decide>) -> io::Result<Self> {
        if listeners.is_empty() || options.threads == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a door needs a listening socket and a thread"));
        }
        let Options { python_socket, threads, cpus, bounds, tls } = options;
        let registry = Registry::new(&bounds);
        let shared = Arc::new(Shared {
            bounds: Arc::new(bounds),
            registry: Arc::new(registry),
            deciding: Deciding::new(decider),
            tls: tls.map(|tls| ArcSwap::new(tls.config)),
            stats: (0..threads).map(|_| Stats::default()).collect(),
            ends: AtomicBool::new(false),
        });
        let (ending, ending_receiver) = watch::channel(None);
        let turns = Turns::new(shared.bounds.forwarded);
        let mut door = Self { shared, ending, threads: vec![] };
        for number in 0..threads {
            let listener = listeners[number % listeners.len()].try_clone()?;
            listener.set_nonblocking(true)?;
            let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
            let forward = Forward::new(python_socket.clone(), turns.clone());
            let worker = Arc::new(Worker::new(Arc::clone(&door.shared), number, forward));
            let ending = ending_receiver.clone();
            let cpu = cpus.get(number).copied();
            let serve = move || {
                if let Some(cpu) = cpu {
                    stay_on(cpu);
                }
                runtime.block_on(run(worker, listener, ending))
            };
            door.threads.push(Builder::new().name(format!("headgate-door-{number}")).spawn(serve)?);
        }
        Ok(door)
    }

    /// Replace the current decider. Every request is decided by one of the two.
    pub fn swap(&self, decider: Box<dyn Decide>) {
        self.shared.deciding.swap(decider);
    }

    /// Use another certificate for new connections; open ones go on. Without effect on a door without TLS.
    pub fn swap_tls(&self, tls: Tls) {
        if let Some(in_force) = &self.shared.tls {
            in_force.store(tls.config);
        }
    }

    /// Make every response the last one of its connection from now on, so that clients go elsewhere.
    pub fn announce_end(&self) {
        self.shared.ends.store(true, Relaxed);
    }

    /// Close the port, finish what has begun within a time, and cut off the rest; returns without waiting.
    ///
    /// Calling it again restarts the time.
    pub fn end(&self, within: Duration) {
        self.announce_end();
        self.ending.send_replace(Some(within));
    }

    /// Whether all threads have ended: the port is closed, and all connections are.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// `end`, and wait for all threads.
    ///
    /// Errors are those of the system on the threads.
    pub fn drain(&mut self, within: Duration) -> io::Result<()> {
        self.end(within);
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(ended) => result = result.and(ended),
                Err(_) => result = Err(io::Error::other("a thread of the door has panicked")),
            }
        }
        result
    }

    /// The counters since it opened.
    pub fn figures(&self) -> Figures {
        let registry = &self.shared.registry;
        Figures::of(self.shared.stats.iter(), registry.len(), registry.held())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = self.drain(Duration::ZERO);
    }
}

/// Keep this thread on a CPU. Where that is no longer available, it runs wherever the process may.
fn stay_on(cpu: usize) {
    if cpu < CpuSet::MAX_CPU {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        let _ = sched_setaffinity(None, &cpus);
    }
}
