//! Frames for comparing both engines.

use super::functions::frames::{any_spec, every_kind, published};
use picnic_core::config::Section;
use picnic_core::ledger::Ledger;
use picnic_core::packet::burst::Burst;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::port::Receiver;
use picnic_core::registry::{BuildContext, find};
use picnic_core::stats::WireCounters;
use picnic_core::time::Time;
use picnic_ports::registry::WIRES;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Frames of every kind, random frames, truncated, with changed bytes, of random bytes, from the
/// generator, and from [`captured`].
pub(super) fn frames() -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let mut draw =
        |strategy: &BoxedStrategy<Vec<u8>>| strategy.new_tree(&mut runner).unwrap().current();
    let mut frames: Vec<Vec<u8>> = every_kind().iter().map(|spec| spec.build()).collect();
    let whole = any_spec().prop_map(|spec| spec.build()).boxed();
    let cut = (whole.clone(), 14..200_usize).prop_map(|(mut frame, length)| {
        frame.truncate(length);
        frame
    });
    let cut = cut.boxed();
    let changed = (cut.clone(), prop::collection::vec((12..80_usize, any::<u8>()), 1..4));
    let changed = changed.prop_map(|(mut frame, changes)| {
        for (place, byte) in changes {
            let place = place % frame.len();
            frame[place] = byte;
        }
        frame
    });
    let changed = changed.boxed();
    // With the frame's length and a length of zero; with and without a jumbo payload option.
    let open = whole.clone().prop_map(|mut frame| {
        open_length(&mut frame);
        frame
    });
    let open = open.boxed();
    let random = prop::collection::vec(any::<u8>(), 14..120).boxed();
    // IPv6 with any chain of extension headers.
    let kinds = prop::sample::select(vec![0_u8, 6, 17, 43, 44, 51, 59, 60]);
    let chain = (prop::collection::vec((kinds, 0..3_u8, any::<u16>()), 1..12), 0..60_usize);
    let chain = chain.prop_map(|(headers, payload)| extended(&headers, payload)).boxed();
    for _ in 0..300 {
        frames.extend([&whole, &cut, &changed, &open, &chain, &random].map(&mut draw));
    }
    frames.extend(jumbograms());
    let keys = "packets = 1200\nvlan_share = 0.3\nipv6_share = 0.4\ntcp_share = 0.5\nflows = 64";
    let generated = received(&format!("port = \"generator\"\n{keys}"));
    assert_eq!(generated.len(), 1200);
    frames.extend(generated);
    frames.extend(captured());
    frames.retain(|frame| frame.len() >= 14);
    frames
}

/// Sets the length in a frame's IP header to zero.
fn open_length(frame: &mut [u8]) {
    let l3 = usize::from(picnic_core::packet::layers::parse(frame).l3_offset);
    let place = match frame.get(l3).map(|byte| byte >> 4) {
        Some(4) => l3 + 2,
        Some(6) => l3 + 4,
        _ => return,
    };
    if let Some(field) = frame.get_mut(place..place + 2) {
        field.fill(0);
    }
}

/// IPv6 with a jumbo payload option before TCP and UDP, as long as stated, longer and shorter.
fn jumbograms() -> impl Iterator<Item = Vec<u8>> {
    [(6, 28), (17, 28), (6, 20), (6, 70_000)].into_iter().map(|(protocol, length): (u8, u32)| {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 0, 64]);
        frame.extend([0x20; 32]);
        frame.extend([protocol, 0, 0xc2, 4]);
        frame.extend(length.to_be_bytes());
        frame.extend([0x12, 0x34, 0x56, 0x78, 0, 20, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame
    })
}

/// An IPv6 frame with these extension headers: kind, length in units, and a fragment header's
/// field.
fn extended(headers: &[(u8, u8, u16)], payload: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for (place, &(kind, units, word)) in headers.iter().enumerate() {
        let next = headers.get(place + 1).map_or(6, |next| next.0);
        let length = match kind {
            51 => usize::from(units) * 4 + 8,
            44 => 8,
            _ => usize::from(units) * 8 + 8,
        };
        let mut header = vec![0; length];
        (header[0], header[1]) = (next, units);
        if kind == 44 {
            // Half of them are atomic.
            let word = if word & 0x100 == 0 { 0 } else { word };
            header[2..4].copy_from_slice(&word.to_be_bytes());
        }
        body.extend(header);
    }
    body.extend((0..payload).map(|byte| byte as u8));
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((body.len() as u16).to_be_bytes());
    frame.extend([headers[0].0, 64]);
    frame.extend([0x20; 32]);
    frame.extend(body);
    frame
}

/// Frames sent by real programs, and frames of the published vectors.
pub(super) fn captured() -> impl Iterator<Item = Vec<u8>> {
    let lines = include_str!("../../../functions/tests/captures/programs.hex").lines();
    let byte = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).unwrap();
        u8::from_str_radix(digits, 16).unwrap()
    };
    let captured = lines.map(move |line| line.as_bytes().chunks(2).map(byte).collect());
    captured.chain(published().map(|(frame, _)| frame))
}

/// All packets that a wire receives.
fn received(section: &str) -> Vec<Vec<u8>> {
    let section = Section::from_text("port", section).unwrap();
    let mut wire =
        find(WIRES, &section).unwrap().build(&section, &BuildContext::default()).unwrap();
    let (mut pool, _) = Pool::new(&PoolConfig::default(), 0).unwrap();
    let (counters, ledger) = (WireCounters::default(), Ledger::new(0));
    let (mut burst, mut frames) = (Burst::new(), Vec::new());
    let mut now = Time::ZERO;
    while !wire.status().is_finished {
        now = now + 1_000_000;
        let mut rx = Receiver::new(&mut pool, &mut burst, &counters, &ledger.card, now, 0, 64);
        wire.receive(now, &mut rx);
        drop(rx);
        for packet in burst.drain() {
            frames.push(packet.segments().flatten().copied().collect());
            pool.free(packet);
        }
    }
    frames
}
