//! A whole NIC in under 80 lines: a card file, your own function, a run.
//!
//! ```text
//! cargo run --release --example forward
//! ```
//!
//! Packets to well-known ports are kept together on queue 0; the others are
//! spread over the queues by `rss`. The host echoes its packets, so they pass the whole
//! card: wire, rx chain, target queue, tx ring, wire.

use picnic_control::{Launch, Registries};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, PacketMut, Verdict, per_packet};
use picnic_core::registry::{BuildContext, Component, Entry};
use picnic_functions::rss::Rss;
use std::{error::Error, time::Duration};

const CARD: &str = r#"
[[wire]]
port = "generator"           # no root, no network: packets generated from a seed

[[rx]]
function = "favour"          # ours, see below
below = 1024

[[rx]]
function = "rss"             # gets the packets that we pass on

[host]
attachment = "app"
mode = "echo"
queues = 3
"#;

/// Our function: one type, and one line in the list of functions.
struct Favour;

/// Its keys in the card file.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct FavourConfig {
    /// Destination ports below this one are favoured.
    below: u16,
}

impl Component for Favour {
    type Product = Box<dyn Function>;
    type Config = FavourConfig;
    const NAME: &'static str = "favour";
    const HELP: &'static str = "keep packets to low destination ports on queue 0";

    fn build(config: FavourConfig, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(per_packet(move |packet: &mut PacketMut<'_>| match packet.ports() {
            Some((_, destination)) if destination < config.below => Verdict::Steer(0),
            _ => Verdict::Next,
        })))
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Favour>(), Entry::of::<Rss>()];

fn main() -> Result<(), Box<dyn Error>> {
    let card = CardFile::parse(CARD, None)?;
    let registries = Registries { functions: FUNCTIONS, ..picnic_host::registries() };
    let mut running = Launch::new(&card, registries).start()?;
    running.pass(Duration::from_secs(1));
    let report = running.stop()?;
    for queue in &report.queues {
        println!("queue {} on core {}: {} packets", queue.queue, queue.core, queue.packets);
    }
    println!("{:#?}\nbalanced: {}", report.ledger, report.ledger.balanced());
    Ok(())
}
