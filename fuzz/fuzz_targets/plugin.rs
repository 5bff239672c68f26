#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("plugin", &picnic_fuzz::plugin::seeds()),
    |data: &[u8]| picnic_fuzz::plugin::run(data)
);
