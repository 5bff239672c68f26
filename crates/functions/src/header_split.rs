//! `header-split`: headers and payload in buffers of their own.
//!
//! ```toml
//! [[rx]]
//! function = "header-split"
//! at = "l4"                # headers up to and with TCP's; l3: up to IP's; l2: Ethernet's only
//! ```
//!
//! A host that looks at headers only, or wants payload in pages of its own, gets both apart: the
//! packet becomes a chain whose first buffer holds the headers and nothing else. The payload stays
//! where it was received; the headers are copied.
//!
//! Split is behind TCP, UDP or ICMP with "l4", behind the IP header and its extensions with "l3",
//! behind Ethernet and VLAN tags with "l2". A packet that has no such header is split behind the
//! last one that it has and a parser reaches: a fragment behind IP's, ARP not at all. What is
//! malformed, has less payload than `least_payload`, or has its headers apart already stays whole.
//!
//! A function behind it that reads further headers than the first buffer has brings those back
//! there: with "l2" and "l3" put it last. What the descriptor knows stays that of the whole packet.
//!
//! Guarantees: order and bytes are kept. Without a buffer for the headers the packet goes on whole,
//! counted. Source: the header split of NICs (Intel 82599 datasheet 7.1.10, PSRTYPE).

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
    /// The last layer whose header goes to the first buffer.
    pub at: Layer,
    /// Packets with fewer bytes of payload stay whole, 1 to 65535.
    pub least_payload: u16,
}

impl Default for Config {
    fn default() -> Self {
        Config { at: Layer::L4, least_payload: 256 }
    }
}

/// Where packets are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Behind Ethernet and VLAN tags.
    L2,
    /// Behind IP.
    L3,
    /// Behind TCP, UDP, ICMP.
    L4,
}

/// What `header-split` counts, in packets.
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
        if config.least_payload == 0 {
            return Err(ConfigError::new("least_payload", "found 0, allowed: 1 to 65535"));
        }
        Ok(Box::new(HeaderSplit { config, counts: Counts::default() }))
    }
}

/// Bytes of headers up to a layer; `None` if they are not known.
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
        // A fragment of IPv6 has headers that are not known.
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
