//! A capture file in memory, with an index of its packets.
//!
//! The whole file is read and checked once, so that the data path makes no system call and meets no
//! surprise. A truncated or malformed record after good packets ends the file there, and its place
//! is noted; a file that is not a capture, or has used packets other than Ethernet, is an error.
//!
//! Gaps between timestamps can be bounded: a clock that jumps, forth or back, then moves all later
//! packets with it.
//!
//! Source: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng. `pcap-parser` takes
//! blocks apart; lengths and timestamps are judged here, since it leaves a
//! block's second length, resolutions in powers of two, big-endian offsets and
//! the padding of simple packets to its caller.

use super::choice::{Chosen, Described};
use crate::pcapng::direction_of;
use pcap_parser::pcapng::{Block, PcapNGOption, parse_block_be, parse_block_le};
use pcap_parser::{Linktype, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use std::io::Read;
use std::path::Path;

/// The largest capture that is taken into memory, in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 30;

/// The link type of Ethernet.
const ETHERNET: u16 = 1;
const ALLOWED: &str = "allowed: a pcap or pcapng capture of Ethernet";
/// The writer recorded in a card's captures; the version follows.
pub(crate) const WRITER: &[u8] = b"picnic ";
const NG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const NG_BYTE_ORDER_BIG: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
const NG_BYTE_ORDER_LITTLE: [u8; 4] = [0x4d, 0x3c, 0x2b, 0x1a];
/// The packet block that the enhanced one has replaced.
const NG_OBSOLETE_PACKET: u32 = 2;

/// Place and due time of a packet.
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
    broken: Option<InvalidCapture>,
    cut_short: u64,
    back_in_time: u64,
    first_time: Option<i128>,
    /// The longest gap that is kept, and by how much later packets were moved for it.
    max_gap_ns: Option<u64>,
    moved_ns: i128,
    bounded: u64,
    largest_gap: Gap,
    /// Interface of the first used packet that is not Ethernet.
    foreign: Option<usize>,
    /// All interfaces of a pcapng file, section after section.
    described: Vec<Described>,
    /// The interfaces that are used; all by default.
    chosen: Option<Chosen>,
}

/// Time without a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// As recorded, before any bound.
    pub ns: u64,
    /// The number of the next packet, from 0.
    pub before: usize,
}

/// The place of the first error in a capture, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCapture {
    /// Bytes from the start of the file to the record or block in question.
    pub offset: usize,
    /// The error.
    pub reason: String,
}

impl CaptureFile {
    /// Reads a whole capture.
    ///
    /// # Errors
    /// It cannot be read, is empty or too large, or [`CaptureFile::parse`] fails; a message for the
    /// user, without the file's name.
    pub fn load(path: &Path) -> Result<Self, String> {
        CaptureFile::parse(read(path)?)
    }

    /// Reads the packets to replay: those of the interface of this name, or "all"; by default all
    /// without the copies of each packet that a trace of a card has. No gap is longer than
    /// `max_gap_ns`.
    ///
    /// # Errors
    /// As [`CaptureFile::load`]; separately, an error of the interface.
    pub fn load_chosen(
        path: &Path,
        interface: Option<&str>,
        max_gap_ns: Option<u64>,
    ) -> Result<Result<Self, String>, String> {
        let file = CaptureFile { max_gap_ns, ..CaptureFile::default() }.index(read(path)?)?;
        let chosen = match Chosen::of(&file.described, interface) {
            Ok(chosen) => chosen,
            Err(message) => return Ok(Err(message)),
        };
        if chosen.note.is_none() {
            return file.of_ethernet().map(Ok);
        }
        // Times count from the first packet that is used.
        let again = CaptureFile { chosen: Some(chosen), max_gap_ns, ..CaptureFile::default() };
        let again = again.index(file.bytes)?;
        Ok(again.of_ethernet())
    }

    /// A note about the packets omitted by the choice of an interface.
    pub fn left_out(&self) -> Option<&str> {
        self.chosen.as_ref()?.note.as_deref()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = picnic_core::files::open(path).map_err(unreadable)?;
    let too_large = |found| format!("found {found} bytes, allowed: up to {MAX_FILE_BYTES}");
    let length = file.metadata().map_err(unreadable)?.len();
    if length > MAX_FILE_BYTES {
        return Err(too_large(length));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // Some file systems have files without a length to be judged by.
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)? as u64;
    if read > MAX_FILE_BYTES {
        return Err(too_large(read));
    }
    Ok(bytes)
}

impl CaptureFile {
    /// Indexes the bytes of a capture.
    ///
    /// # Errors
    /// Not a capture, not Ethernet, or broken before the first packet.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        CaptureFile::default().index(bytes)?.of_ethernet()
    }

    /// The file, if all packets that are used are of Ethernet.
    fn of_ethernet(self) -> Result<Self, String> {
        let Some(foreign) = self.foreign.and_then(|place| self.described.get(place)) else {
            return Ok(self);
        };
        let error = check_link_type(foreign.link_type).err().unwrap_or_default();
        let is_other = |other: &&Described| {
            other.link_type == ETHERNET && other.packets() != 0 && other.name != foreign.name
        };
        match self.described.iter().find(is_other) {
            Some(other) => Err(format!(
                "interface {:?}: {error}; try: interface = {:?}",
                foreign.name, other.name
            )),
            None => Err(error),
        }
    }

    fn index(self, bytes: Vec<u8>) -> Result<Self, String> {
        let mut file = self;
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
            let InvalidCapture { offset, reason } = broken;
            return Err(format!("found no complete packet: at byte {offset}, {reason}"));
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
    /// than the time of the packet before.
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

    /// The longest time without a packet, as recorded.
    pub fn largest_gap(&self) -> Gap {
        self.largest_gap
    }

    /// Gaps that were bounded, and jumps back beyond the bound.
    pub fn bounded(&self) -> u64 {
        self.bounded
    }

    /// Where the capture becomes invalid, if it does before its end.
    pub fn broken(&self) -> Option<&InvalidCapture> {
        self.broken.as_ref()
    }

    /// Packets that the capture holds only in part.
    pub fn cut_short(&self) -> u64 {
        self.cut_short
    }

    /// Packets with a timestamp before an earlier packet's.
    pub fn back_in_time(&self) -> u64 {
        self.back_in_time
    }

    fn add(&mut self, offset: usize, length: usize, original: u32, time: Option<i128>) {
        let latest = self.duration_ns();
        let time_ns = match time {
            Some(time) => {
                let first = *self.first_time.get_or_insert(time);
                let elapsed = time.saturating_sub(first).saturating_sub(self.moved_ns);
                let gap = elapsed - i128::from(latest);
                if gap < 0 {
                    self.back_in_time += 1;
                }
                if gap > i128::from(self.largest_gap.ns) {
                    let ns = u64::try_from(gap).unwrap_or(u64::MAX);
                    self.largest_gap = Gap { ns, before: self.records.len() };
                }
                let kept = match self.max_gap_ns.map(i128::from) {
                    // The clock has jumped: later packets follow from here.
                    Some(most) if gap.abs() > most => {
                        let kept = if gap > 0 { most } else { 0 };
                        self.moved_ns = self.moved_ns.saturating_add(gap - kept);
                        self.bounded += 1;
                        kept
                    }
                    _ => gap.max(0),
                };
                (i128::from(latest) + kept).min(i128::from(u64::MAX)) as u64
            }
            // A block without a timestamp: as early as its place in the file allows.
            None => latest,
        };
        self.cut_short += u64::from(length < original as usize);
        // Below MAX_FILE_BYTES, so both fit.
        self.records.push(Record { offset: offset as u32, length: length as u32, time_ns });
    }

    /// As [`CaptureFile::add`], of an interface of the section.
    fn add_of(
        &mut self,
        interface: usize,
        flags: Option<u32>,
        packet: (usize, usize, u32, Option<i128>),
    ) {
        let direction = flags.and_then(direction_of);
        if let Some(described) = self.described.get_mut(interface) {
            described.count(direction);
        }
        if self.chosen.as_ref().is_none_or(|chosen| chosen.takes(interface, direction)) {
            let (offset, length, original, time) = packet;
            if self.described.get(interface).is_some_and(|of| of.link_type != ETHERNET) {
                self.foreign.get_or_insert(interface);
            }
            self.add(offset, length, original, time);
        }
    }

    fn index_pcap(&mut self, bytes: &[u8]) -> Result<Option<InvalidCapture>, String> {
        let Ok((mut rest, header)) = parse_pcap_header(bytes) else {
            let found = bytes.len();
            return Err(format!(
                "found a pcap header truncated after {found} of 24 bytes, {ALLOWED}"
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
                let reason = format!("a packet is truncated: {left} bytes are left");
                return Ok(Some(InvalidCapture { offset, reason }));
            };
            let time =
                i128::from(frame.ts_sec) * 1_000_000_000 + i128::from(frame.ts_usec) * unit_ns;
            self.add(offset + 16, frame.data.len(), frame.origlen, Some(time));
            rest = next;
        }
        Ok(None)
    }

    fn index_pcapng(&mut self, bytes: &[u8]) -> Result<Option<InvalidCapture>, String> {
        let mut section = Section::default();
        let mut offset = 0;
        while offset < bytes.len() {
            match self.index_block(&bytes[offset..], offset, &mut section) {
                Ok(length) => offset += length,
                Err(reason) => return Ok(Some(InvalidCapture { offset, reason })),
            }
        }
        Ok(None)
    }

    /// Indexes the block that `rest` starts with; returns its length, or why the file makes no
    /// sense from here on.
    fn index_block(
        &mut self,
        rest: &[u8],
        offset: usize,
        section: &mut Section,
    ) -> Result<usize, String> {
        if rest.starts_with(&NG_MAGIC) {
            *section = Section::starting(rest)?;
            section.first_interface = self.described.len();
        }
        let block = frame(rest, section.big_endian)?;
        let parse = if section.big_endian { parse_block_be } else { parse_block_le };
        let Ok((_, parsed)) = parse(block) else {
            let block_type = section.u32(block, 0);
            return Err(format!("a block of type {block_type:#x} is malformed"));
        };
        match parsed {
            Block::SectionHeader(header) if header.major_version != 1 => {
                let version = header.major_version;
                return Err(format!("found pcapng version {version}, allowed: 1"));
            }
            Block::SectionHeader(header) => {
                let application = option(&header.options, 4);
                let version = application.and_then(|value| value.strip_prefix(WRITER));
                section.is_of_card =
                    version.and_then(|rest| rest.first()).is_some_and(u8::is_ascii_digit);
            }
            Block::InterfaceDescription(description) => {
                let name = option(&description.options, 2);
                let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
                self.described.push(Described {
                    name: name.unwrap_or_else(|| self.described.len().to_string()),
                    is_of_card: section.is_of_card,
                    link_type: description.linktype.0 as u16,
                    ..Described::default()
                });
                let mut interface =
                    Interface { snaplen: description.snaplen, resolution: 6, offset_seconds: 0 };
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
                let flags = option(&packet.options, 2).filter(|flags| flags.len() == 4);
                let flags = flags.map(|flags| section.u32(flags, 0));
                let interface = section.first_interface + packet.if_id as usize;
                let packet = (offset + 28, packet.caplen as usize, packet.origlen, Some(time));
                self.add_of(interface, flags, packet);
            }
            Block::SimplePacket(packet) => {
                let snaplen = match section.interface(0)?.snaplen {
                    0 => u32::MAX,
                    snaplen => snaplen,
                };
                let length = packet.data.len().min(packet.origlen.min(snaplen) as usize);
                let packet = (offset + 12, length, packet.origlen, None);
                self.add_of(section.first_interface, None, packet);
            }
            Block::Unknown(_) if section.u32(block, 0) == NG_OBSOLETE_PACKET => {
                if block.len() < 32 {
                    return Err("an obsolete packet block is too short".into());
                }
                let captured = section.u32(block, 20) as usize;
                if captured > block.len() - 32 {
                    return Err("an obsolete packet block is malformed".into());
                }
                let index = section.u16(block, 8);
                let interface = section.interface(u32::from(index))?;
                let time = interface.time_ns(section.u32(block, 12), section.u32(block, 16));
                let packet = (offset + 28, captured, section.u32(block, 24), Some(time));
                self.add_of(section.first_interface + usize::from(index), None, packet);
            }
            _ => {}
        }
        Ok(block.len())
    }
}

#[derive(Debug)]
struct Interface {
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
    /// A card's capture wrote it.
    is_of_card: bool,
    /// The number in the file of its first interface.
    first_interface: usize,
    interfaces: Vec<Interface>,
}

impl Section {
    /// The section whose header `rest` starts with.
    fn starting(rest: &[u8]) -> Result<Self, String> {
        let big_endian = match rest.get(8..12) {
            Some(order) if order == NG_BYTE_ORDER_BIG => true,
            Some(order) if order == NG_BYTE_ORDER_LITTLE => false,
            Some(order) => {
                return Err(format!("a section of byte order {order:02x?} starts"));
            }
            None => return Err(breaks_off(rest.len())),
        };
        Ok(Section { big_endian, ..Section::default() })
    }

    /// The interface a packet names.
    fn interface(&self, index: u32) -> Result<&Interface, String> {
        self.interfaces.get(index as usize).ok_or_else(|| {
            let described = self.interfaces.len();
            format!("a packet names interface {index}, but {described} are described")
        })
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
fn frame(rest: &[u8], big_endian: bool) -> Result<&[u8], String> {
    let order = Section { big_endian, ..Section::default() };
    if rest.len() < 12 {
        return Err(breaks_off(rest.len()));
    }
    let length = order.u32(rest, 4) as usize;
    if length < 12 || !length.is_multiple_of(4) {
        return Err(format!("a block has length {length}"));
    }
    let Some(block) = rest.get(..length) else { return Err(breaks_off(rest.len())) };
    let repeated = order.u32(block, length - 4) as usize;
    if repeated != length {
        return Err(format!("a block has length {length} and then {repeated}"));
    }
    Ok(block)
}

/// The value of the first option of this kind, without its padding.
fn option<'a>(options: &'a [PcapNGOption<'_>], code: u16) -> Option<&'a [u8]> {
    options.iter().find(|option| option.code.0 == code)?.as_bytes().ok()
}

fn breaks_off(left: usize) -> String {
    format!("a block is truncated: {left} bytes are left")
}

fn check_link_type(link_type: u16) -> Result<(), String> {
    if link_type == ETHERNET {
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
