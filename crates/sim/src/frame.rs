//! TCP segments as frames: Ethernet, IPv4, TCP, and payload that is never read.
//!
//! Frames carry the addresses and ports of the flow, so `rss`, `bond` and filters work on them. The
//! TCP checksum is left to the NIC: descriptors say so.
//!
//! Source: RFC 791, RFC 9293; the window is scaled by 8 bits (RFC 7323).

use picnic_core::packet::wire::checksum;

/// Bytes before the payload.
pub(crate) const HEADERS: usize = 54;
/// Payload of a full segment: PLACEMENT's 1448 bytes, without time stamps in the headers.
pub(crate) const MSS: u16 = 1448;
/// The host's port that answers requests, and its port that discards everything (RFC 863).
pub(crate) const WEB: u16 = 80;
pub(crate) const DISCARD: u16 = 9;
/// Bytes of a frame on a wire besides its own: FCS, preamble and gap.
pub(crate) const ON_WIRE: u64 = 24;

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
const WINDOW_SHIFT: u32 = 8;

/// One segment, of a peer or of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The wire of arrival or departure.
    pub(crate) wire: u8,
    /// The peer's address, below 10.WIRE.0.0.
    pub(crate) peer: u16,
    /// The peer's port.
    pub(crate) port: u16,
    /// The host's port.
    pub(crate) host_port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    /// Bytes that the sender of this segment can receive.
    pub(crate) window: u32,
    pub(crate) payload: u16,
    pub(crate) syn: bool,
}

impl Segment {
    /// Bytes of the frame.
    pub(crate) fn length(&self) -> usize {
        HEADERS + usize::from(self.payload)
    }

    /// Writes the headers; `from_peer` is the direction.
    pub(crate) fn write(&self, from_peer: bool, data: &mut [u8]) {
        let Some(head) = data.first_chunk_mut::<HEADERS>() else { return };
        let peer = [10, self.wire, (self.peer >> 8) as u8, self.peer as u8];
        let host = [10, self.wire, 255, 254];
        let (source, destination) = if from_peer { (peer, host) } else { (host, peer) };
        let ports = match from_peer {
            true => (self.port, self.host_port),
            false => (self.host_port, self.port),
        };
        *head = [0; HEADERS];
        head[0] = 2;
        head[2..6].copy_from_slice(&destination);
        head[6] = 2;
        head[8..12].copy_from_slice(&source);
        head[12..14].copy_from_slice(&[8, 0]);
        head[14] = 0x45;
        head[16..18].copy_from_slice(&(self.length() as u16 - 14).to_be_bytes());
        head[22] = 64;
        head[23] = 6;
        head[26..30].copy_from_slice(&source);
        head[30..34].copy_from_slice(&destination);
        let sum = checksum::checksum(&head[14..34]);
        head[24..26].copy_from_slice(&sum.to_be_bytes());
        head[34..36].copy_from_slice(&ports.0.to_be_bytes());
        head[36..38].copy_from_slice(&ports.1.to_be_bytes());
        head[38..42].copy_from_slice(&self.sequence.to_be_bytes());
        head[42..46].copy_from_slice(&self.acknowledged.to_be_bytes());
        head[46] = 5 << 4;
        head[47] = if self.syn { SYN } else { ACK };
        let window = (self.window >> WINDOW_SHIFT).min(u32::from(u16::MAX)) as u16;
        head[48..50].copy_from_slice(&window.to_be_bytes());
    }

    /// Reads a frame of [`Segment::write`]; none for other frames.
    pub(crate) fn read(data: &[u8], wire: u8, from_peer: bool) -> Option<Segment> {
        let head = data.first_chunk::<HEADERS>()?;
        if head[12..15] != [8, 0, 0x45] || head[23] != 6 {
            return None;
        }
        let two = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let four =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (address, port, host_port) = if from_peer { (28, 34, 36) } else { (32, 36, 34) };
        Some(Segment {
            wire,
            peer: two(address),
            port: two(port),
            host_port: two(host_port),
            sequence: four(38),
            acknowledged: four(42),
            window: u32::from(two(48)) << WINDOW_SHIFT,
            payload: (two(16) + 14).saturating_sub(HEADERS as u16),
            syn: head[47] & SYN != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::packet::wire::checksum::checksum;

    #[test]
    fn segments_round_trip() {
        for (payload, syn, from_peer) in [(0, true, true), (1448, false, true), (300, false, false)]
        {
            let segment = Segment {
                wire: 3,
                peer: 0x0102,
                port: 4097,
                host_port: DISCARD,
                sequence: 0xfedc_ba98,
                acknowledged: 77,
                window: 1 << 16,
                payload,
                syn,
            };
            let mut data = vec![0xaa; segment.length()];
            segment.write(from_peer, &mut data);
            assert_eq!(Segment::read(&data, 3, from_peer), Some(segment));
            assert_eq!(checksum(&data[14..34]), 0, "the IPv4 checksum is right");
            assert_eq!(Segment::read(&data[..53], 3, from_peer), None);
        }
    }
}
