//! Wrappers for a wire, a queue or a function that show its packets to an [`Eye`].
//!
//! Guarantees: what is wrapped sees all it would see without; an eye that is shut costs a
//! question per burst. To wrap a new method of these traits, forward it here, once.

use crate::capture::Point;
use picnic_core::attachment::{HostQueue, QueueOut};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::function::Function;
use picnic_core::out::Out;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::pool::Pool;
use picnic_core::port::{Receiver, Transmitter, WirePort};
use picnic_core::time::Time;
use std::any::Any;
use std::os::fd::BorrowedFd;

/// What packets are shown to; used by one thread.
pub(crate) trait Eye: Send {
    /// Whether it wants to see the packets of this burst.
    fn is_open(&mut self) -> bool;
    /// Shows it a packet.
    fn record(&mut self, now: Time, packet: &Descriptor, direction: Direction);
    /// Ends a burst.
    fn publish(&mut self);
    /// Shows it a burst.
    fn see(&mut self, now: Time, packets: &[Descriptor], direction: Direction) {
        for packet in packets {
            self.record(now, packet, direction);
        }
        self.publish();
    }
}

/// A place of a capture that lasts as long as the card.
impl Eye for Point {
    #[inline]
    fn is_open(&mut self) -> bool {
        true
    }

    #[inline]
    fn record(&mut self, now: Time, packet: &Descriptor, direction: Direction) {
        Point::record(self, now, packet, Some(direction));
    }

    #[inline]
    fn publish(&mut self) {
        Point::publish(self);
    }
}

/// A wire that is looked on at, both ways.
pub(crate) struct WatchedWire<E> {
    port: Box<dyn WirePort>,
    eye: E,
}

impl<E: Eye> WatchedWire<E> {
    pub(crate) fn new(port: Box<dyn WirePort>, eye: E) -> Self {
        WatchedWire { port, eye }
    }
}

impl<E: Eye> WirePort for WatchedWire<E> {
    fn receive(&mut self, now: Time, rx: &mut Receiver<'_>) {
        let before = rx.pushed().len();
        self.port.receive(now, rx);
        let received = &rx.pushed()[before..];
        if !received.is_empty() && self.eye.is_open() {
            self.eye.see(now, received, Direction::Rx);
        }
    }

    fn transmit(&mut self, now: Time, tx: &mut Transmitter<'_>) {
        if tx.peek().is_none() || !self.eye.is_open() {
            return self.port.transmit(now, tx);
        }
        let eye = &mut self.eye;
        let mut record = |packet: &Descriptor| eye.record(now, packet, Direction::Tx);
        self.port.transmit(now, &mut tx.observed(&mut record));
        self.eye.publish();
    }

    fn is_patient(&self) -> bool {
        self.port.is_patient()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.port.next_deadline()
    }

    fn is_finished(&self) -> bool {
        self.port.is_finished()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.port.readiness()
    }

    fn takes_partial_checksums(&self) -> bool {
        self.port.takes_partial_checksums()
    }

    fn takes_super_frames(&self) -> bool {
        self.port.takes_super_frames()
    }

    fn start(&mut self, pool: &mut Pool) -> Result<(), ConfigError> {
        self.port.start(pool)
    }

    fn stop(&mut self, tx: &mut Transmitter<'_>) {
        self.port.stop(tx);
    }

    fn report(&self) -> Vec<String> {
        self.port.report()
    }
}

/// A target queue that is looked on at.
pub(crate) struct WatchedQueue<E> {
    host: Box<dyn HostQueue>,
    eye: E,
}

impl<E: Eye> WatchedQueue<E> {
    pub(crate) fn new(host: Box<dyn HostQueue>, eye: E) -> Self {
        WatchedQueue { host, eye }
    }
}

impl<E: Eye> HostQueue for WatchedQueue<E> {
    fn deliver(&mut self, now: Time, burst: &mut Burst, out: &mut QueueOut<'_>) -> u64 {
        if self.eye.is_open() {
            self.eye.see(now, burst.as_slice(), Direction::Rx);
        }
        self.host.deliver(now, burst, out)
    }

    fn transmit(&mut self, now: Time, out: &mut QueueOut<'_>) -> usize {
        self.host.transmit(now, out)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.host.readiness()
    }

    fn report(&self) -> Vec<String> {
        self.host.report()
    }
}

/// A function whose packets are looked on at as they enter it.
pub(crate) struct WatchedFunction<E> {
    function: Box<dyn Function>,
    eye: E,
    direction: Direction,
}

impl<E: Eye> WatchedFunction<E> {
    pub(crate) fn new(function: Box<dyn Function>, eye: E, direction: Direction) -> Self {
        WatchedFunction { function, eye, direction }
    }
}

impl<E: Eye> Function for WatchedFunction<E> {
    fn process(&mut self, now: Time, burst: &mut Burst, out: &mut Out<'_>) {
        if self.eye.is_open() {
            self.eye.see(now, burst.as_slice(), self.direction);
        }
        self.function.process(now, burst, out);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.function.next_deadline()
    }

    fn flush(&mut self, now: Time, out: &mut Out<'_>) {
        self.function.flush(now, out);
    }

    fn held(&self) -> usize {
        self.function.held()
    }

    fn control(&mut self, message: &mut (dyn Any + Send)) -> bool {
        self.function.control(message)
    }
}
