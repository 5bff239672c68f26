//! Fault injector: loses, duplicates, reorders and damages packets, by seed.
//!
//! ```toml
//! [[wire]]
//! port = "generator"
//! [wire.fault]
//! drop = 0.01          # share of received packets, 0 to 1; the same unit in:
//! duplicate = 0.01     # a copy follows, another packet received
//! reorder = 0.02       # delayed until 1 to reorder_distance packets have passed
//! corrupt = 0.001      # one bit flipped
//! truncate = 0.001     # cut to a random length, at least one byte
//! ```
//!
//! Faults affect only received packets. Each kind is drawn for each packet, so
//! one packet may have several: it is lost, or else cut, flipped, copied and
//! delayed, in this order; the copy is not delayed.
//!
//! Guarantees: the same seed gives the same faults to the same packets, in any
//! bursts; each kind's draws do not depend on the other kinds' shares.
//! A lost packet is in, and dropped for `fault` at the wire. A delayed packet
//! is not yet received: its bytes are kept aside, its buffer has returned,
//! so it counts nowhere until it is let go, after `reorder_usecs` at the latest
//! and at once when the wire has finished.

#[cfg(test)]
mod tests;

use super::Inner;
use crate::generator::random::{Random, scale};
use picnic_core::command::Prepared;
use picnic_core::config::{SectionConfig, Shape};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::BURST;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::layers::Layers;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Description, Receiver, Status, Transmitter, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::VecDeque;

const MAX_DISTANCE: u32 = 64;
/// Added to the wire's number, so that its faults and its packets draw from different streams.
const STREAM: u64 = 0xfa17_0000_0000;

/// `[wire.fault]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Share of received packets lost.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub drop: f64,
    /// Share of packets duplicated.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub duplicate: f64,
    /// Share of packets that are delayed so that others overtake them.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub reorder: f64,
    /// Share of packets with one bit flipped.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub corrupt: f64,
    /// Share of packets truncated to a random length of at least one byte.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub truncate: f64,
    /// Most packets that overtake a delayed one.
    #[schemars(range(min = 1, max = MAX_DISTANCE), extend("x-advanced" = true))]
    pub reorder_distance: u32,
    /// Longest delay of a packet, in microseconds.
    #[schemars(range(min = 1, max = 1_000_000), extend("x-advanced" = true))]
    pub reorder_usecs: u32,
}

impl Default for FaultConfig {
    fn default() -> Self {
        FaultConfig {
            drop: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            truncate: 0.0,
            reorder_distance: 4,
            reorder_usecs: 1000,
        }
    }
}

impl SectionConfig for FaultConfig {
    const NAME: &'static str = "wire.fault";
    const HELP: &'static str = "Faults between wire and card.";
    const SHAPE: Shape = Shape::Optional;
}

/// Puts a fault injector between a wire and the card.
///
/// # Errors
/// A key of `[wire.fault]` is wrong.
pub fn fault_wire(
    port: Box<dyn WirePort>,
    config: &FaultConfig,
    context: &BuildContext,
) -> Result<Box<dyn WirePort>, ConfigError> {
    // Held back, and twice a burst that finds no room.
    let kept = config.reorder_distance as usize + 2 * BURST;
    let patient = port.describe().capabilities.patient;
    Ok(Box::new(FaultyWire {
        port,
        patient,
        inner: Inner::default(),
        faults: Faults {
            config: config.clone(),
            random: Random::new(context.seed, STREAM + context.position as u64),
            held: Vec::with_capacity(kept),
            late: VecDeque::with_capacity(2 * kept),
            spare: (0..kept).map(|_| Vec::with_capacity(context.buffer_size)).collect(),
            counts: Counts::default(),
        },
    }))
}

/// A wrapper, not an observer: it changes received packets.
struct FaultyWire {
    port: Box<dyn WirePort>,
    patient: bool,
    inner: Inner,
    faults: Faults,
}

impl WirePort for FaultyWire {
    fn describe(&self) -> Description {
        self.port.describe()
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let FaultyWire { port, patient, inner, faults } = self;
        let patient = *patient;
        faults.release(|held| held.until <= now || port.status().is_finished);
        faults.push_late(rx, patient);
        let limit = rx.room().saturating_sub(faults.late.len());
        if limit == 0 {
            return;
        }
        inner.receive(&mut **port, now, rx, limit);
        for packet in inner.burst.drain() {
            // Held packets arrive when they are released.
            rx.arrived_at(packet.received_at());
            faults.befall(now, packet, rx, patient);
        }
        rx.arrived_at(now);
        if port.status().is_finished {
            faults.release(|_| true);
            faults.push_late(rx, patient);
        }
    }

    fn holds(&mut self, now: Time, frames: usize) -> bool {
        self.port.holds(now, frames)
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        self.port.transmit(now, tx);
    }

    fn arm(&mut self) -> bool {
        self.port.arm()
    }

    fn status(&self) -> Status<'_> {
        let (port, Faults { late, held, .. }) = (self.port.status(), &self.faults);
        let more = if port.is_finished { None } else { port.next_deadline };
        let let_go = (!late.is_empty()).then_some(Time::ZERO);
        let due = held.iter().map(|held| held.until).min();
        Status {
            next_deadline: more.into_iter().chain(let_go).chain(due).min(),
            is_finished: port.is_finished && late.is_empty() && held.is_empty(),
            ..port
        }
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        self.port.start(pool)
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        let mut lines = self.port.stop(tx);
        lines.push(self.faults.summary());
        lines
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        self.port.obey(order, now)
    }
}

/// A packet set aside, with its buffer returned.
struct Held {
    bytes: Vec<u8>,
    checksum: ChecksumState,
    gso: (GsoType, u16),
    mark: u32,
    /// Let go once this many packets have come, or at this time.
    after: u64,
    until: Time,
}

impl Held {
    /// A packet with these bytes and its metadata; none without buffers.
    fn restore(&self, pool: &mut Pool) -> Option<Descriptor> {
        let mut packet = pool.packet(&self.bytes)?;
        packet.set_checksum(self.checksum);
        packet.set_gso(self.gso.0, self.gso.1);
        packet.mark = self.mark;
        Some(packet)
    }
}

/// Flips bit number `bit`, counted from the lowest of the first byte.
fn flip(data: &mut [u8], bit: u32) {
    if let Some(byte) = data.get_mut(bit as usize / 8) {
        *byte ^= 1 << (bit % 8);
    }
}

#[derive(Debug, Default)]
struct Counts {
    packets: u64,
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    truncated: u64,
}

struct Faults {
    config: FaultConfig,
    random: Random,
    /// Held back, in the order they came in.
    held: Vec<Held>,
    /// To be handed over as soon as there is room, oldest first.
    late: VecDeque<Held>,
    /// Memory for packets set aside. Used in turn, so that all of it soon is long enough for the
    /// longest packet.
    spare: VecDeque<Vec<u8>>,
    counts: Counts,
}

impl Faults {
    /// Draws a packet's faults, and hands over what becomes of it.
    fn befall(&mut self, now: Time, packet: Descriptor, rx: &mut Receiver<'_>, patient: bool) {
        let FaultConfig { drop, duplicate, reorder, corrupt, truncate, .. } = self.config;
        // All are drawn, always: see the guarantees.
        let [drop, truncate, corrupt, duplicate, reorder] =
            [drop, truncate, corrupt, duplicate, reorder].map(|share| self.random.chance(share));
        let [cut, bit, distance] = [(); 3].map(|()| self.random.next());
        self.counts.packets += 1;
        if drop {
            self.counts.dropped += 1;
            rx.pool().free(packet);
            rx.shed(DropReason::Fault, 1);
        } else if let Some(packet) = self.damage(packet, truncate, cut, corrupt, bit, rx) {
            let copy = duplicate.then(|| self.set_aside(&packet));
            if reorder {
                self.counts.reordered += 1;
                let distance = 1 + scale(distance, self.config.reorder_distance);
                let mut held = self.set_aside(&packet);
                held.after = self.counts.packets + u64::from(distance);
                held.until = now + u64::from(self.config.reorder_usecs) * 1000;
                self.held.push(held);
                rx.pool().free(packet);
            } else {
                self.push(packet, rx);
            }
            if let Some(copy) = copy {
                self.counts.duplicated += 1;
                self.late.push_back(copy);
            }
        }
        let packets = self.counts.packets;
        self.release(|held| held.after <= packets);
        self.push_late(rx, patient);
    }

    /// Truncates a packet and flips a bit of the rest, as drawn.
    fn damage(
        &mut self,
        mut packet: Descriptor,
        truncate: bool,
        cut: u64,
        corrupt: bool,
        bit: u64,
        rx: &mut Receiver<'_>,
    ) -> Option<Descriptor> {
        let length = packet.length();
        let truncate = truncate && length > 1;
        let corrupt = corrupt && length > 0;
        if !truncate && !corrupt {
            return Some(packet);
        }
        let left = if truncate { 1 + scale(cut, length - 1) } else { length };
        let bit = scale(bit, left * 8);
        self.counts.truncated += u64::from(truncate);
        self.counts.corrupted += u64::from(corrupt);
        if packet.checksum() == ChecksumState::Good {
            packet.set_checksum(ChecksumState::Unknown);
        }
        packet.set_layers(&Layers::default());
        if !packet.is_chained() {
            // Not chained, so the length is within one buffer: 16 bits.
            packet.truncate(left as u16);
            if corrupt {
                flip(packet.data_mut(), bit);
            }
            return Some(packet);
        }
        let mut held = self.set_aside(&packet);
        rx.pool().free(packet);
        held.bytes.truncate(left as usize);
        if corrupt {
            flip(&mut held.bytes, bit);
        }
        // Its own buffers have returned, and it needs no more than those.
        let packet = held.restore(rx.pool());
        self.spare.push_back(held.bytes);
        if packet.is_none() {
            rx.shed(DropReason::PoolExhausted, 1);
        }
        packet
    }

    /// Hands a packet over, after late ones.
    fn push(&mut self, packet: Descriptor, rx: &mut Receiver<'_>) {
        if self.late.is_empty() && rx.room() != 0 {
            rx.push(packet);
        } else {
            let late = self.set_aside(&packet);
            self.late.push_back(late);
            rx.pool().free(packet);
        }
    }

    /// Hands over late packets while there is room.
    fn push_late(&mut self, rx: &mut Receiver<'_>, patient: bool) {
        while rx.room() != 0 {
            let Some(late) = self.late.front() else { return };
            match late.restore(rx.pool()) {
                Some(packet) => rx.push(packet),
                None if patient => return,
                None => rx.shed(DropReason::PoolExhausted, 1),
            }
            self.spare.extend(self.late.pop_front().map(|late| late.bytes));
        }
    }

    /// Makes delayed packets late if `is_due`.
    fn release(&mut self, is_due: impl Fn(&Held) -> bool) {
        self.late.extend(self.held.extract_if(.., |held| is_due(held)));
    }

    fn set_aside(&mut self, packet: &Descriptor) -> Held {
        let mut bytes = self.spare.pop_front().unwrap_or_default();
        bytes.clear();
        packet.segments().for_each(|segment| bytes.extend_from_slice(segment));
        Held {
            bytes,
            checksum: packet.checksum(),
            gso: (packet.gso_type(), packet.gso_size()),
            mark: packet.mark,
            after: 0,
            until: Time::ZERO,
        }
    }

    fn summary(&self) -> String {
        let Counts { packets, dropped, duplicated, reordered, corrupted, truncated } = self.counts;
        let mut line = format!(
            "fault: of {packets} packets {dropped} dropped, {duplicated} duplicated, {reordered} \
             reordered, {corrupted} corrupted, {truncated} truncated"
        );
        let held = self.held.len() + self.late.len();
        if held != 0 {
            line += &format!(", {held} still delayed at the end");
        }
        line
    }
}
