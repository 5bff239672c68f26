//! The ledger of a report, in JSON and in metrics.

use picnic_core::ledger::LedgerTotals;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

/// A figure of the ledger: its metric, its help, and its source.
type OfLedger = (&'static str, &'static str, fn(&LedgerTotals) -> u64);

/// The ledger's figures in metrics.
pub(crate) const LEDGER: [OfLedger; 4] = [
    ("picnic_in", "Packets received or made", |ledger| ledger.r#in),
    ("picnic_delivered", "Packets handed to the host", |ledger| ledger.delivered),
    ("picnic_transmitted", "Packets that the wires took", |ledger| ledger.transmitted),
    ("picnic_consumed", "Packets that functions kept for good", |ledger| ledger.consumed),
];

/// The ledger in JSON; a report has the drops by reason beside it.
#[derive(Deserialize, JsonSchema)]
pub(super) struct LedgerReport {
    /// Packets received or made.
    r#in: u64,
    /// Packets handed to the host.
    delivered: u64,
    /// Packets that the wires took.
    transmitted: u64,
    /// Packets that functions kept for good.
    consumed: u64,
    /// Packets dropped, for all reasons.
    dropped: u64,
    /// Packets in rings, in functions and waiting for wires.
    in_flight: u64,
    /// Whether every packet is accounted for.
    #[serde(rename = "balanced")]
    _balanced: bool,
}

/// Reads the sums back.
pub(super) fn read_totals<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<LedgerTotals, D::Error> {
    let sums = LedgerReport::deserialize(deserializer)?;
    Ok(LedgerTotals {
        r#in: sums.r#in,
        delivered: sums.delivered,
        transmitted: sums.transmitted,
        consumed: sums.consumed,
        dropped: sums.dropped,
        in_flight: sums.in_flight,
        ..LedgerTotals::default()
    })
}
