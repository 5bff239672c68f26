#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("bond", &picnic_fuzz::bond::seeds()),
    |data: &[u8]| picnic_fuzz::bond::run(data)
);
