#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("vhost", &picnic_fuzz::vhost::seeds()),
    |data: &[u8]| picnic_fuzz::vhost::run(data)
);
