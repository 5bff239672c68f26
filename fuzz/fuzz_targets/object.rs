#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("object", &picnic_fuzz::object::seeds()),
    |data: &[u8]| picnic_fuzz::object::run(data)
);
