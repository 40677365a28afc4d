#![no_main]

#[path = "../../checks/tests/setup/mod.rs"]
mod setup;
#[path = "../../checks/tests/fuzzed/mod.rs"]
mod fuzzed;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: &[u8]| fuzzed::described(sent));
