//! What a card did during a part of its run: counts at both ends, and the report behind.

use picnic_control::{Report, Running};
use picnic_engine::view::View;
use picnic_machine::signals;
use std::time::Duration;

/// Time between two looks whether this process is to stop.
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

/// A part of a card's run.
#[derive(Debug)]
pub struct Window {
    /// How long it was.
    pub seconds: f64,
    /// Packets from wires, those shed included.
    pub received: u64,
    /// Packets handed to the host.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets sent to wires.
    pub transmitted: u64,
    /// Of the whole run, warm-up included.
    pub report: Report,
}

impl Window {
    /// Runs `body` while the card is at work, then stops it.
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

    /// Lets a card work for so long, as its world counts time, after its warm-up.
    ///
    /// # Errors
    /// This process was told to stop; else as [`Window::around`].
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

    /// By the second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }
}

/// Lets time pass, until this process is told to stop.
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
