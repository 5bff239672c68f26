//! `rss`: receive-side scaling, the same flow to the same queue every time.
//!
//! ```toml
//! [[rx]]
//! function = "rss"
//! hash = "toeplitz"        # or "jhash" (lookup3), "jhash2" (lookup2, the paper's)
//! table_size = 128         # or table = [0, 0, 1, 3]: the queue of each entry
//! types = ["ipv4", "tcp-ipv4", "ipv6", "tcp-ipv6"]   # UDP by addresses only
//! ```
//!
//! Addresses and ports of TCP and UDP are hashed, of fragments and other protocols
//! the addresses alone; behind VLAN tags as without them. The hash modulo the table's
//! length selects the entry that names the queue. TCP or UDP whose type is off falls
//! back to the addresses if that type is on. What has no hash (not IP, or its types
//! off) goes to `default_queue` or, without one, on in the chain: after the last
//! function, to the card's default queue. The hash over addresses alone is that of
//! ports zero: for Toeplitz no difference, for jhash one layout for both.
//!
//! Guarantees: order within a flow is kept, save for flows that a change of table or
//! key moves to another queue, and these are counted ([`Counters`]). Hash, hash type
//! and layers are kept in the descriptor. No bytes are written.
//!
//! Source: PICNIC, section 5.1; Microsoft, "RSS Hashing Functions" and "RSS hashing
//! types" (NDIS).

mod config;
mod control;

pub use config::{Config, HashName, HashType};
pub use control::{Change, Control, Counters, Refusal};

use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{Descriptor, RssType};
use picnic_core::packet::layers::{self, L3Kind, L4Kind, Layers, PacketType};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_hash::{IndirectionTable, Toeplitz, V4Tuple, V6Tuple, jhash_v4, jhash_v6, lookup2};
use std::any::Any;
use std::sync::Arc;

/// Packets whose bytes are asked for ahead of the one being parsed.
const PREFETCH_AHEAD: usize = 4;

/// In place of a queue: on to the next function. No card has this many queues.
const ONWARD: u16 = u16::MAX;

/// Receive-side scaling.
pub struct Rss {
    hash: Hash,
    table: Box<IndirectionTable>,
    types: Types,
    /// The queue of packets without a hash, or [`ONWARD`].
    default_queue: u16,
    counters: Arc<Counters>,
    v4: Gathered<V4Tuple>,
    v6: Gathered<V6Tuple>,
    queues: [u16; BURST],
}

/// The tuples of a burst that are of one family, and where in the burst they came from.
struct Gathered<T> {
    tuples: [T; BURST],
    places: [u8; BURST],
    hashes: [u32; BURST],
}

impl<T: Copy + Default> Default for Gathered<T> {
    fn default() -> Self {
        Gathered { tuples: [T::default(); BURST], places: [0; BURST], hashes: [0; BURST] }
    }
}

/// What [`Rss::classify`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The hash; zero if there is none.
    pub hash: u32,
    /// What it was taken over.
    pub over: RssType,
    /// The queue; `None` if the packet goes on in the chain.
    pub queue: Option<u16>,
}

impl Component for Rss {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "rss";
    const HELP: &'static str = "spread flows over the queues by a hash of addresses and ports";

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Rss::new(&config, context)?))
    }
}

impl Rss {
    /// An `rss` of these settings.
    ///
    /// # Errors
    /// The key that is wrong, what was found and what is allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<Rss, ConfigError> {
        if let Some(queue) = config.default_queue {
            crate::settings::check_queue("default_queue", queue, context.queues)?;
        }
        Ok(Rss {
            hash: config.build_hash()?,
            table: Box::new(config.build_table(context.queues)?),
            types: config.build_types(),
            default_queue: config.default_queue.unwrap_or(ONWARD),
            counters: Arc::default(),
            v4: Gathered::default(),
            v6: Gathered::default(),
            queues: [0; BURST],
        })
    }

    /// What it counts; to be read from any thread.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The indirection table in force.
    pub fn table(&self) -> &IndirectionTable {
        &self.table
    }

    /// What becomes of a packet of these bytes: the same as in [`Function::process`].
    pub fn classify(&self, data: &[u8]) -> Classified {
        let layers = layers::parse(data);
        let over = self.types.of(layers.packet_type);
        let mut hash = [0];
        match family(over) {
            Family::V4 => self.hash.hash_v4(&[tuple_v4(&layers, data, over)], &mut hash),
            Family::V6 => self.hash.hash_v6(&[tuple_v6(&layers, data, over)], &mut hash),
            Family::None => {
                let queue = (self.default_queue != ONWARD).then_some(self.default_queue);
                return Classified { hash: 0, over, queue };
            }
        }
        Classified { hash: hash[0], over, queue: Some(self.table.lookup(hash[0])) }
    }

    /// Parses the burst and gathers its tuples; returns how many there are of each family.
    #[inline(always)]
    fn gather(&mut self, packets: &mut [Descriptor]) -> (usize, usize) {
        let (mut count_v4, mut count_v6) = (0, 0);
        for place in 0..packets.len() {
            if let Some(ahead) = packets.get(place + PREFETCH_AHEAD) {
                ahead.prefetch();
            }
            let Some(packet) = packets.get_mut(place) else { break };
            let layers = packet.parse();
            let over = self.types.of(layers.packet_type);
            packet.set_rss(0, over);
            match family(over) {
                Family::V4 => {
                    let tuple = tuple_v4(&layers, packet.data(), over);
                    self.v4.put(count_v4, place, tuple);
                    count_v4 += 1;
                }
                Family::V6 => {
                    let tuple = tuple_v6(&layers, packet.data(), over);
                    self.v6.put(count_v6, place, tuple);
                    count_v6 += 1;
                }
                Family::None => {}
            }
        }
        (count_v4, count_v6)
    }

    /// Steers a burst that is not all IPv4.
    fn finish_mixed(
        &mut self,
        burst: &mut Burst,
        out: &mut Out<'_>,
        count_v4: usize,
        count_v6: usize,
    ) {
        let packets = burst.as_mut_slice();
        let unhashed = packets.len() - count_v4 - count_v6;
        if unhashed != 0 {
            self.counters.unhashed.add(unhashed as u64);
            self.queues.fill(self.default_queue);
        }
        if count_v6 != 0 {
            let hashes = &mut self.v6.hashes[..count_v6];
            self.hash.hash_v6(&self.v6.tuples[..count_v6], hashes);
        }
        let v4 = self.v4.hashed(count_v4);
        let v6 = self.v6.hashed(count_v6);
        for (place, hash) in v4.chain(v6) {
            if let Some(packet) = packets.get_mut(place) {
                packet.rss_hash = hash;
            }
            self.queues[place % BURST] = self.table.lookup(hash);
        }
        let mut queues = self.queues.iter();
        burst.retain(|packet| match queues.next() {
            Some(&ONWARD) | None => Some(packet),
            Some(&queue) => {
                out.steer(packet, queue);
                None
            }
        });
    }
}

impl Function for Rss {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let packets = burst.as_mut_slice();
        let (count_v4, count_v6) = self.gather(packets);
        let hashes = &mut self.v4.hashes[..count_v4];
        self.hash.hash_v4(&self.v4.tuples[..count_v4], hashes);
        if count_v4 != packets.len() {
            return self.finish_mixed(burst, out, count_v4, count_v6);
        }
        // All IPv4, so every hash is in its packet's place. Hashes are written to the burst
        // before it is drained: a packet changed on its way to the ring would be read back
        // wider than it was just written, and wait for the store.
        for ((packet, &hash), queue) in packets.iter_mut().zip(&*hashes).zip(&mut self.queues) {
            packet.rss_hash = hash;
            *queue = self.table.lookup(hash);
        }
        for (packet, &queue) in burst.drain().zip(&self.queues) {
            out.steer(packet, queue);
        }
    }

    fn control(&mut self, message: &mut (dyn Any + Send)) -> bool {
        let Some(message) = message.downcast_mut::<Control>() else { return false };
        let outcome = self.apply(&mut message.change);
        message.outcome = Some(outcome);
        outcome.is_ok()
    }
}

impl std::fmt::Debug for Rss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rss")
            .field("hash", &self.hash)
            .field("table", &self.table)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl<T> Gathered<T> {
    #[inline(always)]
    fn put(&mut self, index: usize, place: usize, tuple: T) {
        self.tuples[index % BURST] = tuple;
        self.places[index % BURST] = place as u8;
    }

    /// Place and hash of the first `count`.
    #[inline(always)]
    fn hashed(&self, count: usize) -> impl Iterator<Item = (usize, u32)> {
        let places = self.places.iter().map(|&place| usize::from(place));
        places.zip(self.hashes.iter().copied()).take(count)
    }
}

/// The hash in use.
#[derive(Debug)]
enum Hash {
    Toeplitz(Box<Toeplitz>),
    Lookup3(u32),
    Lookup2(u32),
}

impl Hash {
    #[inline]
    fn hash_v4(&self, tuples: &[V4Tuple], out: &mut [u32]) {
        match self {
            Hash::Toeplitz(toeplitz) => toeplitz.hash_v4(tuples, out),
            Hash::Lookup3(init) => jhash_v4(tuples, *init, out),
            Hash::Lookup2(init) => {
                for (tuple, hash) in tuples.iter().zip(out) {
                    *hash = lookup2(tuple.input(), *init);
                }
            }
        }
    }

    #[inline]
    fn hash_v6(&self, tuples: &[V6Tuple], out: &mut [u32]) {
        match self {
            Hash::Toeplitz(toeplitz) => toeplitz.hash_v6(tuples, out),
            Hash::Lookup3(init) => jhash_v6(tuples, *init, out),
            Hash::Lookup2(init) => {
                for (tuple, hash) in tuples.iter().zip(out) {
                    *hash = lookup2(tuple.input(), *init);
                }
            }
        }
    }
}

/// What each of the 256 packet types is hashed over: the switches, applied once.
struct Types([RssType; 256]);

impl Types {
    fn new(is_on: impl Fn(HashType) -> bool) -> Types {
        Types(std::array::from_fn(|bits| {
            let packet_type = PacketType::from_bits(bits as u8);
            let l4 = if packet_type.is_fragment() { L4Kind::None } else { packet_type.l4() };
            match (packet_type.l3(), l4) {
                (L3Kind::Ipv4, L4Kind::Tcp) if is_on(HashType::TcpIpv4) => RssType::Ipv4Tcp,
                (L3Kind::Ipv4, L4Kind::Udp) if is_on(HashType::UdpIpv4) => RssType::Ipv4Udp,
                (L3Kind::Ipv4, _) if is_on(HashType::Ipv4) => RssType::Ipv4,
                (L3Kind::Ipv6, L4Kind::Tcp) if is_on(HashType::TcpIpv6) => RssType::Ipv6Tcp,
                (L3Kind::Ipv6, L4Kind::Udp) if is_on(HashType::UdpIpv6) => RssType::Ipv6Udp,
                (L3Kind::Ipv6, _) if is_on(HashType::Ipv6) => RssType::Ipv6,
                _ => RssType::None,
            }
        }))
    }

    #[inline(always)]
    fn of(&self, packet_type: PacketType) -> RssType {
        self.0[usize::from(packet_type.bits())]
    }
}

enum Family {
    V4,
    V6,
    None,
}

#[inline(always)]
fn family(over: RssType) -> Family {
    match over {
        RssType::None => Family::None,
        RssType::Ipv4 | RssType::Ipv4Tcp | RssType::Ipv4Udp => Family::V4,
        RssType::Ipv6 | RssType::Ipv6Tcp | RssType::Ipv6Udp => Family::V6,
    }
}

/// Both ports as they lie in memory; zero if the hash is not over them.
#[inline(always)]
fn ports(layers: &Layers, data: &[u8], over: RssType) -> u32 {
    match over {
        RssType::None | RssType::Ipv4 | RssType::Ipv6 => 0,
        _ => layers.ports(data).unwrap_or_default(),
    }
}

// Layers that were parsed from `data` have their addresses and ports in it, so the zeros
// below stand for nothing that occurs.

#[inline(always)]
fn tuple_v4(layers: &Layers, data: &[u8], over: RssType) -> V4Tuple {
    let (source, destination) = layers.ipv4_addresses(data).unwrap_or_default();
    V4Tuple::from_words(source, destination, ports(layers, data, over))
}

#[inline(always)]
fn tuple_v6(layers: &Layers, data: &[u8], over: RssType) -> V6Tuple {
    let addresses = layers.ipv6_addresses(data).and_then(|addresses| {
        Some((addresses.first_chunk::<16>()?, addresses.last_chunk::<16>()?))
    });
    let (source, destination) = addresses.unwrap_or((&[0; 16], &[0; 16]));
    V6Tuple::from_words(source, destination, ports(layers, data, over))
}
