//! pcapng writer: sections, interfaces, packets with direction, statistics.
//!
//! ```
//! use picnic_core::direction::Direction;
//! use picnic_ports::pcapng::{Packet, Writer};
//! let mut writer = Writer::new(Vec::new(), "example").unwrap();
//! let wire = writer.add_interface("wire0", 0).unwrap();
//! let packet = Packet { direction: Some(Direction::Rx), ..Packet::whole(1_000_000_007, &[0; 60]) };
//! writer.packet(wire, &packet).unwrap();
//! writer.statistics(wire, 1_000_000_007, 1, 0).unwrap();
//! let bytes = writer.into_inner();
//! assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
//! ```
//!
//! Guarantees: little endian, hashes too; nanosecond timestamps, link type Ethernet; each
//! block is one `write_all`, put together in memory that is reused.
//!
//! Source: draft-ietf-opsawg-pcapng (blocks SHB, IDB, EPB, ISB).

use picnic_core::direction::Direction;
use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINK_TYPE_ETHERNET: u16 = 1;

/// The two low bits of `epb_flags`: inbound or outbound.
pub(crate) const fn direction_flags(direction: Direction) -> u32 {
    match direction {
        Direction::Rx => 1,
        Direction::Tx => 2,
    }
}

/// The direction in `epb_flags`, if any.
pub(crate) const fn direction_of(flags: u32) -> Option<Direction> {
    match flags & 3 {
        1 => Some(Direction::Rx),
        2 => Some(Direction::Tx),
        _ => None,
    }
}

/// `epb_hash`: the algorithm that its first octet names.
const TOEPLITZ: u8 = 5;

/// A packet with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub timestamp_ns: u64,
    /// Its bytes, those that were kept.
    pub data: &'a [u8],
    /// Bytes that it had.
    pub original_length: u32,
    /// Inbound or outbound, if that is known.
    pub direction: Option<Direction>,
    /// Its Toeplitz hash, if it has one.
    pub toeplitz: Option<u32>,
}

impl<'a> Packet<'a> {
    /// A packet kept whole, without further metadata.
    pub fn whole(timestamp_ns: u64, data: &'a [u8]) -> Self {
        let original_length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        Packet { timestamp_ns, data, original_length, direction: None, toeplitz: None }
    }
}

/// Writes one section of a pcapng file.
#[derive(Debug)]
pub struct Writer<W: Write> {
    sink: W,
    /// The block being put together.
    block: Vec<u8>,
    interfaces: u32,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Starts a section; `application` is the program's name.
    ///
    /// # Errors
    /// An error of the sink.
    pub fn new(sink: W, application: &str) -> io::Result<Self> {
        let mut writer =
            Writer { sink, block: Vec::with_capacity(4096), interfaces: 0, written: 0 };
        writer.begin(SECTION_HEADER);
        writer.u32(BYTE_ORDER_MAGIC);
        writer.u16(1);
        writer.u16(0);
        // Section length not known.
        writer.u64(u64::MAX);
        writer.option(4, application.as_bytes());
        writer.end_options();
        writer.end()?;
        Ok(writer)
    }

    /// Describes an interface; returns its number. `snaplen` in bytes, 0 for no limit; libpcap
    /// reads no file in which interfaces differ in it.
    ///
    /// # Errors
    /// The sink's error.
    pub fn add_interface(&mut self, name: &str, snaplen: u32) -> io::Result<u32> {
        self.begin(INTERFACE_DESCRIPTION);
        self.u16(LINK_TYPE_ETHERNET);
        self.u16(0);
        self.u32(snaplen);
        self.option(2, name.as_bytes());
        // Resolution: ten to the minus nine.
        self.option(9, &[9]);
        self.end_options();
        self.end()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// No such interface, more than 4 GiB of data, or an error of the sink.
    pub fn packet(&mut self, interface: u32, packet: &Packet<'_>) -> io::Result<()> {
        self.check(interface)?;
        let captured = u32::try_from(packet.data.len()).map_err(io::Error::other)?;
        self.begin(ENHANCED_PACKET);
        self.u32(interface);
        self.timestamp(packet.timestamp_ns);
        self.u32(captured);
        self.u32(packet.original_length);
        self.padded(packet.data);
        if let Some(direction) = packet.direction {
            self.option(2, &direction_flags(direction).to_le_bytes());
        }
        if let Some(hash) = packet.toeplitz {
            let [a, b, c, d] = hash.to_le_bytes();
            self.option(3, &[TOEPLITZ, a, b, c, d]);
        }
        if packet.direction.is_some() || packet.toeplitz.is_some() {
            self.end_options();
        }
        self.end()
    }

    /// Writes an interface's counters: packets seen, and packets not captured.
    ///
    /// # Errors
    /// No such interface, or an error of the sink.
    pub fn statistics(
        &mut self,
        interface: u32,
        timestamp_ns: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        self.check(interface)?;
        self.begin(INTERFACE_STATISTICS);
        self.u32(interface);
        self.timestamp(timestamp_ns);
        self.option(4, &received.to_le_bytes());
        self.option(5, &dropped.to_le_bytes());
        self.end_options();
        self.end()
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Flushes the sink.
    ///
    /// # Errors
    /// An error of the sink.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// The sink.
    pub fn into_inner(self) -> W {
        self.sink
    }

    fn check(&self, interface: u32) -> io::Result<()> {
        if interface < self.interfaces {
            return Ok(());
        }
        let message = format!("no interface {interface}, there are {}", self.interfaces);
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }

    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.u32(block_type);
        // The block's length, known at its end.
        self.u32(0);
    }

    fn end(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.block.len() + 4).map_err(io::Error::other)?;
        self.block[4..8].copy_from_slice(&length.to_le_bytes());
        self.u32(length);
        self.sink.write_all(&self.block)?;
        self.written += u64::from(length);
        Ok(())
    }

    fn u16(&mut self, value: u16) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.block.extend_from_slice(&value.to_le_bytes());
    }

    fn timestamp(&mut self, nanoseconds: u64) {
        self.u32((nanoseconds >> 32) as u32);
        self.u32(nanoseconds as u32);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    fn end_options(&mut self) {
        self.u32(0);
    }

    fn padded(&mut self, data: &[u8]) {
        self.block.extend_from_slice(data);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }
}
