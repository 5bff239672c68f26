//! The wire format: one packet is an Ethernet payload of type [`ETHERTYPE`], or a UDP datagram.
//!
//! ```text
//!  0 magic "ST"          2   16 incarnation of the sender   4
//!  2 version (1)         1   20 clock: later messages of the sender have later timestamps  8
//!  3 kind, flags << 4    1   28 last: the end of the sender's stream at that clock         8
//!  4 group               2   36 delivered: the sender delivered all earlier timestamps     8
//!  6 digest of the list  2   44 with flag EDGES: for each member, the end of the part of
//!  8 view                4      its stream that the sender has                     8 each
//! 12 sender              1      the body
//! 13 origin: the stream that the body is about   1
//! 14 length of all       2
//!
//!  body of DATA:     position 8, then messages: timestamp 8, length 2, payload
//!  body of REQUEST:  ranges of missing positions: from 8, to 8
//!  body of CLOCK:    nothing
//!  body of MEMBERSHIP: see [`crate::agreement`]
//! ```
//!
//! Numbers are little-endian. The parser is strict: a packet has exactly its length, unless
//! Ethernet padded it to [`PADDED`] bytes; nothing is left over; timestamps of a packet grow.
//! [`parse`] checks the whole packet, so that a packet is accepted as a whole or not at all.

use crate::agreement::Agreement;
use crate::store::units;

/// Ethernet type of raw frames: IEEE 802 local experimental 2.
pub const ETHERTYPE: u16 = 0x88b6;
/// Most members of a group.
pub const MOST_MEMBERS: usize = 16;
/// Bytes to which Ethernet pads a payload.
pub const PADDED: usize = 46;
/// Bytes of the header without edges.
pub const HEADER: usize = 44;
/// Bytes of a data packet before the first message.
pub const DATA: usize = HEADER + 8;
/// Bytes of a message before its payload.
pub const MESSAGE: usize = 10;
/// Timestamps end here. At a million messages a second this is 146,000 years.
pub const LAST_TIMESTAMP: u64 = 1 << 62;

const MAGIC: [u8; 2] = *b"ST";
const VERSION: u8 = 1;
const ANSWER: u8 = 1 << 4;
const EDGES: u8 = 2 << 4;
const RANGE: usize = 16;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages of one stream, at once or as a repeat.
    Data = 1,
    /// Only the header: a silent member's clock.
    Clock = 2,
    /// A request to repeat messages.
    Request = 3,
    /// Members agree on a view.
    Membership = 4,
}

/// The fields that every packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the packet.
    pub kind: Kind,
    /// The sender asks for the receiver's clock.
    pub answer: bool,
    /// Number of the group.
    pub group: u16,
    /// Digest of the settings that all members share.
    pub digest: u16,
    /// Number of the view.
    pub view: u32,
    /// The member that sent the packet.
    pub sender: u8,
    /// The member whose stream the body is about.
    pub origin: u8,
    /// Tells one life of a member from the next.
    pub incarnation: u32,
    /// Every later message of the sender has a later timestamp.
    pub clock: u64,
    /// The end of the sender's stream when it had this clock.
    pub last: u64,
    /// The sender has delivered every message with an earlier timestamp.
    pub delivered: u64,
}

/// Why bytes are no packet of this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not a packet of this protocol, or cut.
    #[error("not a packet of this protocol, or a part of one")]
    Bytes,
    /// It belongs to another group.
    #[error("a packet of another group")]
    Group,
    /// The sender has other settings: members, window, longest payload.
    #[error("the sender's member list or window differs")]
    Settings,
    /// A timestamp is at the end of its range.
    #[error("a timestamp past the end of its range")]
    Timestamp,
}

/// A packet whose bytes have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its header.
    pub header: Header,
    edges: &'a [u8],
    body: &'a [u8],
}

/// Checks the bytes of a packet for a member of this group.
///
/// # Errors
/// The fault.
pub fn parse(bytes: &[u8], group: u16, digest: u16, members: u8) -> Result<Packet<'_>, Malformed> {
    let mut fields = Fields(bytes);
    let header = fields.header().ok_or(Malformed::Bytes)?;
    let (flags, length) =
        (bytes[3] & 0xf0, usize::from(u16::from_le_bytes([bytes[14], bytes[15]])));
    let is_padded = bytes.len() > length && bytes.len() <= PADDED;
    if length < HEADER || (length != bytes.len() && !is_padded) {
        return Err(Malformed::Bytes);
    }
    if header.group != group {
        return Err(Malformed::Group);
    }
    if header.digest != digest {
        return Err(Malformed::Settings);
    }
    if header.sender >= members || header.origin >= members {
        return Err(Malformed::Bytes);
    }
    if header.clock >= LAST_TIMESTAMP || header.last >= LAST_TIMESTAMP {
        return Err(Malformed::Timestamp);
    }
    if header.delivered > header.clock + 1 {
        return Err(Malformed::Bytes);
    }
    let rest = &bytes[HEADER..length];
    let edges = if flags & EDGES == 0 { 0 } else { 8 * usize::from(members) };
    let (edges, body) = rest.split_at_checked(edges).ok_or(Malformed::Bytes)?;
    let packet = Packet { header, edges, body };
    packet.check_body(members.into())?;
    Ok(packet)
}

impl<'a> Packet<'a> {
    fn check_body(&self, members: usize) -> Result<(), Malformed> {
        match self.header.kind {
            Kind::Clock if self.body.is_empty() => Ok(()),
            Kind::Request if !self.body.is_empty() && self.body.len().is_multiple_of(RANGE) => {
                Ok(())
            }
            Kind::Membership => Agreement::parse(self.body, members).map(drop),
            Kind::Data => {
                let (mut messages, mut count, mut before) = (self.messages(), 0, None);
                for message in messages.by_ref() {
                    if message.timestamp >= LAST_TIMESTAMP || message.position >= LAST_TIMESTAMP {
                        return Err(Malformed::Timestamp);
                    }
                    if before.is_some_and(|before| before >= message.timestamp) {
                        return Err(Malformed::Bytes);
                    }
                    before = Some(message.timestamp);
                    count += 1;
                }
                let is_whole = messages.rest.is_empty() && count > 0;
                // A sender's own messages are as old as its clock.
                let header = &self.header;
                let is_own = header.origin == header.sender;
                let is_known =
                    !is_own || (before <= Some(header.clock) && messages.position <= header.last);
                if is_whole && is_known { Ok(()) } else { Err(Malformed::Bytes) }
            }
            _ => Err(Malformed::Bytes),
        }
    }

    /// Of each member's stream, the end of the part that the sender has; empty if it does not say.
    pub fn edges(&self) -> impl Iterator<Item = u64> + use<'a> {
        let (edges, _) = self.edges.as_chunks::<8>();
        edges.iter().map(|edge| u64::from_le_bytes(*edge))
    }

    /// The body of a membership packet in a group of this size.
    pub fn agreement(&self, members: usize) -> Option<Agreement> {
        let is_one = self.header.kind == Kind::Membership;
        if is_one { Agreement::parse(self.body, members).ok() } else { None }
    }

    /// The messages of a data packet.
    pub fn messages(&self) -> Messages<'a> {
        let mut fields = Fields(self.body);
        match (self.header.kind, fields.u64()) {
            (Kind::Data, Some(position)) => Messages { position, rest: fields.0 },
            _ => Messages { position: 0, rest: &[] },
        }
    }

    /// The ranges of a request.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let body = if self.header.kind == Kind::Request { self.body } else { &[] };
        body.chunks_exact(RANGE).filter_map(|range| {
            let mut fields = Fields(range);
            Some((fields.u64()?, fields.u64()?))
        })
    }
}

/// The messages of a data packet, in order.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    position: u64,
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = crate::store::Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut fields = Fields(self.rest);
        let timestamp = fields.u64()?;
        let length = fields.u16()?;
        let payload = fields.take(usize::from(length))?;
        let position = self.position;
        self.position = position.saturating_add(units(payload.len()));
        self.rest = fields.0;
        Some(crate::store::Message { position, timestamp, payload })
    }
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn header(&mut self) -> Option<Header> {
        if self.array()? != MAGIC || self.u8()? != VERSION {
            return None;
        }
        let kind = self.u8()?;
        let flags = kind & 0xf0;
        let kind = match kind & 0x0f {
            1 => Kind::Data,
            2 => Kind::Clock,
            3 => Kind::Request,
            4 => Kind::Membership,
            _ => return None,
        };
        if flags & !(ANSWER | EDGES) != 0 {
            return None;
        }
        let (group, digest, view) = (self.u16()?, self.u16()?, self.u32()?);
        let (sender, origin, _length) = (self.u8()?, self.u8()?, self.u16()?);
        let incarnation = self.u32()?;
        let (clock, last, delivered) = (self.u64()?, self.u64()?, self.u64()?);
        let answer = flags & ANSWER != 0;
        Some(Header {
            kind,
            answer,
            group,
            digest,
            view,
            sender,
            origin,
            incarnation,
            clock,
            last,
            delivered,
        })
    }
}

/// Writes a packet into a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    /// Starts a packet. `None` if the buffer is too short for the header.
    pub fn new(buffer: &'a mut [u8], header: &Header) -> Option<Self> {
        let longest = buffer.len().min(usize::from(u16::MAX));
        let mut writer = Writer { buffer: &mut buffer[..longest], length: 0 };
        let flags = if header.answer { ANSWER } else { 0 };
        writer.put(&MAGIC)?;
        writer.put(&[VERSION, header.kind as u8 | flags])?;
        writer.put(&header.group.to_le_bytes())?;
        writer.put(&header.digest.to_le_bytes())?;
        writer.put(&header.view.to_le_bytes())?;
        writer.put(&[header.sender, header.origin, 0, 0])?;
        writer.put(&header.incarnation.to_le_bytes())?;
        for field in [header.clock, header.last, header.delivered] {
            writer.put(&field.to_le_bytes())?;
        }
        Some(writer)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length + bytes.len();
        self.buffer.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }

    /// Bytes left.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.length
    }

    /// Writes the edges, after the header.
    pub fn edges(&mut self, edges: impl Iterator<Item = u64>) -> Option<()> {
        self.buffer[3] |= EDGES;
        edges.into_iter().try_for_each(|edge| self.number(edge))
    }

    /// Writes a number: the first position of a data packet, or one end of a range.
    pub fn number(&mut self, number: u64) -> Option<()> {
        self.put(&number.to_le_bytes())
    }

    /// Writes a message. Returns `None`, and writes nothing, if there is no room.
    pub fn message(&mut self, timestamp: u64, payload: &[u8]) -> Option<()> {
        if MESSAGE + payload.len() > self.room() {
            return None;
        }
        self.number(timestamp)?;
        self.put(&(payload.len() as u16).to_le_bytes())?;
        self.put(payload)
    }

    /// Ends the packet: its length in bytes.
    pub fn finish(self) -> usize {
        self.buffer[14..16].copy_from_slice(&(self.length as u16).to_le_bytes());
        self.length
    }
}
