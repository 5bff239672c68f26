//! Where a packed ring goes on, found in its descriptors.
//!
//! A packed ring has no used index, and QEMU keeps no in-flight area for a NIC: after a card was killed,
//! it sends the next card the base of long ago. The flags of the descriptors tell the place if each
//! chain has one descriptor, as those of Linux have with `INDIRECT_DESC`.
//!
//! Guarantees: a burst that was cut off is returned unused, so its packets are lost with the card. A
//! ring of other chains is left alone, and the front end's base holds.
//!
//! Source: Virtual I/O Device 1.2, 2.8.1 (wrap counters) and 2.8.6 (used descriptors).

use super::memory::GuestMemoryMmap;
use super::ring::Layout;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, GuestAddress};

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// The wrap counter beside a place.
const WRAP: u16 = 1 << 15;
/// Most runs of equal flags: six, and some that the driver adds meanwhile.
const RUNS: usize = 16;

/// A place and its wrap counter, `places` further: both are at most the size of the ring.
pub(super) fn after(place: u16, places: u16, size: u16) -> u16 {
    let (index, wrap) = ((place & !WRAP) + places, place & WRAP);
    if index >= size { (index - size) | (wrap ^ WRAP) } else { index | wrap }
}

/// Whether a descriptor with these flags is available at this place.
pub(super) fn is_available(flags: u16, place: u16) -> bool {
    flags & (AVAILABLE | USED) == if place & WRAP != 0 { AVAILABLE } else { USED }
}

/// Flags and length of descriptors that are returned unused, with their number.
pub(super) fn unused(number: u16, place: u16) -> u64 {
    let flags = if place & WRAP != 0 { AVAILABLE | USED } else { 0 };
    u64::from(number) << 32 | u64::from(flags) << 48
}

/// Length, number and flags of a descriptor; `None` if it is not in the memory.
pub(super) fn half(layout: &Layout, memory: &GuestMemoryMmap, index: u16) -> Option<u64> {
    let at = layout.descriptors.wrapping_add(16 * u64::from(index) + 8);
    memory.load::<u64>(GuestAddress(at), Ordering::Acquire).ok().map(u64::from_le)
}

/// Writes these halves at their places; the driver sees all of them with the first, written last.
pub(super) fn write(layout: &Layout, memory: &GuestMemoryMmap, used: &[(u16, u64)]) -> Option<()> {
    let (first, others) = used.split_first()?;
    for &(place, half) in others.iter().chain([first]) {
        let at = layout.descriptors.wrapping_add(16 * u64::from(place & !WRAP) + 8);
        memory.store(half.to_le(), GuestAddress(at), Ordering::Release).ok()?;
    }
    Some(())
}

/// The place at which the card that had this ring went on, with its wrap counter. Descriptors of a
/// burst that was cut off are returned. `None` if the descriptors do not tell.
pub(super) fn find(layout: &Layout, memory: &GuestMemoryMmap) -> Option<u16> {
    let size = layout.size;
    // The last one first: the driver goes the other way meanwhile.
    let mut halves = Vec::with_capacity(size.into());
    for index in (0..size).rev() {
        halves.push(half(layout, memory, index)?);
    }
    halves.reverse();
    let flags = |index: u16| (halves[usize::from(index)] >> 48) as u16 & (AVAILABLE | USED);
    let starts = (0..size).filter(|&index| index == 0 || flags(index) != flags(index - 1));
    let starts: Vec<u16> = starts.take(RUNS + 1).collect();
    if starts.len() > RUNS {
        return None;
    }
    // From a place on: descriptors that the driver has seen used, or made available since. If the
    // first is available and the next ones are used, their burst was not shown.
    let hidden = |place: u16| {
        let is_used = |step: u16| {
            let at = after(place, step, size);
            flags(at & !WRAP) == if at & WRAP != 0 { AVAILABLE | USED } else { 0 }
        };
        let is_free = |step: u16| {
            let (at, is_available) = (after(place, step, size), is_available);
            let flags = flags(at & !WRAP);
            is_available(flags, at) || flags == if at & WRAP != 0 { 0 } else { AVAILABLE | USED }
        };
        let is_first = is_available(flags(place & !WRAP), place);
        let cut =
            if is_first { (1..size).take_while(|&step| is_used(step)).count() as u16 } else { 0 };
        let rest = if cut == 0 { 0 } else { 1 + cut };
        (rest..size).all(is_free).then_some(rest)
    };
    let places = starts.iter().flat_map(|&start| [start | WRAP, start]);
    let mut found = places.filter_map(|place| Some((place, hidden(place)?)));
    let (place, cut) = found.next()?;
    if found.next().is_some() {
        return None;
    }
    let number = |place: u16| (halves[usize::from(place & !WRAP)] >> 32) as u16;
    let burst = (0..cut).map(|step| after(place, step, size));
    let burst: Vec<_> = burst.map(|place| (place, unused(number(place), place))).collect();
    if cut != 0 {
        write(layout, memory, &burst)?;
    }
    Some(after(place, cut, size))
}
