#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|sent: &[u8]| headgate_server::fuzzing::requests(sent));
