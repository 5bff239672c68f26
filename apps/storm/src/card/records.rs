//! The frames between a card and the program on its host: Ethernet frames of [`ETHERTYPE`].
//!
//! ```text
//!  to the card:  14 Ethernet, number of messages 2, then messages: length 2, payload
//!  to the host:  14 Ethernet, number of the frame 4, length of all records 2, then records:
//!                kind 1, sender 1, length 2, position 8, timestamp 8, payload
//! ```
//!
//! Numbers are little-endian. Frames to the host are numbered from zero, so the host notices a
//! frame that was dropped.

use crate::member::Delivery;

/// Ethernet type: IEEE 802 local experimental 1.
pub const ETHERTYPE: u16 = 0x88b5;
/// Bytes of a record before its payload.
pub const RECORD: usize = 20;
/// Longest frame.
pub const LONGEST: usize = 1514;
const ETHERNET: usize = 14;
/// Bytes of a frame to the host before its records.
const TO_HOST: usize = ETHERNET + 6;
/// Bytes of a frame to the card before its messages.
const TO_CARD: usize = ETHERNET + 2;

/// A record from the card to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The next ordered message.
    Delivered(Delivery<'a>),
    /// The next message that the host submitted is part of the stream, at this position.
    Submitted(u64),
    /// The member is in a view.
    View {
        /// Its number.
        number: u32,
        /// Its members, one bit each.
        members: u16,
        /// The member entered it from outside, so messages may be missing before it.
        joined: bool,
    },
}

/// A frame to the host that is being filled.
#[derive(Clone, Debug)]
pub struct Filling {
    frame: Vec<u8>,
    number: u32,
    is_urgent: bool,
}

impl Default for Filling {
    fn default() -> Self {
        let mut filling =
            Filling { frame: Vec::with_capacity(LONGEST), number: 0, is_urgent: false };
        filling.clear();
        filling
    }
}

impl Filling {
    fn clear(&mut self) {
        self.is_urgent = false;
        self.frame.clear();
        self.frame.extend([0; 12]);
        self.frame.extend(ETHERTYPE.to_be_bytes());
        self.frame.extend(self.number.to_le_bytes());
        self.frame.extend([0; 2]);
    }

    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.frame.len() == TO_HOST
    }

    /// Whether to wake the host: positions of submitted messages wait for the next
    /// ordered message.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Whether a record with this many bytes of payload fits.
    pub fn fits(&self, payload: usize) -> bool {
        self.frame.len() + RECORD + payload <= LONGEST
    }

    /// Adds a record, which fits.
    pub fn push(&mut self, record: &Record<'_>) {
        let (kind, sender, position, timestamp, payload): (u8, u8, u64, u64, &[u8]) = match *record
        {
            Record::Delivered(delivery) => {
                let Delivery { sender, position, timestamp, payload } = delivery;
                (1, sender, position, timestamp, payload)
            }
            Record::Submitted(position) => (2, 0, position, 0, &[]),
            Record::View { number, members, joined } => {
                (3, joined.into(), number.into(), members.into(), &[])
            }
        };
        self.is_urgent |= !matches!(record, Record::Submitted(_));
        self.frame.extend([kind, sender]);
        self.frame.extend((payload.len() as u16).to_le_bytes());
        self.frame.extend(position.to_le_bytes());
        self.frame.extend(timestamp.to_le_bytes());
        self.frame.extend(payload);
    }

    /// The frame to send; call [`Filling::sent`] afterwards.
    pub fn frame(&mut self) -> &[u8] {
        let length = (self.frame.len() - TO_HOST) as u16;
        self.frame[TO_HOST - 2..TO_HOST].copy_from_slice(&length.to_le_bytes());
        &self.frame
    }

    /// The frame was sent: begins the next one.
    pub fn sent(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.clear();
    }
}

/// Reads a frame from the card: its number, and its records.
pub fn to_host(frame: &[u8]) -> Option<(u32, Records<'_>)> {
    let head = frame.first_chunk::<TO_HOST>()?;
    if head[12..14] != ETHERTYPE.to_be_bytes() {
        return None;
    }
    let number = u32::from_le_bytes([head[14], head[15], head[16], head[17]]);
    let length = usize::from(u16::from_le_bytes([head[18], head[19]]));
    Some((number, Records(frame.get(TO_HOST..TO_HOST + length)?)))
}

/// The records of a frame, in order.
#[derive(Clone, Debug)]
pub struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (head, rest) = self.0.split_first_chunk::<RECORD>()?;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (payload, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (sender, position, timestamp) = (head[1], u64_at(4), u64_at(12));
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

/// Writes a frame to the card with as many of these messages as fit: their number, and the frame's
/// bytes.
pub fn to_card<'a>(
    buffer: &mut [u8],
    messages: impl Iterator<Item = &'a [u8]>,
) -> Option<(usize, usize)> {
    let (mut at, mut count) = (TO_CARD, 0_u16);
    buffer.get_mut(..TO_CARD)?.fill(0);
    for message in messages {
        let Some(place) = buffer.get_mut(at..at + 2 + message.len()) else { break };
        place[..2].copy_from_slice(&(message.len() as u16).to_le_bytes());
        place[2..].copy_from_slice(message);
        at += place.len();
        count += 1;
    }
    buffer[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    buffer[14..16].copy_from_slice(&count.to_le_bytes());
    Some((usize::from(count), at))
}

/// The messages of a frame to the card from byte `at` on, 0 for the first: the message, and where
/// the next one starts. `None` after the last.
pub fn message(frame: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let at = if at == 0 { TO_CARD } else { at };
    let length = frame.get(at..)?.first_chunk::<2>()?;
    let end = at + 2 + usize::from(u16::from_le_bytes(*length));
    Some((frame.get(at + 2..end)?, end))
}

/// The number of messages that a frame to the card states; 0 for other frames.
pub fn messages(frame: &[u8]) -> usize {
    match frame.first_chunk::<TO_CARD>() {
        Some(head) if head[12..14] == ETHERTYPE.to_be_bytes() => {
            u16::from_le_bytes([head[14], head[15]]).into()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_truncated_ones_are_omitted() {
        let delivery = Delivery { sender: 3, position: 1 << 40, timestamp: 99, payload: b"hello" };
        let records = [
            Record::Delivered(delivery),
            Record::Submitted(17),
            Record::View { number: 4, members: 0b101, joined: true },
        ];
        let mut filling = Filling::default();
        for number in 0..3 {
            records.iter().for_each(|record| filling.push(record));
            let frame = filling.frame().to_vec();
            let (found, read) = to_host(&frame).unwrap();
            assert_eq!((found, read.collect::<Vec<_>>()), (number, records.to_vec()));
            assert!((0..frame.len()).all(|end| to_host(&frame[..end]).is_none()));
            filling.sent();
            assert!(filling.is_empty());
        }
        assert!(filling.fits(LONGEST - TO_HOST - RECORD));
        assert!(!filling.fits(LONGEST - TO_HOST - RECORD + 1));
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let sent: [&[u8]; 3] = [b"one", b"", &[7; 100]];
        let mut buffer = [0; 200];
        let (count, length) = to_card(&mut buffer, sent.into_iter()).unwrap();
        assert_eq!((count, messages(&buffer[..length])), (3, 3));
        let mut at = 0;
        for message_sent in sent {
            let (found, next) = message(&buffer[..length], at).unwrap();
            assert_eq!(found, message_sent);
            at = next;
        }
        assert_eq!(message(&buffer[..length], at), None);
        assert_eq!(to_card(&mut [0; 30], sent.into_iter()), Some((2, 23)));
        assert_eq!(to_card(&mut [0; 10], sent.into_iter()), None);
        assert_eq!(messages(&[0; 60]), 0);
    }
}
