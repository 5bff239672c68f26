#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("functions", &picnic_fuzz::functions::seeds()),
    |data: &[u8]| picnic_fuzz::functions::run(data)
);
