//! Toeplitz by table: each byte's contribution to the hash, computed in advance.
//!
//! One look-up and one XOR per byte of input, on any machine.
//!
//! # Guarantees
//!
//! Building is exact for every key; a look-up is never out of bounds.
//!
//! Source: the hash is linear, so the parts of the input can be hashed separately.

use crate::{Key, V6Tuple};

/// For each byte position, the hash of each value with zeros all around.
#[derive(Clone)]
pub(super) struct Table(Box<[[u32; 256]; Key::MAX_BYTES]>);

impl Table {
    pub(super) fn new(key: &Key) -> Table {
        let mut table = Box::new([[0; 256]; Key::MAX_BYTES]);
        for (position, contributions) in table.iter_mut().enumerate() {
            for value in 1..contributions.len() {
                // The entry of a value without its lowest bit, XOR that bit's window.
                let lowest = value.trailing_zeros() as usize;
                let window = key.window(8 * position + 7 - lowest);
                contributions[value] = contributions[value & (value - 1)] ^ window;
            }
        }
        Table(table)
    }

    /// The part of the table that a flow's input uses.
    pub(super) fn of_flows(&self) -> &[[u32; 256]; V6Tuple::INPUT_BYTES] {
        const { assert!(V6Tuple::INPUT_BYTES <= Key::MAX_BYTES) };
        let Some(first) = self.0.first_chunk() else { unreachable!() };
        first
    }

    /// The hash of a flow's bytes, with the loop unrolled.
    #[inline(always)]
    pub(super) fn hash_flow<const BYTES: usize>(&self, input: &[u8; BYTES]) -> u32 {
        const { assert!(BYTES <= Key::MAX_BYTES) };
        let mut hash = 0;
        // A constant count without iterators, so that the compiler unrolls it.
        let mut position = 0;
        while position < BYTES {
            hash ^= self.0[position][usize::from(input[position])];
            position += 1;
        }
        hash
    }

    #[inline]
    pub(super) fn hash(&self, input: &[u8]) -> u32 {
        // Past the longest key the windows are zero, so stopping there is exact.
        let pairs = self.0.iter().zip(input);
        pairs.fold(0, |hash, (contributions, &byte)| hash ^ contributions[usize::from(byte)])
    }
}
