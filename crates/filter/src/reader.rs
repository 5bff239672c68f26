//! The data path's side of a list: judges bursts, on one core.
//!
//! Guarantees: all packets of a burst are judged by the same list, in order; nothing is allocated,
//! freed or waited for.

use super::Action;
use super::classifier::{BURST, Key, NONE};
use super::code::{CallbackVerdict, CoreCode};
use super::exchange::{CodeSlot, Delivery, Exchange};
use super::hidden::{Headers, Hidden};
use super::table::{FilterCounters, FirstMatches, NO_CODE, PAGE, Row, Table, Test};
use picnic_core::function::PacketMut;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::Descriptor;
use picnic_core::packet::layers::Layers;
use picnic_core::time::Time;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The fate of a packet that does not continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dropped by a filter.
    Drop,
    /// Dropped, because a filter could match but could not read it.
    Unreadable,
    /// To a target queue.
    Steer(u16),
    /// Refused by the receiver.
    Refused,
}

/// Judges bursts by the newest list.
pub struct Reader {
    exchange: Arc<Exchange>,
    delivery: Delivery,
    scratch: Box<Scratch>,
    can_steer: bool,
}

/// State of a burst's packets.
struct Scratch {
    layers: [Layers; BURST],
    /// Packets with headers that a key cannot express, a bit each; and the mask of those.
    any_special: u64,
    special: [Headers; BURST],
    v4: Gathered<u64>,
    v6: Gathered<[u64; 4]>,
    /// Place of the first matching five-tuple in the list.
    firsts: [u16; BURST],
    found: [u16; BURST],
}

/// Keys of one family, and their packets.
struct Gathered<A> {
    keys: [Key<A>; BURST],
    packets: [u8; BURST],
    count: usize,
}

impl Scratch {
    #[inline(always)]
    fn headers_of(&self, index: usize) -> Headers {
        if self.any_special >> (index % BURST) & 1 == 0 {
            Headers::PLAIN
        } else {
            self.special[index % BURST]
        }
    }
}

impl<A> Gathered<A> {
    #[inline(always)]
    fn put(&mut self, packet: usize, key: Key<A>) {
        self.keys[self.count % BURST] = key;
        self.packets[self.count % BURST] = packet as u8;
        self.count += 1;
    }

    #[inline(always)]
    fn spread(&self, found: &[u16; BURST], firsts: &mut [u16; BURST]) {
        for (&packet, &place) in self.packets.iter().zip(found).take(self.count) {
            firsts[usize::from(packet) % BURST] = place;
        }
    }
}

impl Reader {
    pub(super) fn new(exchange: Arc<Exchange>, can_steer: bool) -> Self {
        let v4 = Gathered { keys: [Key::EMPTY; BURST], packets: [0; BURST], count: 0 };
        let v6 = Gathered { keys: [Key::EMPTY; BURST], packets: [0; BURST], count: 0 };
        let scratch = Scratch {
            layers: [Layers::default(); BURST],
            any_special: 0,
            special: [Headers::PLAIN; BURST],
            v4,
            v6,
            firsts: [NONE; BURST],
            found: [NONE; BURST],
        };
        Reader { exchange, delivery: Delivery::default(), scratch: Box::new(scratch), can_steer }
    }

    /// Takes the newest list, if there is a newer one. False if there are no filters.
    #[inline(always)]
    pub fn refresh(&mut self) -> bool {
        self.exchange.refresh(&mut self.delivery);
        !self.delivery.table.is_empty()
    }

    /// Judges a burst: continuing packets stay in it, the others go to `end`, in order.
    pub fn judge(&mut self, now: Time, burst: &mut Burst, mut end: impl FnMut(Descriptor, Fate)) {
        self.classify(burst.as_mut_slice());
        let Reader { delivery, scratch, can_steer, .. } = self;
        let Delivery { table, pages, code, .. } = delivery;
        let count = burst.len();
        if table.others.is_empty()
            && scratch.any_special == 0
            && scratch.firsts[..count].iter().all(|&first| first == NONE)
        {
            return;
        }
        let mut judge = Judge { table, pages, code, can_steer: *can_steer, delivers: false };
        let mut index = 0;
        burst.retain(|mut packet| {
            let (layers, first) = (&scratch.layers[index % BURST], scratch.firsts[index % BURST]);
            let headers = scratch.headers_of(index);
            index += 1;
            match judge.decide(&mut packet, layers, first, headers) {
                Decision::On => Some(packet),
                Decision::End(fate) => {
                    end(packet, fate);
                    None
                }
                Decision::Deliver(slot) => {
                    if let Err(packet) = judge.hand_over(now, slot, packet) {
                        end(packet, Fate::Refused);
                    }
                    None
                }
            }
        });
        if judge.delivers {
            judge.end_burst();
        }
    }

    /// Judges one packet at the driver; `None` if it continues.
    pub fn fate(&mut self, packet: &mut Descriptor) -> Option<Fate> {
        let Delivery { table, pages, code, .. } = &mut self.delivery;
        let (mut layers, mut headers) = (Layers::default(), Headers::PLAIN);
        if table.needs_layers {
            layers = packet.parse();
            headers = Headers::of(&layers, packet.data());
        }
        let first = table.find(packet, &layers, headers, 0).certain;
        let mut judge = Judge { table, pages, code, can_steer: self.can_steer, delivers: false };
        match judge.decide(packet, &layers, first, headers) {
            Decision::On => None,
            Decision::End(fate) => Some(fate),
            Decision::Deliver(_) => Some(Fate::Refused),
        }
    }

    /// Packets handed over that the ledger counts here.
    pub fn held(&self) -> usize {
        let code = self.delivery.code.iter();
        let handovers = code.filter_map(|slot| match slot {
            CodeSlot::Here(code) => code.handover.as_ref(),
            _ => None,
        });
        handovers.map(|handover| handover.held()).sum()
    }

    /// Finds each packet's layers and its first matching five-tuple.
    #[inline]
    fn classify(&mut self, packets: &mut [Descriptor]) {
        let table = &*self.delivery.table;
        let Scratch { layers, any_special, special, v4, v6, firsts, found } = &mut *self.scratch;
        *firsts = [NONE; BURST];
        *any_special = 0;
        if !table.needs_layers {
            return;
        }
        (v4.count, v6.count) = (0, 0);
        for (index, (packet, layers)) in packets.iter_mut().zip(layers).enumerate() {
            *layers = packet.parse();
            if !layers.is_plain() {
                let found = Headers::of(layers, packet.data());
                special[index % BURST] = found;
                *any_special |= u64::from(found != Headers::PLAIN) << (index % BURST);
            }
            if let Some(key) = Key::of_packet(layers, packet.data()) {
                v4.put(index, key);
            } else if let Some(key) = Key::of_packet(layers, packet.data()) {
                v6.put(index, key);
            }
        }
        if v4.count == packets.len() {
            // Usually all of one family: no sorting needed.
            table.v4.classify(&v4.keys[..v4.count], firsts);
            return;
        }
        if v4.count != 0 {
            table.v4.classify(&v4.keys[..v4.count], found);
            v4.spread(found, firsts);
        }
        if v6.count != 0 {
            table.v6.classify(&v6.keys[..v6.count], found);
            v6.spread(found, firsts);
        }
    }
}

/// A filter's answer for a packet.
enum Answer {
    Matches,
    /// It could match, and stops packets that it cannot read.
    Could,
}

enum Decision {
    On,
    End(Fate),
    Deliver(u16),
}

/// The filters for one burst.
struct Judge<'a> {
    table: &'a Table,
    pages: &'a [Arc<[FilterCounters; PAGE]>],
    code: &'a mut [CodeSlot],
    can_steer: bool,
    delivers: bool,
}

impl Judge<'_> {
    /// `first` is the place of the first matching five-tuple.
    #[inline(always)]
    fn decide(
        &mut self,
        packet: &mut Descriptor,
        layers: &Layers,
        first: u16,
        headers: Headers,
    ) -> Decision {
        if self.table.others.is_empty() && headers == Headers::PLAIN {
            // One lookup in the classifier decides for most packets.
            let Some(row) = self.table.rows.get(usize::from(first)) else { return Decision::On };
            if row.action == Action::Drop {
                self.count(row, packet);
                return Decision::End(Fate::Drop);
            }
        }
        self.walk(packet, *layers, first, headers)
    }

    fn walk(
        &mut self,
        packet: &mut Descriptor,
        mut layers: Layers,
        first: u16,
        mut headers: Headers,
    ) -> Decision {
        let table = self.table;
        let mut from = 0;
        let mut found = match headers {
            Headers::PLAIN => FirstMatches { certain: first, possible: NONE },
            _ => table.find(packet, &layers, headers, from),
        };
        loop {
            if found.certain.min(found.possible) < from {
                found = table.find(packet, &layers, headers, from);
            }
            let tuple = found.certain.min(found.possible);
            let place = match self.first_other(packet, &layers, headers.hidden, from..tuple) {
                Some((place, Answer::Matches)) => place,
                Some((place, Answer::Could)) => return self.unreadable(place),
                None if found.possible < found.certain => return self.unreadable(tuple),
                None => tuple,
            };
            let Some(row) = table.rows.get(usize::from(place)) else { return Decision::On };
            self.count(row, packet);
            from = match row.action {
                Action::Drop => return Decision::End(Fate::Drop),
                Action::Steer(queue) => return Decision::End(Fate::Steer(queue)),
                Action::Poll => return Decision::On,
                Action::Deliver => return Decision::Deliver(place),
                Action::Accept => table.ends[usize::from(row.group)],
                Action::Mark(mark) => {
                    packet.mark = mark;
                    place + 1
                }
                Action::Count | Action::Allocate => place + 1,
                Action::Callback => {
                    let reply = self.call(row, packet);
                    match reply {
                        CallbackVerdict::Drop => return Decision::End(Fate::Drop),
                        CallbackVerdict::Steer(queue) if self.can_steer => {
                            return Decision::End(Fate::Steer(queue));
                        }
                        CallbackVerdict::Next
                        | CallbackVerdict::Steer(_)
                        | CallbackVerdict::Accept => {}
                    }
                    // The callback may have changed the packet.
                    layers = packet.parse();
                    headers = Headers::of(&layers, packet.data());
                    found = FirstMatches { certain: 0, possible: NONE };
                    if reply == CallbackVerdict::Accept {
                        table.ends[usize::from(row.group)]
                    } else {
                        place + 1
                    }
                }
            };
            if usize::from(from) >= table.rows.len() {
                return Decision::On;
            }
        }
    }

    /// Ends a packet at a filter that could match it.
    #[cold]
    fn unreadable(&self, place: u16) -> Decision {
        let row = self.table.rows.get(usize::from(place));
        if let Some(counters) = row.and_then(|row| self.counters(row)) {
            counters.unreadable_packets.add(1);
        }
        Decision::End(Fate::Unreadable)
    }

    /// The first filter in a range of places that is not a five-tuple and matches or could match.
    #[inline]
    fn first_other(
        &mut self,
        packet: &mut Descriptor,
        layers: &Layers,
        hidden: Hidden,
        places: Range<u16>,
    ) -> Option<(u16, Answer)> {
        let table = self.table;
        let others = table.others_from(places.start).iter();
        for other in others.take_while(|other| other.position < places.end) {
            let row = table.rows.get(usize::from(other.position))?;
            let matches = match &other.test {
                Test::Any => true,
                Test::Pattern(pattern)
                    if row.stops & Row::STOPS_PATTERN != 0
                        && pattern.could_match(layers, hidden) =>
                {
                    return Some((other.position, Answer::Could));
                }
                Test::Pattern(pattern) => match pattern.matches(packet, layers) {
                    Some(matches) => matches,
                    None => {
                        if let Some(counters) = self.counters(row) {
                            counters.short_packets.add(1);
                        }
                        false
                    }
                },
                Test::Predicate => self.ask(row, packet),
            };
            if matches {
                return Some((other.position, Answer::Matches));
            }
        }
        None
    }

    fn counters(&self, row: &Row) -> Option<&FilterCounters> {
        let index = row.counters as usize;
        self.pages.get(index / PAGE)?.get(index % PAGE)
    }

    #[inline(always)]
    fn count(&self, row: &Row, packet: &Descriptor) {
        if let Some(counters) = self.counters(row) {
            counters.packets.add(1);
            counters.bytes.add(u64::from(packet.length()));
        }
    }

    fn code(&mut self, row: &Row) -> Option<&mut CoreCode> {
        if row.slot == NO_CODE {
            return None;
        }
        match self.code.get_mut(usize::from(row.slot)) {
            Some(CodeSlot::Here(code)) => Some(code),
            _ => None,
        }
    }

    fn ask(&mut self, row: &Row, packet: &mut Descriptor) -> bool {
        let Some(code) = self.code(row) else { return false };
        let Some(judge) = &mut code.predicate else { return false };
        match catch_unwind(AssertUnwindSafe(|| judge(&PacketMut::from(packet)))) {
            Ok(matches) => matches,
            Err(payload) => {
                // Not dropped: dropping code that panicked may panic again.
                std::mem::forget(payload);
                std::mem::forget(code.predicate.take());
                self.panicked(row);
                false
            }
        }
    }

    fn call(&mut self, row: &Row, packet: &mut Descriptor) -> CallbackVerdict {
        let Some(code) = self.code(row) else { return CallbackVerdict::Next };
        let Some(handle) = &mut code.callback else { return CallbackVerdict::Next };
        match catch_unwind(AssertUnwindSafe(|| handle(&mut PacketMut::from(packet)))) {
            Ok(reply) => reply,
            Err(payload) => {
                std::mem::forget(payload);
                std::mem::forget(code.callback.take());
                self.panicked(row);
                CallbackVerdict::Next
            }
        }
    }

    #[cold]
    fn panicked(&self, row: &Row) {
        if let Some(counters) = self.counters(row) {
            counters.panics.add(1);
        }
    }

    fn hand_over(&mut self, now: Time, place: u16, packet: Descriptor) -> Result<(), Descriptor> {
        self.delivers = true;
        let table = self.table;
        let code = table.rows.get(usize::from(place)).and_then(|row| self.code(row));
        match code.and_then(|code| code.handover.as_mut()) {
            Some(handover) => handover.hand_over(now, packet),
            None => Err(packet),
        }
    }

    fn end_burst(&mut self) {
        for code in &mut *self.code {
            if let CodeSlot::Here(code) = code
                && let Some(handover) = &mut code.handover
            {
                handover.end_burst();
            }
        }
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("filters", &self.delivery.table.len())
            .finish_non_exhaustive()
    }
}
