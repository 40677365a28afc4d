//! What a limit has made of the routes that its requests found; the native twin of
//! `headgate.integrations.starlette.places.PythonPlaces`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::decided_at::CameAt;
use crate::route_passed::RoutePassed;
use crate::web_gate::WebGate;

/// So many routes and ways to them are known of a router; what a client calls a method may be part of a way.
const MOST_KNOWN: usize = 4096;

/// What one limit makes of each route that it is asked for, made once.
#[pyclass(frozen, module = "headgate._native")]
pub struct RoutePlaces {
    /// Gives (what is made of a route, whether it is that of all requests that come to it in one way).
    make: Py<PyAny>,
    by_method: bool,
}

#[pymethods]
impl RoutePlaces {
    #[new]
    #[pyo3(signature = (make, *, by_method))]
    fn new(make: Py<PyAny>, by_method: bool) -> Self {
        Self { make, by_method }
    }

    #[pyo3(signature = (scope, /))]
    fn of<'py>(slf: &Bound<'py, Self>, scope: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let own = slf.get();
        let known = match scope.cast_exact::<PyDict>() {
            Ok(scope) => match known_of(scope)? {
                Some(known) => Some((known, Way::new(scope, own.by_method)?)),
                None => None,
            },
            Err(_) => None,
        };
        if let Some((known, way)) = &known
            && let Some(made) = known.get().find(py, slf, way)
        {
            return Ok(made.place);
        }
        let (made, is_stable): (Bound<'py, PyAny>, bool) = own.make.bind(py).call1((scope,))?.extract()?;
        if let (Some((known, way)), true) = (known, is_stable) {
            let asked = Asked::of(&made)?;
            known.get().remember(slf, way, Made { place: made.clone(), asked });
        }
        Ok(made)
    }

    #[pyo3(signature = (scope, /))]
    fn ask<'py>(slf: &Bound<'py, Self>, scope: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, exchange) = (slf.py(), intern!(slf.py(), "headgate"));
        let Ok(scope) = scope.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        if scope.contains(exchange)? {
            return Ok(None); // other limits have judged this request, or see its response
        }
        let Some(known) = known_of(scope)? else {
            return Ok(None);
        };
        let way = Way::new(scope, slf.get().by_method)?;
        let Some(Made { place, asked: Some(asked) }) = known.get().find(py, slf, &way) else {
            return Ok(None);
        };
        let asked_us = asked.clock.now_us(py)?;
        let Some(decided) = asked.gate.get().at_route(py, scope, &asked.counted_as)? else {
            return Ok(None);
        };
        let (decision, fields) = match (decided.came, decided.fields) {
            (CameAt::Decided(decision), Some(fields)) => (decision, fields.unbind()),
            (came, _) => {
                let key = decided.key.map(|key| key.parts(py)).transpose()?;
                return Ok(Some((came.into_object(py)?, (key, asked_us)).into_pyobject(py)?.into_any()));
            }
        };
        let passed = Bound::new(py, RoutePassed::new(place.unbind(), decision, fields, decided.key, asked_us))?;
        scope.set_item(exchange, &passed)?;
        Ok(Some(passed.into_any()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.make)
    }
}

/// How requests are asked for natively at a place.
struct Asked {
    gate: Py<WebGate>,
    counted_as: Box<str>,
    clock: Clock,
}

impl Asked {
    /// As a `headgate.http.server.routes.RoutePlace` says; None for anything else, and where Python decides.
    fn of(made: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Self>>> {
        let py = made.py();
        let Some(gate) = made.getattr_opt(intern!(py, "gate"))? else {
            return Ok(None);
        };
        let Ok(gate) = gate.cast_into::<WebGate>() else {
            return Ok(None);
        };
        let clock: Option<Py<PyAny>> = made.getattr(intern!(py, "clock"))?.extract()?;
        let counted_as: String = made.getattr(intern!(py, "counted_as"))?.extract()?;
        let (gate, counted_as) = (gate.unbind(), counted_as.into_boxed_str());
        Ok(Some(Arc::new(Self { gate, counted_as, clock: Clock::new(clock, None) })))
    }
}

/// What was made of a route, and how it is asked natively.
struct Made<'py> {
    place: Bound<'py, PyAny>,
    asked: Option<Arc<Asked>>,
}

/// How a request came to its route.
struct Way<'py> {
    route: Option<Bound<'py, PyAny>>,
    /// What FastAPI tells of a route that was included.
    context: Option<Bound<'py, PyAny>>,
    /// Before which mounts the application is, and what was taken off the path so far.
    app_root: Option<Bound<'py, PyAny>>,
    root: Option<Bound<'py, PyAny>>,
    method: Option<Bound<'py, PyAny>>,
    endpoint: Option<Bound<'py, PyAny>>,
}

impl<'py> Way<'py> {
    #[inline]
    fn new(scope: &Bound<'py, PyDict>, by_method: bool) -> PyResult<Self> {
        let py = scope.py();
        let told = |name: &Bound<'py, PyString>| -> PyResult<Option<Bound<'py, PyAny>>> {
            Ok(scope.get_item(name)?.filter(|value| !value.is_none()))
        };
        let context = match told(intern!(py, "fastapi"))? {
            Some(fastapi) => match fastapi.cast::<PyDict>() {
                Ok(fastapi) => fastapi.get_item(intern!(py, "effective_route_context"))?,
                Err(_) => None,
            },
            None => None,
        };
        Ok(Self {
            route: told(intern!(py, "route"))?,
            context: context.filter(|context| !context.is_none()),
            app_root: told(intern!(py, "app_root_path"))?,
            root: told(intern!(py, "root_path"))?,
            method: if by_method { told(intern!(py, "method"))? } else { None },
            endpoint: told(intern!(py, "endpoint"))?,
        })
    }
}

/// A limit, a route, its context and its endpoint by their addresses: what is known of them keeps them.
type Objects = (usize, usize, usize, usize);

#[inline]
fn objects(places: &Bound<'_, RoutePlaces>, way: &Way<'_>) -> Objects {
    let address = |object: &Option<Bound<'_, PyAny>>| object.as_ref().map_or(0, |object| object.as_ptr() as usize);
    (places.as_ptr() as usize, address(&way.route), address(&way.context), address(&way.endpoint))
}

/// What was made of a route for those that come to it in one way.
struct Remembered {
    app_root: Option<Py<PyAny>>,
    root: Option<Py<PyAny>>,
    method: Option<Py<PyAny>>,
    made: Py<PyAny>,
    asked: Option<Arc<Asked>>,
    kept: (Py<RoutePlaces>, [Option<Py<PyAny>>; 3]),
}

impl Remembered {
    #[inline]
    fn is_of(&self, py: Python<'_>, way: &Way<'_>) -> bool {
        is_same(py, &self.root, &way.root)
            && is_same(py, &self.app_root, &way.app_root)
            && is_same(py, &self.method, &way.method)
    }
}

/// Whether two are one object or one text.
#[inline]
fn is_same(py: Python<'_>, known: &Option<Py<PyAny>>, asked: &Option<Bound<'_, PyAny>>) -> bool {
    match (known, asked) {
        (None, None) => true,
        (Some(known), Some(asked)) => known.is(asked) || is_same_text(known.bind(py), asked),
        _ => false,
    }
}

/// Only of Python's own class of text: to compare another one may run code of Python.
fn is_same_text(known: &Bound<'_, PyAny>, asked: &Bound<'_, PyAny>) -> bool {
    let are_texts = known.is_exact_instance_of::<PyString>() && asked.is_exact_instance_of::<PyString>();
    are_texts && known.eq(asked).unwrap_or(false)
}

/// What is known of a router's routes. It is kept on that itself, and ends with it: it refers to its routes.
#[pyclass(frozen, module = "headgate._native")]
#[derive(Default)]
pub struct KnownRoutes {
    all: Mutex<FxHashMap<Objects, Vec<Remembered>>>,
}

#[pymethods]
impl KnownRoutes {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(all) = self.all.try_lock() else {
            return Ok(()); // in use, and so it is alive
        };
        for known in all.values().flatten() {
            visit.call(&known.app_root)?;
            visit.call(&known.root)?;
            visit.call(&known.method)?;
            visit.call(&known.made)?;
            if let Some(asked) = &known.asked {
                visit.call(&asked.gate)?;
            }
            visit.call(&known.kept.0)?;
            known.kept.1.iter().try_for_each(|object| visit.call(object))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let gone = std::mem::take(&mut *self.lock());
        drop(gone);
    }

    /// A copy of a router has routes of its own.
    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        Self::default()
    }
}

impl KnownRoutes {
    /// No code of Python runs under this lock.
    fn lock(&self) -> MutexGuard<'_, FxHashMap<Objects, Vec<Remembered>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn find<'py>(&self, py: Python<'py>, places: &Bound<'py, RoutePlaces>, way: &Way<'py>) -> Option<Made<'py>> {
        let all = self.lock();
        let known = all.get(&objects(places, way))?.iter().find(|known| known.is_of(py, way))?;
        Some(Made { place: known.made.bind(py).clone(), asked: known.asked.clone() })
    }

    fn remember<'py>(&self, places: &Bound<'py, RoutePlaces>, way: Way<'py>, made: Made<'py>) {
        let objects = objects(places, &way);
        let remembered = Remembered {
            app_root: way.app_root.map(Bound::unbind),
            root: way.root.map(Bound::unbind),
            method: way.method.map(Bound::unbind),
            made: made.place.unbind(),
            asked: made.asked,
            kept: (places.clone().unbind(), [way.route, way.context, way.endpoint].map(|it| it.map(Bound::unbind))),
        };
        let mut all = self.lock();
        let is_full = all.values().map(Vec::len).sum::<usize>() >= MOST_KNOWN;
        let gone = if is_full { std::mem::take(&mut *all) } else { FxHashMap::default() };
        all.entry(objects).or_default().push(remembered);
        drop(all); // before what is gone: that runs code of Python
        drop(gone);
    }
}

/// What is known of the routes of a scope's router; None where there is none, or it can be kept nowhere.
#[inline]
fn known_of<'py>(scope: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, KnownRoutes>>> {
    let py = scope.py();
    let Some(router) = scope.get_item(intern!(py, "router"))? else {
        return Ok(None);
    };
    let name = intern!(py, "_headgate_places");
    if let Some(known) = router.getattr_opt(name)? {
        return Ok(known.cast_into::<KnownRoutes>().ok());
    }
    let made = Bound::new(py, KnownRoutes::default())?;
    Ok(router.setattr(name, &made).is_ok().then_some(made))
}
