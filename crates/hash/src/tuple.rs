//! The bytes of a packet that name its flow, laid out for the hashes.
//!
//! ```
//! use picnic_hash::V4Tuple;
//!
//! let tuple = V4Tuple::new([10, 0, 0, 1], [10, 0, 0, 2], 49152, 80);
//! assert_eq!(tuple.input(), &[10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0, 80]);
//! ```
//!
//! # Guarantees
//!
//! Everything is in network byte order; the padding is zero. A burst of
//! tuples is contiguous, so the vector unit loads it directly.
//!
//! Source: Microsoft, "RSS Hashing Functions" (order of the fields).

/// Addresses and ports of an IPv4 packet: 12 bytes of input, padded to 16.
///
/// Bytes 0 to 3 are the source address, 4 to 7 the destination address, 8 and
/// 9 the source port, 10 and 11 the destination port, 12 to 15 zero. For the
/// hash over addresses alone, leave the ports zero: the Toeplitz hash is
/// linear, so zero bytes add nothing and both hash types come from one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C, align(16))]
pub struct V4Tuple([u8; 16]);

impl V4Tuple {
    /// Bytes that are hashed.
    pub const INPUT_BYTES: usize = 12;

    /// From addresses as in the packet, and ports as numbers.
    #[inline]
    pub const fn new(
        source: [u8; 4],
        destination: [u8; 4],
        source_port: u16,
        destination_port: u16,
    ) -> V4Tuple {
        let [s0, s1, s2, s3] = source;
        let [d0, d1, d2, d3] = destination;
        let [p0, p1] = source_port.to_be_bytes();
        let [q0, q1] = destination_port.to_be_bytes();
        V4Tuple([s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1, 0, 0, 0, 0])
    }

    /// From addresses alone: the ports are zero.
    #[inline]
    pub const fn addresses(source: [u8; 4], destination: [u8; 4]) -> V4Tuple {
        V4Tuple::new(source, destination, 0, 0)
    }

    /// From words in network byte order, as read from the packet.
    ///
    /// `ports_be` is the source port, then the destination port, in memory.
    #[inline]
    pub const fn from_words(source_be: u32, destination_be: u32, ports_be: u32) -> V4Tuple {
        let [s0, s1, s2, s3] = source_be.to_ne_bytes();
        let [d0, d1, d2, d3] = destination_be.to_ne_bytes();
        let [p0, p1, q0, q1] = ports_be.to_ne_bytes();
        V4Tuple([s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1, 0, 0, 0, 0])
    }

    /// The bytes that are hashed.
    #[inline]
    pub const fn input(&self) -> &[u8; V4Tuple::INPUT_BYTES] {
        // The length is fixed, so the compiler drops the other arm.
        match self.0.first_chunk() {
            Some(input) => input,
            None => &[0; V4Tuple::INPUT_BYTES],
        }
    }

    /// All bytes, with the padding.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The same flow in the other direction.
    #[inline]
    pub const fn reversed(&self) -> V4Tuple {
        let [s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1, ..] = self.0;
        V4Tuple([d0, d1, d2, d3, s0, s1, s2, s3, q0, q1, p0, p1, 0, 0, 0, 0])
    }
}

/// Addresses and ports of an IPv6 packet: 36 bytes of input, padded to 48.
///
/// Bytes 0 to 15 are the source address, 16 to 31 the destination address, 32
/// and 33 the source port, 34 and 35 the destination port, the rest zero. For
/// addresses alone leave the ports zero, as with [`V4Tuple`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(16))]
pub struct V6Tuple([u8; 48]);

impl V6Tuple {
    /// Bytes that are hashed.
    pub const INPUT_BYTES: usize = 36;

    /// From addresses as in the packet, and ports as numbers.
    #[inline]
    pub const fn new(
        source: [u8; 16],
        destination: [u8; 16],
        source_port: u16,
        destination_port: u16,
    ) -> V6Tuple {
        let [p0, p1] = source_port.to_be_bytes();
        let [q0, q1] = destination_port.to_be_bytes();
        V6Tuple::with_ports(&source, &destination, [p0, p1, q0, q1])
    }

    /// From addresses alone: the ports are zero.
    #[inline]
    pub const fn addresses(source: [u8; 16], destination: [u8; 16]) -> V6Tuple {
        V6Tuple::with_ports(&source, &destination, [0; 4])
    }

    /// From addresses and the word of both ports as read from the packet.
    #[inline]
    pub const fn from_words(source: &[u8; 16], destination: &[u8; 16], ports_be: u32) -> V6Tuple {
        V6Tuple::with_ports(source, destination, ports_be.to_ne_bytes())
    }

    #[inline]
    const fn with_ports(source: &[u8; 16], destination: &[u8; 16], ports: [u8; 4]) -> V6Tuple {
        let mut bytes = [0; 48];
        let mut i = 0;
        while i < 16 {
            bytes[i] = source[i];
            bytes[16 + i] = destination[i];
            i += 1;
        }
        let [p0, p1, q0, q1] = ports;
        bytes[32] = p0;
        bytes[33] = p1;
        bytes[34] = q0;
        bytes[35] = q1;
        V6Tuple(bytes)
    }

    /// The bytes that are hashed.
    #[inline]
    pub const fn input(&self) -> &[u8; V6Tuple::INPUT_BYTES] {
        match self.0.first_chunk() {
            Some(input) => input,
            None => &[0; V6Tuple::INPUT_BYTES],
        }
    }

    /// All bytes, with the padding.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 48] {
        &self.0
    }

    /// The same flow in the other direction.
    #[inline]
    pub const fn reversed(&self) -> V6Tuple {
        let mut bytes = [0; 48];
        let mut i = 0;
        while i < 16 {
            bytes[i] = self.0[16 + i];
            bytes[16 + i] = self.0[i];
            i += 1;
        }
        bytes[32] = self.0[34];
        bytes[33] = self.0[35];
        bytes[34] = self.0[32];
        bytes[35] = self.0[33];
        V6Tuple(bytes)
    }
}

impl Default for V6Tuple {
    fn default() -> V6Tuple {
        V6Tuple([0; 48])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_from_memory_give_the_same_tuple() {
        let bytes: [u8; 36] = std::array::from_fn(|i| i as u8 + 1);
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        let v4 = V4Tuple::from_words(word(0), word(4), word(8));
        assert_eq!(v4.input(), &bytes[..12]);
        assert_eq!(v4, V4Tuple::new([1, 2, 3, 4], [5, 6, 7, 8], 0x090a, 0x0b0c));

        let [source, destination] = [0, 16].map(|at| *bytes[at..].first_chunk().unwrap());
        let v6 = V6Tuple::from_words(&source, &destination, word(32));
        assert_eq!(v6.input(), &bytes);
        assert_eq!(v6, V6Tuple::new(source, destination, 0x2122, 0x2324));
        assert!(v6.as_bytes()[36..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn reversing_twice_changes_nothing() {
        let v4 = V4Tuple::new([1, 2, 3, 4], [5, 6, 7, 8], 9, 10);
        assert_eq!(v4.reversed(), V4Tuple::new([5, 6, 7, 8], [1, 2, 3, 4], 10, 9));
        assert_eq!(v4.reversed().reversed(), v4);
        let v6 = V6Tuple::new([1; 16], [2; 16], 3, 4);
        assert_eq!(v6.reversed(), V6Tuple::new([2; 16], [1; 16], 4, 3));
        assert_eq!(v6.reversed().reversed(), v6);
    }
}
