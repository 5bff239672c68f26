//! Middleware: components between the card and its ports, invisible to both.
//!
//! [`tracer`] writes the packets at any stage to a pcapng file; [`probe`] lets captures start and
//! end while the card runs; both observe through hooks ([`picnic_core::hook`]). [`link`] limits a
//! wire to the rate and latency of a link; [`fault`] loses, duplicates, reorders and damages
//! packets, by seed: they change packets, so each wraps the wire and is one itself. Packets pass
//! the link before the fault injector.

pub mod fault;
pub mod link;
pub mod probe;
pub mod tracer;

use picnic_core::config::{Section, Wire};
use picnic_core::error::ConfigError;
use picnic_core::ledger::CardLedger;
use picnic_core::packet::burst::Burst;
use picnic_core::port::{Receiver, WirePort};
use picnic_core::registry::BuildContext;
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// Wraps a wire in the middleware of its section.
///
/// # Errors
/// `[wire.link]` or `[wire.fault]` is wrong.
pub fn wrap(
    port: Box<dyn WirePort>,
    wire: &Wire,
    context: &BuildContext,
) -> Result<Box<dyn WirePort>, ConfigError> {
    let port = wrap_in(port, wire.link.as_ref(), context, link::link_wire)?;
    wrap_in(port, wire.fault.as_ref(), context, fault::fault_wire)
}

type Make<T> = fn(Box<dyn WirePort>, &T, &BuildContext) -> Result<Box<dyn WirePort>, ConfigError>;

fn wrap_in<T: DeserializeOwned + JsonSchema + 'static>(
    port: Box<dyn WirePort>,
    section: Option<&Section>,
    context: &BuildContext,
    make: Make<T>,
) -> Result<Box<dyn WirePort>, ConfigError> {
    match section {
        None => Ok(port),
        Some(section) => {
            make(port, &section.parse()?, context).map_err(|error| section.locate(error))
        }
    }
}

/// Receives packets from a wrapped wire.
#[derive(Default)]
struct Inner {
    burst: Burst,
    counters: WireCounters,
    ledger: CardLedger,
}

impl Inner {
    /// Lets the wire receive up to `limit` packets into the burst; shed packets are entered with
    /// `rx`.
    #[inline]
    fn receive(&mut self, port: &mut dyn WirePort, now: Time, rx: &mut Receiver<'_>, limit: usize) {
        let Inner { burst, counters, ledger } = self;
        let (clocks, wire) = (rx.clocks(), rx.wire());
        let mut receiver =
            Receiver::new(rx.pool(), burst, counters, ledger, now, wire, limit).with_clocks(clocks);
        port.receive(now, &mut receiver);
        drop(receiver);
        if ledger.received.get() != burst.len() as u64 {
            for (reason, _, packets) in ledger.drops.nonzero() {
                rx.shed(reason, packets);
            }
            *ledger = CardLedger::default();
        }
        ledger.received.set(0);
        rx.count_stamps_ahead(counters.stamps_ahead.get());
        counters.stamps_ahead.set(0);
    }
}
