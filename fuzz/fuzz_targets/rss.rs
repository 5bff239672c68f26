#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: picnic_fuzz::plant("rss", &picnic_fuzz::rss::seeds()),
    |data: &[u8]| picnic_fuzz::rss::run(data)
);
