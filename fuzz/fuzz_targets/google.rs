#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_convo::Dialect;
use polar_fuzz::{decoders, seeds};

fuzz_target!(init: seeds::write("google"), |data: &[u8]| decoders::request(Dialect::Google, data));
