#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_fuzz::{parsers, seeds};

fuzz_target!(
    init: seeds::write("parsers"),
    |data: &[u8]| parsers::any_chunking_gives_the_same_parts(data)
);
