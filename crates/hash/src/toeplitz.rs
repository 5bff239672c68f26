//! The Toeplitz hash of receive-side scaling, bit by bit, by table, by vector.
//!
//! ```
//! use picnic_hash::{Key, Toeplitz, V4Tuple, reference};
//!
//! let toeplitz = Toeplitz::new(&Key::MICROSOFT);
//! let tuple = V4Tuple::new([66, 9, 149, 187], [161, 142, 100, 80], 2794, 1766);
//! assert_eq!(toeplitz.hash(tuple.input()), 0x51cc_c178);
//! assert_eq!(reference(&Key::MICROSOFT, tuple.input()), 0x51cc_c178);
//! ```
//!
//! Every set bit of the input selects 32 bits of the key, those that start at
//! the same place; the hash is the XOR of all that were selected. It follows
//! that the hash is linear: `hash(a ^ b) == hash(a) ^ hash(b)`, and bytes that
//! are zero add nothing. So each byte position may have a table of its 256
//! contributions, the vector unit may work by 8 × 8 bit matrices, and the hash
//! over addresses alone is the hash over addresses and ports of zero.
//!
//! # Guarantees
//!
//! - [`reference()`], [`Toeplitz::hash`] and every burst form agree on every input.
//! - Nothing here panics, and only [`Toeplitz::new`] and `clone` allocate.
//! - A burst call writes the first `min(tuples.len(), out.len())` hashes and
//!   leaves the rest of `out` as it was.
//!
//! Source: Microsoft, "RSS Hashing Functions"; PICNIC, section 5.1.

mod table;

use std::fmt;

use crate::avx512::Gfni;
use crate::{Key, V4Tuple, V6Tuple};
use table::Table;

/// The hash by its definition, one bit of input at a time.
///
/// Input past [`Key::max_input`] meets the end of the key, then zeros: from four bytes past it,
/// input adds nothing. [`Toeplitz::hash`] does the same.
pub fn reference(key: &Key, input: &[u8]) -> u32 {
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= key.window(8 * i + bit);
            }
        }
    }
    hash
}

/// Shorter bursts use the table: a vector block costs the same, full or not.
const FEW_V4: usize = 8;
const FEW_V6: usize = 4;

/// Implementation of the burst forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// AVX-512 with Galois field instructions.
    Vector,
    /// One table look-up per byte of input.
    Table,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Vector => "vector",
            Backend::Table => "table",
        })
    }
}

/// A prepared key: 64 KiB of tables and, if the machine can use them, bit matrices.
#[derive(Clone)]
pub struct Toeplitz {
    key: Key,
    table: Table,
    gfni: Option<Gfni>,
}

impl Toeplitz {
    /// Prepares `key` and chooses the backend of the burst forms for this machine.
    pub fn new(key: &Key) -> Toeplitz {
        Toeplitz { key: *key, table: Table::new(key), gfni: Gfni::new(key) }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Backend of [`hash_v4`](Self::hash_v4) and [`hash_v6`](Self::hash_v6).
    pub fn backend(&self) -> Backend {
        if self.gfni.is_some() { Backend::Vector } else { Backend::Table }
    }

    /// Contribution of each value of each input byte, by the byte's position: the hash of an input
    /// is the XOR of its bytes' contributions.
    pub fn contributions(&self) -> &[[u32; 256]; V6Tuple::INPUT_BYTES] {
        self.table.of_flows()
    }

    /// The hash of any bytes, by table; see [`reference()`] for input longer than the key permits.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.table.hash(input)
    }

    /// The hash of each IPv4 tuple, on the [`backend`](Self::backend).
    pub fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        match &self.gfni {
            Some(gfni) if tuples.len() >= FEW_V4 => gfni.hash_v4(tuples, out),
            _ => self.hash_v4_table(tuples, out),
        }
    }

    /// The hash of each IPv6 tuple, on the [`backend`](Self::backend).
    pub fn hash_v6(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        match &self.gfni {
            Some(gfni) if tuples.len() >= FEW_V6 => gfni.hash_v6(tuples, out),
            _ => self.hash_v6_table(tuples, out),
        }
    }

    /// The hash of each IPv4 tuple, by table on any machine.
    pub fn hash_v4_table(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        for (tuple, hash) in tuples.iter().zip(out) {
            *hash = self.table.hash_flow(tuple.input());
        }
    }

    /// The hash of each IPv6 tuple, by table on any machine.
    pub fn hash_v6_table(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        for (tuple, hash) in tuples.iter().zip(out) {
            *hash = self.table.hash_flow(tuple.input());
        }
    }
}

impl fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toeplitz")
            .field("key", &self.key)
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}
