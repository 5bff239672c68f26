//! A pending route: the destination in the IP header is the next hop's.

use super::*;

/// The address that routes here end at, and where the header's destination lies.
const LAST_V6: [u8; 16] = [0xab; 16];
const LAST_V4: [u8; 4] = [10, 9, 8, 7];

/// Routing headers of 24 or 40 bytes before a packet of this protocol, each with its name.
fn routing_headers(next: u8, left: u8) -> Vec<(&'static str, Vec<u8>)> {
    let other = [0xcd; 16];
    let header = |units: u8, kind: u8, rest: [u8; 4], addresses: &[&[u8]]| {
        [&[next, units, kind, left][..], &rest, &addresses.concat()].concat()
    };
    // All except the last four bytes of type 3 belong to the destination.
    vec![
        ("type 0", header(4, 0, [0; 4], &[&other, &LAST_V6])),
        ("type 2", header(2, 2, [0; 4], &[&LAST_V6])),
        ("type 3", header(2, 3, [0, 0, 0, 0], &[&LAST_V6])),
        ("type 4", header(4, 4, [1, 0, 0, 0], &[&LAST_V6, &other])),
    ]
}

/// The options of a source route, which is used up or not.
fn source_routes(pending: bool) -> Vec<(&'static str, Vec<u8>)> {
    let pointer = if pending { 8 } else { 12 };
    let route = |kind| [&[1, kind, 11, pointer, 10, 3, 3, 3], &LAST_V4[..]].concat();
    vec![("loose", route(131)), ("strict", route(137))]
}

/// The frame, whose IP header is the first, with a route in it.
fn with_route(mut data: Vec<u8>, route: &[u8]) -> Vec<u8> {
    if data[14] >> 4 == 4 {
        data[14] += route.len() as u8 / 4;
        let length = u16::from_be_bytes([data[16], data[17]]) + route.len() as u16;
        data[16..18].copy_from_slice(&length.to_be_bytes());
        data.splice(34..34, route.iter().copied());
        data[24..26].fill(0);
        let sum = !reference_sum(&data[14..34 + route.len()]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        let length = u16::from_be_bytes([data[18], data[19]]) + route.len() as u16;
        data[18..20].copy_from_slice(&length.to_be_bytes());
        data[20] = 43;
        data.splice(54..54, route.iter().copied());
    }
    data
}

/// All routes, for a frame of IPv4 or IPv6 with this protocol.
fn routes(v6: bool, protocol: u8, pending: bool) -> Vec<(&'static str, Vec<u8>)> {
    if v6 { routing_headers(protocol, pending.into()) } else { source_routes(pending) }
}

/// Fills in a TCP or UDP checksum with the destination of the header or another.
fn fill(data: &mut [u8], l4: usize, field: usize, last: Option<&[u8]>) {
    let v6 = data[14] >> 4 == 6;
    let (source, destination) = if v6 { (22..38, 38..54) } else { (26..30, 30..34) };
    let destination = last.map_or_else(|| data[destination].to_vec(), <[u8]>::to_vec);
    let protocol = if field == 16 { 6 } else { 17 };
    let length = (data.len() - l4) as u16;
    data[l4 + field..l4 + field + 2].fill(0);
    let covered =
        [&data[source], &destination, &[0, protocol], &length.to_be_bytes(), &data[l4..]].concat();
    let sum = !reference_sum(&covered);
    data[l4 + field..l4 + field + 2].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn checksums_cover_the_last_destination() {
    for (v6, is_tcp, pending) in [false, true]
        .into_iter()
        .flat_map(|v6| [(v6, false, false), (v6, false, true), (v6, true, false), (v6, true, true)])
    {
        let (protocol, field) = if is_tcp { (6, 16) } else { (17, 6) };
        for (name, route) in routes(v6, protocol, pending) {
            let l4 = if v6 { 54 } else { 34 } + route.len();
            let mut data = with_route(frame(v6, 0, is_tcp, bytes(40, 1)).build(), &route);
            let last: &[u8] = if v6 { &LAST_V6 } else { &LAST_V4 };
            for (end, expected) in [(Some(last), pending), (None, !pending)] {
                fill(&mut data, l4, field, end);
                let expected = if expected { ChecksumState::Good } else { ChecksumState::Bad };
                assert_eq!(state_of(&data, 2048), expected, "{name} {is_tcp} {pending}");
            }
        }
    }
    // ICMPv6 as well.
    let (_, route) = routing_headers(58, 1).remove(3);
    let mut data = with_route(icmp(true, &bytes(20, 1)), &route);
    let l4 = 54 + route.len();
    data[l4 + 2..l4 + 4].fill(0);
    let length = (data.len() - l4) as u16;
    let covered = [&data[22..38], &LAST_V6, &[0, 58], &length.to_be_bytes(), &data[l4..]].concat();
    let sum = !reference_sum(&covered);
    data[l4 + 2..l4 + 4].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(state_of(&data, 2048), ChecksumState::Good);
}

/// Known only to the sender: its checksum is not judged, and a super-frame is cut with the sum
/// that the sender has left.
#[test]
fn unknown_routes_leave_checksums_unknown() {
    let route = [&[6, 2, 253, 1, 0, 0, 0, 0][..], &[0xee; 16]].concat();
    let mut data = with_route(frame(true, 0, true, bytes(40, 1)).build(), &route);
    fill(&mut data, 54 + 24, 16, Some(&LAST_V6));
    assert_eq!(state_of(&data, 2048), ChecksumState::Unknown);
}

#[test]
fn super_frames_with_a_pending_route_are_cut_with_right_checksums() {
    let mut unknown = routing_headers(6, 1).remove(1);
    (unknown.0, unknown.1[2]) = ("unknown", 253);
    for v6 in [false, true] {
        let mut all = routes(v6, 6, true);
        all.extend(v6.then(|| unknown.clone()));
        for (name, route) in all {
            let payload = bytes(5000, 3);
            let mut data = with_route(frame(v6, 0, true, payload.clone()).build(), &route);
            let l4 = if v6 { 54 } else { 34 } + route.len();
            let last: &[u8] = if v6 { &LAST_V6 } else { &LAST_V4 };
            // Unfinished: the sum of the pseudo-header.
            let source = if v6 { 22..38 } else { 26..30 };
            let length = (data.len() - l4) as u16;
            let pseudo = [&data[source], last, &[0, 6], &length.to_be_bytes()].concat();
            data[l4 + 16..l4 + 18].copy_from_slice(&reference_sum(&pseudo).to_be_bytes());
            let mut tso = function("tso", "");
            let mut card = Card::new(&context(2048));
            let gso = if v6 { GsoType::Tcp6 } else { GsoType::Tcp4 };
            let seen = card.run_with(tso.as_mut(), &from_wire_0([data]), ask(gso, 1400));
            assert_eq!(seen.len(), 4, "{name}");
            let mut joined: Vec<u8> = Vec::new();
            for segment in seen {
                let mut right = segment.data.clone();
                fill(&mut right, l4, 16, Some(last));
                assert_eq!(segment.data, right, "{name}");
                joined.extend(&segment.data[l4 + 32..]);
            }
            assert_eq!(joined, payload);
        }
    }
}

/// RFC 8986 4.4 and Linux: not with segments left, for all kinds of tunnels and routes.
#[test]
fn tunnels_with_pending_routes_are_left_alone() {
    let inner = frame(false, 0, true, bytes(60, 7)).build();
    for (v6, kind) in [false, true]
        .into_iter()
        .flat_map(|v6| ["vxlan", "geneve", "gre", "ipip"].map(|kind| (v6, kind)))
    {
        let plain = tunnel::put_in(kind, v6, "", &inner);
        let protocol = if v6 { plain[20] } else { plain[23] };
        let fill_udp = |data: &mut [u8], route: &[u8], last| {
            let l4 = if v6 { 54 } else { 34 } + route.len();
            if protocol == 17 {
                fill(data, l4, 6, last);
            }
        };
        for (name, route) in routes(v6, protocol, true) {
            let mut data = with_route(plain.clone(), &route);
            let last: &[u8] = if v6 { &LAST_V6 } else { &LAST_V4 };
            fill_udp(&mut data, &route, Some(last));
            for mode in [tunnel::OFF, "mode = \"expose\""] {
                let (seen, counts) = tunnel::through(mode, &[data.clone()]);
                assert_eq!(counts["others"], 1, "{kind} {name}: {counts}");
                assert_eq!((&seen[0].data, seen[0].inner), (&data, None));
            }
        }
        for (name, route) in routes(v6, protocol, false) {
            let mut data = with_route(plain.clone(), &route);
            fill_udp(&mut data, &route, None);
            let taken = tunnel::take_off("", &data);
            assert_eq!(
                taken.map(|data| data[14..].to_vec()),
                Ok(inner[14..].to_vec()),
                "{kind} {name}"
            );
        }
    }
}
