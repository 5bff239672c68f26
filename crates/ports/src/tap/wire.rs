//! Wire port `tap`: packets that the kernel sends on the interface arrive at the card.

use super::config::{DeviceConfig, TapWireConfig};
use super::device;
use super::queue::{Queue, Read, Written};
use picnic_core::error::ConfigError;
use picnic_core::ledger::DropReason;
use picnic_core::packet::landing::Landing;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{
    Arrivals, Capabilities, Description, Receiver, Status, Transmitter, WirePort,
};
use picnic_core::registry::{BuildContext, Component};
use picnic_core::time::Time;

/// The wire; its interface is made when the card starts.
#[derive(Debug)]
pub struct TapWire {
    wanted: DeviceConfig,
    queue: Option<Queue>,
    /// Buffers for the next packet.
    landing: Landing,
}

impl Component for TapWire {
    type Product = Box<dyn WirePort>;
    type Config = TapWireConfig;
    const NAME: &'static str = "tap";
    const HELP: &'static str = "a TAP interface created for the card";

    fn example(_: &std::path::Path) -> Option<String> {
        None
    }

    fn build(config: TapWireConfig, context: &BuildContext) -> Result<Self::Product, ConfigError> {
        let wanted = config.read(context, 1)?;
        let landing = Landing::new(wanted.landing);
        Ok(Box::new(TapWire { wanted, queue: None, landing }))
    }
}

#[cfg(test)]
impl TapWire {
    /// A wire on a queue that is there already.
    pub(super) fn of(queue: Queue) -> Self {
        let wanted = queue.wanted().clone();
        TapWire { landing: Landing::new(wanted.landing), wanted, queue: Some(queue) }
    }
}

impl WirePort for TapWire {
    fn describe(&self) -> Description {
        Description {
            capabilities: Capabilities {
                partial_checksums: true,
                super_frames: true,
                ..Capabilities::default()
            },
            arrivals: Arrivals {
                room: Some(self.wanted.tx_queue_length.into()),
                origin: "nothing limits the kernel's rate".into(),
                room_origin: "tx_queue_length",
                ..Arrivals::default()
            },
            ..Description::default()
        }
    }

    fn start(&mut self, _pool: &mut Pool) -> Result<(), ConfigError> {
        self.queue = device::make(&self.wanted)?.pop();
        Ok(())
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) -> Vec<String> {
        while let Some(buffer) = self.landing.take() {
            tx.pool().free(buffer);
        }
        self.queue.as_ref().map_or_else(Vec::new, Queue::report)
    }

    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let Some(queue) = &mut self.queue else { return };
        // A budget, since packets that are shed take no room.
        for _ in 0..rx.room() {
            if !queue.is_there(now) {
                return;
            }
            let pool = rx.pool();
            let size = pool.buffer_size();
            if !self.landing.fill(queue.landing(), || pool.allocate(size)) {
                // Packets in the interface's queue keep waiting.
                return;
            }
            match queue.read(&mut self.landing) {
                Read::Packet(packet) => rx.push(packet),
                Read::Unfit(packet) => {
                    pool.free(packet);
                    rx.shed(DropReason::Malformed, 1);
                }
                Read::TooLong(packet) => {
                    pool.free(packet);
                    rx.shed(DropReason::Oversize, 1);
                }
                Read::Nothing => return,
            }
        }
    }

    fn transmit(&mut self, _now: Time, tx: &mut Transmitter<'_>) {
        while let Some(packet) = tx.next() {
            let there = self.queue.as_mut().filter(|queue| queue.next_look().is_none());
            let written = there.map_or(Written::Down, |queue| queue.write(&packet));
            match written {
                Written::Taken => tx.sent(packet),
                Written::Down => tx.drop(packet, DropReason::WireDown),
                Written::Full => tx.drop(packet, DropReason::WireFull),
                Written::Refused | Written::Unfit => tx.drop(packet, DropReason::Malformed),
            }
        }
    }

    fn status(&self) -> Status<'_> {
        let next_look = self.queue.as_ref().and_then(Queue::next_look);
        Status {
            next_deadline: next_look,
            is_up: self.queue.is_some() && next_look.is_none(),
            readiness: self.queue.as_ref().and_then(Queue::readiness),
            ..Status::default()
        }
    }
}
