//! The figures of a running card for Prometheus.
//!
//! Names begin with `picnic_`, end in their unit, and counters in `_total`; each has HELP and
//! TYPE, as the figures of a report declare them. Wire, queue, function and drop reason are labels.
//! The text is OpenMetrics, which Prometheus reads since version 2.5.
//!
//! Source: OpenMetrics 1.0; Prometheus, "Metric and label naming".

use crate::figures::{Figure, Figures, Kind, Shown, Unit};
use crate::report::{
    ClassReport, CoreReport, FilterGroupReport, FunctionReport, GuestPhase, GuestReport,
    KernelReport, LEDGER, LatencyReport, PollReport, QueueReport, Report, TargetCoreReport,
    WireReport,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit as MetricUnit};
use serde_json::{Map, Value};
use std::fmt;

/// Content type of the text, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures of a report, as text.
pub fn text(card: &str, report: Report) -> String {
    let figures = Page { card: card.into(), report };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Page {
    card: String,
    report: Report,
}

/// Labels of one series, without the card's label.
type Labels<'a> = Vec<(&'a str, String)>;

struct Sink<'a, 'e> {
    card: &'a str,
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Sink<'_, '_> {
    fn series<'l, M: EncodeMetric>(
        &mut self,
        (name, help, unit): (&str, &str, Option<MetricUnit>),
        kind: MetricType,
        series: impl IntoIterator<Item = (Labels<'l>, M)>,
    ) -> fmt::Result {
        let unit = unit.as_ref();
        let mut metric = self.encoder.encode_descriptor(name, help, unit, kind)?;
        for (mut labels, value) in series {
            labels.insert(0, ("card", self.card.into()));
            labels.iter_mut().for_each(|(_, value)| escape(value));
            value.encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters<'l>(
        &mut self,
        name: &str,
        unit: MetricUnit,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.series((name, help, Some(unit)), MetricType::Counter, series)
    }

    fn gauges<'l>(
        &mut self,
        name: &str,
        unit: Option<MetricUnit>,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.series((name, help, unit), MetricType::Gauge, series)
    }
}

/// Escapes a text as a label's value (OpenMetrics 1.0, `escaped-string`).
fn escape(value: &mut String) {
    if value.contains(['\\', '"', '\n']) {
        *value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    }
}

/// A single series without labels.
fn one<T>(value: T) -> [(Labels<'static>, T); 1] {
    [(Labels::new(), value)]
}

impl Sink<'_, '_> {
    /// The families of a group of figures, with a series per group.
    fn figures<F: Figures + Default>(
        &mut self,
        duration_s: f64,
        groups: Vec<(Labels<'_>, Vec<Shown>)>,
    ) -> fmt::Result {
        // Latencies nested in another group, a queue's, have no series.
        let is_own =
            |shown: &&Shown| shown.figure.kind != Kind::Latency || shown.path == shown.figure.key;
        let declared = F::default().figures();
        let declared: Vec<_> = declared.iter().filter(is_own).map(|shown| shown.figure).collect();
        for (place, first) in declared.iter().enumerate() {
            let is_alike =
                |figure: &Figure| (figure.metric, figure.unit) == (first.metric, first.unit);
            if first.metric.is_empty() || declared[..place].iter().any(is_alike) {
                continue;
            }
            let series = groups.iter().flat_map(|(labels, shown)| {
                shown.iter().filter(|shown| is_alike(&shown.figure)).map(|shown| {
                    let mut labels = labels.clone();
                    labels.extend(shown.figure.tag.map(|(name, value)| (name, value.to_owned())));
                    (labels, &shown.value)
                })
            });
            let help = if first.family.is_empty() { first.help } else { first.family };
            let described = (first.metric, help.trim_end_matches('.'), metric_unit(first));
            let scaled = |by: f64| {
                let values = series
                    .clone()
                    .filter_map(move |(labels, value)| Some((labels, value.as_f64()? * by)));
                values.map(|(labels, value)| (labels, ConstCounter::new(value)))
            };
            match (first.kind, first.unit) {
                (Kind::Losses, _) => {
                    let counts = series.flat_map(|(labels, value)| {
                        let reasons = value.as_object().into_iter().flatten();
                        reasons.filter_map(move |(reason, count)| {
                            let mut labels = labels.clone();
                            labels.push(("reason", reason.clone()));
                            Some((labels, ConstCounter::new(count.as_u64()?)))
                        })
                    });
                    self.series(described, MetricType::Counter, counts)?;
                }
                (Kind::Share, _) => {
                    self.series(described, MetricType::Counter, scaled(duration_s))?;
                }
                (kind, Unit::Nanoseconds) if kind.grows() => {
                    self.series(described, MetricType::Counter, scaled(1e-9))?;
                }
                (kind, _) if kind.grows() => {
                    let counts = series.filter_map(|(labels, value)| {
                        Some((labels, ConstCounter::new(value.as_u64()?)))
                    });
                    self.series(described, MetricType::Counter, counts)?;
                }
                (_, unit) => {
                    let per = if unit == Unit::Nanoseconds { 1e9 } else { 1.0 };
                    let values =
                        series.filter_map(|(labels, value)| Some((labels, value.as_f64()? / per)));
                    self.gauges(described.0, described.2, described.1, values)?;
                }
            }
        }
        Ok(())
    }
}

/// The unit suffix of a figure's metric: Prometheus counts time in seconds.
fn metric_unit(figure: &Figure) -> Option<MetricUnit> {
    match (figure.kind, figure.unit) {
        (Kind::Share, _) | (_, Unit::Nanoseconds) => Some(MetricUnit::Seconds),
        (_, Unit::Bytes) => Some(MetricUnit::Bytes),
        (_, unit) => Some(MetricUnit::Other(unit.name().into())),
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = &self.report;
        let mut sink = Sink { card: &self.card, encoder: &mut encoder };
        let packets = || MetricUnit::Other("packets".into());
        let version = vec![
            ("engine", report.engine.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        sink.gauges("picnic_card_info", None, "Engine and version of the card", [(version, 1.0)])?;
        let (seconds, duration_s) = (Some(MetricUnit::Seconds), report.duration_s);
        sink.gauges("picnic_uptime", seconds, "Time since the start", one(duration_s))?;
        for (name, help, value) in LEDGER {
            sink.counters(name, packets(), help, one(value(&report.ledger)))?;
        }
        let drops = report.drops_by_stage.iter().map(|(place, count)| {
            let (reason, stage) = place.split_once('@').unwrap_or((place, ""));
            (vec![("reason", reason.to_owned()), ("stage", stage.to_owned())], *count)
        });
        sink.counters("picnic_dropped", packets(), "Packets dropped, by reason and stage", drops)?;
        let in_flight = one(report.ledger.in_flight as f64);
        let help = "Packets in rings, in functions and waiting for wires";
        sink.gauges("picnic_in_flight", Some(packets()), help, in_flight)?;

        let wires = report.wires.iter();
        let wires = wires.map(|wire| (vec![("wire", wire.name.clone())], wire.figures()));
        sink.figures::<WireReport>(duration_s, wires.collect())?;
        if let Some(poll) = &report.poll {
            sink.figures::<PollReport>(duration_s, one(poll.figures()).into())?;
        }
        if let Some(kernel) = &report.kernel {
            sink.figures::<KernelReport>(duration_s, one(kernel.figures()).into())?;
        }
        let queues = report.queues.iter().map(|queue| {
            let mut labels = vec![("queue", queue.queue.to_string())];
            labels.push(("core", queue.core.to_string()));
            labels.extend(queue.guest.clone().map(|guest| ("guest", guest)));
            (labels, queue.figures())
        });
        sink.figures::<QueueReport>(duration_s, queues.collect())?;
        guests(&mut sink, report)?;
        let places = places(report).map(|(labels, function)| (labels, function.figures()));
        sink.figures::<FunctionReport>(duration_s, places.collect())?;
        own(&mut sink, report)?;
        let classes = report.classes.iter().map(|class| {
            let labels = vec![("wire", class.wire.clone()), ("class", class.class.clone())];
            (labels, class.figures())
        });
        sink.figures::<ClassReport>(duration_s, classes.collect())?;
        let groups = report.filter_groups.iter();
        let groups = groups.map(|group| (vec![("group", group.group.clone())], group.figures()));
        sink.figures::<FilterGroupReport>(duration_s, groups.collect())?;
        sink.figures::<LatencyReport>(duration_s, one(report.latency_ns.figures()).into())?;
        let core = vec![("core", report.borrowed_core.core.to_string())];
        let core = vec![(core, report.borrowed_core.figures())];
        sink.figures::<CoreReport>(duration_s, core)?;
        let targets = report.target_cores.iter();
        let targets = targets.map(|core| (vec![("core", core.core.to_string())], core.figures()));
        sink.figures::<TargetCoreReport>(duration_s, targets.collect())
    }
}

/// Each function with the labels of its place.
fn places(report: &Report) -> impl Iterator<Item = (Labels<'static>, &FunctionReport)> {
    report.places().map(|(chain, position, function)| {
        let labels = vec![
            ("chain", chain.to_owned()),
            ("position", position.to_string()),
            ("function", function.name.clone()),
        ];
        (labels, function)
    })
}

/// Guests: their figures, and their state as a series for each state.
fn guests(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    let label = |guest: &GuestReport| vec![("guest", guest.guest.clone())];
    let figures = report.guests.iter().map(|guest| (label(guest), guest.figures()));
    sink.figures::<GuestReport>(report.duration_s, figures.collect())?;
    let states = report.guests.iter().flat_map(|guest| {
        GuestPhase::ALL.map(|state| {
            let labels = [label(guest), vec![("state", state.to_string())]].concat();
            (labels, f64::from(u8::from(guest.state == state)))
        })
    });
    sink.gauges("picnic_guest_state", None, "1 for the state of the guest, 0 for others", states)
}

/// Functions' own counters and gauges.
fn own(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    let own = |figures: fn(&FunctionReport) -> &Map<String, Value>, label| {
        places(report).flat_map(move |(labels, function)| {
            figures(function).iter().map(move |(name, value)| {
                let mut labels = labels.clone();
                labels.push((label, name.clone()));
                (labels, value)
            })
        })
    };
    let counters = own(|function| &function.counters, "counter")
        .filter_map(|(labels, value)| Some((labels, ConstCounter::new(value.as_u64()?))));
    let help = "Functions' own counters by name, since the function was inserted";
    sink.series(("picnic_function_counter", help, None), MetricType::Counter, counters)?;
    let gauges = own(|function| &function.gauges, "gauge")
        .filter_map(|(labels, value)| Some((labels, value.as_f64()?)));
    sink.gauges("picnic_function_gauge", None, "Functions' own gauges by name", gauges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use crate::report::{TakenAway, TargetTakenAway};
    use serde_json::json;

    /// The lines of a family, without their common parts.
    fn values(text: &str, family: &str) -> Vec<String> {
        let series = text.lines().filter_map(|line| line.strip_prefix(family));
        let series = series.filter_map(|line| line.strip_prefix("{card=\"c\""));
        series.map(|line| line.trim_start_matches(',').replace('}', "")).collect()
    }

    #[test]
    fn figures_have_their_family_and_unit() {
        let monitor = bench::parts(&bench::card("")).monitor;
        let mut report = monitor.report_over(2_000_000_000, &[]);
        for (number, wire) in report.wires.iter_mut().enumerate() {
            wire.name = format!("w{number}");
            let from = 10 * number as u64;
            (wire.rx_packets, wire.rx_bytes, wire.rx_shed) = (from + 1, from + 2, from + 3);
            (wire.tx_packets, wire.tx_bytes) = (from + 4, from + 5);
        }
        let queue = &mut report.queues[1];
        (queue.packets, queue.bytes, queue.interrupts) = (1, 2, 3);
        (queue.polls, queue.empty_polls, queue.transmitted) = (4, 5, 6);
        (queue.ring_full, queue.ring_depth, queue.ring_size) = (7, 8, 9);
        queue.guest = Some("vm0".into());
        report.guests = vec![GuestReport {
            guest: "vm0".into(),
            state: GuestPhase::Ready,
            connections: 2,
            ready_queues: 1,
            queues: 2,
            broken_rings: 3,
            packets: 4,
            bytes: 5,
            transmitted: 6,
            transmitted_bytes: 7,
            dropped: 17,
            drops: [("no_descriptor".into(), 8), ("ring_full".into(), 9)].into(),
            ..GuestReport::default()
        }];
        let function = |name: &str, packets, dropped| FunctionReport {
            name: name.into(),
            packets,
            dropped,
            ..FunctionReport::default()
        };
        report.poll = Some(PollReport { packets: 9, taken: 7, lost: 2, delivered: 6, dropped: 3 });
        report.kernel = Some(KernelReport { packets: 91, delivered: 44, dropped: 4 });
        report.functions = vec![function("a", 5, 1), function("b\"\\\n", 4, 0)];
        report.tx_functions = vec![function("c", 3, 2)];
        let (wire, class) = ("w0".to_owned(), "bulk".to_owned());
        report.classes = vec![ClassReport { wire, class, packets: 6, bytes: 600, dropped: 1 }];
        let group = "general".to_owned();
        report.filter_groups = vec![FilterGroupReport { group, ..FilterGroupReport::default() }];
        let figures = |figures: Value| figures.as_object().cloned().unwrap();
        report.functions[1].counters = figures(json!({ "seen": 1_u64 << 60, "lost": 0 }));
        report.functions[1].gauges = figures(json!({ "held": -3, "share": 0.5 }));
        report.tx_functions[0].counters = figures(json!({ "seen": 5 }));
        report.drops_by_stage = [("x@rx".to_owned(), 3), ("y".to_owned(), 4)].into();
        let ledger = &mut report.ledger;
        (ledger.r#in, ledger.delivered, ledger.transmitted) = (100, 50, 20);
        (ledger.consumed, ledger.in_flight) = (10, 13);
        report.latency_ns = LatencyReport {
            p50: Some(1_500),
            p99: Some(2_500),
            p999: None,
            mean: Some(9_000),
            at_wire: Some(4_000),
            held_at_wire: None,
            on_borrowed_core: Some(3_000),
            in_target_ring: Some(2_000),
        };
        let core = &mut report.borrowed_core;
        (core.busy_fraction, core.asleep_fraction) = (0.25, 0.5);
        core.softirq_fraction = Some(0.125);
        core.taken_away = Some(TakenAway {
            total_ns: 500_000_000,
            times: 3,
            longest_ns: None,
            drops: 2,
            threshold_ns: 1,
        });
        report.target_cores[0].taken_away = Some(TargetTakenAway {
            total_ns: 250_000_000,
            times: 2,
            longest_ns: Some(1),
            drops: 7,
            threshold_ns: 1,
        });
        let text = super::text("c", report);
        for (place, figure) in crate::report::declared() {
            let is_there = figure.series().is_none_or(|series| {
                text.lines().any(|line| line.starts_with(&format!("{series}{{card=\"c\"")))
            });
            assert!(is_there, "{place} in {text}");
        }
        for (family, expected) in [
            ("picnic_card_info", &["engine=\"poll\",version=\"0.1.0\" 1.0"][..]),
            ("picnic_uptime_seconds", &[" 2.0"]),
            ("picnic_in_packets_total", &[" 100"]),
            ("picnic_poll_sent_packets_total", &[" 9"]),
            ("picnic_poll_taken_packets_total", &[" 7"]),
            ("picnic_poll_lost_packets_total", &[" 2"]),
            ("picnic_poll_delivered_packets_total", &[" 6"]),
            ("picnic_poll_dropped_packets_total", &[" 3"]),
            ("picnic_kernel_received_packets_total", &[" 91"]),
            ("picnic_kernel_delivered_packets_total", &[" 44"]),
            ("picnic_kernel_dropped_packets_total", &[" 4"]),
            ("picnic_delivered_packets_total", &[" 50"]),
            ("picnic_transmitted_packets_total", &[" 20"]),
            ("picnic_consumed_packets_total", &[" 10"]),
            ("picnic_in_flight_packets", &[" 13.0"]),
            (
                "picnic_dropped_packets_total",
                &["reason=\"x\",stage=\"rx\" 3", "reason=\"y\",stage=\"\" 4"],
            ),
            ("picnic_wire_received_packets_total", &["wire=\"w0\" 1", "wire=\"w1\" 11"]),
            ("picnic_wire_received_bytes_total", &["wire=\"w0\" 2", "wire=\"w1\" 12"]),
            ("picnic_wire_shed_packets_total", &["wire=\"w0\" 3", "wire=\"w1\" 13"]),
            ("picnic_wire_transmitted_packets_total", &["wire=\"w0\" 4", "wire=\"w1\" 14"]),
            ("picnic_wire_transmitted_bytes_total", &["wire=\"w0\" 5", "wire=\"w1\" 15"]),
            (
                "picnic_function_received_packets_total",
                &[
                    "chain=\"rx\",position=\"0\",function=\"a\" 5",
                    "chain=\"rx\",position=\"1\",function=\"b\\\"\\\\\\n\" 4",
                    "chain=\"tx\",position=\"0\",function=\"c\" 3",
                ],
            ),
            (
                "picnic_function_counter_total",
                &[
                    "chain=\"rx\",position=\"1\",function=\"b\\\"\\\\\\n\",counter=\"seen\" 1152921504606846976",
                    "chain=\"rx\",position=\"1\",function=\"b\\\"\\\\\\n\",counter=\"lost\" 0",
                    "chain=\"tx\",position=\"0\",function=\"c\",counter=\"seen\" 5",
                ],
            ),
            (
                "picnic_function_gauge",
                &[
                    "chain=\"rx\",position=\"1\",function=\"b\\\"\\\\\\n\",gauge=\"held\" -3.0",
                    "chain=\"rx\",position=\"1\",function=\"b\\\"\\\\\\n\",gauge=\"share\" 0.5",
                ],
            ),
            ("picnic_guest_connections_times_total", &["guest=\"vm0\" 2"]),
            ("picnic_guest_ready_queues", &["guest=\"vm0\" 1.0"]),
            ("picnic_guest_queues", &["guest=\"vm0\" 2.0"]),
            ("picnic_guest_broken_rings", &["guest=\"vm0\" 3.0"]),
            ("picnic_guest_delivered_packets_total", &["guest=\"vm0\" 4"]),
            ("picnic_guest_delivered_bytes_total", &["guest=\"vm0\" 5"]),
            ("picnic_guest_transmitted_packets_total", &["guest=\"vm0\" 6"]),
            ("picnic_guest_transmitted_bytes_total", &["guest=\"vm0\" 7"]),
            (
                "picnic_guest_dropped_packets_total",
                &[
                    "guest=\"vm0\",reason=\"no_descriptor\" 8",
                    "guest=\"vm0\",reason=\"ring_full\" 9",
                ],
            ),
            (
                "picnic_guest_state",
                &[
                    "guest=\"vm0\",state=\"waiting\" 0.0",
                    "guest=\"vm0\",state=\"connected\" 0.0",
                    "guest=\"vm0\",state=\"ready\" 1.0",
                ],
            ),
            (
                "picnic_latency_seconds",
                &["quantile=\"0.5\" 0.0000015", "quantile=\"0.99\" 0.0000025"],
            ),
            (
                "picnic_latency_mean_seconds",
                &[
                    "part=\"wire\" 0.000004",
                    "part=\"borrowed_core\" 0.000003",
                    "part=\"target_ring\" 0.000002",
                ],
            ),
            ("picnic_borrowed_core_taken_away_seconds_total", &["core=\"4\" 0.5"]),
            ("picnic_borrowed_core_absences_times_total", &["core=\"4\" 3"]),
            ("picnic_borrowed_core_absence_drops_packets_total", &["core=\"4\" 2"]),
            ("picnic_target_core_taken_away_seconds_total", &["core=\"5\" 0.25"]),
            ("picnic_target_core_absences_times_total", &["core=\"5\" 2"]),
            ("picnic_target_core_absence_drops_packets_total", &["core=\"5\" 7"]),
            ("picnic_borrowed_core_busy_seconds_total", &["core=\"4\" 0.5"]),
            ("picnic_borrowed_core_asleep_seconds_total", &["core=\"4\" 1.0"]),
            ("picnic_borrowed_core_softirq_seconds_total", &["core=\"4\" 0.25"]),
        ] {
            assert_eq!(values(&text, family), expected, "{family} in {text}");
        }
        for (family, count) in [
            ("picnic_queue_delivered_packets_total", "1"),
            ("picnic_queue_delivered_bytes_total", "2"),
            ("picnic_queue_interrupts_total", "3"),
            ("picnic_queue_polls_total", "4"),
            ("picnic_queue_empty_polls_total", "5"),
            ("picnic_queue_transmitted_packets_total", "6"),
            ("picnic_queue_ring_full_packets_total", "7"),
            ("picnic_queue_ring_descriptors", "8.0"),
            ("picnic_queue_ring_size_descriptors", "9.0"),
        ] {
            let found = values(&text, family);
            assert_eq!(
                found[1],
                format!("queue=\"1\",core=\"5\",guest=\"vm0\" {count}"),
                "{family}"
            );
        }
    }
}
