#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_fuzz::{seeds, sse};

fuzz_target!(
    init: seeds::write("sse"),
    |data: &[u8]| sse::any_chunking_gives_the_same_events(data)
);
