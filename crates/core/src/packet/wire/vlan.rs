//! VLAN tag (802.1Q, and each tag of QinQ).
//!
//! The view begins after the EtherType that announced the tag, so it nests like any protocol:
//! `Vlan::new_checked(ethernet.payload())`, and again for the inner tag.
//!
//! Source: IEEE 802.1Q 9.6.

use core::ops::Range;

use super::{EtherType, Truncated, buffer_access, clamped, get_u16, set};

/// View of a tag's control information and the EtherType after it.
#[derive(Clone, Copy, Debug)]
pub struct Vlan<T> {
    buffer: T,
}

impl Vlan<()> {
    /// Bytes of a tag.
    pub const HEADER_LENGTH: usize = 4;
}

impl<T: AsRef<[u8]>> Vlan<T> {
    /// View of a tag.
    ///
    /// # Errors
    /// Fewer than 4 bytes.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, Truncated> {
        if buffer.as_ref().len() < Vlan::HEADER_LENGTH {
            return Err(Truncated);
        }
        Ok(Self { buffer })
    }

    /// Tag control information: priority, drop eligible, VLAN identifier.
    #[inline]
    pub fn tci(&self) -> u16 {
        get_u16(self.buffer.as_ref(), 0)
    }

    /// Priority code point, 0 to 7.
    #[inline]
    pub fn priority(&self) -> u8 {
        (self.tci() >> 13) as u8
    }

    /// Protocol of the payload.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(get_u16(self.buffer.as_ref(), 2))
    }

    fn payload_range(&self) -> Range<usize> {
        let length = self.buffer.as_ref().len();
        clamped(Vlan::HEADER_LENGTH, length, length)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Vlan<T> {
    /// Sets the tag control information.
    #[inline]
    pub fn set_tci(&mut self, tci: u16) {
        set(self.buffer.as_mut(), 0, &tci.to_be_bytes());
    }

    /// Sets the payload's protocol.
    #[inline]
    pub fn set_ether_type(&mut self, ether_type: EtherType) {
        set(self.buffer.as_mut(), 2, &ether_type.0.to_be_bytes());
    }
}

buffer_access!(Vlan);
