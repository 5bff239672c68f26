#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("classifier", &picnic_fuzz::classifier::seeds()),
    |data: &[u8]| picnic_fuzz::classifier::run(data)
);
