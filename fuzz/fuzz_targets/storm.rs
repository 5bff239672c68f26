#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("storm", &picnic_fuzz::storm::seeds()),
    |data: &[u8]| picnic_fuzz::storm::run(data)
);
