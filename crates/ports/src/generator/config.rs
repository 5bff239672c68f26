//! The generator's keys in the card file.
//!
//! Source: RFC 2544 and RFC 5180 for the addresses, RFC 4814 for random ports; sizes are
//! without the frame check sequence, as a driver sees frames. The mix is the "simple IMIX"
//! of the industry, frames of 64, 594 and 1518 bytes with it, 7 : 4 : 1 (RFC 6985 says why
//! the name alone is not enough).

use super::flow::{FlowConfig, Plan};
use super::pace::MAX_RATE_PPS;
use picnic_core::error::ConfigError;
use schemars::JsonSchema;
use serde::de::{self, Deserializer, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The shortest Ethernet frame, in bytes without the frame check sequence.
pub const MIN_FRAME_BYTES: u16 = 60;
/// The most flows one generator has.
pub const MAX_FLOWS: u32 = 1 << 20;

/// Distribution of packets over flows.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PopularityKind {
    /// All the same.
    #[default]
    Uniform,
    /// By Zipf's law: a few flows have most packets.
    Zipf,
}

/// Order of the flows.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each packet's flow is drawn.
    #[default]
    Random,
    /// Each flow in turn.
    Sequence,
}

/// Arrival times at a rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalsKind {
    /// Evenly spaced.
    #[default]
    Even,
    /// Independently of each other (Poisson): the rate is their mean.
    Random,
}

/// How buffers are written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Frames {
    /// Every frame is written anew.
    #[default]
    Fresh,
    /// Each buffer is written once, before the first packet, and reused.
    Reuse,
}

/// Frame sizes, in bytes without the frame check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All the same.
    Fixed(u16),
    /// Drawn from the lowest to the highest, each as likely.
    Range(u16, u16),
    /// 60, 590 and 1514 bytes, drawn 7 : 4 : 1.
    Imix,
}

impl Size {
    /// The smallest and the largest.
    pub(crate) fn bounds(self) -> (u16, u16) {
        match self {
            Size::Fixed(size) => (size, size),
            Size::Range(low, high) => (low, high),
            Size::Imix => (60, 1514),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl<'de> Visitor<'de> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, a range such as [64, 1514], or \"imix\"")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u16::try_from(bytes)
                    .map(Size::Fixed)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                u16::try_from(bytes)
                    .map(Size::Fixed)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(bytes), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                match text {
                    "imix" => Ok(Size::Imix),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Size, A::Error> {
                let mut next = |index| {
                    list.next_element::<u16>()?
                        .ok_or_else(|| de::Error::invalid_length(index, &SizeVisitor))
                };
                let (low, high) = (next(0)?, next(1)?);
                match list.next_element::<de::IgnoredAny>()? {
                    None => Ok(Size::Range(low, high)),
                    Some(_) => Err(de::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Size::Fixed(size) => size.serialize(serializer),
            Size::Range(low, high) => [low, high].serialize(serializer),
            Size::Imix => "imix".serialize(serializer),
        }
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "anyOf": [
            { "type": "integer" },
            { "type": "array", "items": { "type": "integer" } },
            { "const": "imix" },
        ] })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// The keys of `port = "generator"`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct GeneratorConfig {
    /// Flows, each with its own addresses, ports and VLAN, drawn from the seed.
    #[schemars(range(min = 1, max = MAX_FLOWS))]
    pub flows: u32,
    /// Distribution of packets over flows: "uniform" or "zipf".
    pub popularity: PopularityKind,
    /// Exponent of Zipf's law; used with popularity = "zipf".
    #[schemars(range(min = 0.0, max = 10.0))]
    pub zipf_exponent: f64,
    /// "random" draws each packet's flow, "sequence" takes each flow in turn.
    pub order: Order,
    /// Share of flows that are TCP; the others are UDP.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub tcp_share: f64,
    /// Share of flows that are IPv6; the others are IPv4.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub ipv6_share: f64,
    /// Share of flows with an 802.1Q tag.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub vlan_share: f64,
    /// Frame size in bytes without FCS: a number from 60 up, a range [low, high], or "imix". A
    /// frame with longer headers has their size.
    pub size: Size,
    /// Packets per second; 0: as fast as the card takes them.
    #[schemars(range(max = MAX_RATE_PPS))]
    pub rate_pps: u64,
    /// With a rate: "even" spaces arrivals evenly, "random" makes them independent, with the rate
    /// as their mean.
    pub arrivals: ArrivalsKind,
    /// With a rate: packets that arrive together.
    #[schemars(range(min = 1, max = 65_536))]
    pub burst: u32,
    /// With a rate: packets that may wait at the wire for the card; further ones are
    /// dropped as `backlog_full`.
    #[schemars(range(max = 65_536), extend("x-advanced" = true))]
    pub backlog: u32,
    /// Total number of packets, including shed ones; 0: unlimited.
    pub packets: u64,
    /// "fresh" writes each frame anew; "reuse" writes each buffer once, to measure the card alone.
    #[schemars(extend("x-advanced" = true))]
    pub frames: Frames,
    /// Whether to write flow and sequence number into each payload of at least 16 bytes.
    pub sequence_numbers: bool,
    /// Your own flows with addresses, ports and payload, instead of random ones: a section
    /// [[wire.flow]] for each kind.
    pub flow: Vec<FlowConfig>,
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        GeneratorConfig {
            flows: 4096,
            popularity: PopularityKind::Uniform,
            zipf_exponent: 1.0,
            order: Order::Random,
            tcp_share: 1.0,
            ipv6_share: 0.0,
            vlan_share: 0.0,
            size: Size::Fixed(MIN_FRAME_BYTES),
            rate_pps: 0,
            arrivals: ArrivalsKind::Even,
            burst: 1,
            backlog: 1024,
            packets: 0,
            frames: Frames::Fresh,
            sequence_numbers: false,
            flow: Vec::new(),
        }
    }
}

impl GeneratorConfig {
    /// Checks every value on its own.
    pub(crate) fn validate(&self, buffer_size: usize) -> Result<(), ConfigError> {
        let largest = buffer_size.min(usize::from(u16::MAX)) as u16;
        check_size(self.size, largest)?;
        if self.popularity == PopularityKind::Zipf && self.order == Order::Sequence {
            return Err(ConfigError::new(
                "order",
                "found \"sequence\" with popularity = \"zipf\", allowed: \"random\", \
                 or popularity = \"uniform\"",
            ));
        }
        if self.arrivals == ArrivalsKind::Random && self.rate_pps == 0 {
            let message = "found \"random\" without rate_pps, allowed: \"even\", or a rate";
            return Err(ConfigError::new("arrivals", message));
        }
        if self.frames == Frames::Reuse {
            let what = match self.size {
                Size::Fixed(_) if self.sequence_numbers => "sequence_numbers = true",
                Size::Fixed(_) => return Ok(()),
                _ => "sizes that vary",
            };
            return Err(reuse(what));
        }
        Ok(())
    }
}

/// Checks a frame size; the largest is the size of a buffer of the pool.
pub(crate) fn check_size(size: Size, largest: u16) -> Result<(), ConfigError> {
    let (low, high) = size.bounds();
    if [low, high].iter().any(|size| !(MIN_FRAME_BYTES..=largest).contains(size)) {
        let message = format!(
            "found {size}, allowed: {MIN_FRAME_BYTES} to {largest} bytes (the size of one buffer of the \
             pool holds)"
        );
        return Err(ConfigError::new("size", message));
    }
    if low > high {
        let message = format!("found {size}, allowed: the lower bound first");
        return Err(ConfigError::new("size", message));
    }
    Ok(())
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Fixed(size) => write!(f, "{size}"),
            Size::Range(low, high) => write!(f, "[{low}, {high}]"),
            Size::Imix => write!(f, "\"imix\" (60 to 1514 bytes)"),
        }
    }
}

impl GeneratorConfig {
    /// The flows of its sections, if it has some.
    pub(crate) fn plans(&self, buffer_size: usize) -> Result<Vec<Plan>, ConfigError> {
        let wrong = |key: &str, message: &str| Err(ConfigError::new(key, message));
        let Some(first) = self.flow.first() else { return Ok(Vec::new()) };
        if self.popularity == PopularityKind::Zipf {
            let message = "found \"zipf\" with [[wire.flow]], whose shares say it, allowed: \
                           \"uniform\"";
            return wrong("popularity", message);
        }
        if self.order == Order::Sequence && self.flow.iter().any(|flow| flow.share != first.share) {
            let message = "found \"sequence\" with shares that differ, allowed: \"random\"";
            return wrong("order", message);
        }
        let largest = buffer_size.min(usize::from(u16::MAX)) as u16;
        let (mut plans, mut faults) = (Vec::new(), Vec::new());
        for (index, flow) in self.flow.iter().enumerate() {
            match flow.plan(self.size, largest) {
                Ok(plan) => plans.push(plan),
                Err(error) => faults.extend(error.each().map(|error| {
                    let key = format!("flow[{index}].{}", error.key);
                    ConfigError::new(key, error.message.clone())
                })),
            }
        }
        ConfigError::all(faults)?;
        let flows: u64 = plans.iter().map(|plan| u64::from(plan.flows)).sum();
        if flows > MAX_FLOWS.into() {
            return wrong("flow", &format!("found {flows}, allowed: 1 to {MAX_FLOWS}"));
        }
        if self.sequence_numbers && plans.iter().any(|plan| !plan.payload().is_empty()) {
            let message = "found true with flows that have a payload, allowed: false";
            return wrong("sequence_numbers", message);
        }
        if self.frames == Frames::Reuse && plans.iter().any(|plan| plan.size != plans[0].size) {
            return Err(reuse("sizes that vary"));
        }
        Ok(plans)
    }
}

/// Why frames cannot be reused.
pub(crate) fn reuse(found: &str) -> ConfigError {
    ConfigError::new(
        "frames",
        format!(
            "found \"reuse\" with {found}, allowed: one wire, one size that holds the headers \
             of every flow, no sequence numbers; or \"fresh\""
        ),
    )
}
