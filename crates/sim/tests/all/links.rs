//! Links: a wire carries exactly its line rate.

use crate::common::{end, quick, simulation, step_through};
use picnic_core::time::Time;
use picnic_engine::view::WireView;

/// A wire's counts at the end of each of three spans of 10 ms: packets, bytes.
fn spans(card: &str, wire: usize, of: fn(&WireView) -> (u64, u64)) -> Vec<(u64, u64)> {
    let (mut simulation, _) = simulation(card, 1, quick());
    let mut before = (0, 0);
    let spans = (1..=3).map(|span| {
        simulation.run_until(Time::from_nanos(span * 10_000_000));
        let counted = of(&simulation.view().wires[wire]);
        let new = (counted.0 - before.0, counted.1 - before.1);
        before = counted;
        new
    });
    let spans = spans.collect();
    end(simulation);
    spans
}

/// The first span includes filling the line; the others are exact to a percent, or to the frame in
/// flight.
fn assert_rate(spans: &[(u64, u64)], mbps: f64, size: f64) {
    let frames = mbps * 1e6 / 8.0 / (size.max(60.0) + 24.0) * 0.01;
    for &(packets, bytes) in &spans[1..] {
        let off = (packets as f64 - frames).abs();
        assert!(off <= (frames * 0.01).max(1.0), "{packets} frames of {size} bytes, due: {frames}");
        assert!((bytes as f64 / packets as f64 - size).abs() < 0.01);
    }
}

#[test]
fn wires_receive_at_link_rate() {
    for (mbps, size) in [(100.0, 60), (100.0, 1514), (1000.0, 60), (1000.0, 1514), (2500.0, 500)] {
        // Flat out, and at twice the rate of the link.
        let frames = mbps * 1e6 / 8.0 / (f64::from(size) + 24.0);
        for rate_pps in [0.0, 2.0 * frames] {
            let card = format!(
                "[pool]\nbuffers = 16384\n[[wire]]\nport = \"generator\"\nsize = {size}\n\
                 rate_pps = {rate_pps:.0}\n[wire.link]\nrate_mbps = {mbps}\nlatency_us = 20\n"
            );
            let spans = spans(&card, 0, |wire| {
                (wire.counters.rx_packets.get(), wire.counters.rx_bytes.get())
            });
            assert_rate(&spans, mbps, f64::from(size));
        }
    }
}

#[test]
fn wires_transmit_at_link_rate() {
    for (mbps, size) in [(100.0, 1514), (1000.0, 200), (1000.0, 1514)] {
        let rate_pps = 2.0 * mbps * 1e6 / 8.0 / (f64::from(size) + 24.0);
        let card = format!(
            "[host]\nmode = \"echo\"\n[[wire]]\nport = \"generator\"\nsize = {size}\n\
             rate_pps = {rate_pps:.0}\n[[wire]]\nport = \"generator\"\npackets = 1\n[wire.link]\n\
             rate_mbps = {mbps}\nlatency_us = 100\n[[tx]]\nfunction = \"bond\"\n\
             mode = \"active-backup\"\nwire = 1\n"
        );
        let spans =
            spans(&card, 1, |wire| (wire.counters.tx_packets.get(), wire.counters.tx_bytes.get()));
        assert_rate(&spans, mbps, f64::from(size));
    }
}

#[test]
fn cards_wait_for_frames_in_flight() {
    let card = "[host]\nmode = \"echo\"\n[[wire]]\nport = \"generator\"\npackets = 100\n\
                [wire.link]\nrate_mbps = 1\nlatency_us = 5000\n";
    let (mut simulation, _) = simulation(card, 1, quick());
    step_through(&mut simulation, None);
    let now = simulation.now();
    let report = end(simulation);
    assert_eq!((report.ledger.transmitted, report.ledger.dropped), (100, 0));
    // Frames of 60 bytes one after another, there and back.
    let line_ns = 84 * 8 * 1000;
    assert!(now >= Time::from_nanos(101 * line_ns + 2 * 5_000_000), "{now}");
}
