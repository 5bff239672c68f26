#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("headers", &picnic_fuzz::headers::seeds()),
    |data: &[u8]| picnic_fuzz::headers::run(data)
);
