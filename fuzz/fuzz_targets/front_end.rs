#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("front_end", &picnic_fuzz::front_end::seeds()),
    |data: &[u8]| picnic_fuzz::front_end::run(data)
);
