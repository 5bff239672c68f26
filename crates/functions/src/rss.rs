//! `rss`: receive-side scaling, always steers a flow to the same queue.
//!
//! ```toml
//! [[rx]]
//! function = "rss"
//! hash = "toeplitz"        # or "jhash" (lookup3), "lookup2" (the paper's)
//! table_size = 128         # or table = [0, 0, 1, 3]: the queue of each entry
//! types = ["ipv4", "tcp-ipv4", "ipv6", "tcp-ipv6"]   # the default: UDP by addresses only
//! ```
//!
//! For TCP, addresses and ports are hashed; for other IP packets only the addresses; with or
//! without VLAN tags. UDP is hashed by ports too if `udp-ipv4` and `udp-ipv6` are among the types;
//! then a UDP flow with fragments, which have no ports, is spread over two queues. (TCP avoids
//! fragments by path MTU discovery.) The hash modulo the table's length selects the entry that
//! names the queue. TCP or UDP whose type is off falls back to the addresses if that type is on.
//! Packets without a hash (not IP, or their types off) go to `default_queue` or, without one,
//! continue in the chain: after the last function, to the card's default queue. The hash over
//! addresses alone uses ports of zero: for Toeplitz no difference, for jhash one layout for both.
//!
//! With `inner = true`, packets of a tunnel whose inner headers `tunnel` has exposed are hashed by
//! the inner headers, since all flows of a tunnel share one pair of outer addresses.
//!
//! `weights` gives queues unequal shares of the table. *Contexts* are further tables, for packets
//! with a mark set by an earlier function. With `rebalance_usecs` the table follows the observed
//! load, a limited number of entries at a time.
//!
//! Guarantees: order within a flow is kept, except for flows that move to another queue because the
//! table, key or context changes or is rebalanced; these are counted ([`Counters`]). Hash, hash
//! type and layers are kept in the descriptor. No bytes are written.
//!
//! Source: PICNIC, section 5.1; Microsoft, "RSS Hashing Functions" and "RSS hashing
//! types" (NDIS).

mod balance;
mod commands;
mod config;
mod contexts;
pub(crate) mod flow;

pub use commands::{
    ContextInForce, Counters, Get, InForce, Moved, Refusal, Set, SetContext, Show, TableChange,
};
pub use config::{Config, Context, HashName, HashType};
pub use contexts::MAX_CONTEXTS;

use crate::bytes::prefetch_ahead;
use balance::Balance;
use contexts::Contexts;

use flow::{Family, Hash, Types, family, tuple_v4, tuple_v6};
use picnic_core::command::{CommandEntry, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, InKernel, KernelCounts};
use picnic_core::out::Out;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::desc::{Descriptor, RssType};
use picnic_core::packet::layers::{self, L3Kind};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::{ByHash, KernelForm};
use picnic_hash::{IndirectionTable, V4Tuple, V6Tuple};
use std::sync::Arc;

/// Instead of a queue: on to the next function. No card has this many queues.
const ONWARD: u16 = u16::MAX;

/// Receive-side scaling.
pub struct Rss {
    hash: Hash,
    table: Box<IndirectionTable>,
    types: Types,
    /// The queue of packets without a hash, or [`ONWARD`].
    default_queue: u16,
    /// Whether known inner headers of a tunnel are hashed.
    inner: bool,
    /// Tables for packets with marks.
    contexts: Contexts,
    /// Rebalancing, if enabled.
    balance: Option<Box<Balance>>,
    counters: Arc<Counters>,
    v4: Gathered<V4Tuple>,
    v6: Gathered<V6Tuple>,
    queues: [u16; BURST],
}

/// The tuples of a burst in one family, and their places in the burst.
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

/// The result of [`Rss::classify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The hash; zero for none.
    pub hash: u32,
    /// The hash type.
    pub over: RssType,
    /// The queue; `None` if the packet continues in the chain.
    pub queue: Option<u16>,
}

impl Component for Rss {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "rss";
    const HELP: &'static str = "spread flows over the queues by a hash of addresses and ports";
    const COMMANDS: &'static [CommandEntry] = commands::COMMANDS;
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &[
            "hash",
            "key",
            "symmetric",
            "jhash_init",
            "table_size",
            "table",
            "weights",
            "types",
            "default_queue",
        ],
        beside: &[],
        commands: &["get", "set"],
        form: |config, context| {
            Ok(KernelForm::ByHash(Box::new(Rss::new(config, context)?.by_hash())).into())
        },
    });

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(Rss::new(&config, context)?))
    }
}

impl Rss {
    /// An `rss` with these settings.
    ///
    /// # Errors
    /// The wrong key, the value found and the values allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<Rss, ConfigError> {
        config.check_default_queue(context)?;
        let table = config.build_table(context.queues)?;
        Ok(Rss {
            hash: config.build_hash()?,
            contexts: config.build_contexts(context.queues)?,
            balance: config.build_balance(&table)?,
            table: Box::new(table),
            types: config.build_types(),
            default_queue: config.default_queue.unwrap_or(ONWARD),
            inner: config.inner,
            counters: Arc::default(),
            v4: Gathered::default(),
            v6: Gathered::default(),
            queues: [0; BURST],
        })
    }

    /// The kernel form: current hash, hash types and table.
    fn by_hash(&self) -> ByHash {
        let default = (self.default_queue != ONWARD).then_some(self.default_queue);
        ByHash {
            hash: self.hash.in_kernel(),
            ipv4: self.types.in_kernel(L3Kind::Ipv4),
            ipv6: self.types.in_kernel(L3Kind::Ipv6),
            table: self.table.entries().to_vec(),
            default_queue: default,
        }
    }

    /// Its counters, readable from any thread.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// The current indirection table.
    pub fn table(&self) -> &IndirectionTable {
        &self.table
    }

    /// The classification of a packet with these bytes, as in [`Function::process`] without a known
    /// tunnel or a mark.
    pub fn classify(&self, data: &[u8]) -> Classified {
        let (hash, over) = flow::hash_of(&self.hash, &self.types, &layers::parse(data), data);
        let default = (self.default_queue != ONWARD).then_some(self.default_queue);
        let queue = if over == RssType::None { default } else { Some(self.table.lookup(hash)) };
        Classified { hash, over, queue }
    }

    /// Parses packets and gathers their tuples up to the first that is not IPv4 (or not hashed, its
    /// types being off); returns their number. Usually the whole burst.
    #[inline(always)]
    fn gather_v4(&mut self, packets: &mut [Descriptor]) -> usize {
        let count = packets.len().min(BURST);
        for place in 0..count {
            prefetch_ahead(packets, place);
            let packet = &mut packets[place];
            let Some(plain) = layers::plain_v4(packet.data()) else {
                if self.gather_other_v4(packet, place) {
                    continue;
                }
                return place;
            };
            let (over, tuple) = self.types.of_plain_v4(&plain);
            if over == RssType::None {
                return place;
            }
            self.v4.tuples[place] = tuple;
            let layers = plain.layers();
            packet.set_layers(&layers);
            packet.set_rss_type(over);
        }
        count
    }

    /// Gathers an IPv4 packet of any kind; false for others. Separate from the loop above, so that
    /// the fast path has the registers to itself.
    #[inline(never)]
    fn gather_other_v4(&mut self, packet: &mut Descriptor, place: usize) -> bool {
        let layers = packet.parse();
        let over = self.types.of(layers.packet_type);
        if !matches!(family(over), Family::V4) {
            return false;
        }
        self.v4.tuples[place % BURST] = tuple_v4(&layers, packet.data(), over);
        packet.set_rss_type(over);
        true
    }

    /// Parses the packets from `first` on and gathers tuples of both families, after the first
    /// `first` of IPv4; returns the number of each.
    fn gather_mixed(&mut self, packets: &mut [Descriptor], first: usize) -> (usize, usize) {
        let (mut count_v4, mut count_v6) = (first, 0);
        for (place, to) in self.v4.places.iter_mut().enumerate().take(first) {
            *to = place as u8;
        }
        for place in first..packets.len() {
            prefetch_ahead(packets, place);
            let packet = &mut packets[place];
            let mut layers = packet.parse();
            let mut data = packet.data();
            if self.inner
                && let Some(offset) = packet.inner_l3()
                && let Some(inside) = data.get(usize::from(offset)..)
            {
                let length = (packet.length() as usize).saturating_sub(offset.into());
                (layers, data) = (layers::parse_ip(inside, length), inside);
            }
            let over = self.types.of(layers.packet_type);
            match family(over) {
                Family::V4 => {
                    self.v4.put(count_v4, place, tuple_v4(&layers, data, over));
                    count_v4 += 1;
                }
                Family::V6 => {
                    self.v6.put(count_v6, place, tuple_v6(&layers, data, over));
                    count_v6 += 1;
                }
                Family::None => {}
            }
            packet.set_rss(0, over);
        }
        (count_v4, count_v6)
    }

    /// Hashes and steers a burst in which only the first `first` packets are IPv4.
    #[inline(never)]
    fn process_mixed(&mut self, burst: &mut Burst, out: &mut Out<'_>, first: usize) {
        let packets = burst.as_mut_slice();
        let (count_v4, count_v6) = self.gather_mixed(packets, first);
        self.hash.name_in(packets);
        let unhashed = packets.len() - count_v4 - count_v6;
        if unhashed != 0 {
            self.counters.unhashed.add(unhashed as u64);
            self.queues.fill(self.default_queue);
        }
        let (v4, v6) = (&mut self.v4, &mut self.v6);
        self.hash.hash_v4(&v4.tuples[..count_v4], &mut v4.hashes[..count_v4]);
        self.hash.hash_v6(&v6.tuples[..count_v6], &mut v6.hashes[..count_v6]);
        for (place, hash) in v4.hashed(count_v4).chain(v6.hashed(count_v6)) {
            let mut context = None;
            if let Some(packet) = packets.get_mut(place) {
                packet.set_rss_hash(hash);
                context = self.contexts.of(packet.mark);
            }
            if let (None, Some(balance)) = (context, &mut self.balance) {
                balance.count(self.table.index(hash));
            }
            self.queues[place % BURST] = context.unwrap_or(&self.table).lookup(hash);
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
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        let packets = burst.as_mut_slice();
        if let Some(balance) = &mut self.balance {
            let moved = balance.look(now, &mut self.table) as u64;
            self.counters.rebalanced_entries.add(moved);
            self.counters.moved_entries.add(moved);
        }
        let count = if self.inner { 0 } else { self.gather_v4(packets) };
        let is_plain = self.balance.is_none() && self.contexts.is_empty();
        if count != packets.len() || !is_plain {
            return self.process_mixed(burst, out, count);
        }
        let hashes = &mut self.v4.hashes[..count];
        self.hash.hash_v4(&self.v4.tuples[..count], hashes);
        for (packet, &hash) in packets.iter_mut().zip(&*hashes) {
            packet.set_rss_hash(hash);
        }
        self.hash.name_in(packets);
        self.table.lookup_burst(hashes, &mut self.queues);
        out.steer_burst(burst, &self.queues);
    }

    fn kernel_form(&self) -> Option<Form> {
        Some(KernelForm::ByHash(Box::new(self.by_hash())).into())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        self.counters.unhashed.set(counts.unhashed);
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
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
