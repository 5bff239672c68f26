//! Toeplitz by table: what each byte adds to the hash, worked out beforehand.
//!
//! One look-up and one XOR per byte of input, on any machine.
//!
//! # Guarantees
//!
//! Building is exact for every key; a look-up is never out of bounds.
//!
//! Source: the hash is linear, so the parts of the input may be hashed apart.

use crate::{Key, V6Tuple};

/// For each byte position, the hash of each value with zeros all around.
#[derive(Clone)]
pub(super) struct Table(Box<[[u32; 256]; Key::MAX_BYTES]>);

impl Table {
    pub(super) fn new(key: &Key) -> Table {
        let mut table = Box::new([[0; 256]; Key::MAX_BYTES]);
        for (position, contributions) in table.iter_mut().enumerate() {
            for value in 1..contributions.len() {
                // A value adds what it adds without its lowest bit, and that bit's window.
                let lowest = value.trailing_zeros() as usize;
                let window = key.window(8 * position + 7 - lowest);
                contributions[value] = contributions[value & (value - 1)] ^ window;
            }
        }
        Table(table)
    }

    /// The part of it that a flow's input needs.
    pub(super) fn of_flows(&self) -> &[[u32; 256]; V6Tuple::INPUT_BYTES] {
        const { assert!(V6Tuple::INPUT_BYTES <= Key::MAX_BYTES) };
        let Some(first) = self.0.first_chunk() else { unreachable!() };
        first
    }

    /// The hash of as many bytes as a flow has: no loop is left of it.
    #[inline(always)]
    pub(super) fn hash_flow<const BYTES: usize>(&self, input: &[u8; BYTES]) -> u32 {
        const { assert!(BYTES <= Key::MAX_BYTES) };
        let mut hash = 0;
        // A count that is known, and no iterators, so that it is unrolled.
        let mut position = 0;
        while position < BYTES {
            hash ^= self.0[position][usize::from(input[position])];
            position += 1;
        }
        hash
    }

    #[inline]
    pub(super) fn hash(&self, input: &[u8]) -> u32 {
        // Past the longest key the windows are zero, so stopping there loses nothing.
        let pairs = self.0.iter().zip(input);
        pairs.fold(0, |hash, (contributions, &byte)| hash ^ contributions[usize::from(byte)])
    }
}
