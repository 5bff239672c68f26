#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("descriptor", &picnic_fuzz::descriptor::seeds()),
    |data: &[u8]| picnic_fuzz::descriptor::run(data)
);
