#![no_main]

use libfuzzer_sys::fuzz_target;
use polar_fuzz::{journal, seeds};

fuzz_target!(
    init: seeds::write("journal"),
    |data: &[u8]| journal::what_is_read_is_written_and_read_again(data)
);
