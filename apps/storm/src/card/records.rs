//! What the program of a host and the member on its card tell each other through their channel.
//!
//! ```text
//!  to the card:  a payload, to be submitted
//!  to the host:  a record: kind 1, sender 1, unused 6, position 8, timestamp 8, payload
//! ```
//!
//! Numbers are little-endian. A record is a message of the channel, so it arrives whole or not at
//! all, and in order.

use crate::member::Delivery;

/// Bytes of a record in front of its payload.
pub const RECORD: usize = 24;

/// A record from the card to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The next ordered message.
    Delivered(Delivery<'a>),
    /// The next message that the host submitted is part of the stream, at this position. The host
    /// is not woken for it.
    Submitted(u64),
    /// The member is in a view.
    View {
        /// Its number.
        number: u32,
        /// Its members, one bit each.
        members: u16,
        /// Messages may be left out here: the member entered the view from outside, or an earlier
        /// program of the host has gone.
        joined: bool,
    },
}

impl<'a> Record<'a> {
    /// Writes it in place of what `into` holds.
    pub fn write(&self, into: &mut Vec<u8>) {
        let (kind, sender, position, timestamp, payload): (u8, u8, u64, u64, &[u8]) = match *self {
            Record::Delivered(delivery) => {
                let Delivery { sender, position, timestamp, payload } = delivery;
                (1, sender, position, timestamp, payload)
            }
            Record::Submitted(position) => (2, 0, position, 0, &[]),
            Record::View { number, members, joined } => {
                (3, joined.into(), number.into(), members.into(), &[])
            }
        };
        into.clear();
        into.extend([kind, sender, 0, 0, 0, 0, 0, 0]);
        into.extend(position.to_le_bytes());
        into.extend(timestamp.to_le_bytes());
        into.extend(payload);
    }

    /// Reads one; `None` if the bytes are none.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, payload) = bytes.split_first_chunk::<RECORD>()?;
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (sender, position, timestamp) = (head[1], u64_at(8), u64_at(16));
        match head[0] {
            1 => Some(Record::Delivered(Delivery { sender, position, timestamp, payload })),
            2 => Some(Record::Submitted(position)),
            3 => {
                let (number, members) = (position as u32, timestamp as u16);
                Some(Record::View { number, members, joined: sender != 0 })
            }
            _ => None,
        }
    }
}

/// Whether a record is a message of the order.
pub(super) fn is_delivery(bytes: &[u8]) -> bool {
    bytes.first() == Some(&1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_others_are_none() {
        let delivery = Delivery { sender: 3, position: 1 << 40, timestamp: 99, payload: b"hello" };
        let mut bytes = Vec::new();
        for record in [
            Record::Delivered(delivery),
            Record::Submitted(17),
            Record::View { number: 4, members: 0b101, joined: true },
        ] {
            record.write(&mut bytes);
            assert_eq!(Record::read(&bytes), Some(record));
            assert!((0..RECORD).all(|end| Record::read(&bytes[..end]).is_none()));
        }
        assert_eq!(Record::read(&[9; RECORD]), None);
    }
}
