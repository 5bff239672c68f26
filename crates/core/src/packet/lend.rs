//! Buffers lent to a kernel or a NIC, which reads and writes them on its own.
//!
//! ```
//! use picnic_core::{packet::{lend::Loans, pool::{Pool, PoolConfig}}, time::Time};
//! let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
//! let mut loans = Loans::new(&pool);
//! let place = loans.lend(&mut pool).unwrap(); // into a fill ring
//! let packet = loans.take(place + 256, 60, Time::ZERO, 0).unwrap(); // out of a receive ring
//! loans.lend_packet(&mut pool, packet, 4096, |_place, _length, _more| ()); // into a transmit ring
//! assert_eq!(loans.put_back(&mut pool, place + 256), Some(60)); // out of a completion ring
//! assert_eq!(pool.outstanding(), 0);
//! ```
//!
//! AF_XDP calls a pool's memory UMEM and identifies its contents by the offset in bytes from the
//! start: a *place*. One [`Loans`] is the account of one borrower.
//!
//! Guarantees: a lent buffer has no descriptor and is not on the pool's free list; a buffer that is
//! not lent cannot be taken or put back, for any place; [`Loans::recall`] returns all
//! buffers that never came back, and refuses while anyone holds a [`Borrower`].

use super::desc::Descriptor;
use super::pool::{MAX_PACKET_BYTES, Pool, PoolMemory};
use super::space::{self, SEGMENT_HEADER_BYTES};
use crate::time::Time;
use std::sync::Arc;

/// The buffers of a pool that are lent to one borrower.
#[derive(Debug)]
pub struct Loans {
    /// By the buffer's number.
    out: Box<[Loan]>,
    borrower: Borrower,
    /// Buffers lent.
    buffers: usize,
    /// Packets lent.
    packets: usize,
}

/// Value of `pieces`: set aside, and never put back.
const ASIDE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Loan {
    /// Times it must be put back; zero if it is not lent.
    pieces: u32,
    /// In the last buffer of a packet: bytes of the whole packet. Zero in all others.
    length: u32,
}

/// Held by a borrower for as long as it may read or write lent buffers.
#[derive(Clone, Debug)]
pub struct Borrower {
    memory: PoolMemory,
    holders: Arc<()>,
}

impl Borrower {
    /// The memory of the buffers.
    pub fn memory(&self) -> PoolMemory {
        self.memory
    }
}

impl Loans {
    /// An account for one borrower of this pool, with nothing lent.
    pub fn new(pool: &Pool) -> Self {
        Loans {
            out: vec![Loan::default(); pool.buffers()].into(),
            borrower: Borrower { memory: pool.memory(), holders: Arc::new(()) },
            buffers: 0,
            packets: 0,
        }
    }

    /// The token for the borrower to hold.
    pub fn borrower(&self) -> Borrower {
        self.borrower.clone()
    }

    /// Whether this is one of this account's.
    pub fn has_borrower(&self, borrower: &Borrower) -> bool {
        Arc::ptr_eq(&self.borrower.holders, &borrower.holders)
    }

    /// Buffers lent, including those of packets.
    pub fn buffers(&self) -> usize {
        self.buffers
    }

    /// Packets lent.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Bytes from one buffer to the next.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.borrower.memory.stride()
    }

    /// The number of the buffer at a place, and the distance from its start.
    #[inline(always)]
    fn find(&self, place: u64) -> Option<(usize, usize)> {
        // 32 bits: a 64-bit division takes twice as long, and a pool is at most 32 GiB of lines.
        let line = u32::try_from(place / space::UNIT as u64).ok()?;
        let lines = (self.stride() / space::UNIT) as u32;
        let index = (line / lines) as usize;
        (index < self.out.len()).then(|| (index, (place - (index * self.stride()) as u64) as usize))
    }

    /// The number of a descriptor's buffer, if it is one of this pool.
    #[inline(always)]
    fn index_of(&self, buffer: u32) -> Option<usize> {
        let lines = buffer.checked_sub(self.borrower.memory.first())?;
        let (index, from_start) = self.find(u64::from(lines) * space::UNIT as u64)?;
        (from_start == 0).then_some(index)
    }

    #[inline(always)]
    fn descriptor(
        &self,
        index: usize,
        offset: u16,
        length: u16,
        now: Time,
        wire: u8,
    ) -> Descriptor {
        let lines = (index * self.stride() / space::UNIT) as u32;
        space::descriptor(self.borrower.memory.first() + lines, offset, length, now, wire)
    }

    /// Lends an empty buffer: its place, right after its header; the borrower may use
    /// [`PoolMemory::room`] bytes from there. `None` without buffers.
    #[inline]
    pub fn lend(&mut self, pool: &mut Pool) -> Option<u64> {
        let buffer = pool.allocate(0)?;
        let Some(index) = self.index_of(buffer.buffer) else {
            pool.free(buffer);
            return None;
        };
        self.out[index] = Loan { pieces: 1, length: 0 };
        self.buffers += 1;
        Some((index * self.stride()) as u64 + u64::from(SEGMENT_HEADER_BYTES))
    }

    /// The number of pieces of at most `longest` bytes that [`Loans::lend_packet`] makes of a
    /// packet.
    #[inline]
    pub fn pieces(packet: &Descriptor, longest: usize) -> usize {
        if packet.is_chained() {
            packet.segments().map(|segment| segment.len().div_ceil(longest)).sum()
        } else {
            packet.data().len().div_ceil(longest)
        }
    }

    /// Lends a packet's buffers. Hands over `each` of its pieces, in order: place, length (1 to
    /// `longest` bytes), and whether more follow. All of them must be put back.
    ///
    /// A packet without bytes, or of another pool, has no pieces; its buffers are freed.
    #[inline]
    pub fn lend_packet(
        &mut self,
        pool: &mut Pool,
        packet: Descriptor,
        longest: usize,
        mut each: impl FnMut(u64, u32, bool),
    ) {
        if packet.is_chained() {
            return self.lend_chain(pool, packet, longest, each);
        }
        let place = (packet.buffer, packet.offset, packet.length);
        let total = u32::from(packet.length);
        self.lend_segment(pool, place, longest, total, total, &mut each);
    }

    #[cold]
    fn lend_chain(
        &mut self,
        pool: &mut Pool,
        packet: Descriptor,
        longest: usize,
        mut each: impl FnMut(u64, u32, bool),
    ) {
        // Counted, not read from the head: "more follow" must be right, or the ring is garbled.
        let total: usize = packet.segments().map(<[u8]>::len).sum();
        let mut left = total as u32;
        space::take_segments(packet, |segment| {
            self.lend_segment(pool, segment, longest, left, total as u32, &mut each);
            left -= u32::from(segment.2);
        });
    }

    /// Lends one buffer; from its first byte on, `left` of the packet's `total` bytes remain.
    #[inline(always)]
    fn lend_segment(
        &mut self,
        pool: &mut Pool,
        (buffer, offset, length): (u32, u16, u16),
        longest: usize,
        left: u32,
        total: u32,
        each: &mut impl FnMut(u64, u32, bool),
    ) {
        let Some(index) = self.index_of(buffer).filter(|_| length != 0) else {
            return pool.free(space::descriptor(buffer, SEGMENT_HEADER_BYTES, 0, Time::ZERO, 0));
        };
        let is_last = left == u32::from(length);
        self.out[index] = Loan {
            pieces: usize::from(length).div_ceil(longest) as u32,
            length: if is_last { total } else { 0 },
        };
        self.buffers += 1;
        self.packets += usize::from(is_last);
        let mut place = (index * self.stride()) as u64 + u64::from(offset);
        let mut rest = usize::from(length);
        while rest != 0 {
            let piece = rest.min(longest);
            rest -= piece;
            each(place, piece as u32, rest != 0 || !is_last);
            place += piece as u64;
        }
    }

    /// A buffer that was lent empty returns with a packet of `length` bytes at `place`, received at
    /// `now` by `wire`. `None` if no such buffer is lent or the bytes are not all within it.
    #[inline(always)]
    pub fn take(&mut self, place: u64, length: usize, now: Time, wire: u8) -> Option<Descriptor> {
        let (index, offset) = self.find(place)?;
        let loan = &mut self.out[index];
        let (low, high) = (usize::from(SEGMENT_HEADER_BYTES), self.borrower.memory.stride());
        if (loan.pieces, loan.length) != (1, 0) || offset < low || offset + length > high {
            return None;
        }
        loan.pieces = 0;
        self.buffers -= 1;
        // Both below the stride, which is less than 64 KiB.
        Some(self.descriptor(index, offset as u16, length as u16, now, wire))
    }

    /// As [`Loans::take`], for a packet in pieces of `(place, length)`: all are taken. `None` if
    /// one of them cannot be; the others are returned to the pool.
    #[cold]
    pub fn take_pieces(
        &mut self,
        pool: &mut Pool,
        pieces: impl Iterator<Item = (u64, usize)>,
        now: Time,
    ) -> Option<Descriptor> {
        let (mut whole, mut bytes) = (true, 0);
        let mut taken = pieces.filter_map(|(place, length)| {
            let piece = self.take(place, length, now, 0);
            whole &= piece.is_some();
            bytes += length;
            piece
        });
        let packet = taken.next().map(|head| space::link(head, taken))?;
        if !whole || bytes > MAX_PACKET_BYTES {
            pool.free(packet);
            return None;
        }
        Some(packet)
    }

    /// Puts a piece back, given any place within its buffer; the buffer returns to the pool with
    /// its last piece. For the last buffer of a packet, returns the packet's length in bytes.
    #[inline]
    pub fn put_back(&mut self, pool: &mut Pool, place: u64) -> Option<u32> {
        let (index, _) = self.find(place)?;
        let loan = &mut self.out[index];
        if loan.pieces == ASIDE {
            return None;
        }
        loan.pieces = loan.pieces.checked_sub(1)?;
        if loan.pieces != 0 {
            return None;
        }
        let length = std::mem::take(&mut loan.length);
        self.buffers -= 1;
        self.packets -= usize::from(length != 0);
        pool.free(self.descriptor(index, SEGMENT_HEADER_BYTES, 0, Time::ZERO, 0));
        (length != 0).then_some(length)
    }

    /// Takes the buffers whose places `unfit` refuses out of use, until [`Loans::end`]. For set-up,
    /// while no buffers are in use. Returns their number.
    pub fn set_aside(&mut self, pool: &mut Pool, unfit: impl Fn(u64) -> bool) -> usize {
        let (mut kept, mut fit) = (0, Vec::with_capacity(pool.available()));
        while pool.available() != 0 {
            let Some(place) = self.lend(pool) else { break };
            match self.find(place) {
                Some((index, _)) if unfit(place) => {
                    self.out[index].pieces = ASIDE;
                    kept += 1;
                }
                _ => fit.push(place),
            }
        }
        // Last taken, first returned: the free list is unchanged.
        for place in fit.into_iter().rev() {
            self.put_back(pool, place);
        }
        kept
    }

    /// Returns all lent buffers except those set aside; returns the number of packets never sent.
    /// Does nothing and returns `None` while a [`Borrower`] other than this account's own is held.
    pub fn recall(&mut self, pool: &mut Pool) -> Option<usize> {
        self.bring_home(pool, |pieces| pieces != ASIDE)
    }

    /// As [`Loans::recall`], including buffers set aside.
    pub fn end(&mut self, pool: &mut Pool) -> Option<usize> {
        self.bring_home(pool, |_| true)
    }

    fn bring_home(&mut self, pool: &mut Pool, chosen: impl Fn(u32) -> bool) -> Option<usize> {
        // Exclusive access also shows that all accesses of the last holder are done.
        Arc::get_mut(&mut self.borrower.holders)?;
        for index in 0..self.out.len() {
            let pieces = self.out[index].pieces;
            if pieces != 0 && chosen(pieces) {
                self.out[index] = Loan::default();
                self.buffers -= 1;
                pool.free(self.descriptor(index, SEGMENT_HEADER_BYTES, 0, Time::ZERO, 0));
            }
        }
        Some(std::mem::take(&mut self.packets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::pool::PoolConfig;
    use proptest::prelude::*;

    fn pool(buffers: u32, buffer_size: u32) -> Pool {
        let config = PoolConfig { buffers, buffer_size, ..PoolConfig::default() };
        Pool::new(&config, 0).unwrap().0
    }

    #[test]
    fn only_lent_buffers_can_be_taken_or_put_back() {
        let mut pool = pool(64, 2048);
        let mut loans = Loans::new(&pool);
        let stride = loans.stride() as u64;
        for place in [0, 64, stride * 63 + 64, stride * 64, stride * 64 + 64, 1 << 40, u64::MAX] {
            assert!(loans.take(place, 1, Time::ZERO, 0).is_none(), "{place}");
            assert_eq!(loans.put_back(&mut pool, place), None, "{place}");
        }
        let place = loans.lend(&mut pool).unwrap();
        let room = stride - 64;
        for (at, length) in [(place - 1, 1), (place, room + 1), (place + room, 1), (place, 1 << 20)]
        {
            assert!(loans.take(at, length as usize, Time::ZERO, 0).is_none(), "{at} {length}");
        }
        let packet = loans.take(place, room as usize, Time::from_nanos(5), 3).unwrap();
        assert_eq!((packet.data().len(), packet.wire), (room as usize, 3));
        assert_eq!((packet.received_at(), packet.headroom()), (Time::from_nanos(5), 0));
        assert!(loans.take(place, 1, Time::ZERO, 0).is_none(), "twice");
        pool.free(packet);
        assert_eq!((pool.outstanding(), loans.buffers()), (0, 0));
    }

    #[test]
    fn packets_in_pieces_are_complete_or_refused() {
        let mut pool = pool(64, 2048);
        let mut loans = Loans::new(&pool);
        let mut take = |lengths: &[usize], lie: u64| {
            let places: Vec<_> = lengths.iter().map(|_| loans.lend(&mut pool).unwrap()).collect();
            let pieces = places.into_iter().zip(lengths.iter().copied());
            let pieces = pieces.map(|(place, length)| (place + 256 + lie * (1 << 30), length));
            let packet = loans.take_pieces(&mut pool, pieces, Time::ZERO);
            let found = packet.map(|packet| {
                let lengths: Vec<_> = packet.segments().map(<[u8]>::len).collect();
                let length = packet.length();
                pool.free(packet);
                (lengths, length)
            });
            loans.recall(&mut pool).unwrap();
            assert_eq!(pool.outstanding(), 0);
            found
        };
        assert_eq!(take(&[100], 0), Some((vec![100], 100)));
        assert_eq!(take(&[1800, 1700, 3], 0), Some((vec![1800, 1700, 3], 3503)));
        assert_eq!(
            (take(&[1800, 5000, 3], 0), take(&[5000, 3], 0), take(&[9], 1)),
            (None, None, None)
        );
        assert_eq!(take(&[], 0), None);
    }

    #[test]
    fn empty_buffers_return_at_once() {
        let mut pool = pool(64, 2048);
        let mut loans = Loans::new(&pool);
        for (lengths, gathered, expected) in [
            ([10, 5, 20], 15, vec![(15, true), (20, false)]),
            ([10, 5, 20], 35, vec![(35, false)]),
            ([10, 5, 20], 12, vec![(12, true), (3, true), (20, false)]),
        ] {
            let mut packet = pool.packet(&[1; 10]).unwrap();
            for length in &lengths[1..] {
                packet.append(pool.packet(&vec![2; *length]).unwrap()).unwrap();
            }
            packet.gather_front(gathered);
            assert_eq!(Loans::pieces(&packet, 4096), expected.len());
            let (mut places, mut found) = (Vec::new(), Vec::new());
            loans.lend_packet(&mut pool, packet, 4096, |place, length, more| {
                places.push(place);
                found.push((length, more));
            });
            assert_eq!((found, pool.outstanding()), (expected, places.len()));
            let sent: u32 = places.iter().filter_map(|&at| loans.put_back(&mut pool, at)).sum();
            assert_eq!((sent, pool.outstanding()), (35, 0));
        }
    }

    #[test]
    fn packets_of_other_pools_are_not_lent() {
        let (mut pool, mut other) = (pool(64, 2048), pool(64, 2048));
        let mut loans = Loans::new(&pool);
        let packet = other.packet(b"other").unwrap();
        loans.lend_packet(&mut pool, packet, 4096, |_, _, _| panic!("lent"));
        assert_eq!(loans.lend(&mut other), None);
        assert_eq!((loans.buffers(), pool.outstanding(), other.outstanding()), (0, 0, 1));
    }

    #[test]
    fn a_borrower_prevents_recall() {
        let mut pool = pool(64, 2048);
        let mut loans = Loans::new(&pool);
        let borrower = loans.borrower();
        assert!(loans.has_borrower(&borrower) && !Loans::new(&pool).has_borrower(&borrower));
        let packet = pool.packet(b"never sent").unwrap();
        loans.lend_packet(&mut pool, packet, 4096, |_, _, _| ());
        loans.lend(&mut pool).unwrap();
        assert_eq!(loans.recall(&mut pool), None);
        assert_eq!((pool.outstanding(), loans.buffers(), loans.packets()), (2, 2, 1));
        drop(borrower);
        assert_eq!(loans.recall(&mut pool), Some(1));
        assert_eq!((pool.outstanding(), loans.buffers(), loans.packets()), (0, 0, 0));
    }

    #[test]
    fn unfit_buffers_are_set_aside() {
        let mut pool = pool(1000, 2048);
        let mut loans = Loans::new(&pool);
        let stride = loans.stride() as u64;
        let before: Vec<_> = (0..1000).map(|_| pool.allocate(1).unwrap()).collect();
        let order: Vec<_> = before.iter().map(|packet| packet.buffer).collect();
        before.into_iter().rev().for_each(|packet| pool.free(packet));
        assert_eq!(loans.set_aside(&mut pool, |place| place / stride % 10 == 3), 100);
        assert_eq!((pool.available(), loans.buffers()), (900, 100));
        let first = pool.memory().first();
        let lines = (stride / 64) as u32;
        let left: Vec<_> = (0..900).map(|_| pool.allocate(1).unwrap()).collect();
        let expected = order.into_iter().filter(|buffer| (buffer - first) / lines % 10 != 3);
        assert!(left.iter().map(|packet| packet.buffer).eq(expected), "the order has changed");
        left.into_iter().for_each(|packet| pool.free(packet));
        for number in 0..1000 {
            assert_eq!(loans.put_back(&mut pool, number * stride + 64), None);
        }
        assert_eq!((loans.recall(&mut pool), pool.outstanding()), (Some(0), 100));
        assert_eq!((loans.end(&mut pool), pool.outstanding()), (Some(0), 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// For any loans, in any order of return: nothing is lost or duplicated.
        #[test]
        fn lent_and_put_back(
            buffer_size in 64_u32..6000,
            longest in 50_usize..4096,
            steps in prop::collection::vec((0_u8..5, 1_usize..9000, any::<prop::sample::Index>()), 1..80),
        ) {
            let mut pool = pool(256, buffer_size);
            let mut loans = Loans::new(&pool);
            // Lent places: empty buffers, and pieces of packets, the oldest first.
            let (mut empty, mut pieces) = (Vec::<u64>::new(), std::collections::VecDeque::new());
            let (mut sent, mut done, mut packets) = (Vec::new(), Vec::new(), 0);
            for (step, length, pick) in steps {
                match step {
                    0 => empty.extend(loans.lend(&mut pool)),
                    1 if !empty.is_empty() => {
                        let place = empty.swap_remove(pick.index(empty.len()));
                        let room = pool.memory().room();
                        let length = length.min(room);
                        let packet = loans.take(place + (room - length) as u64, length, Time::ZERO, 0);
                        pool.free(packet.unwrap());
                    }
                    2 | 3 => {
                        let Some(packet) = pool.packet(&vec![7; length]) else { continue };
                        let expected = Loans::pieces(&packet, longest);
                        let (before, mut bytes) = (pieces.len(), 0);
                        loans.lend_packet(&mut pool, packet, longest, |place, piece, more| {
                            bytes += piece as usize;
                            assert!(piece as usize <= longest && piece != 0);
                            assert_eq!(more, bytes != length);
                            pieces.push_back(place);
                        });
                        assert_eq!((pieces.len() - before, bytes), (expected, length));
                        sent.push(length as u32);
                        packets += 1;
                    }
                    _ => {
                        for place in pieces.drain(..pick.index(pieces.len() + 1)) {
                            done.extend(loans.put_back(&mut pool, place));
                        }
                    }
                }
                prop_assert_eq!(loans.packets(), packets - done.len());
                prop_assert_eq!(loans.buffers(), pool.outstanding());
            }
            for place in pieces {
                done.extend(loans.put_back(&mut pool, place));
            }
            prop_assert_eq!(done, sent);
            prop_assert_eq!(loans.buffers(), empty.len());
            loans.recall(&mut pool);
            prop_assert_eq!(pool.outstanding(), 0);
        }
    }
}
