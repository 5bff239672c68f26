//! The card's own cost: measured with an empty function, and without a card.

use super::place::{Card, MeasuringPlace};
use super::{Progress, Question, busy_cores};
use crate::compare::order;
use crate::experiment::LabError;
use crate::outcome::{Figure, Point, Series};

/// Measurements of each.
const ROUNDS: usize = 3;

/// A variant to measure.
#[derive(Default)]
struct Way {
    values: Vec<f64>,
    busy: Vec<f64>,
    by_core: Vec<Vec<f64>>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    per_packet: Vec<f64>,
}

/// Measures both variants alternately; without programs there is only the card.
pub(super) fn measure(
    question: &Question,
    place: &MeasuringPlace<'_>,
    progress: &mut Progress<'_>,
) -> Result<Series, LabError> {
    let all = [("none", Card::None), ("empty function", Card::Empty(&question.baseline))];
    let ways = if place.has_programs() { &all[..] } else { &all[1..] };
    let mut found: Vec<Way> = ways.iter().map(|_| Way::default()).collect();
    for round in 0..ROUNDS {
        for index in order(round, ways.len()) {
            let (name, card) = ways[index];
            progress(0.0, &format!("the card's own cost: card {name}"));
            let measured = place.measure(card, &question.figure)?;
            let way = &mut found[index];
            way.values.extend(measured.value);
            way.busy.push(busy_cores(&measured));
            for core in &measured.load.cores {
                way.by_core.resize_with(way.by_core.len().max(core.core + 1), Vec::new);
                way.by_core[core.core].push(1.0 - core.idle);
            }
            if let Some(window) = &measured.window {
                let latency = &window.report.latency_ns;
                way.p50.extend(latency.p50.map(|ns| ns as f64));
                way.p99.extend(latency.p99.map(|ns| ns as f64));
                let busy_s = window.report.borrowed_core.busy_fraction * window.report.duration_s;
                let packets: u64 = window.report.wires.iter().map(|wire| wire.rx_packets).sum();
                // A core without time may have received none.
                way.per_packet.extend((packets != 0).then(|| busy_s * 1e9 / packets as f64));
            }
        }
    }
    let mut series = Series { name: "card_cost".into(), points: Vec::new() };
    for ((name, _), way) in ways.iter().zip(found) {
        let mut point = Point::at("card", *name)
            .with(Figure::of(question.figure.key(), way.values))
            .with(Figure::of("busy_cores", way.busy))
            .with(Figure::of("latency_p50_ns", way.p50))
            .with(Figure::of("latency_p99_ns", way.p99))
            .with(Figure::of("borrowed_core_ns_per_packet", way.per_packet));
        for (core, busy) in way.by_core.into_iter().enumerate() {
            let figure = Figure::of(&format!("core_{core}_busy_fraction"), busy);
            // A page has room for few.
            point = point.with(if core < 2 { figure } else { figure.in_detail() });
        }
        series.points.push(point);
    }
    Ok(series)
}
