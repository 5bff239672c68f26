//! A capture file in memory: its bytes, and where in them each packet lies.
//!
//! The whole file is read and looked through once, so that the data path makes
//! no system call and meets no surprise. What breaks off or is malformed after
//! good packets ends the file there, and is remembered with its place; what is
//! no capture at all, or not of Ethernet, is an error.
//!
//! Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. `pcap-parser` takes
//! blocks apart; lengths and timestamps are judged here, since it leaves a
//! block's second length, resolutions in powers of two, big-endian offsets and
//! the padding of simple packets to its caller.

use pcap_parser::pcapng::{Block, parse_block_be, parse_block_le};
use pcap_parser::{Linktype, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use std::io::Read;
use std::path::Path;

/// The largest capture that is taken into memory, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

const ALLOWED: &str = "allowed: a pcap or pcapng capture of Ethernet";
const NG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const NG_BYTE_ORDER_BIG: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
const NG_BYTE_ORDER_LITTLE: [u8; 4] = [0x4d, 0x3c, 0x2b, 0x1a];
/// The packet block that the enhanced one has replaced.
const NG_OBSOLETE_PACKET: u32 = 2;

/// Where a packet lies and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    offset: u32,
    length: u32,
    time_ns: u64,
}

/// A capture, read and indexed.
#[derive(Debug, Default)]
pub struct CaptureFile {
    bytes: Vec<u8>,
    records: Vec<Record>,
    broken: Option<Broken>,
    cut_short: u64,
    back_in_time: u64,
    first_time: Option<i128>,
}

/// Where a capture stops making sense, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Bytes from the start of the file to the record or block in question.
    pub offset: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl CaptureFile {
    /// Reads a capture.
    ///
    /// # Errors
    /// It cannot be read, is empty or too large, or what [`CaptureFile::parse`] says; in words
    /// for the user, the file's name not among them.
    pub fn load(path: &Path) -> Result<Self, String> {
        let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
        let file = picnic_core::files::open(path).map_err(unreadable)?;
        let too_large = |found| format!("found {found} bytes, allowed: up to {MAX_FILE_BYTES}");
        let length = file.metadata().map_err(unreadable)?.len();
        if length > MAX_FILE_BYTES {
            return Err(too_large(length));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        // Some file systems have files without a length to be judged by.
        let read =
            file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)? as u64;
        if read > MAX_FILE_BYTES {
            return Err(too_large(read));
        }
        CaptureFile::parse(bytes)
    }

    /// Looks through the bytes of a capture.
    ///
    /// # Errors
    /// Not a capture, not of Ethernet, or broken before the first packet.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let mut file = CaptureFile::default();
        let broken = match bytes.first_chunk() {
            None if bytes.is_empty() => return Err(format!("found an empty file, {ALLOWED}")),
            None => return Err(format!("found a file of {} bytes, {ALLOWED}", bytes.len())),
            Some(&NG_MAGIC) => file.index_pcapng(&bytes)?,
            Some([0xd4, 0xc3, 0xb2, 0xa1] | [0xa1, 0xb2, 0xc3, 0xd4])
            | Some([0x4d, 0x3c, 0xb2, 0xa1] | [0xa1, 0xb2, 0x3c, 0x4d]) => {
                file.index_pcap(&bytes)?
            }
            Some(magic) => return Err(unknown_magic(*magic)),
        };
        if let (Some(broken), true) = (&broken, file.records.is_empty()) {
            let Broken { offset, reason } = broken;
            return Err(format!("found no whole packet: at byte {offset}, {reason}"));
        }
        file.broken = broken;
        file.bytes = bytes;
        Ok(file)
    }

    /// Packets in the capture.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The bytes of a packet, and its time in nanoseconds after the first packet; never less
    /// than that of the packet before.
    #[inline]
    pub fn packet(&self, index: usize) -> Option<(&[u8], u64)> {
        let record = self.records.get(index)?;
        let start = record.offset as usize;
        let data = self.bytes.get(start..start + record.length as usize)?;
        Some((data, record.time_ns))
    }

    /// Nanoseconds from the first packet to the last.
    pub fn duration_ns(&self) -> u64 {
        self.records.last().map_or(0, |record| record.time_ns)
    }

    /// Where the capture stops making sense, if it does before its end.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Packets of which the capture holds less than was on the wire.
    pub fn cut_short(&self) -> u64 {
        self.cut_short
    }

    /// Packets with a timestamp before that of an earlier packet.
    pub fn back_in_time(&self) -> u64 {
        self.back_in_time
    }

    fn add(&mut self, offset: usize, length: usize, original: u32, time: Option<i128>) {
        let latest = self.duration_ns();
        let time_ns = match time {
            Some(time) => {
                let first = *self.first_time.get_or_insert(time);
                let elapsed = time.saturating_sub(first);
                if elapsed < i128::from(latest) {
                    self.back_in_time += 1;
                }
                elapsed.clamp(i128::from(latest), i128::from(u64::MAX)) as u64
            }
            // A block without a timestamp: as early as its place in the file allows.
            None => latest,
        };
        self.cut_short += u64::from(length < original as usize);
        // Below MAX_FILE_BYTES, so both fit.
        self.records.push(Record { offset: offset as u32, length: length as u32, time_ns });
    }

    fn index_pcap(&mut self, bytes: &[u8]) -> Result<Option<Broken>, String> {
        let Ok((mut rest, header)) = parse_pcap_header(bytes) else {
            let found = bytes.len();
            return Err(format!(
                "found a pcap header that breaks off after {found} of 24 bytes, {ALLOWED}"
            ));
        };
        if header.version_major != 2 {
            let (major, minor) = (header.version_major, header.version_minor);
            return Err(format!("found pcap version {major}.{minor}, allowed: 2.x"));
        }
        // The upper half tells of frame check sequences.
        check_link_type((header.network.0 & 0xffff) as u16)?;
        let parse = if header.is_bigendian() { parse_pcap_frame_be } else { parse_pcap_frame };
        let unit_ns = if header.is_nanosecond_precision() { 1 } else { 1000 };
        while !rest.is_empty() {
            let offset = bytes.len() - rest.len();
            let Ok((next, frame)) = parse(rest) else {
                let left = rest.len();
                let reason = format!("a packet breaks off: {left} bytes are left");
                return Ok(Some(Broken { offset, reason }));
            };
            let time =
                i128::from(frame.ts_sec) * 1_000_000_000 + i128::from(frame.ts_usec) * unit_ns;
            self.add(offset + 16, frame.data.len(), frame.origlen, Some(time));
            rest = next;
        }
        Ok(None)
    }

    fn index_pcapng(&mut self, bytes: &[u8]) -> Result<Option<Broken>, String> {
        let mut section = Section::default();
        let mut offset = 0;
        while offset < bytes.len() {
            match self.index_block(&bytes[offset..], offset, &mut section) {
                Ok(length) => offset += length,
                Err(Stop::Broken(reason)) => return Ok(Some(Broken { offset, reason })),
                Err(Stop::Refused(message)) => return Err(message),
            }
        }
        Ok(None)
    }

    /// Indexes the block that `rest` starts with; returns its length.
    fn index_block(
        &mut self,
        rest: &[u8],
        offset: usize,
        section: &mut Section,
    ) -> Result<usize, Stop> {
        if rest.starts_with(&NG_MAGIC) {
            *section = Section::starting(rest)?;
        }
        let block = frame(rest, section.big_endian)?;
        let parse = if section.big_endian { parse_block_be } else { parse_block_le };
        let Ok((_, parsed)) = parse(block) else {
            let block_type = section.u32(block, 0);
            return Err(Stop::Broken(format!("a block of type {block_type:#x} is malformed")));
        };
        match parsed {
            Block::SectionHeader(header) if header.major_version != 1 => {
                let version = header.major_version;
                return Err(Stop::Broken(format!("found pcapng version {version}, allowed: 1")));
            }
            Block::InterfaceDescription(description) => {
                let mut interface = Interface {
                    link_type: description.linktype.0 as u16,
                    snaplen: description.snaplen,
                    resolution: 6,
                    offset_seconds: 0,
                };
                for option in &description.options {
                    match (option.code.0, option.value()) {
                        (9, &[resolution, ..]) => interface.resolution = resolution,
                        (14, value) if value.len() == 8 => {
                            interface.offset_seconds = section.u64(value) as i64;
                        }
                        _ => {}
                    }
                }
                section.interfaces.push(interface);
            }
            Block::EnhancedPacket(packet) => {
                let interface = section.interface(packet.if_id)?;
                let time = interface.time_ns(packet.ts_high, packet.ts_low);
                self.add(offset + 28, packet.caplen as usize, packet.origlen, Some(time));
            }
            Block::SimplePacket(packet) => {
                let snaplen = match section.interface(0)?.snaplen {
                    0 => u32::MAX,
                    snaplen => snaplen,
                };
                let length = packet.data.len().min(packet.origlen.min(snaplen) as usize);
                self.add(offset + 12, length, packet.origlen, None);
            }
            Block::Unknown(_) if section.u32(block, 0) == NG_OBSOLETE_PACKET => {
                if block.len() < 32 {
                    return Err(Stop::Broken("an obsolete packet block is too short".into()));
                }
                let captured = section.u32(block, 20) as usize;
                if captured > block.len() - 32 {
                    return Err(Stop::Broken("an obsolete packet block is malformed".into()));
                }
                let interface = section.interface(u32::from(section.u16(block, 8)))?;
                let time = interface.time_ns(section.u32(block, 12), section.u32(block, 16));
                self.add(offset + 28, captured, section.u32(block, 24), Some(time));
            }
            _ => {}
        }
        Ok(block.len())
    }
}

/// Why indexing stops.
enum Stop {
    /// The file makes no sense from here on.
    Broken(String),
    /// The file is not one that a wire can use.
    Refused(String),
}

#[derive(Debug)]
struct Interface {
    link_type: u16,
    snaplen: u32,
    resolution: u8,
    offset_seconds: i64,
}

impl Interface {
    /// Nanoseconds since 1970.
    fn time_ns(&self, high: u32, low: u32) -> i128 {
        let units = i128::from(high) << 32 | i128::from(low);
        let exponent = u32::from(self.resolution & 0x7f);
        let since_offset = if self.resolution & 0x80 != 0 {
            (units * 1_000_000_000) >> exponent
        } else if exponent <= 9 {
            units * 10_i128.pow(9 - exponent)
        } else {
            // Past 10^38 the units are smaller than anything a nanosecond can hold.
            10_i128.checked_pow(exponent - 9).map_or(0, |per_nanosecond| units / per_nanosecond)
        };
        since_offset + i128::from(self.offset_seconds) * 1_000_000_000
    }
}

#[derive(Debug, Default)]
struct Section {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

impl Section {
    /// The section whose header `rest` starts with.
    fn starting(rest: &[u8]) -> Result<Self, Stop> {
        let big_endian = match rest.get(8..12) {
            Some(order) if order == NG_BYTE_ORDER_BIG => true,
            Some(order) if order == NG_BYTE_ORDER_LITTLE => false,
            Some(order) => {
                return Err(Stop::Broken(format!("a section of byte order {order:02x?} starts")));
            }
            None => return Err(breaks_off(rest.len())),
        };
        Ok(Section { big_endian, interfaces: Vec::new() })
    }

    /// The interface a packet names, if a wire can use its packets.
    fn interface(&self, index: u32) -> Result<&Interface, Stop> {
        let Some(interface) = self.interfaces.get(index as usize) else {
            let described = self.interfaces.len();
            return Err(Stop::Broken(format!(
                "a packet names interface {index}, {described} are described"
            )));
        };
        check_link_type(interface.link_type).map_err(Stop::Refused)?;
        Ok(interface)
    }

    /// The number at `at`; zero if there is none. Callers have checked lengths.
    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
        let number = number.unwrap_or_default();
        if self.big_endian { u32::from_be_bytes(number) } else { u32::from_le_bytes(number) }
    }

    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let number = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
        let number = number.unwrap_or_default();
        if self.big_endian { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) }
    }

    fn u64(&self, bytes: &[u8]) -> u64 {
        let (first, second) = (u64::from(self.u32(bytes, 0)), u64::from(self.u32(bytes, 4)));
        if self.big_endian { first << 32 | second } else { second << 32 | first }
    }
}

/// The whole block that `rest` starts with.
fn frame(rest: &[u8], big_endian: bool) -> Result<&[u8], Stop> {
    let order = Section { big_endian, interfaces: Vec::new() };
    if rest.len() < 12 {
        return Err(breaks_off(rest.len()));
    }
    let length = order.u32(rest, 4) as usize;
    if length < 12 || !length.is_multiple_of(4) {
        return Err(Stop::Broken(format!("a block has length {length}")));
    }
    let Some(block) = rest.get(..length) else { return Err(breaks_off(rest.len())) };
    let repeated = order.u32(block, length - 4) as usize;
    if repeated != length {
        return Err(Stop::Broken(format!("a block has length {length} and then {repeated}")));
    }
    Ok(block)
}

fn breaks_off(left: usize) -> Stop {
    Stop::Broken(format!("a block breaks off: {left} bytes are left"))
}

fn check_link_type(link_type: u16) -> Result<(), String> {
    if link_type == 1 {
        return Ok(());
    }
    let known = Linktype(i32::from(link_type)).to_string();
    let name = match link_type {
        105 => "IEEE802_11",
        127 => "IEEE802_11_RADIOTAP",
        // The parser writes those it has no name for as "Linktype(147 / 0x93)".
        _ if known.contains('(') => "",
        _ => &known,
    };
    let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
    Err(format!("found link type {link_type}{name}, allowed: 1 (ETHERNET)"))
}

fn unknown_magic(magic: [u8; 4]) -> String {
    let [first, second, third, fourth] = magic;
    let what = match magic {
        [0x1f, 0x8b, ..] => " (gzip)",
        [0x28, 0xb5, 0x2f, 0xfd] => " (zstd)",
        [0xfd, b'7', b'z', b'X'] => " (xz)",
        [b'B', b'Z', b'h', _] => " (bzip2)",
        _ => "",
    };
    format!(
        "found a file starting {first:02x} {second:02x} {third:02x} {fourth:02x}{what}, {ALLOWED}"
    )
}
