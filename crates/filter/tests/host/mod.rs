//! A host that reads every packet in full, slowly.

pub(crate) mod written;

use std::collections::HashMap;
use std::net::IpAddr;

/// A packet that reached a port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reached {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
}

/// A fragment: its place, whether more follow, the next header it names, its bytes.
type Fragment = (usize, bool, u8, Vec<u8>);

/// The identity of a fragmented packet.
type Whole = (IpAddr, IpAddr, u32, u8);

#[derive(Default)]
pub(crate) struct Host {
    /// `None` after an overlap: all its fragments are discarded (RFC 8200 4.5, RFC 5722).
    waiting: HashMap<Whole, Option<Vec<Fragment>>>,
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

fn address(bytes: &[u8]) -> IpAddr {
    match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).unwrap()),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap()),
    }
}

impl Host {
    /// The packet that a frame, with earlier ones, delivers to a port.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Option<Reached> {
        let mut at = 12;
        while [[0x81, 0x00], [0x88, 0xa8]].contains(&frame.get(at..at + 2)?.try_into().unwrap()) {
            at += 4;
        }
        let packet = frame.get(at + 2..)?;
        match frame.get(at..at + 2)? {
            [0x08, 0x00] => self.ipv4(packet),
            [0x86, 0xdd] => self.ipv6(packet),
            _ => None,
        }
    }

    fn ipv4(&mut self, packet: &[u8]) -> Option<Reached> {
        let header = usize::from(packet.first()? & 15) * 4;
        let packet = packet.get(..number(packet.get(2..4)?))?;
        let (source, mut destination) = (address(&packet[12..16]), address(&packet[16..20]));
        let mut options = packet.get(20..header)?;
        while let [kind, rest @ ..] = options {
            options = match kind {
                0 => &[],
                1 => rest,
                131 | 137 if options[2] <= options[1] => {
                    let end = usize::from(options[1]);
                    destination = address(&options[end - 4..end]);
                    &options[end..]
                }
                _ => &options[usize::from(options[1])..],
            };
        }
        let word = number(&packet[6..8]);
        let protocol = packet[9];
        if word & 0x3fff == 0 {
            return upper(source, destination, protocol, &packet[header..]);
        }
        let whole = (source, destination, number(&packet[4..6]) as u32, protocol);
        let fragment =
            ((word & 0x1fff) * 8, word & 0x2000 != 0, protocol, packet[header..].to_vec());
        let (protocol, bytes) = self.together(whole, fragment)?;
        upper(source, destination, protocol, &bytes)
    }

    fn ipv6(&mut self, packet: &[u8]) -> Option<Reached> {
        let length = number(packet.get(4..6)?);
        let (source, destination) = (address(&packet[8..24]), address(&packet[24..40]));
        self.chain(source, destination, packet[6], packet.get(40..40 + length)?)
    }

    fn chain(
        &mut self,
        source: IpAddr,
        mut destination: IpAddr,
        mut next: u8,
        mut bytes: &[u8],
    ) -> Option<Reached> {
        loop {
            let length = match next {
                0 | 43 | 60 | 135 | 139 | 140 => usize::from(*bytes.get(1)?) * 8 + 8,
                51 => usize::from(*bytes.get(1)?) * 4 + 8,
                44 => 8,
                _ => return upper(source, destination, next, bytes),
            };
            let header = bytes.get(..length)?;
            bytes = &bytes[length..];
            if next == 43 && header[3] != 0 {
                // Too short for the next destination: a host discards it.
                destination = address(header.get(8..24)?);
            }
            let word = number(&header[2..4]);
            if next == 44 && word & 0xfff9 != 0 {
                let whole = (source, destination, number(&header[4..8]) as u32, 44);
                let fragment = (word & 0xfff8, word & 1 != 0, header[0], bytes.to_vec());
                let (next, bytes) = self.together(whole, fragment)?;
                return self.chain(source, destination, next, &bytes);
            }
            next = header[0];
        }
    }

    /// The packet that a fragment completes, with the next header of the first one.
    fn together(&mut self, whole: Whole, fragment: Fragment) -> Option<(u8, Vec<u8>)> {
        let waiting = self.waiting.entry(whole).or_insert_with(|| Some(Vec::new()));
        let fragments = waiting.as_mut()?;
        let end = |fragment: &Fragment| fragment.0 + fragment.3.len();
        if fragments.iter().any(|one| one.0 < end(&fragment) && fragment.0 < end(one)) {
            *waiting = None;
            return None;
        }
        fragments.push(fragment);
        fragments.sort();
        let mut so_far = 0;
        for fragment in &*fragments {
            if fragment.0 != so_far {
                return None;
            }
            so_far = end(fragment);
        }
        if fragments.last()?.1 {
            return None;
        }
        let bytes = fragments.iter().flat_map(|fragment| fragment.3.clone()).collect();
        Some((fragments.first()?.2, bytes))
    }
}

fn upper(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> Option<Reached> {
    if protocol == 51 {
        // As in IPv6, for a host with the key.
        let length = usize::from(*bytes.get(1)?) * 4 + 8;
        return upper(source, destination, bytes[0], bytes.get(length..)?);
    }
    let ports = (number(bytes.get(..2)?) as u16, number(bytes.get(2..4)?) as u16);
    [6, 17].contains(&protocol).then_some(Reached { source, destination, protocol, ports })
}
