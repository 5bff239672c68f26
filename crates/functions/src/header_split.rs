//! `header-split`: puts headers and payload into separate buffers.
//!
//! ```toml
//! [[rx]]
//! function = "header-split"
//! at = "l4"                # headers up to and with TCP's; l3: up to IP's; l2: Ethernet's only
//! ```
//!
//! For hosts that read only headers, or want payload in separate pages: the packet becomes a chain
//! whose first buffer holds only the headers. The payload stays in place; the headers are copied.
//!
//! The split is after TCP, UDP or ICMP with "l4", after the IP header and its extensions with "l3",
//! after Ethernet and VLAN tags with "l2". A packet without such a header is split after its last
//! parsed header: a fragment after IP's, ARP not at all. Packets that are malformed, have less
//! payload than `least_payload`, or are already split stay whole.
//!
//! A later function that reads headers past the first buffer moves them back there: with "l2"
//! and "l3" put it last. The descriptor's metadata still describes the whole packet.
//!
//! Guarantees: order and bytes are kept. Without a buffer for the headers the packet continues
//! whole, and is counted. Source: the header split of NICs (Intel 82599 datasheet 7.1.10, PSRTYPE).

use picnic_core::command::{CommandEntry, Get, Inspect, Prepared};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Splits headers from payload.
#[derive(Debug)]
pub struct HeaderSplit {
    config: Config,
    counts: Counts,
}

/// The keys of `header-split`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The last layer whose header goes into the first buffer.
    pub at: Layer,
    /// Packets with fewer bytes of payload stay whole.
    #[schemars(range(min = 1))]
    pub least_payload: u16,
}

impl Default for Config {
    fn default() -> Self {
        Config { at: Layer::L4, least_payload: 256 }
    }
}

/// The place at which packets are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// After Ethernet and VLAN tags.
    L2,
    /// After IP.
    L3,
    /// After TCP, UDP, ICMP.
    L4,
}

/// Counters of `header-split`, in packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct Counts {
    /// Split.
    pub split: u64,
    /// Left whole: too little payload, or unknown headers.
    pub whole: u64,
    /// Left whole for lack of a buffer.
    pub no_buffer: u64,
}

impl Component for HeaderSplit {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "header-split";
    const HELP: &'static str = "put headers and payload into separate buffers";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<HeaderSplit>>()];

    fn build(config: Config, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(HeaderSplit { config, counts: Counts::default() }))
    }
}

/// Bytes of headers up to a layer; `None` if unknown.
#[inline]
fn headers(packet: &Descriptor, layers: &Layers, at: Layer) -> Option<usize> {
    let (data, kind) = (packet.data(), layers.packet_type);
    let (l3, l4) = (usize::from(layers.l3_offset), usize::from(layers.l4_offset));
    if l3 == 0 || !packet.is_readable(layers) {
        return None;
    }
    match at {
        Layer::L2 => Some(l3),
        Layer::L3 if l4 != 0 => Some(l4),
        // An IPv6 fragment has unknown headers.
        _ => (l4 != 0 || kind.is_ipv4()).then(|| layers.headers_length(data)),
    }
}

impl HeaderSplit {
    fn split(&mut self, mut packet: Descriptor, out: &mut Out<'_>) -> Descriptor {
        let layers = packet.parse();
        let least = usize::from(self.config.least_payload);
        let headers = headers(&packet, &layers, self.config.at).filter(|&headers| {
            headers + least <= packet.length() as usize && headers < packet.data().len()
        });
        let Some(headers) = headers else {
            self.counts.whole += 1;
            return packet;
        };
        // Below the length of a buffer.
        match out.split(packet, headers as u16) {
            Ok(packet) => {
                self.counts.split += 1;
                packet
            }
            Err(packet) => {
                self.counts.no_buffer += 1;
                packet
            }
        }
    }
}

impl Inspect for HeaderSplit {
    type State = Counts;

    fn inspect(&self) -> Counts {
        self.counts
    }
}

impl Function for HeaderSplit {
    fn process(&mut self, _now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|packet| Some(self.split(packet, out)));
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}
