//! Packets for a guest, on their way into chains.

use super::super::ring::{BrokenRing, Chain, Cursor, Lookup, Piece, Turn};
use super::bits::*;
use super::{DATA_VALID, GSO_ECN, PIECES, Terms};
use crate::virtio::{HEADER_BYTES, Header};
use picnic_core::attachment::QueueOut;
use picnic_core::ledger::DropReason;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::desc::{ChecksumState, Descriptor, GsoType};
use picnic_core::packet::offload;
use vm_memory::VolatileMemory;

/// A header as the guest has it: two integers, since bytes that were written one by one and are
/// copied together must have left the processor's store buffer, after all stores to lines that
/// another core has.
#[derive(Clone, Copy, Debug, Default)]
struct Words {
    /// All but the last field of [`Header`].
    low: u64,
    high: u16,
}

impl From<Header> for Words {
    #[inline]
    fn from(header: Header) -> Self {
        let [low @ .., x, y] = header.to_bytes();
        Words { low: u64::from_le_bytes(low), high: u16::from_le_bytes([x, y]) }
    }
}

/// How a packet gets to the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    header: Words,
    /// Its chains, after those of the packet before.
    chains: u16,
    fate: Result<(), DropReason>,
}

impl Plan {
    fn dropped(reason: DropReason) -> Self {
        Plan { header: Words::default(), chains: 0, fate: Err(reason) }
    }
}

/// Packets on their way into chains.
pub(super) struct Filling<'f> {
    pub(super) terms: &'f Terms,
    pub(super) memory: Lookup<'f>,
    /// Of the packets that are not copied yet.
    pub(super) pieces: &'f mut Vec<Piece>,
    pub(super) chains: &'f mut Vec<Chain>,
    /// Of the whole burst.
    pub(super) plans: &'f mut Vec<Plan>,
}

impl Filling<'_> {
    /// Puts a burst into chains; packets that are left have found a ring that is wrong.
    #[inline]
    pub(super) fn run(
        &mut self,
        turn: &mut impl Turn,
        burst: &mut Burst,
        out: &mut QueueOut<'_>,
    ) -> Result<bool, BrokenRing> {
        self.plans.clear();
        self.pieces.clear();
        self.chains.clear();
        let packets = burst.as_mut_slice();
        let mut copied = 0;
        for place in 0..packets.len() {
            // Another packet may have this many.
            if self.pieces.len() > PIECES {
                self.copy(turn, &packets[copied..], copied)?;
                copied = place;
            }
            let plan = self.plan(turn, &mut packets[place])?;
            self.plans.push(plan);
        }
        self.copy(turn, &packets[copied..], copied)?;
        let interrupt = turn.publish()?;
        for (packet, plan) in burst.drain().zip(&*self.plans) {
            match plan.fate {
                Ok(()) => out.deliver(packet),
                Err(reason) => out.drop(packet, reason),
            }
        }
        Ok(interrupt)
    }

    /// Takes chains for a packet.
    #[inline]
    fn plan(&mut self, turn: &mut impl Turn, packet: &mut Descriptor) -> Result<Plan, BrokenRing> {
        let header = match self.header(packet) {
            Ok(header) => header,
            Err(reason) => return Ok(Plan::dropped(reason)),
        };
        let header_bytes = self.terms.header_bytes() as u64;
        let total = header_bytes + u64::from(packet.length());
        let (chains, pieces) = (self.chains.len(), self.pieces.len());
        let (mut room, mut fate) = (0, Ok(()));
        while room < total && fate.is_ok() {
            let (is_first, before) = (self.chains.len() == chains, self.pieces.len());
            // What a driver without mergeable buffers has is too short.
            let is_short = !is_first && !self.terms.has(MRG_RXBUF);
            let chain = if is_short { None } else { turn.take(true, self.pieces)? };
            let Some(chain) = chain else {
                turn.put_back(&self.chains[chains..]);
                self.chains.truncate(chains);
                self.pieces.truncate(pieces);
                let reason = if is_short { DropReason::Oversize } else { DropReason::NoDescriptor };
                return Ok(Plan::dropped(reason));
            };
            self.memory.prefetch(self.pieces.get(before), true);
            self.chains.push(chain);
            room += chain.length;
            let least = if is_first { header_bytes } else { 1 };
            let is_long = self.pieces.len() - pieces > PIECES;
            if !chain.is_good || chain.length < least || is_long {
                fate = Err(DropReason::BadDescriptor);
            }
        }
        let chains = (self.chains.len() - chains) as u16;
        Ok(Plan { header, chains, fate })
    }

    /// Copies packets, whose plans start at `from`, and returns their chains.
    #[inline]
    fn copy(
        &mut self,
        turn: &mut impl Turn,
        packets: &[Descriptor],
        from: usize,
    ) -> Result<(), BrokenRing> {
        let (mut chains, mut pieces) = (&self.chains[..], &self.pieces[..]);
        let header_bytes = self.terms.header_bytes();
        for (packet, plan) in packets.iter().zip(&mut self.plans[from..]) {
            let its_chains;
            (its_chains, chains) = chains.split_at(plan.chains.into());
            let count: usize = its_chains.iter().map(|chain| usize::from(chain.pieces)).sum();
            let its_pieces;
            (its_pieces, pieces) = pieces.split_at(count);
            if plan.fate.is_ok() {
                let simple = match its_pieces {
                    [piece] if !packet.is_chained() => {
                        write_one(&mut self.memory, header_bytes, piece, plan, packet.data())
                    }
                    _ => None,
                };
                let written = simple.or_else(|| {
                    let mut cursor = Cursor::new(self.memory, its_pieces);
                    write_all(&mut cursor, header_bytes, plan, packet)
                });
                plan.fate = written.ok_or(DropReason::BadDescriptor);
            }
            // Chains that are wrong return empty.
            let total = header_bytes as u64 + u64::from(packet.length());
            let mut left = if plan.fate.is_ok() { total } else { 0 };
            for chain in its_chains {
                let filled = left.min(chain.length);
                left -= filled;
                turn.complete(chain, filled as u32)?;
            }
        }
        self.pieces.clear();
        self.chains.clear();
        Ok(())
    }

    /// The header, as far as the guest knows its offloads.
    #[inline]
    fn header(&self, packet: &mut Descriptor) -> Result<Words, DropReason> {
        let is_good = packet.checksum() == ChecksumState::Good && self.terms.has(GUEST_CSUM);
        let flags = if is_good { DATA_VALID } else { 0 };
        // Most packets ask for no work.
        if packet.gso_type() == GsoType::None && packet.checksum() != ChecksumState::Partial {
            return Ok(Words { low: flags.into(), high: 0 });
        }
        let knows = match packet.gso_type() {
            GsoType::None => true,
            GsoType::Tcp4 => self.terms.has(GUEST_TSO4),
            GsoType::Tcp6 => self.terms.has(GUEST_TSO6),
            _ => false,
        };
        if !knows {
            return Err(DropReason::SuperFrame);
        }
        if packet.checksum() == ChecksumState::Partial && !self.terms.has(GUEST_CSUM) {
            offload::finish_checksum(packet);
        }
        let mut header = Header::of(packet).ok_or(DropReason::Malformed)?;
        if packet.checksum() == ChecksumState::Good && self.terms.has(GUEST_CSUM) {
            header.flags |= DATA_VALID;
        }
        if !self.terms.has(GUEST_ECN) {
            header.gso_type &= !GSO_ECN;
        }
        Ok(header.into())
    }
}

/// Writes a packet to a piece that is long enough; `None`, and nothing done, if the piece is in
/// several mappings, or in none.
#[inline]
fn write_one(
    memory: &mut Lookup<'_>,
    header_bytes: usize,
    piece: &Piece,
    plan: &Plan,
    data: &[u8],
) -> Option<()> {
    let room = memory.whole(piece.address, header_bytes + data.len())?;
    let (rest, Words { low, high }) = (room.offset(header_bytes).ok()?, plan.header);
    room.get_ref(0).ok()?.store(low.to_le());
    match header_bytes == HEADER_BYTES {
        true => room.get_ref(8).ok()?.store(high.to_le()),
        false => {
            room.get_ref(8).ok()?.store((u32::from(plan.chains) << 16 | u32::from(high)).to_le())
        }
    }
    rest.copy_from(data);
    Some(())
}

/// Writes a packet to its pieces, whatever they are.
fn write_all(
    cursor: &mut Cursor<'_>,
    header_bytes: usize,
    plan: &Plan,
    packet: &Descriptor,
) -> Option<()> {
    let mut bytes = [0; HEADER_BYTES + 2];
    bytes[..8].copy_from_slice(&plan.header.low.to_le_bytes());
    bytes[8..HEADER_BYTES].copy_from_slice(&plan.header.high.to_le_bytes());
    bytes[HEADER_BYTES..].copy_from_slice(&plan.chains.to_le_bytes());
    cursor.write(&bytes[..header_bytes])?;
    packet.segments().try_for_each(|segment| cursor.write(segment))
}
