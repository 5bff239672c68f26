//! The stamp: flow and sequence number of a packet, in the first bytes of the payload.
//!
//! ```
//! use picnic_ports::generator::Stamp;
//! let stamp = Stamp { flow: 7, sequence: 41 };
//! assert_eq!(Stamp::read(&stamp.to_bytes()), Some(stamp));
//! ```
//!
//! 16 bytes, big-endian: a mark (`PICN`), the flow (32 bits), the sequence number (64 bits).
//! Flows are counted from zero per generator, packets from zero per flow.

/// Flow and sequence number of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the flow within its generator, from 0.
    pub flow: u32,
    /// Number of the packet within its flow, from 0; only stamped packets count.
    pub sequence: u64,
}

const MARK: u32 = u32::from_be_bytes(*b"PICN");

impl Stamp {
    /// Bytes a payload needs to hold one.
    pub const BYTES: usize = 16;

    /// The stamp at the start of a TCP or UDP payload, if there is one.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Stamp> {
        let bits = u128::from_be_bytes(*payload.first_chunk()?);
        ((bits >> 96) as u32 == MARK)
            .then_some(Stamp { flow: (bits >> 64) as u32, sequence: bits as u64 })
    }

    /// The stamp as bytes of the payload.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let bits = u128::from(MARK) << 96 | u128::from(self.flow) << 64 | u128::from(self.sequence);
        bits.to_be_bytes()
    }
}
