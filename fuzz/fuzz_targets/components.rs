#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("components", &picnic_fuzz::components::seeds()),
    |data: &[u8]| picnic_fuzz::components::run(data)
);
