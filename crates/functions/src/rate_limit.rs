//! `rate-limit`: holds packets to rates in packets and bytes per second.
//!
//! ```toml
//! [[tx]]
//! function = "rate-limit"
//! per = "tx-queue"             # or "all", "wire", "mark", "flow": the unit with its own rate
//! bytes_per_second = 12_500_000
//! burst_bytes = 65536
//! action = "pace"              # or "drop"
//! ```
//!
//! Each bucket fills at the rates, up to the bursts, and starts full. A packet with enough credit
//! for itself and all its bytes uses it and continues. Otherwise it is dropped as `rate_limited`,
//! or waits (`action = "pace"`) after the others of its bucket until there is credit; packets
//! without a place to wait, or longer than `burst_bytes`, are dropped. Bytes count the frame
//! without preamble, gap and check sequence; a super-frame counts as one packet.
//!
//! Rates are per tx queue (in the tx chain; in the rx chain no packet has one), wire, mark or
//! flow. Use marks for rules: `flow-director` marks matching packets, and `per = "mark"` gives each
//! mark a bucket. A flow is TCP by four-tuple, all else by
//! addresses, as in `rss`. Marks and flows are spread over `buckets` by a hash keyed with the run's
//! seed: two in the same bucket share its rate.
//!
//! Guarantees: credit is exact, to the billionth; packets of a bucket, and so of a flow, leave in
//! the order of arrival; the number of waiting packets is limited and their memory allocated at the
//! start. Source: RFC 2697 (one rate), RFC 2475, section 2.3.3 (policing and shaping).

mod bucket;
mod waiting;

use crate::rss::HashType;
use crate::rss::flow::{Hash, Types, hash_of};
use bucket::{Bucket, Limit, Limits};
use picnic_core::command::{
    CommandEntry, CommandError, ComponentChange, Get, Inspect, Prepared, Set,
};
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::kernel::{Form, InKernel, KernelCounts, refuse};
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;
use picnic_forms::KernelForm;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use waiting::Waiting;

/// The largest rate in packets or bytes per second: 8 terabits per second.
const MAX_RATE: u64 = 1_000_000_000_000;
/// Largest burst, in packets or bytes: 4 GiB.
const MAX_BURST: u64 = 1 << 32;
const MAX_BUCKETS: usize = 1 << 20;
const MAX_WAITING: usize = 65_536;

/// Limits packets to rates.
pub struct RateLimit {
    per: Per,
    limits: Limits,
    buckets: Box<[Bucket]>,
    /// None if packets above the rate are dropped.
    waiting: Option<Waiting>,
    hash: Hash,
    types: Types,
    counts: Counts,
}

/// The unit with its own rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// All packets together.
    #[default]
    All,
    /// Each tx queue; the card's own packets form another.
    TxQueue,
    /// Each wire.
    Wire,
    /// Each mark.
    Mark,
    /// Each flow.
    Flow,
}

/// The action on a packet above the rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Drop it.
    #[default]
    Drop,
    /// Let it wait.
    Pace,
}

/// The keys of `rate-limit`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The unit with its own rate: "all", "tx-queue", "wire", "mark" or "flow".
    pub per: Per,
    /// Packets per second; 0: unlimited.
    #[schemars(range(max = MAX_RATE))]
    pub packets_per_second: u64,
    /// Bytes per second; 0: unlimited.
    #[schemars(range(max = MAX_RATE))]
    pub bytes_per_second: u64,
    /// Burst, in packets.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst_packets: u64,
    /// Burst, in bytes; longer packets never pass.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst_bytes: u64,
    /// Packets above the rate: "drop" drops them, "pace" delays them.
    pub action: Action,
    /// Most waiting packets over all buckets.
    #[schemars(range(min = 1, max = MAX_WAITING), extend("x-advanced" = true))]
    pub waiting_packets: usize,
    /// Buckets that marks or flows are spread over.
    #[schemars(range(min = 1, max = MAX_BUCKETS), extend("x-advanced" = true))]
    pub buckets: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            per: Per::All,
            packets_per_second: 0,
            bytes_per_second: 0,
            burst_packets: 64,
            burst_bytes: 65_536,
            action: Action::Drop,
            waiting_packets: 1024,
            buckets: 4096,
        }
    }
}

/// The state of a `rate-limit`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Packets per second; 0: unlimited.
    #[schemars(extend("x-gauge" = true))]
    pub packets_per_second: u64,
    /// Bytes per second; 0: unlimited.
    #[schemars(extend("x-gauge" = true))]
    pub bytes_per_second: u64,
    /// Burst, in packets.
    #[schemars(extend("x-gauge" = true))]
    pub burst_packets: u64,
    /// Burst, in bytes.
    #[schemars(extend("x-gauge" = true))]
    pub burst_bytes: u64,
    /// Packets passed without delay.
    pub passed_packets: u64,
    /// Packets delayed.
    pub paced_packets: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// Packets waiting now.
    #[schemars(extend("x-gauge" = true))]
    pub waiting_packets: usize,
}

impl Inspect for RateLimit {
    type State = Counts;

    fn inspect(&self) -> Counts {
        let Limits { packets, bytes } = self.limits;
        Counts {
            packets_per_second: packets.per_second,
            bytes_per_second: bytes.per_second,
            burst_packets: packets.burst,
            burst_bytes: bytes.burst,
            waiting_packets: self.held(),
            ..self.counts
        }
    }
}

impl Component for RateLimit {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "rate-limit";
    const HELP: &'static str = "limit packets to a rate, by dropping or pacing";
    const COMMANDS: &'static [CommandEntry] =
        &[CommandEntry::of::<Get<RateLimit>>(), CommandEntry::of::<Set<NewLimits>>()];
    const KERNEL: Option<InKernel<Config>> = Some(InKernel {
        keys: &[
            "per",
            "packets_per_second",
            "bytes_per_second",
            "burst_packets",
            "burst_bytes",
            "action",
        ],
        beside: &[],
        commands: &["get", "set"],
        form: |config, context| {
            let limiter = RateLimit::new(config, context)?;
            if config.action == Action::Pace {
                return Err(refuse("action", "\"pace\"", "drop"));
            }
            limiter.kernel_form().ok_or_else(|| refuse("per", "another", "all, wire"))
        },
    });

    fn example(_: &std::path::Path) -> Option<String> {
        Some("per = \"flow\"\npackets_per_second = 1000\nburst_packets = 8\n".into())
    }

    fn build(config: Config, context: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(RateLimit::new(&config, context)?))
    }
}

impl RateLimit {
    /// A `rate-limit` with these settings.
    ///
    /// # Errors
    /// The wrong key, the value found and the values allowed.
    pub fn new(config: &Config, context: &BuildContext) -> Result<RateLimit, ConfigError> {
        let limits = Limits {
            packets: Limit { per_second: config.packets_per_second, burst: config.burst_packets },
            bytes: Limit { per_second: config.bytes_per_second, burst: config.burst_bytes },
        };
        let waiting = config.waiting_packets;
        let buckets = match config.per {
            Per::All => 1,
            // One more for packets without a tx queue.
            Per::TxQueue => 257,
            Per::Wire => 256,
            Per::Mark | Per::Flow => config.buckets,
        };
        Ok(RateLimit {
            per: config.per,
            limits,
            buckets: vec![Bucket::default(); buckets].into(),
            waiting: (config.action == Action::Pace).then(|| Waiting::new(buckets, waiting)),
            hash: Hash::Lookup3((context.seed ^ context.seed >> 32) as u32),
            types: Types::new(|hash_type| HashType::DEFAULT.contains(&hash_type)),
            counts: Counts::default(),
        })
    }

    /// The bucket of a packet.
    #[inline]
    fn bucket(&self, packet: &mut Descriptor) -> usize {
        let spread = |hash: u32| ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize;
        match self.per {
            Per::All => 0,
            Per::TxQueue => packet.tx_queue().map_or(256, usize::from),
            Per::Wire => packet.wire.into(),
            Per::Mark => spread(packet.mark.wrapping_mul(0x9e37_79b1)),
            Per::Flow => {
                let layers = packet.parse();
                spread(hash_of(&self.hash, &self.types, &layers, packet.data()).0)
            }
        }
    }

    /// Returns the packet if it conforms; otherwise it waits or is dropped.
    #[inline]
    fn judge(
        &mut self,
        now: Time,
        mut packet: Descriptor,
        out: &mut Out<'_>,
    ) -> Option<Descriptor> {
        let index = self.bucket(&mut packet);
        let bucket = self.buckets.get_mut(index)?;
        bucket.refill(&self.limits, now);
        let length = packet.length();
        let wait = bucket.wait(&self.limits, length);
        let is_behind = self.waiting.as_ref().is_some_and(|waiting| waiting.has(index));
        if wait == Some(0) && !is_behind {
            bucket.take(&self.limits, length);
            self.counts.passed_packets += 1;
            return Some(packet);
        }
        let refused = match (wait, &mut self.waiting) {
            (Some(wait), Some(waiting)) => waiting.push(index, packet).map(|()| {
                self.counts.paced_packets += 1;
                if !is_behind {
                    waiting.schedule(index, now + wait);
                }
            }),
            _ => Err(packet),
        };
        if let Err(packet) = refused {
            self.counts.dropped_packets += 1;
            out.drop(packet, DropReason::RateLimited);
        }
        None
    }
}

impl Function for RateLimit {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|packet| self.judge(now, packet, out));
    }

    fn next_deadline(&self) -> Option<Time> {
        self.waiting.as_ref().and_then(Waiting::next_due)
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        let Some(waiting) = &mut self.waiting else { return };
        while let Some(index) = waiting.take_due(now) {
            let Some(bucket) = self.buckets.get_mut(index) else { continue };
            bucket.refill(&self.limits, now);
            while let Some(length) = waiting.first_length(index) {
                // Longer than a burst that was reduced: it passes with all available credit, since
                // it was accepted.
                let wait = bucket.wait(&self.limits, length).unwrap_or(0);
                if wait != 0 && now != Time::MAX {
                    waiting.schedule(index, now + wait);
                    break;
                }
                bucket.take(&self.limits, length);
                if let Some(packet) = waiting.pop(index) {
                    out.next(packet);
                }
            }
        }
    }

    fn held(&self) -> usize {
        self.waiting.as_ref().map_or(0, Waiting::held)
    }

    fn kernel_form(&self) -> Option<Form> {
        let per_wire = match self.per {
            Per::All => false,
            Per::Wire => true,
            _ => return None,
        };
        let words = |limit: Limit| [limit.per_second, limit.burst];
        let Limits { packets, bytes } = self.limits;
        Some(KernelForm::Police { per_wire, packets: words(packets), bytes: words(bytes) }.into())
    }

    fn note_kernel(&mut self, counts: &KernelCounts) {
        // The counters are not of one moment: drops may be ahead.
        let passed = counts.packets.saturating_sub(counts.dropped);
        self.counts.passed_packets = passed.max(self.counts.passed_packets);
        self.counts.dropped_packets = counts.dropped;
    }

    fn obey(&mut self, order: &mut Prepared, now: Time) -> bool {
        order.apply(self, now)
    }
}

/// The arguments of `rate-limit.set`; missing ones stay unchanged.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewLimits {
    /// Packets per second; 0: unlimited.
    #[schemars(range(max = MAX_RATE))]
    pub packets_per_second: Option<u64>,
    /// Bytes per second; 0: unlimited.
    #[schemars(range(max = MAX_RATE))]
    pub bytes_per_second: Option<u64>,
    /// Burst, in packets.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst_packets: Option<u64>,
    /// Burst, in bytes.
    #[schemars(range(min = 1, max = MAX_BURST))]
    pub burst_bytes: Option<u64>,
}

impl ComponentChange for NewLimits {
    const HELP: &'static str = "change rates and bursts; the result has the state before";
    const EXAMPLE: &'static str = r#"{"packets_per_second": 500}"#;
    type Of = RateLimit;
    type New = NewLimits;

    fn prepare(self, _: &BuildContext) -> Result<NewLimits, CommandError> {
        let NewLimits { packets_per_second, bytes_per_second, burst_packets, burst_bytes } = self;
        let given = [packets_per_second, bytes_per_second, burst_packets, burst_bytes];
        if given.iter().all(Option::is_none) {
            let message = "found none, allowed: packets_per_second, bytes_per_second, \
                           burst_packets, burst_bytes";
            return Err(CommandError::argument("params", message));
        }
        Ok(self)
    }

    fn apply(new: &mut NewLimits, limiter: &mut RateLimit, now: Time) -> bool {
        let Limits { packets, bytes } = &mut limiter.limits;
        for (new, old) in [
            (new.packets_per_second, &mut packets.per_second),
            (new.bytes_per_second, &mut bytes.per_second),
            (new.burst_packets, &mut packets.burst),
            (new.burst_bytes, &mut bytes.burst),
        ] {
            if let Some(new) = new {
                *old = new;
            }
        }
        if let Some(waiting) = &mut limiter.waiting {
            waiting.reschedule(now);
        }
        true
    }
}
