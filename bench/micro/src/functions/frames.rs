//! Packets for `picnic-micro functions`, and long configurations for them.

use super::{BURST, MAC_LENGTH, QUEUES, SEGMENT, STATIONS, SUPER_FRAME};
use picnic_core::packet::wire::{IpProtocol, PseudoHeader, checksum};
use std::fmt::Write;
use std::net::Ipv4Addr;

/// Different packets of a case with small ones.
const FLOWS: usize = 4096;
const PSH: u8 = 8;
/// Bytes of a Sync message.
const SYNC: usize = 44;

/// Exact rules for the first flows of [`small_frames`].
pub(super) fn flow_rules(count: usize) -> String {
    let mut text = format!("function = \"flow-director\"\ncapacity = {count}\nrules = [\n");
    for flow in 0..count {
        let (source, port) = flow_of(flow);
        let _ = writeln!(
            text,
            "{{ protocol = \"tcp\", source = \"{source}\", destination = \"10.255.0.1\", \
             source_port = {port}, destination_port = 80, queue = {} }},",
            flow % usize::from(QUEUES)
        );
    }
    text + "]\n"
}

/// A pool for each address of [`small_frames`].
pub(super) fn pools() -> String {
    let pool = |index| format!("{{ macs = [\"02:00:00:00:01:0{index}\"], queues = [{index}] }}");
    let pools: Vec<_> = (0..QUEUES).map(pool).collect();
    format!("pools = [{}]\n", pools.join(", "))
}

fn flow_of(flow: usize) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from(0x0a00_0001 + flow as u32 * 7), 1024 + (flow % 60_000) as u16)
}

/// A TCP segment of a flow, with checksums; `vlan` 0 is none.
fn segment(flow: usize, vlan: u16, sequence: u32, flags: u8, payload: usize) -> Vec<u8> {
    let (source, port) = flow_of(flow);
    let destination = Ipv4Addr::new(10, 255, 0, 1);
    let mut frame = vec![2, 0, 0, 0, 1, (flow % usize::from(QUEUES)) as u8, 2, 0, 0, 0, 0, 9];
    if vlan != 0 {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let length = 20 + 20 + options.len() + payload;
    let mut ip = vec![0x45, 0];
    // The length field of a super-frame need not fit, since nothing reads it.
    ip.extend((length as u16).to_be_bytes());
    ip.extend((sequence as usize / SEGMENT).to_be_bytes()[6..].iter());
    ip.extend([0x40, 0, 64, 6, 0, 0]);
    ip.extend(source.octets());
    ip.extend(destination.octets());
    let sum = checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = Vec::with_capacity(length - 20);
    tcp.extend(port.to_be_bytes());
    tcp.extend([0, 80]);
    tcp.extend(sequence.to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0x80, 0x10 | flags, 1, 0, 0, 0, 0, 0]);
    tcp.extend(options);
    tcp.extend((0..payload).map(|at| (at * 31 + flow) as u8));
    let sum = PseudoHeader::v4(source, destination).checksum(IpProtocol::TCP, &tcp);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend([8, 0]);
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

/// Sync messages of PTP over UDP, with checksums.
pub(super) fn sync_frames() -> Vec<Vec<Vec<u8>>> {
    in_bursts((0..BURST).map(sync_frame))
}

fn sync_frame(sequence: usize) -> Vec<u8> {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(224, 0, 1, 129));
    let mut message = vec![0; SYNC];
    (message[1], message[3]) = (2, SYNC as u8);
    message[30..32].copy_from_slice(&(sequence as u16).to_be_bytes());
    let mut udp = vec![1, 63, 1, 63, 0, (8 + SYNC) as u8, 0, 0];
    udp.extend(message);
    let sum = PseudoHeader::v4(source, destination).checksum(IpProtocol::UDP, &udp);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0, 0, (20 + udp.len()) as u8, 0, 0, 0x40, 0, 1, 17, 0, 0];
    ip.extend(source.octets());
    ip.extend(destination.octets());
    let sum = checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[1, 0, 0x5e, 0, 1, 129, 2, 0, 0, 0, 0, 9, 8, 0][..], &ip, &udp].concat()
}

fn in_bursts(frames: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    let frames: Vec<_> = frames.collect();
    frames.chunks(BURST).map(<[_]>::to_vec).collect()
}

/// Short segments, one of each of [`FLOWS`] flows.
pub(super) fn small_frames(vlan: u16) -> Vec<Vec<Vec<u8>>> {
    in_bursts((0..FLOWS).map(|flow| segment(flow * 2_654_435_761 % FLOWS, vlan, 0, PSH, 0)))
}

/// Small frames, each with a station's address at `place`: as destination or as source.
pub(super) fn station_frames(place: usize) -> Vec<Vec<Vec<u8>>> {
    let mut bursts = small_frames(0);
    for (number, frame) in bursts.iter_mut().flatten().enumerate() {
        let station = (number * 7 % STATIONS) as u8;
        frame[place..place + MAC_LENGTH].copy_from_slice(&[2, 0, 0, 0, 3, station]);
    }
    bursts
}

/// Frames of 1514 bytes, of 64 flows.
pub(super) fn large_frames() -> Vec<Vec<Vec<u8>>> {
    in_bursts((0..BURST).map(|flow| segment(flow, 0, 0, PSH, SEGMENT)))
}

/// Bursts of eight flows in turn, eight segments of each.
pub(super) fn in_order_frames() -> Vec<Vec<Vec<u8>>> {
    let of = |at: usize| segment(at % 8, 0, (at / 8 * SEGMENT) as u32, 0, SEGMENT);
    in_bursts((0..BURST).map(of))
}

/// A super-frame of 45 segments.
pub(super) fn super_frame() -> Vec<u8> {
    segment(0, 0, 0, PSH, SUPER_FRAME)
}
