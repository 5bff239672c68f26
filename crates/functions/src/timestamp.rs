//! `timestamp`: adds the residence time to PTP event messages.
//!
//! ```toml
//! [[tx]]
//! function = "timestamp"
//! correct = true           # default: false, times are only shown
//! ```
//!
//! A software switch or NIC delays packets by varying times, and a clock synchronised through it
//! varies as much. An end-to-end transparent clock adds that time to the correction field of Sync,
//! Delay_Req, Pdelay_Req and Pdelay_Resp, so that the clocks at both ends can subtract it. The time
//! counts from a packet's arrival to this function, so put the function last in the chain through
//! which messages leave. The later delays (the rest of the burst, the wire's queue) are not
//! included.
//!
//! PTP is found over Ethernet (type 0x88f7) and at UDP port 319, over IPv4 and IPv6, after up to
//! two VLAN tags. A UDP checksum is kept right without looking at the rest of the datagram; a
//! missing one stays missing, a partial one stays partial.
//!
//! Guarantees: packets other than event messages are not changed, none is delayed or dropped, and
//! order is kept. Source: IEEE 1588-2019, 10.2 (end-to-end transparent clocks), 13.3 (header),
//! annexes C, D, E (mappings); RFC 1624 (checksum).

use crate::bytes::{get, get_u16, put, put_u16};
use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor};
use picnic_core::packet::layers::L4Kind;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// PTP over Ethernet.
const ETHER_TYPE: u16 = 0x88f7;
/// The UDP port of event messages.
const EVENT_PORT: u16 = 319;
/// The common header.
const HEADER: usize = 34;
const MESSAGE_LENGTH: usize = 2;
const CORRECTION: usize = 8;
const SEQUENCE: usize = 30;
/// Ages are kept in 48 bits: from here on, the packet arrived after `now`.
const NEGATIVE: u64 = 1 << 47;

/// Shows the residence time of event messages, and may add it to them.
#[derive(Debug)]
pub struct Timestamp {
    correct: bool,
    counts: Counts,
}

/// The keys of `timestamp`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the residence time is added to the correction field of event messages.
    pub correct: bool,
}

/// Counters of `timestamp`, and the last message.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Sync messages.
    pub sync: u64,
    /// Delay_Req messages.
    pub delay_req: u64,
    /// Pdelay_Req messages.
    pub pdelay_req: u64,
    /// Pdelay_Resp messages.
    pub pdelay_resp: u64,
    /// Messages whose correction field was changed.
    pub corrected: u64,
    /// Total residence time of all these messages, in nanoseconds.
    pub on_card_ns: u64,
    /// Longest residence time, in nanoseconds.
    #[schemars(extend("x-gauge" = true))]
    pub longest_ns: u64,
    /// The sequence number of the last message.
    #[schemars(extend("x-gauge" = true))]
    pub last_sequence: u16,
    /// Arrival time of the last message, in nanoseconds of the card's clock.
    #[schemars(extend("x-gauge" = true))]
    pub last_arrived_ns: u64,
    /// Time of the last message here, in nanoseconds of the card's clock.
    #[schemars(extend("x-gauge" = true))]
    pub last_seen_ns: u64,
}

impl Component for Timestamp {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "timestamp";
    const HELP: &'static str = "add the residence time to PTP event messages";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Timestamp>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Timestamp { correct: config.correct, counts: Counts::default() }))
    }
}

/// The start of an event message, and its UDP header.
fn event_message(packet: &mut Descriptor) -> Option<(usize, Option<usize>)> {
    let layers = packet.parse();
    if !packet.is_readable(&layers) {
        return None;
    }
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let data = packet.data();
    let (start, udp) = if layers.packet_type.l4() == L4Kind::Udp {
        let [_, _, high, low, length_high, length_low] = get(data, l4)?;
        let length = usize::from(u16::from_be_bytes([length_high, length_low]));
        if u16::from_be_bytes([high, low]) != EVENT_PORT || length < 8 + HEADER {
            return None;
        }
        (l4 + 8, Some(l4))
    } else if get_u16(data, l3.checked_sub(2)?)? == ETHER_TYPE {
        (l3, None)
    } else {
        return None;
    };
    packet.gather_front((start + HEADER) as u16);
    let header: [u8; HEADER] = get(packet.data(), start)?;
    // Version 2, of any minor version; general messages have types from 8 on.
    let is_event = header[1] & 0xf == 2 && header[0] & 0xf <= 3;
    let length = usize::from(get_u16(&header, MESSAGE_LENGTH)?);
    (is_event && length >= HEADER).then_some((start, udp))
}

impl Timestamp {
    fn stamp(&mut self, now: Time, packet: &mut Descriptor) {
        let Some((start, udp)) = event_message(packet) else { return };
        let age = packet.age(now);
        let age = if age < NEGATIVE { age } else { 0 };
        let data = packet.data();
        let counts = &mut self.counts;
        match data.get(start).map(|byte| byte & 0xf) {
            Some(0) => counts.sync += 1,
            Some(1) => counts.delay_req += 1,
            Some(2) => counts.pdelay_req += 1,
            _ => counts.pdelay_resp += 1,
        }
        counts.on_card_ns = counts.on_card_ns.saturating_add(age);
        counts.longest_ns = counts.longest_ns.max(age);
        counts.last_sequence = get_u16(data, start + SEQUENCE).unwrap_or_default();
        counts.last_arrived_ns = packet.received_at().as_nanos();
        counts.last_seen_ns = now.as_nanos();
        if self.correct {
            self.counts.corrected += 1;
            correct(packet, start + CORRECTION, udp, age);
        }
    }
}

/// Adds nanoseconds to the correction field at `place`, in units of 2^-16 ns; after an overflow it
/// means "too big" (IEEE 1588-2019, 13.3.2.9).
fn correct(packet: &mut Descriptor, place: usize, udp: Option<usize>, ns: u64) {
    let is_partial = packet.checksum() == ChecksumState::Partial;
    let data = packet.data_mut();
    let Some(old) = get(data, place) else { return };
    let new = i64::from_be_bytes(old).saturating_add((ns << 16) as i64).to_be_bytes();
    put(data, place, new);
    let Some(place) = udp.map(|udp| udp + 6) else { return };
    match get_u16(data, place) {
        Some(0) | None => {}
        // Covers only the pseudo-header so far.
        Some(_) if is_partial => {}
        Some(checksum) => put_u16(data, place, update(checksum, old, new)),
    }
}

/// The checksum of a datagram after eight bytes have changed (RFC 1624, equation 3); never zero,
/// which would mean none.
fn update(checksum: u16, old: [u8; 8], new: [u8; 8]) -> u16 {
    let words = |bytes: [u8; 8]| -> u32 {
        bytes.as_chunks().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum()
    };
    // The complements of four words are 4 * 0xffff less their sum.
    let sum = u32::from(!checksum) + words(new) + (4 * 0xffff - words(old));
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

impl Inspect for Timestamp {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for Timestamp {
    fn process(&mut self, now: Time, burst: &mut Burst, _out: &mut Out<'_>) {
        for packet in burst.as_mut_slice() {
            self.stamp(now, packet);
        }
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
