#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| onetake_stores::fuzzing::redis_reply(data));
