#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("control", &picnic_fuzz::control::seeds()),
    |data: &[u8]| picnic_fuzz::control::run(data)
);
