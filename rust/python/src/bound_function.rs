//! Builtin functions that are bound to their data. Of all callables that native code can create, they are created,
//! called and freed in the fewest steps: an object of a class with `__call__` takes more, for a tuple of its arguments
//! in each call, and for its class. pyo3 creates such functions for modules alone, so this is unsafe code.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A function of one argument.
pub trait OneArgument {
    /// Its name in its `repr`.
    const NAME: &'static CStr;

    /// The body of the function; it gets the tuple that it is bound to.
    fn call<'py>(bound_to: &Bound<'py, PyTuple>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;
}

struct Definition<F>(F);

impl<F: OneArgument> Definition<F> {
    const OF: &'static ffi::PyMethodDef = &ffi::PyMethodDef {
        ml_name: F::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: enter::<F> },
        ml_flags: ffi::METH_O,
        ml_doc: ptr::null(),
    };
}

/// A function that is bound to a tuple.
pub fn bound_function<'py, F: OneArgument>(to: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    let definition = ptr::from_ref(Definition::<F>::OF).cast_mut();
    // SAFETY: the definition lives as long as the program, and nothing writes to it; of the tuple, the function has a
    // reference of its own; the result is a new reference, or null with an error set.
    unsafe { Bound::from_owned_ptr_or_err(to.py(), ffi::PyCFunction_NewEx(definition, to.as_ptr(), ptr::null_mut())) }
}

unsafe extern "C" fn enter<F: OneArgument>(
    bound_to: *mut ffi::PyObject,
    argument: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: only the interpreter calls this, on a thread that is attached to it, with the tuple that the function is
    // bound to and an argument; it lends both until this returns.
    let (py, bound_to, argument) = unsafe {
        let py = Python::assume_attached();
        let bound_to = Borrowed::from_ptr(py, bound_to).cast_unchecked::<PyTuple>();
        (py, bound_to, Borrowed::from_ptr(py, argument))
    };
    let result = catch_unwind(AssertUnwindSafe(|| F::call(&bound_to, &argument)));
    match result.unwrap_or_else(|_| Err(PanicException::new_err("a native function panicked"))) {
        Ok(result) => result.into_ptr(),
        Err(error) => {
            error.restore(py);
            ptr::null_mut()
        }
    }
}
