#![no_main]

#[path = "../../checks/tests/fuzzed/mod.rs"]
mod fuzzed;
#[path = "../../checks/tests/setup/mod.rs"]
mod setup;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: &[u8]| fuzzed::forwarded(sent));
