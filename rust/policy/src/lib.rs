//! The gate: which rules of a policy apply to a request, under which keys they count it, and what is decided.
//!
//! A policy is plain data, as in `headgate.policy`; files and functions have the same names there and here, and give
//! the same answers. There is no Python here, no I/O and no clock.
