#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_fuzz::{decoders, seeds};

fuzz_target!(init: seeds::write("responses"), |data: &[u8]| decoders::responses_with_history(data));
