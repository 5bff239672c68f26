//! A picnic with its own function: `policer`, a token bucket per flow.
//!
//! ```toml
//! [[rx]]
//! function = "policer"
//! rate_pps = 1000
//! burst = 32
//! ```
//!
//! Flows share 4096 buckets by their hash, so memory is bounded. Source: RFC 2697 (one rate).

use picnic_control::Registries;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::ledger::DropReason;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::registry::{BuildContext, Component, Entry, join};
use picnic_core::time::Time;
use std::process::ExitCode;

const BUCKETS: usize = 4096;

/// The function: time at which each bucket is full again, in nanoseconds.
struct Policer {
    full_at: Box<[u64]>,
    packet_ns: u64,
    depth_ns: u64,
}

/// The keys of `policer`.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// Packets per second that a flow may send.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    rate_pps: u64,
    /// Burst that a flow may send at once, in packets.
    #[schemars(range(min = 1, max = 1_000_000))]
    burst: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { rate_pps: 1000, burst: 32 }
    }
}

impl Component for Policer {
    type Product = Box<dyn Function>;
    type Config = Config;
    const NAME: &'static str = "policer";
    const HELP: &'static str = "drop packets of a flow above its rate";

    fn build(config: Config, _: &BuildContext) -> Result<Self::Product, ConfigError> {
        let packet_ns = 1_000_000_000 / config.rate_pps;
        let full_at = vec![0; BUCKETS].into();
        Ok(Box::new(Policer { full_at, packet_ns, depth_ns: packet_ns * config.burst }))
    }
}

/// FNV-1a over the addresses and ports; packets without them are one flow.
fn flow(packet: &mut Descriptor) -> usize {
    let layers = packet.parse();
    let (start, end) = (usize::from(layers.l3_offset) + 12, usize::from(layers.l4_offset) + 4);
    let bytes = packet.data().get(start..end).unwrap_or_default();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 32) as usize
}

impl Function for Policer {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        burst.retain(|mut packet| {
            let full_at = &mut self.full_at[flow(&mut packet) % BUCKETS];
            let with_this = now.as_nanos().max(*full_at) + self.packet_ns;
            if with_this > now.as_nanos() + self.depth_ns {
                out.drop(packet, DropReason::Filtered);
                return None;
            }
            *full_at = with_this;
            Some(packet)
        });
    }
}

fn main() -> ExitCode {
    let own = picnic_cli::registries();
    let functions = join(&[own.functions, &[Entry::of::<Policer>()]]);
    picnic_cli::main_with(Registries { functions, ..own })
}
