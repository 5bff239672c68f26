#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("channel", &picnic_fuzz::channel::seeds()),
    |data: &[u8]| picnic_fuzz::channel::run(data)
);
