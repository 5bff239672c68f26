#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("card", &picnic_fuzz::card::seeds()),
    |data: &[u8]| picnic_fuzz::card::run(data)
);
