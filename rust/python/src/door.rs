//! The front door of the service: `headgate_server::door`, for the process that serves.

use std::io;
use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use headgate_core::memory::shared::same_file;
use headgate_server::bounds::Bounds;
use headgate_server::decide::{Answer, Check, Decide};
use headgate_server::door::{Door as Threads, Options};
use headgate_server::stats::Figures;
use headgate_server::tls::{Part, Pem, Tls as DoorTls};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::checks::Checks;
use crate::late_checks::LateChecks;

/// The interval between checks whether all threads have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Serves listening sockets on threads of its own.
#[pyclass(frozen, module = "headgate._native")]
pub struct Door {
    threads: Threads,
}

/// The figures of a door: (route, status, responses) for those that occurred, then the other numbers of `Figures`.
type DoorFigures = (Vec<(&'static str, u16, u64)>, u64, u64, u64, u64, u64, u64, u64);

/// The certificate of a door, and the clients that it admits: `headgate_server::tls`.
#[pyclass(frozen, module = "headgate._native")]
pub struct Tls {
    tls: DoorTls,
}

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (certificate, key, client_ca=None))]
    fn new(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> PyResult<Self> {
        let tls = DoorTls::new(&Pem { certificate, key, client_ca }).map_err(|unusable| {
            let part = match unusable.part {
                Part::Certificate => "certificate",
                Part::Key => "key",
                Part::ClientCa => "client_ca",
            };
            PyValueError::new_err((part, unusable.why))
        })?;
        Ok(Self { tls })
    }

    #[getter]
    fn validity(&self) -> Option<(String, String)> {
        self.tls.validity.clone()
    }
}

/// Leaves every check to the Python service.
struct PassAll;

impl Decide for PassAll {
    fn decide(&self, _: &Check<'_>) -> Answer {
        Answer::Pass
    }
}

#[pymethods]
impl Door {
    #[new]
    #[pyo3(signature = (listeners, python_socket, checks, *, threads, cpus, forwarded, streams, bounds, tls=None))]
    #[allow(clippy::too_many_arguments)] // all settings of a door
    fn new(
        py: Python<'_>,
        listeners: Vec<RawFd>,
        python_socket: PathBuf,
        checks: Option<&Bound<'_, PyAny>>,
        threads: usize,
        cpus: Vec<usize>,
        forwarded: usize,
        streams: u32,
        bounds: &Bound<'_, PyAny>,
        tls: Option<&Tls>,
    ) -> PyResult<Self> {
        let (bounds, tls) = (read_bounds(bounds, forwarded, streams)?, tls.map(|tls| tls.tls.clone()));
        let options = Options { python_socket, threads, cpus, bounds, tls };
        let listeners = listeners.into_iter().map(listener_of).collect::<Result<Vec<_>, _>>()?;
        let decider = decider_of(checks)?;
        let threads = py.detach(|| Threads::open(listeners, options, decider))?;
        Ok(Self { threads })
    }

    #[pyo3(signature = (checks, /))]
    fn swap(&self, checks: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.threads.swap(decider_of(checks)?);
        Ok(())
    }

    #[pyo3(signature = (tls, /))]
    fn swap_tls(&self, tls: &Tls) {
        self.threads.swap_tls(tls.tls.clone());
    }

    fn announce_end(&self) {
        self.threads.announce_end();
    }

    fn end(&self, within_s: f64) -> PyResult<()> {
        self.threads.end(duration(within_s)?);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.threads.has_ended()
    }

    fn figures(&self) -> DoorFigures {
        let Figures { responses, left_to_python, accepted, open, gave_way, expired, idle, no_handshake, held: _ } =
            self.threads.figures();
        (responses, left_to_python, accepted, open, gave_way, expired, idle, no_handshake)
    }
}

impl Drop for Door {
    /// Wait for the threads detached from the interpreter, which one of them may wait for.
    fn drop(&mut self) {
        self.threads.end(Duration::ZERO);
        Python::attach(|py| {
            py.detach(|| {
                while !self.threads.has_ended() {
                    sleep(POLL_INTERVAL);
                }
            });
        });
    }
}

/// The decider of checks: `Checks` on a table, `LateChecks` on a store that is waited for; None leaves all to Python.
fn decider_of(checks: Option<&Bound<'_, PyAny>>) -> PyResult<Box<dyn Decide>> {
    let Some(checks) = checks else {
        return Ok(Box::new(PassAll));
    };
    if let Ok(late) = checks.cast::<LateChecks>() {
        return Ok(Box::new(Arc::clone(&late.get().decider)));
    }
    Ok(Box::new(Arc::clone(&checks.cast::<Checks>()?.get().decider)))
}

/// A clone of the listening socket that has this descriptor.
fn listener_of(descriptor: RawFd) -> io::Result<TcpListener> {
    Ok(OwnedFd::from(same_file(descriptor)?).into())
}

/// Read a `headgate.service.http.bounds.Bounds`.
fn read_bounds(bounds: &Bound<'_, PyAny>, forwarded: usize, streams: u32) -> PyResult<Bounds> {
    let py = bounds.py();
    Ok(Bounds {
        connections: bounds.getattr(intern!(py, "connections"))?.extract()?,
        connections_of_client: usize::MAX,
        held_bytes: bounds.getattr(intern!(py, "held_bytes"))?.extract()?,
        head_bytes: bounds.getattr(intern!(py, "head_bytes"))?.extract()?,
        target_bytes: bounds.getattr(intern!(py, "target_bytes"))?.extract()?,
        fields: bounds.getattr(intern!(py, "fields"))?.extract()?,
        body_bytes: bounds.getattr(intern!(py, "body_bytes"))?.extract()?,
        head: duration(bounds.getattr(intern!(py, "head_s"))?.extract()?)?,
        body: duration(bounds.getattr(intern!(py, "body_s"))?.extract()?)?,
        take: duration(bounds.getattr(intern!(py, "take_s"))?.extract()?)?,
        idle: duration(bounds.getattr(intern!(py, "idle_s"))?.extract()?)?,
        forwarded,
        streams,
    })
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(format!("{seconds} s: {error}")))
}
