//! Rust templates of `picnic new` build and pass their own tests.

#![allow(dead_code, unreachable_pub)]
// Each is a separate crate for its user, with the shared tests in it.
#![allow(clippy::duplicate_mod)]

/// In place of libFuzzer: a target is given what fuzzing starts from, and noise.
mod libfuzzer_sys {
    macro_rules! fuzz_target {
        (init: $plant:expr, |$data:ident: &[u8]| $body:block) => {
            #[test]
            fn initial_fuzz_inputs_pass() {
                let target = |$data: &[u8]| $body;
                for kinds in [0, 3, 7, 32, 255] {
                    target(&picnic_engine::trial::conformance::bytes_of_frames(kinds));
                }
                let noise = |n: u32| (n.wrapping_mul(2_654_435_761) >> 13) as u8;
                for start in 0..32 {
                    target(&(start * 4096..).take(4096).map(noise).collect::<Vec<_>>());
                }
            }
        };
    }
    pub(crate) use fuzz_target;
}

include!(concat!(env!("OUT_DIR"), "/templates.rs"));
