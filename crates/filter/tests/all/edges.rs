//! The ends of ranges, and the remains of changed filters: counters, code, lists, keys.

mod code;
mod hidden;
mod keys;
mod lists;

use crate::frames::Frame;
use picnic_core::function::Function;
use picnic_core::guard::Guard;
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::out::{Doors, Onward, Out};
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::time::Time;
use picnic_filter::{Action, Filter, Filters, FiveTuple, Match, PortRange, Prefix, Protocol};
use std::net::IpAddr;
use std::sync::Arc;

struct Nothing;

impl Onward for Nothing {
    fn carry_on(&mut self, _: Time, _: &mut Burst, _: &mut Doors) {}
}

fn pool() -> Pool {
    Pool::new(&PoolConfig { buffers: 128, ..PoolConfig::default() }, 0).unwrap().0
}

/// Sends frames through the rx filters at the card; returns how many continue.
fn run(doors: &mut Doors, head: &mut dyn Function, frames: &[Vec<u8>]) -> usize {
    let mut burst = Burst::new();
    for frame in frames {
        burst.push(doors.pool.packet(frame).unwrap()).unwrap();
    }
    let mut nothing = Nothing;
    let mut out = Out::new(Time::ZERO, Stage::Rx, doors, &mut nothing);
    head.process(Time::ZERO, &mut burst, &mut out);
    out.finish();
    let passed = burst.len();
    burst.drain().for_each(|packet| doors.pool.free(packet));
    passed
}

fn card(filters: &Filters) -> (Doors, Box<dyn Function>) {
    let doors = Doors::new(pool(), Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
    (doors, filters.function(Stage::Rx).unwrap())
}

fn udp() -> Vec<u8> {
    Frame::default().bytes()
}

fn any(action: Action) -> Filter {
    Filter::new("f", Match::Any, action)
}

fn of_protocol(protocol: Protocol, action: Action) -> Filter {
    let tuple = FiveTuple { protocol: Some(protocol), ..FiveTuple::default() };
    Filter::new("f", tuple, action)
}

// ---------------------------------------------------------------- prefixes and ports

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

#[test]
fn prefix_length_is_limited_by_the_address() {
    let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
    let bits =
        |text: &str, most: u8| format!("found {text}, allowed: a length of 0 to {most} bits");
    assert_eq!(error("10.0.0.0/33"), bits("10.0.0.0/33", 32));
    assert_eq!(error("2001:db8::/129"), bits("2001:db8::/129", 128));
    let (four, six) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([7; 16]));
    assert_eq!([32, 33].map(|length| Prefix::new(four, length).is_some()), [true, false]);
    assert_eq!([128, 129].map(|length| Prefix::new(six, length).is_some()), [true, false]);
    let one = Prefix::new(four, 32).unwrap();
    assert!(one.contains(four) && !one.contains([10, 0, 0, 0].into()));
    assert_eq!(one.address(), four);
    assert!(Prefix::new(four, 0).unwrap().contains([255; 4].into()));
    let one = Prefix::new(six, 128).unwrap();
    let mut other = [7; 16];
    other[15] = 6;
    assert!(one.contains(six) && !one.contains(other.into()));
    assert!(Prefix::new(six, 127).unwrap().contains(other.into()));
    assert!(Prefix::new(six, 0).unwrap().contains([255; 16].into()));
}

#[test]
fn prefixes_and_ranges_cover_their_members() {
    let covers = |a: &str, b: &str| prefix(a).covers(&prefix(b));
    assert!(covers("10.0.0.0/8", "10.0.0.0/8") && covers("10.0.0.0/8", "10.1.0.0/16"));
    assert!(!covers("10.0.0.0/8", "10.0.0.0/7") && !covers("10.0.0.0/8", "11.0.0.0/16"));
    assert!(!covers("0.0.0.0/0", "::/0"));
    let range = |low, high| PortRange::new(low, high).unwrap();
    let middle = range(10, 20);
    for (other, covers, meets) in [
        (range(10, 20), true, true),
        (range(11, 19), true, true),
        (range(9, 20), false, true),
        (range(10, 21), false, true),
        (range(0, 9), false, false),
        (range(0, 10), false, true),
        (range(20, 30), false, true),
        (range(21, 30), false, false),
    ] {
        assert_eq!((middle.covers(&other), middle.meets(&other)), (covers, meets), "{other}");
        assert_eq!(other.meets(&middle), meets, "{other}");
    }
}
