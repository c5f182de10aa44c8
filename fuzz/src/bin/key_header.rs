#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onetake_core::fuzzing::key_header(data));
