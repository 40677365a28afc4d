//! The values that a limit computes for the routes of its requests; the native twin of
//! `headgate.integrations.starlette.places.PythonPlaces`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

use crate::clock::Clock;
use crate::route_outcome::RouteAnswer;
use crate::route_passed::RoutePassed;
use crate::web_gate::WebGate;

/// The most routes and keys cached for a router; a method name that a client invents may be part of a key.
const MOST_CACHED: usize = 4096;

/// The value of one limit for each route, computed once.
#[pyclass(frozen, module = "headgate._native")]
pub struct RoutePlaces {
    /// Gives (the value of a route, whether it holds for all requests with the same key).
    find: Py<PyAny>,
    by_method: bool,
}

#[pymethods]
impl RoutePlaces {
    #[new]
    #[pyo3(signature = (find, *, by_method))]
    fn new(find: Py<PyAny>, by_method: bool) -> Self {
        Self { find, by_method }
    }

    #[pyo3(signature = (scope, /))]
    fn of<'py>(slf: &Bound<'py, Self>, scope: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let cache = match scope.cast_exact::<PyDict>() {
            Ok(scope) => match cache_of(scope)? {
                Some(cache) => Some((cache, RouteKey::new(scope, this.by_method)?)),
                None => None,
            },
            Err(_) => None,
        };
        if let Some((cache, key)) = &cache
            && let Some(found) = cache.get().find(py, slf, key)
        {
            return Ok(found.value);
        }
        let (value, is_stable): (Bound<'py, PyAny>, bool) = this.find.bind(py).call1((scope,))?.extract()?;
        if let (Some((cache, key)), true) = (cache, is_stable) {
            let native_route = NativeRoute::of(&value)?;
            cache.get().store(slf, key, RouteValue { value: value.clone(), native_route });
        }
        Ok(value)
    }

    #[pyo3(signature = (scope, /))]
    fn decide<'py>(slf: &Bound<'py, Self>, scope: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, exchange) = (slf.py(), intern!(slf.py(), "headgate"));
        let Ok(scope) = scope.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        if scope.contains(exchange)? {
            return Ok(None); // other limits have judged this request, or see its response
        }
        let Some(cache) = cache_of(scope)? else {
            return Ok(None);
        };
        let key = RouteKey::new(scope, slf.get().by_method)?;
        let Some(RouteValue { value: place, native_route: Some(native_route) }) = cache.get().find(py, slf, &key)
        else {
            return Ok(None);
        };
        let charged_us = native_route.clock.now_us(py)?;
        let Some(outcome) = native_route.gate.get().route_outcome(py, scope, &native_route.counted_as)? else {
            return Ok(None);
        };
        let (decision, fields) = match (outcome.answer, outcome.fields) {
            (RouteAnswer::Decided(decision), Some(fields)) => (decision, fields.unbind()),
            (answer, _) => {
                let key = outcome.key.map(|key| key.parts(py)).transpose()?;
                return Ok(Some((answer.into_object(py)?, (key, charged_us)).into_pyobject(py)?.into_any()));
            }
        };
        let passed = Bound::new(py, RoutePassed::new(place.unbind(), decision, fields, outcome.key, charged_us))?;
        scope.set_item(exchange, &passed)?;
        Ok(Some(passed.into_any()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.find)
    }
}

/// The native gate of a place, which decides its requests.
struct NativeRoute {
    gate: Py<WebGate>,
    counted_as: Box<str>,
    clock: Clock,
}

impl NativeRoute {
    /// That of a `headgate.http.server.routes.RoutePlace`; None for any other value, and where Python decides.
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Self>>> {
        let py = value.py();
        let Some(gate) = value.getattr_opt(intern!(py, "gate"))? else {
            return Ok(None);
        };
        let Ok(gate) = gate.cast_into::<WebGate>() else {
            return Ok(None);
        };
        let clock: Option<Py<PyAny>> = value.getattr(intern!(py, "clock"))?.extract()?;
        let counted_as: String = value.getattr(intern!(py, "counted_as"))?.extract()?;
        let (gate, counted_as) = (gate.unbind(), counted_as.into_boxed_str());
        Ok(Some(Arc::new(Self { gate, counted_as, clock: Clock::new(clock, None) })))
    }
}

/// The value of a route, and its native gate.
struct RouteValue<'py> {
    value: Bound<'py, PyAny>,
    native_route: Option<Arc<NativeRoute>>,
}

/// How a request reached its route.
struct RouteKey<'py> {
    route: Option<Bound<'py, PyAny>>,
    /// The context that FastAPI has for a route that was included.
    context: Option<Bound<'py, PyAny>>,
    /// The root path of the application before its mounts, and the one up to this route.
    app_root: Option<Bound<'py, PyAny>>,
    root: Option<Bound<'py, PyAny>>,
    method: Option<Bound<'py, PyAny>>,
    endpoint: Option<Bound<'py, PyAny>>,
}

impl<'py> RouteKey<'py> {
    #[inline]
    fn new(scope: &Bound<'py, PyDict>, by_method: bool) -> PyResult<Self> {
        let py = scope.py();
        let field = |name: &Bound<'py, PyString>| -> PyResult<Option<Bound<'py, PyAny>>> {
            Ok(scope.get_item(name)?.filter(|value| !value.is_none()))
        };
        let context = match field(intern!(py, "fastapi"))? {
            Some(fastapi) => match fastapi.cast::<PyDict>() {
                Ok(fastapi) => fastapi.get_item(intern!(py, "effective_route_context"))?,
                Err(_) => None,
            },
            None => None,
        };
        Ok(Self {
            route: field(intern!(py, "route"))?,
            context: context.filter(|context| !context.is_none()),
            app_root: field(intern!(py, "app_root_path"))?,
            root: field(intern!(py, "root_path"))?,
            method: if by_method { field(intern!(py, "method"))? } else { None },
            endpoint: field(intern!(py, "endpoint"))?,
        })
    }
}

/// A limit, a route, its context and its endpoint by their addresses: a cached place keeps these objects alive.
type Objects = (usize, usize, usize, usize);

#[inline]
fn objects(places: &Bound<'_, RoutePlaces>, key: &RouteKey<'_>) -> Objects {
    let address = |object: &Option<Bound<'_, PyAny>>| object.as_ref().map_or(0, |object| object.as_ptr() as usize);
    (places.as_ptr() as usize, address(&key.route), address(&key.context), address(&key.endpoint))
}

/// The value of a route for requests with the same key.
struct CachedPlace {
    app_root: Option<Py<PyAny>>,
    root: Option<Py<PyAny>>,
    method: Option<Py<PyAny>>,
    value: Py<PyAny>,
    native_route: Option<Arc<NativeRoute>>,
    keep_alive: (Py<RoutePlaces>, [Option<Py<PyAny>>; 3]),
}

impl CachedPlace {
    #[inline]
    fn is_of(&self, py: Python<'_>, key: &RouteKey<'_>) -> bool {
        is_same(py, &self.root, &key.root)
            && is_same(py, &self.app_root, &key.app_root)
            && is_same(py, &self.method, &key.method)
    }
}

/// Whether two are one object or one text.
#[inline]
fn is_same(py: Python<'_>, cached: &Option<Py<PyAny>>, found: &Option<Bound<'_, PyAny>>) -> bool {
    match (cached, found) {
        (None, None) => true,
        (Some(cached), Some(found)) => cached.is(found) || is_same_text(cached.bind(py), found),
        _ => false,
    }
}

/// Only for Python's own class of text: comparing another one may run Python code.
fn is_same_text(cached: &Bound<'_, PyAny>, found: &Bound<'_, PyAny>) -> bool {
    let are_texts = cached.is_exact_instance_of::<PyString>() && found.is_exact_instance_of::<PyString>();
    are_texts && cached.eq(found).unwrap_or(false)
}

/// The values of a router's routes. They are stored on the router, and end with it: they refer to its routes.
#[pyclass(frozen, module = "headgate._native")]
#[derive(Default)]
pub struct RouteCache {
    all: Mutex<FxHashMap<Objects, Vec<CachedPlace>>>,
}

#[pymethods]
impl RouteCache {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(all) = self.all.try_lock() else {
            return Ok(()); // in use, and so it is alive
        };
        for cached in all.values().flatten() {
            visit.call(&cached.app_root)?;
            visit.call(&cached.root)?;
            visit.call(&cached.method)?;
            visit.call(&cached.value)?;
            if let Some(native_route) = &cached.native_route {
                visit.call(&native_route.gate)?;
            }
            visit.call(&cached.keep_alive.0)?;
            cached.keep_alive.1.iter().try_for_each(|object| visit.call(object))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let dropped = std::mem::take(&mut *self.lock());
        drop(dropped);
    }

    /// A copy of a router has routes of its own.
    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        Self::default()
    }
}

impl RouteCache {
    /// No Python code runs under this lock.
    fn lock(&self) -> MutexGuard<'_, FxHashMap<Objects, Vec<CachedPlace>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn find<'py>(
        &self,
        py: Python<'py>,
        places: &Bound<'py, RoutePlaces>,
        key: &RouteKey<'py>,
    ) -> Option<RouteValue<'py>> {
        let all = self.lock();
        let cached = all.get(&objects(places, key))?.iter().find(|cached| cached.is_of(py, key))?;
        Some(RouteValue { value: cached.value.bind(py).clone(), native_route: cached.native_route.clone() })
    }

    fn store<'py>(&self, places: &Bound<'py, RoutePlaces>, key: RouteKey<'py>, value: RouteValue<'py>) {
        let objects = objects(places, &key);
        let cached = CachedPlace {
            app_root: key.app_root.map(Bound::unbind),
            root: key.root.map(Bound::unbind),
            method: key.method.map(Bound::unbind),
            value: value.value.unbind(),
            native_route: value.native_route,
            keep_alive: (
                places.clone().unbind(),
                [key.route, key.context, key.endpoint].map(|it| it.map(Bound::unbind)),
            ),
        };
        let mut all = self.lock();
        let is_full = all.values().map(Vec::len).sum::<usize>() >= MOST_CACHED;
        let dropped = if is_full { std::mem::take(&mut *all) } else { FxHashMap::default() };
        all.entry(objects).or_default().push(cached);
        drop(all); // before the dropped values, whose end runs Python code
        drop(dropped);
    }
}

/// The cache of a scope's router; None where there is no router, or where it takes no attribute.
#[inline]
fn cache_of<'py>(scope: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, RouteCache>>> {
    let py = scope.py();
    let Some(router) = scope.get_item(intern!(py, "router"))? else {
        return Ok(None);
    };
    let name = intern!(py, "_headgate_places");
    if let Some(cache) = router.getattr_opt(name)? {
        return Ok(cache.cast_into::<RouteCache>().ok());
    }
    let cache = Bound::new(py, RouteCache::default())?;
    Ok(router.setattr(name, &cache).is_ok().then_some(cache))
}
