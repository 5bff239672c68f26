#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("capture", &picnic_fuzz::capture::seeds()),
    |data: &[u8]| picnic_fuzz::capture::run(data)
);
