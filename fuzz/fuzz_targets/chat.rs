#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_convo::Dialect;
use polar_fuzz::{decoders, seeds};

fuzz_target!(init: seeds::write("chat"), |data: &[u8]| decoders::request(Dialect::Chat, data));
