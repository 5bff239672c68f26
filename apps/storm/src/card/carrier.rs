//! Packets in frames: Ethernet frames of a separate type, or UDP over IPv4.
//!
//! Raw frames suit a group of cards: a packet to all members is one frame to a group address. With
//! addresses a packet is a UDP datagram, so that members on cards and plain processes form one
//! group. The carrier then answers ARP requests for its address, and learns the other members'
//! Ethernet addresses from their frames. Until it knows one, it sends to the broadcast address,
//! which hosts accept.
//!
//! Guarantees: a frame is read only within its length; nothing is allocated after [`Carrier::new`].
//!
//! Source: RFC 826 (ARP), RFC 768, RFC 791.

use crate::member::To;
use crate::wire::{ETHERTYPE, MOST_MEMBERS};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes before a packet in either kind of frame.
pub const HEAD: usize = ETHERNET + IP + UDP;
const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const ARP: usize = 28;
const EVERYBODY: [u8; 6] = [0xff; 6];
const TYPE_IP: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];

/// The meaning of a frame to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    /// A packet of the group, perhaps.
    Packet(&'a [u8]),
    /// The answer to an ARP request, for the wire on which the request arrived.
    Answer([u8; ETHERNET + ARP]),
    /// Nothing.
    Other,
}

/// A member's frames.
#[derive(Clone, Debug)]
pub struct Carrier {
    me: usize,
    members: usize,
    mac: [u8; 6],
    /// The wire of each member and, if known, its Ethernet address.
    wires: [u8; MOST_MEMBERS],
    macs: [[u8; 6]; MOST_MEMBERS],
    addresses: Option<[SocketAddrV4; MOST_MEMBERS]>,
    identification: u16,
}

impl Carrier {
    /// Frames of member `me` of a group: UDP if it has addresses, one for each member. `wires` are
    /// the wires to the members; wire 0 to all if there are none.
    pub fn new(group: u16, me: usize, members: usize, wires: &[u8], to: &[SocketAddrV4]) -> Self {
        let unset = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let addresses = (!to.is_empty())
            .then(|| std::array::from_fn(|place| to.get(place).copied().unwrap_or(unset)));
        let mac = |member: usize| match to.get(member) {
            Some(address) => {
                let [_, second, third, fourth] = address.ip().octets();
                [0x02, 0x53, 0x54, second, third, fourth]
            }
            None => {
                let [high, low] = group.to_be_bytes();
                [0x02, 0x53, 0x54, high, low, member as u8]
            }
        };
        Carrier {
            me,
            members,
            mac: mac(me),
            wires: std::array::from_fn(|place| wires.get(place).copied().unwrap_or(0)),
            // A plain process has the address of its interface.
            macs: std::array::from_fn(|member| if to.is_empty() { mac(member) } else { EVERYBODY }),
            addresses,
            identification: 0,
        }
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Its address, if it has one.
    pub fn address(&self) -> Option<SocketAddrV4> {
        self.addresses.map(|addresses| addresses[self.me])
    }

    /// The wire to a member.
    pub fn wire(&self, member: usize) -> u8 {
        self.wires[member]
    }

    /// Frames that a packet to all members takes.
    pub fn copies(&self) -> usize {
        match self.addresses {
            Some(_) => self.members - 1,
            None => self.distinct_wires().count(),
        }
    }

    /// One member at each wire.
    fn distinct_wires(&self) -> impl Iterator<Item = usize> + use<'_> {
        let others = (0..self.members).filter(|member| *member != self.me);
        others.filter(|member| {
            let mut earlier = (0..*member).filter(|other| *other != self.me);
            !earlier.any(|other| self.wires[other] == self.wires[*member])
        })
    }

    /// Sends a packet of `length` bytes, which starts [`HEAD`] bytes into `buffer`:
    /// calls `send` with each frame and its wire.
    pub fn send(
        &mut self,
        to: To,
        buffer: &mut [u8],
        length: usize,
        mut send: impl FnMut(u8, &[u8]),
    ) {
        match (to, self.addresses.is_some()) {
            (To::One(member), _) => self.send_one(member.into(), None, buffer, length, &mut send),
            (To::All, true) => {
                let me = self.me;
                for member in (0..self.members).filter(|member| *member != me) {
                    self.send_one(member, None, buffer, length, &mut send);
                }
            }
            (To::All, false) => {
                for member in 0..self.members {
                    if self.distinct_wires().any(|first| first == member) {
                        self.send_one(member, Some(EVERYBODY), buffer, length, &mut send);
                    }
                }
            }
        }
    }

    fn send_one(
        &mut self,
        member: usize,
        mac: Option<[u8; 6]>,
        buffer: &mut [u8],
        length: usize,
        send: &mut impl FnMut(u8, &[u8]),
    ) {
        let end = HEAD + length;
        let mac = mac.unwrap_or(self.macs[member]);
        let (start, kind) = match self.addresses {
            None => (HEAD - ETHERNET, ETHERTYPE.to_be_bytes()),
            Some(addresses) => {
                self.identification = self.identification.wrapping_add(1);
                let ends = [addresses[self.me], addresses[member]];
                put_headers(&mut buffer[ETHERNET..HEAD], length, self.identification, ends);
                (0, TYPE_IP)
            }
        };
        let Some(frame) = buffer.get_mut(start..end) else { return };
        frame[..6].copy_from_slice(&mac);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&kind);
        send(self.wires[member], frame);
    }

    /// Reads a frame.
    pub fn arrived<'a>(&mut self, frame: &'a [u8]) -> Arrived<'a> {
        let Some((head, body)) = frame.split_first_chunk::<ETHERNET>() else {
            return Arrived::Other;
        };
        match (self.addresses, [head[12], head[13]]) {
            (None, kind) if kind == ETHERTYPE.to_be_bytes() => Arrived::Packet(body),
            (Some(addresses), TYPE_IP) => self.datagram(&addresses, head, body),
            (Some(addresses), TYPE_ARP) => {
                self.answer(addresses[self.me], head, body).map_or(Arrived::Other, Arrived::Answer)
            }
            _ => Arrived::Other,
        }
    }

    fn datagram<'a>(
        &mut self,
        addresses: &[SocketAddrV4; MOST_MEMBERS],
        head: &[u8; ETHERNET],
        body: &'a [u8],
    ) -> Arrived<'a> {
        let read = || {
            let header = usize::from(body.first()? & 0x0f) * 4;
            let is_fragment = u16::from_be_bytes([*body.get(6)?, *body.get(7)?]) & 0x3fff != 0;
            if body[0] >> 4 != 4 || header < IP || is_fragment || *body.get(9)? != 17 {
                return None;
            }
            let source: [u8; 4] = *body.get(12..)?.first_chunk()?;
            let udp = body.get(header..)?.first_chunk::<UDP>()?;
            let [from_port, to_port, length] =
                [0, 2, 4].map(|at| u16::from_be_bytes([udp[at], udp[at + 1]]));
            let end = header + usize::from(length);
            let payload = body.get(header + UDP..end)?;
            Some((SocketAddrV4::new(source.into(), from_port), to_port, payload))
        };
        let Some((source, port, payload)) = read() else { return Arrived::Other };
        if port != addresses[self.me].port() {
            return Arrived::Other;
        }
        let sender = addresses[..self.members].iter().position(|address| *address == source);
        if let (Some(sender), Some(mac)) = (sender, head[6..12].first_chunk::<6>())
            && mac[0] & 1 == 0
        {
            self.macs[sender] = *mac;
        }
        Arrived::Packet(payload)
    }

    fn answer(
        &self,
        own: SocketAddrV4,
        head: &[u8; ETHERNET],
        body: &[u8],
    ) -> Option<[u8; ETHERNET + ARP]> {
        let request = body.first_chunk::<ARP>()?;
        // Ethernet, IPv4, their lengths, request.
        let is_request = request[..8] == [0, 1, 8, 0, 6, 4, 0, 1];
        if !is_request || request[24..28] != own.ip().octets() {
            return None;
        }
        let mut answer = [0; ETHERNET + ARP];
        answer[..6].copy_from_slice(&head[6..12]);
        answer[6..12].copy_from_slice(&self.mac);
        answer[12..14].copy_from_slice(&TYPE_ARP);
        answer[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 2]);
        answer[22..28].copy_from_slice(&self.mac);
        answer[28..32].copy_from_slice(&own.ip().octets());
        answer[32..42].copy_from_slice(&request[8..18]);
        Some(answer)
    }
}

/// IPv4 and UDP. The UDP checksum stays zero: the packet's own checks suffice.
fn put_headers(at: &mut [u8], length: usize, identification: u16, ends: [SocketAddrV4; 2]) {
    let [from, to] = ends;
    let total = (IP + UDP + length) as u16;
    at[..IP].copy_from_slice(&[0; IP]);
    (at[0], at[6], at[8], at[9]) = (0x45, 0x40, 64, 17);
    at[2..4].copy_from_slice(&total.to_be_bytes());
    at[4..6].copy_from_slice(&identification.to_be_bytes());
    at[12..16].copy_from_slice(&from.ip().octets());
    at[16..20].copy_from_slice(&to.ip().octets());
    let words = at[..IP].chunks_exact(2);
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    at[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = &mut at[IP..IP + UDP];
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&((UDP + length) as u16).to_be_bytes());
    udp[6..8].copy_from_slice(&[0; 2]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(to: &[SocketAddrV4]) -> [Carrier; 2] {
        [0, 1].map(|me| Carrier::new(7, me, 2, &[], to))
    }

    fn addresses() -> Vec<SocketAddrV4> {
        ["10.0.0.1:7001", "10.0.0.2:7002"].map(|address| address.parse().unwrap()).into()
    }

    fn frames(carrier: &mut Carrier, to: To, packet: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut buffer = vec![0; HEAD + packet.len()];
        buffer[HEAD..].copy_from_slice(packet);
        let mut frames = Vec::new();
        carrier.send(to, &mut buffer, packet.len(), |wire, frame| {
            frames.push((wire, frame.to_vec()));
        });
        frames
    }

    #[test]
    fn packets_arrive_in_both_kinds_of_frames() {
        for to in [Vec::new(), addresses()] {
            let [mut one, mut other] = pair(&to);
            let found = frames(&mut one, To::All, b"a packet of any length");
            assert_eq!(found.len(), one.copies());
            for end in 0..found[0].1.len() {
                let cut = other.arrived(&found[0].1[..end]);
                assert!(!matches!(cut, Arrived::Packet(b"a packet of any length")));
            }
            let arrived = other.arrived(&found[0].1);
            assert_eq!(arrived, Arrived::Packet(b"a packet of any length"));
            // From now on it knows the sender's address.
            let back = frames(&mut other, To::One(0), b"x");
            assert_eq!(back[0].1[..6], one.mac());
        }
    }

    #[test]
    fn headers_match_other_readers() {
        let [mut one, _] = pair(&addresses());
        let (_, frame) = frames(&mut one, To::One(1), &[5; 33]).remove(0);
        assert_eq!(frame.len(), HEAD + 33);
        assert_eq!(frame[..6], EVERYBODY);
        let ones = frame[14..34]
            .chunks(2)
            .fold(0_u32, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])));
        assert_eq!((ones & 0xffff) + (ones >> 16), 0xffff, "the header's checksum");
        assert_eq!(u16::from_be_bytes([frame[16], frame[17]]), 20 + 8 + 33);
        assert_eq!(frame[26..34], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(u16::from_be_bytes([frame[36], frame[37]]), 7002);
    }

    #[test]
    fn arp_requests_for_the_own_address_are_answered() {
        let [mut one, _] = pair(&addresses());
        let mut request = vec![0xff; 6];
        request.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request.extend([2, 0, 0, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        let Arrived::Answer(answer) = one.arrived(&request) else { panic!("no answer") };
        assert_eq!(answer[..6], [2, 0, 0, 0, 0, 9]);
        assert_eq!(answer[20..22], [0, 2]);
        assert_eq!((&answer[22..28], &answer[28..32]), (&one.mac()[..], &[10, 0, 0, 1][..]));
        assert_eq!(answer[32..42], [2, 0, 0, 0, 0, 9, 10, 0, 0, 9]);
        request[41] = 2;
        assert_eq!(one.arrived(&request), Arrived::Other);
    }

    #[test]
    fn each_wire_gets_one_frame() {
        let mut carrier = Carrier::new(0, 1, 4, &[0, 0, 1, 0], &[]);
        assert_eq!(carrier.copies(), 2);
        let wires: Vec<u8> =
            frames(&mut carrier, To::All, b"x").into_iter().map(|(wire, _)| wire).collect();
        assert_eq!(wires, [0, 1]);
    }
}
