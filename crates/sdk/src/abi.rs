//! The interface between card and shared object: `picnic_function.h` in Rust.
//!
//! The header is written by hand, because users read it; a test compares both with the C compiler,
//! field by field (`crates/plugin/tests/all/header.rs`).
//!
//! Return values mean the same in C and here; [`Target::of`] is the only table.

use picnic_core::function::Verdict;
use picnic_core::ledger::DropReason;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// The version of the interface.
pub const ABI_VERSION: u32 = 1;
/// The symbol that a shared object exports.
pub const SYMBOL: &str = "picnic_function";
/// On to the next function.
pub const NEXT: i32 = -1;
/// Dropped, counted as filtered.
pub const DROP: i32 = -2;
/// Kept for good.
pub const CONSUME: i32 = -3;
/// Held back until flushed.
pub const HOLD: i32 = -4;
/// Out on wire 0; wire `n` is `n` less.
pub const TRANSMIT: i32 = -256;
/// Most packets that a function may hold back.
pub const HOLD_MAX: usize = 1024;
/// Most counters of a function.
pub const COUNTERS_MAX: usize = 64;
/// No deadline; as the time of `flush`: release all packets.
pub const NEVER: u64 = u64::MAX;
/// Headers are parsed before the function sees the packets.
pub const WANTS_LAYERS: u32 = 1;

/// The meaning of a returned number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One of the fates that every function has.
    Verdict(Verdict),
    /// It stays with the function until it is flushed.
    Hold,
}

impl Target {
    /// The meaning of a number; none if it has no meaning.
    #[inline(always)]
    pub fn of(number: i32) -> Option<Target> {
        const LAST_WIRE: i32 = TRANSMIT - u8::MAX as i32;
        Some(Target::Verdict(match number {
            NEXT => Verdict::Next,
            0..=0xffff => Verdict::Steer(number as u16),
            DROP => Verdict::Drop(DropReason::Filtered),
            CONSUME => Verdict::Consume,
            HOLD => return Some(Target::Hold),
            LAST_WIRE..=TRANSMIT => Verdict::Transmit((TRANSMIT - number) as u8),
            // No card has this many queues, so the packet is dropped as misdirected.
            0x1_0000.. => Verdict::Drop(DropReason::NoSuchQueue),
            _ => return None,
        }))
    }

    /// The number of a target.
    pub fn number(self) -> i32 {
        match self {
            Target::Hold => HOLD,
            Target::Verdict(Verdict::Next) => NEXT,
            Target::Verdict(Verdict::Steer(queue)) => queue.into(),
            Target::Verdict(Verdict::Drop(_)) => DROP,
            Target::Verdict(Verdict::Consume) => CONSUME,
            Target::Verdict(Verdict::Transmit(wire)) => TRANSMIT - i32::from(wire),
        }
    }
}

/// `struct picnic_packet`; the header explains the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Packet {
    pub data: *mut u8,
    pub length: u32,
    pub total_length: u32,
    pub received_ns: u64,
    pub mark: u32,
    pub rss_hash: u32,
    pub headroom: u16,
    pub tailroom: u16,
    pub l3_offset: u16,
    pub l4_offset: u16,
    pub protocol: u8,
    pub wire: u8,
    pub reserved: [u8; 6],
}

/// `struct picnic_context`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Context {
    pub queues: u32,
    pub wires: u32,
    pub position: u32,
    pub buffer_size: u32,
    pub seed: u64,
    pub directory: *const c_char,
}

/// `struct picnic_counter`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Counter {
    pub name: *const c_char,
    pub help: *const c_char,
}

/// Type of a function on `count` packets that writes their targets.
pub type Burst = unsafe extern "C" fn(*mut c_void, u64, *mut Packet, u32, *mut i32);

/// `struct picnic_function`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Function {
    pub abi_version: u32,
    pub size: u32,
    pub packet_size: u32,
    pub flags: u32,
    pub name: *const c_char,
    pub help: *const c_char,
    pub config_schema: *const c_char,
    pub init: Option<
        unsafe extern "C" fn(
            *const Context,
            *const c_char,
            *mut *mut c_void,
            *mut c_char,
            usize,
        ) -> c_int,
    >,
    pub process_packet: Option<unsafe extern "C" fn(*mut c_void, u64, *mut Packet) -> i32>,
    pub process_burst: Option<Burst>,
    pub next_deadline: Option<unsafe extern "C" fn(*mut c_void) -> u64>,
    pub flush: Option<Burst>,
    pub command: Option<
        unsafe extern "C" fn(
            *mut c_void,
            *const c_char,
            *const c_char,
            *mut c_char,
            usize,
        ) -> c_int,
    >,
    pub exit: Option<unsafe extern "C" fn(*mut c_void)>,
    pub counters: *const Counter,
    pub count: Option<unsafe extern "C" fn(*mut c_void, *mut u64)>,
    pub describe: Option<unsafe extern "C" fn(*mut Function)>,
}

/// All sizes that [`Function`] has had, the current one last: it only grows at its end.
pub const SIZES: [usize; 3] =
    [offset_of!(Function, counters), offset_of!(Function, describe), size_of::<Function>()];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_target_has_a_number_and_numbers_are_unique() {
        let wires = (0..=u8::MAX).map(|wire| Target::Verdict(Verdict::Transmit(wire)));
        let queues = (0..=u16::MAX).map(|queue| Target::Verdict(Verdict::Steer(queue)));
        let others = [
            Target::Hold,
            Target::Verdict(Verdict::Next),
            Target::Verdict(Verdict::Consume),
            Target::Verdict(Verdict::Drop(DropReason::Filtered)),
        ];
        for target in wires.chain(queues).chain(others) {
            assert_eq!(Target::of(target.number()), Some(target));
        }
        for nothing in [-5, -255, -512, i32::MIN] {
            assert_eq!(Target::of(nothing), None, "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn a_number_means_at_most_what_it_is_written_for(number: i32) {
            match Target::of(number) {
                Some(Target::Verdict(Verdict::Drop(DropReason::NoSuchQueue))) => {
                    prop_assert!(number > 0xffff);
                }
                Some(target) => prop_assert_eq!(target.number(), number),
                None => prop_assert!(number < HOLD),
            }
        }
    }
}
