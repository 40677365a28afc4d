//! The gate: which rules of a policy apply to a request, under which keys they count it, and the decision.
//!
//! A policy is plain data, as in `headgate.policy`; files and functions have the same names there and here, and give
//! the same answers. There is no Python here, no I/O and no clock.

pub mod address_text;
mod cache;
pub mod client_address;
pub mod compiled;
mod conditions;
pub mod costs;
pub mod entries;
pub mod extract;
pub mod gate;
pub mod identity;
mod ipv4_text;
pub mod key_parts;
pub mod keys;
pub mod matching;
pub mod networks;
pub mod path_forms;
pub mod path_match;
pub mod path_templates;
pub mod path_tree;
pub mod plain_path;
pub mod resolver;
pub mod selection;
pub mod sent_values;
mod sorted;
pub mod subject;
pub mod text;
pub mod value;
