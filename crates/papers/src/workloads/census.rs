//! Counts of a wire's traffic from within the card: packets, bytes, acknowledgements, and the flows
//! of requested connections.
//!
//! Guarantees: packets are counted as on the wire, super-frames as the frames that they represent;
//! no allocation on the data path.

use picnic_core::hook::{Hook, HookPoint, Observer};
use picnic_core::ledger::Stage;
use picnic_core::packet::desc::{Descriptor, GsoType};
use picnic_core::packet::layers::{self, Layers};
use picnic_core::stats::Counter;
use picnic_core::time::Time;
use picnic_hash::V4Tuple;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flows that are kept.
const MOST_FLOWS: usize = 1 << 20;
const FIN_SYN_RST: u8 = 1 | 2 | 4;
const SYN: u8 = 2;
const ACK: u8 = 0x10;

/// Counts both directions. Clones are the same.
#[derive(Clone, Debug)]
pub struct Census(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    r#in: Way,
    out: Way,
    flows: Counter,
    /// For each flow, the words of its tuple, in wire order.
    tuples: Box<[[AtomicU64; 2]]>,
}

#[derive(Debug, Default)]
struct Way {
    packets: Counter,
    bytes: Counter,
    acknowledgements: Counter,
}

/// The counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counted {
    /// Packets towards the server.
    pub packets_in: u64,
    /// Their bytes, without framing.
    pub bytes_in: u64,
    /// Pure acknowledgements among them.
    pub acknowledgements_in: u64,
    /// Packets from the server.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Pure acknowledgements among them.
    pub acknowledgements_out: u64,
    /// Requested connections: TCP segments with SYN.
    pub connections: u64,
}

impl Counted {
    /// The share of packets towards the server that are pure acknowledgements.
    pub fn share_of_acknowledgements(&self) -> f64 {
        self.acknowledgements_in as f64 / self.packets_in.max(1) as f64
    }
}

impl Default for Census {
    fn default() -> Self {
        let tuple = || [AtomicU64::new(0), AtomicU64::new(0)];
        Census(Arc::new(Shared {
            r#in: Way::default(),
            out: Way::default(),
            flows: Counter::default(),
            tuples: (0..MOST_FLOWS).map(|_| tuple()).collect(),
        }))
    }
}

impl Census {
    /// The counts so far.
    pub fn counted(&self) -> Counted {
        let Shared { r#in, out, flows, .. } = &*self.0;
        Counted {
            packets_in: r#in.packets.get(),
            bytes_in: r#in.bytes.get(),
            acknowledgements_in: r#in.acknowledgements.get(),
            packets_out: out.packets.get(),
            bytes_out: out.bytes.get(),
            acknowledgements_out: out.acknowledgements.get(),
            connections: flows.get(),
        }
    }

    /// The flows of requested connections over IPv4, in order.
    pub fn flows(&self) -> Vec<V4Tuple> {
        let count = (self.0.flows.get() as usize).min(MOST_FLOWS);
        let flow = |words: &[AtomicU64; 2]| {
            let [a, b, c, d, e, f, g, h] = words[0].load(Relaxed).to_be_bytes();
            let [.., i, j, k, l] = words[1].load(Relaxed).to_be_bytes();
            V4Tuple::new(
                [a, b, c, d],
                [e, f, g, h],
                u16::from_be_bytes([i, j]),
                u16::from_be_bytes([k, l]),
            )
        };
        self.0.tuples[..count].iter().map(flow).collect()
    }

    fn count(&self, stage: Stage, packet: &Descriptor) {
        let shared = &*self.0;
        let way = if stage == Stage::Wire { &shared.r#in } else { &shared.out };
        let layers = layers::parse_of(packet.data(), packet.length() as usize);
        let (frames, bytes) = on_the_wire(packet, &layers);
        way.packets.add(frames);
        way.bytes.add(bytes);
        let Some((flags, payload)) = tcp(packet, &layers) else { return };
        if payload == 0 && flags & (FIN_SYN_RST | ACK) == ACK {
            way.acknowledgements.add(1);
        }
        if flags & (SYN | ACK) == SYN
            && stage == Stage::Wire
            && let Some(flow) = layers.flow_v4(packet.data())
        {
            if let Some(place) = shared.tuples.get(shared.flows.get() as usize) {
                let [a, b, c, d, e, f, g, h, i, j, k, l] = flow;
                place[0].store(u64::from_be_bytes([a, b, c, d, e, f, g, h]), Relaxed);
                place[1].store(u64::from_be_bytes([0, 0, 0, 0, i, j, k, l]), Relaxed);
            }
            shared.flows.add(1);
        }
    }
}

/// Flags and bytes of a TCP segment.
fn tcp(packet: &Descriptor, layers: &Layers) -> Option<(u8, u32)> {
    if !layers.packet_type.is_tcp() {
        return None;
    }
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    let data = packet.data();
    let headers = l4 + usize::from(data.get(l4 + 12)? >> 4) * 4;
    // A short frame is padded: its IP header has the length.
    let length = match packet.ip_length(layers) {
        Some(length) if packet.gso_type() == GsoType::None => l3 + length,
        _ => packet.length() as usize,
    };
    Some((*data.get(l4 + 13)?, length.saturating_sub(headers) as u32))
}

/// The frames of a packet on the wire, and their bytes.
fn on_the_wire(packet: &Descriptor, layers: &Layers) -> (u64, u64) {
    let bytes = u64::from(packet.length());
    if packet.gso_type() == GsoType::None || packet.gso_size() == 0 {
        return (1, bytes);
    }
    let Some((_, payload)) = tcp(packet, layers) else { return (1, bytes) };
    let frames = u64::from(payload).div_ceil(packet.gso_size().into()).max(1);
    (frames, bytes + (frames - 1) * (bytes - u64::from(payload)))
}

impl Observer for Census {
    fn observe(&mut self, _: Time, stage: Stage, packets: &[Descriptor]) {
        packets.iter().for_each(|packet| self.count(stage, packet));
    }
}

impl Hook for Census {
    fn observer(&self, point: &HookPoint<'_>) -> Option<Box<dyn Observer>> {
        matches!(point, HookPoint::Wire { .. }).then(|| Box::new(self.clone()) as _)
    }
}
