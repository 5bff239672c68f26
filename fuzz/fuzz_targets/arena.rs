#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("arena", &picnic_fuzz::arena::seeds()),
    |data: &[u8]| picnic_fuzz::arena::run(data)
);
