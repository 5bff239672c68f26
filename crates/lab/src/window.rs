//! Measures an interval of a card's run: counts at both ends, and the report after it.

use picnic_control::{Report, Running};
use picnic_engine::view::View;
use picnic_machine::signals;
use std::time::Duration;

/// Time between two checks for a request to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Counts of all wires and queues.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    received: u64,
    delivered: u64,
    delivered_bytes: u64,
    transmitted: u64,
}

impl Counts {
    fn of(view: &View) -> Self {
        let wires = || view.wires.iter().map(|wire| &wire.counters);
        let queues = || view.queues.iter().map(|queue| &queue.target);
        Counts {
            received: wires().map(|wire| wire.rx_packets.get() + wire.rx_shed.get()).sum(),
            delivered: queues().map(|queue| queue.packets.get()).sum(),
            delivered_bytes: queues().map(|queue| queue.bytes.get()).sum(),
            transmitted: wires().map(|wire| wire.tx_packets.get()).sum(),
        }
    }
}

/// An interval of a card's run.
#[derive(Debug)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// Packets from wires, including those shed.
    pub received: u64,
    /// Packets delivered to the host.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets sent to wires.
    pub transmitted: u64,
    /// For the whole run, including warm-up.
    pub report: Report,
}

impl Window {
    /// Runs `body` while the card works, then stops the card.
    ///
    /// # Errors
    /// Those of `body`; the card has failed, or its ledger does not balance.
    pub fn around<T>(
        mut running: Box<dyn Running>,
        body: impl FnOnce(&mut dyn Running) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Window)> {
        let (start, before) = (running.elapsed(), Counts::of(running.view()));
        let result = body(&mut *running);
        let (end, after) = (running.elapsed(), Counts::of(running.view()));
        let report = running.stop()?;
        anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: this is a bug");
        let window = Window {
            seconds: end.saturating_sub(start).as_secs_f64(),
            received: after.received - before.received,
            delivered: after.delivered - before.delivered,
            delivered_bytes: after.delivered_bytes - before.delivered_bytes,
            transmitted: after.transmitted - before.transmitted,
            report,
        };
        Ok((result?, window))
    }

    /// Runs a card for this time, in its world's clock, after its warm-up.
    ///
    /// # Errors
    /// A stop was requested; otherwise as [`Window::around`].
    pub fn of(
        mut running: Box<dyn Running>,
        warm_up: Duration,
        time: Duration,
    ) -> anyhow::Result<Window> {
        let warm = pass(&mut *running, warm_up);
        let (_, window) = Window::around(running, |running| {
            warm?;
            pass(running, time)
        })?;
        Ok(window)
    }

    /// Per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }
}

/// Waits, until a stop is requested.
fn pass(running: &mut dyn Running, time: Duration) -> anyhow::Result<()> {
    let mut left = time;
    while !left.is_zero() {
        signals::sleep(Duration::ZERO)?;
        let part = left.min(LOOK);
        running.pass(part);
        left -= part;
    }
    Ok(())
}
