//! Packets of a guest, on their way out of chains.

use super::super::ring::{BrokenRing, Chain, Cursor, Lookup, Piece, Turn};
use super::bits::*;
use super::{
    EMPTY_POLLS, ETHERNET_BYTES, GSO_ECN, GSO_TCP4, GSO_TCP6, IP_BYTES, NEEDS_CSUM, PIECES, Terms,
};
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::attachment::QueueOut;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::BURST;
use picnic_core::packet::desc::{Descriptor, GsoType};
use picnic_core::packet::landing::Landing;
use picnic_core::time::Time;
use std::ops::Range;
use vm_memory::VolatileMemory;

/// Packets on their way out of chains.
pub(super) struct Emptying<'e> {
    pub(super) terms: &'e Terms,
    pub(super) memory: Lookup<'e>,
    pub(super) pieces: &'e mut Vec<Piece>,
    pub(super) chains: &'e mut Vec<Chain>,
    pub(super) now: Time,
    pub(super) is_enabled: bool,
    pub(super) has_kick: bool,
    pub(super) empty_polls: &'e mut u32,
    pub(super) is_listening: &'e mut bool,
    pub(super) sent: usize,
    pub(super) is_starved: bool,
}

impl Emptying<'_> {
    /// Takes a burst; whether the guest wants an interrupt for it.
    #[inline]
    pub(super) fn run(
        &mut self,
        turn: &mut impl Turn,
        out: &mut QueueOut<'_>,
    ) -> Result<bool, BrokenRing> {
        self.take(turn)?;
        let (mut seen, mut start) = (0, 0);
        while let Some(&chain) = self.chains.get(seen) {
            let end = start + usize::from(chain.pieces);
            if chain.pieces == 1 && self.send_plain(&chain, start, out).is_some() {
                (seen, start) = (seen + 1, end);
                continue;
            }
            let Some((packet, refused)) = self.read(chain, start..end, out) else {
                turn.put_back(&self.chains[seen..]);
                self.is_starved = true;
                break;
            };
            match refused {
                _ if !self.is_enabled => out.refuse(packet, DropReason::RingDisabled),
                Some(reason) => out.refuse(packet, reason),
                None => {
                    out.submit(packet);
                    self.sent += 1;
                }
            }
            (seen, start) = (seen + 1, end);
        }
        turn.complete_read(&self.chains[..seen])?;
        let interrupt = turn.publish()?;
        *self.empty_polls = if seen == 0 { self.empty_polls.wrapping_add(1) } else { 0 };
        if seen != 0 && *self.is_listening {
            turn.ignore()?;
            *self.is_listening = false;
        }
        let may_listen = self.has_kick && *self.empty_polls >= EMPTY_POLLS;
        if seen == 0 && !self.is_starved && !*self.is_listening && may_listen {
            *self.is_listening = !turn.listen()?;
        }
        Ok(interrupt)
    }

    /// Takes the chains of a burst.
    #[inline]
    fn take(&mut self, turn: &mut impl Turn) -> Result<(), BrokenRing> {
        self.pieces.clear();
        self.chains.clear();
        // Another packet may have `PIECES`.
        while self.chains.len() < BURST && self.pieces.len() <= PIECES {
            let before = self.pieces.len();
            let Some(mut chain) = turn.take(false, self.pieces)? else { break };
            self.memory.prefetch(self.pieces.get(before), false);
            chain.is_good &= usize::from(chain.pieces) <= PIECES;
            self.chains.push(chain);
        }
        Ok(())
    }

    /// Sends a packet that asks for no work, from one piece in one mapping to one buffer; `None`, and
    /// nothing done, if it is another one, or if there is no buffer.
    #[inline(always)]
    fn send_plain(&mut self, chain: &Chain, piece: usize, out: &mut QueueOut<'_>) -> Option<()> {
        let terms = self.terms;
        let whole = usize::try_from(chain.length).ok()?;
        let length = whole.checked_sub(terms.header_bytes()).filter(|length| *length != 0)?;
        if !chain.is_good || !self.is_enabled || length > terms.mtu + ETHERNET_BYTES {
            return None;
        }
        let from = self.memory.whole(self.pieces.get(piece)?.address, whole)?;
        let [flags, gso_type] = from.get_ref::<u16>(0).ok()?.load().to_ne_bytes();
        if gso_type != 0 || flags & NEEDS_CSUM != 0 && terms.has(CSUM) {
            return None;
        }
        let from = from.offset(terms.header_bytes()).ok()?;
        let mut packet = out.buffer()?;
        let Some(buffer) = packet.data_mut().get_mut(..length) else {
            out.unused(packet);
            return None;
        };
        from.copy_to(buffer);
        packet.truncate(length as u16);
        packet.set_arrival(terms.wire, self.now);
        out.submit(packet);
        self.sent += 1;
        Some(())
    }

    /// The packet, and why it is refused if it is; `None` if there is no buffer for it.
    fn read(
        &self,
        chain: Chain,
        pieces: Range<usize>,
        out: &mut QueueOut<'_>,
    ) -> Option<(Descriptor, Option<DropReason>)> {
        let terms = self.terms;
        let length = chain.length.checked_sub(terms.header_bytes() as u64);
        let fate = match length {
            _ if !chain.is_good => Err(DropReason::BadDescriptor),
            None => Err(DropReason::BadDescriptor),
            Some(0) => Err(DropReason::Malformed),
            Some(length) if length > (IP_BYTES + ETHERNET_BYTES) as u64 => {
                Err(DropReason::Oversize)
            }
            Some(length) => Ok(length as usize),
        };
        let count = match fate {
            Ok(length) if length > terms.buffer_size => length.div_ceil(terms.buffer_size),
            _ => 1,
        };
        let landing = out.landing(count)?;
        let fate = fate.and_then(|length| {
            let mut cursor = Cursor::new(self.memory, &self.pieces[pieces]);
            let header = read_all(&mut cursor, terms.header_bytes(), length, landing);
            Ok((header.ok_or(DropReason::BadDescriptor)?, length))
        });
        let mut packet = landing.land(fate.map_or(0, |(_, length)| length))?;
        packet.set_arrival(terms.wire, self.now);
        let reason = match fate {
            Ok((header, length)) => self.apply(header, length, &mut packet).err(),
            Err(reason) => Some(reason),
        };
        Some((packet, reason))
    }

    /// Enters what the guest's header says into the descriptor.
    #[inline]
    fn apply(
        &self,
        mut header: Header,
        length: usize,
        packet: &mut Descriptor,
    ) -> Result<(), DropReason> {
        let terms = self.terms;
        header.flags &= if terms.has(CSUM) { NEEDS_CSUM } else { 0 };
        let is_known = match header.gso_type & !GSO_ECN {
            0 => length <= terms.mtu + ETHERNET_BYTES,
            GSO_TCP4 => terms.has(HOST_TSO4),
            GSO_TCP6 => terms.has(HOST_TSO6),
            _ => false,
        };
        if !is_known {
            let is_long = header.gso_type == 0;
            return Err(if is_long { DropReason::Oversize } else { DropReason::Malformed });
        }
        if header.gso_type != 0 && header.flags & NEEDS_CSUM == 0 {
            return Err(DropReason::Malformed);
        }
        header.apply(packet, 0).map_err(|_| DropReason::Malformed)?;
        // A header may say what is true of the addresses alone.
        let kind = packet.packet_type();
        let is_so = match packet.gso_type() {
            GsoType::None => true,
            GsoType::Tcp4 => kind.is_ipv4() && kind.is_tcp(),
            GsoType::Tcp6 => kind.is_ipv6() && kind.is_tcp(),
            _ => false,
        };
        is_so.then_some(()).ok_or(DropReason::Malformed)
    }
}

/// Reads a packet from its pieces, whatever they are, and its header.
fn read_all(
    cursor: &mut Cursor<'_>,
    header_bytes: usize,
    mut left: usize,
    landing: &mut Landing,
) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES + 2];
    cursor.read(&mut bytes[..header_bytes])?;
    for buffer in landing.buffers() {
        let part = left.min(buffer.len());
        left -= part;
        cursor.read(&mut buffer[..part])?;
    }
    Some(Header::from_bytes(bytes.first_chunk()?))
}
