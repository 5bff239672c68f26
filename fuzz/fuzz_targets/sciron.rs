#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("sciron", &picnic_fuzz::sciron::seeds()),
    |data: &[u8]| picnic_fuzz::sciron::run(data)
);
