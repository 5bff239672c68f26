//! Headers that a filter cannot read, at the ends of their lengths.

use super::{card, of_protocol, run};
use crate::frames::Frame;
use picnic_core::packet::layers;
use picnic_filter::matching::Tuple;
use picnic_filter::{Action, Base, Filters, Headers, Hidden, Pattern, Protocol};
use std::net::IpAddr;

/// An IPv6 frame: the first next header, then the bytes after the IP header.
fn six(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x11; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((rest.len() as u16).to_be_bytes());
    frame.extend([first, 64]);
    frame.extend([0x20; 32]);
    frame.extend(rest);
    frame
}

fn hidden(frame: &[u8]) -> Hidden {
    Headers::of(&layers::parse(frame), frame).hidden
}

/// A routing header with a segment left, before UDP.
const ROUTED: [u8; 8] = [17, 0, 4, 1, 0, 0, 0, 0];
const UDP_HEADER: [u8; 8] = [0, 9, 0, 7, 0, 8, 0, 0];

#[test]
fn header_lengths_are_honoured() {
    // An authentication header of 24 bytes: in units of four, two less.
    let authentication = [&[43, 4][..], &[0; 22]].concat();
    let frame = six(51, &[&authentication[..], &ROUTED, &UDP_HEADER].concat());
    assert_eq!(hidden(&frame), Hidden::Destination);
    // Others in units of eight, minus one: options, routing that has arrived, mobility. A header
    // read a byte too early is the end, with no segment left.
    let long = [&[43, 1][..], &[0; 13], &[17]].concat();
    for first in [0, 43, 60, 135] {
        let frame = six(first, &[&long[..], &[17, 0, 0, 1, 0, 0, 0, 0], &UDP_HEADER].concat());
        assert_eq!(hidden(&frame), Hidden::Destination, "{first}");
    }
    // A fragment's of eight, of a packet that is whole.
    let frame = six(44, &[&[43, 0, 0, 0, 1, 2, 3, 4][..], &ROUTED, &UDP_HEADER].concat());
    assert_eq!(hidden(&frame), Hidden::Destination);
    let short = [&[43, 0, 0, 0, 1, 2, 3, 17][..], &[17, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_eq!(hidden(&six(44, &[&short[..], &UDP_HEADER].concat())), Hidden::Destination);
    // After the first of several fragments nothing is read: mobility may be all.
    let frame = six(44, &[&[135, 0, 0, 1, 1, 2, 3, 4][..], &[60, 0, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(hidden(&frame), Hidden::Protocol);
}

#[test]
fn source_routes_are_found_after_the_shortest_option() {
    let with_options = |options: &[u8]| {
        let mut frame = vec![0x11; 12];
        frame.extend([0x08, 0x00, 0x40 | (5 + options.len() as u8 / 4), 0]);
        frame.extend([0, 20 + options.len() as u8 + 8, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(options);
        frame.extend(UDP_HEADER);
        frame
    };
    let route = [131, 7, 4, 1, 2, 3, 4];
    let behind = |options: &[u8]| hidden(&with_options(&[options, &route[..]].concat()));
    assert_eq!(behind(&[1]), Hidden::Destination);
    assert_eq!(behind(&[7, 2, 1, 1, 1]), Hidden::Destination);
    // An option of one byte ends the list: its length cannot be.
    assert_eq!(behind(&[7, 1, 1, 1, 1]), Hidden::Nothing);
    // A truncated option counts as one.
    assert_eq!(hidden(&with_options(&[1, 1, 1, 1, 131, 7, 4, 1])), Hidden::Destination);
    // A pointer that is not past the end, wherever it points.
    let last = [1, 131, 7, 7, 1, 2, 3, 4];
    assert_ne!(hidden(&with_options(&last)), Hidden::Nothing);
    let arrived = [1, 131, 7, 8, 1, 2, 3, 4];
    assert_eq!(hidden(&with_options(&arrived)), Hidden::Nothing);
    // After the options there is none: these are ports.
    let mut frame = with_options(&[1; 4]);
    let ports = frame.len() - UDP_HEADER.len();
    frame[ports..ports + 3].copy_from_slice(&route[..3]);
    assert_eq!(hidden(&frame), Hidden::Nothing);
}

#[test]
fn hidden_addresses_are_all_zeros() {
    // Truncated after the EtherType.
    for (ether_type, zeros) in [(0x0800, IpAddr::from([0; 4])), (0x86dd, IpAddr::from([0; 16]))] {
        let frame = Frame { ether_type, cut: 16, ..Frame::default() }.bytes();
        let tuple = Tuple::of(&layers::parse(&frame), &frame).unwrap();
        assert_eq!((tuple.source, tuple.destination), (zeros, zeros));
        assert_eq!(tuple.hidden, Hidden::Addresses);
    }
    let routed = six(43, &[&ROUTED[..], &UDP_HEADER].concat());
    let tuple = Tuple::of(&layers::parse(&routed), &routed).unwrap();
    // With a source route, the source is read.
    let (source, destination) = (IpAddr::from([0x20; 16]), IpAddr::from([0; 16]));
    assert_eq!((tuple.source, tuple.destination), (source, destination));
    assert_eq!(tuple.hidden, Hidden::Destination);
}

#[test]
fn protocols_are_looked_up_while_a_filter_names_them() {
    let filters = Filters::new(1);
    let (mut doors, mut head) = card(&filters);
    let first = filters.add(of_protocol(Protocol::UDP, Action::Drop)).unwrap();
    let second = filters.add(of_protocol(Protocol::TCP, Action::Drop)).unwrap();
    let again = filters.add(of_protocol(Protocol::TCP, Action::Drop)).unwrap();
    // Its protocol is after a mobility header.
    let frame = six(135, &[59, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(hidden(&frame), Hidden::Protocol);
    for (gone, passes) in [(second, 0), (again, 0), (first, 1)] {
        filters.remove(gone).unwrap();
        assert_eq!(run(&mut doors, &mut *head, std::slice::from_ref(&frame)), passes);
    }
}

#[test]
fn bit_masks_select_bytes() {
    let pattern = Pattern::by_byte(12, 4, 0b0101, &[&[8, 9, 7, 6]]).unwrap();
    assert_eq!((pattern.base(), pattern.start()), (Base::Frame, 12));
    assert_eq!(pattern.mask(), [0xff, 0, 0xff, 0]);
}
