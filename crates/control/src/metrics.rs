//! The figures of a running card as Prometheus reads them.
//!
//! Names begin with `picnic_`, end in their unit, and counters in `_total`; each has HELP and
//! TYPE. What can be told apart (wire, queue, function, drop reason) is a label. The text is
//! OpenMetrics, which Prometheus reads since version 2.5.
//!
//! Source: OpenMetrics 1.0; Prometheus, "Metric and label naming".

use crate::report::{FunctionReport, Report};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Map, Value};
use std::fmt;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures of a report, as text.
pub fn text(card: &str, report: Report) -> String {
    let figures = Figures { card: card.into(), report };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Figures {
    card: String,
    report: Report,
}

/// Labels of one series, without that of the card.
type Labels<'a> = Vec<(&'a str, String)>;

struct Sink<'a, 'e> {
    card: &'a str,
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Sink<'_, '_> {
    fn series<'l, M: EncodeMetric>(
        &mut self,
        (name, help, unit): (&str, &str, Option<Unit>),
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
        unit: Unit,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstCounter::new(value)));
        self.series((name, help, Some(unit)), MetricType::Counter, series)
    }

    fn gauges<'l>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let series = series.into_iter().map(|(labels, value)| (labels, ConstGauge::new(value)));
        self.series((name, help, unit), MetricType::Gauge, series)
    }
}

/// Makes a label's value of any text (OpenMetrics 1.0, `escaped-string`).
fn escape(value: &mut String) {
    if value.contains(['\\', '"', '\n']) {
        *value = value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    }
}

/// A single series without labels of its own.
fn one<T>(value: T) -> [(Labels<'static>, T); 1] {
    [(Labels::new(), value)]
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = &self.report;
        let mut sink = Sink { card: &self.card, encoder: &mut encoder };
        let packets = || Unit::Other("packets".into());
        let version = vec![
            ("engine", report.engine.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        sink.gauges("picnic_card_info", None, "What runs", [(version, 1.0)])?;
        let seconds = || Some(Unit::Seconds);
        sink.gauges("picnic_uptime", seconds(), "Time since the start", one(report.duration_s))?;

        let ledger = &report.ledger;
        for (name, help, value) in [
            ("picnic_in", "Packets that came in or were made", ledger.r#in),
            ("picnic_delivered", "Packets handed to the host", ledger.delivered),
            ("picnic_transmitted", "Packets the wires took", ledger.transmitted),
            ("picnic_consumed", "Packets functions kept for good", ledger.consumed),
        ] {
            sink.counters(name, packets(), help, one(value))?;
        }
        let drops = report.drops_by_stage.iter().map(|(place, count)| {
            let (reason, stage) = place.split_once('@').unwrap_or((place, ""));
            (vec![("reason", reason.to_owned()), ("stage", stage.to_owned())], *count)
        });
        sink.counters("picnic_dropped", packets(), "Packets dropped, by reason and stage", drops)?;
        let in_flight = one(ledger.in_flight as f64);
        let help = "Packets in rings, in functions and waiting for wires";
        sink.gauges("picnic_in_flight", Some(packets()), help, in_flight)?;
        wires(&mut sink, report)?;
        if let Some(poll) = report.poll {
            for (name, help, value) in [
                ("picnic_poll_sent", "Packets that filters sent to the poll engine", poll.packets),
                ("picnic_poll_taken", "Those of them that it took", poll.taken),
                ("picnic_poll_lost", "Those that were lost on the way", poll.lost),
                ("picnic_poll_delivered", "Packets that it handed to its host", poll.delivered),
                (
                    "picnic_poll_dropped",
                    "Packets that it dropped, or lost on the way",
                    poll.dropped,
                ),
            ] {
                sink.counters(name, packets(), help, one(value))?;
            }
        }
        if let Some(kernel) = report.kernel {
            for (name, help, value) in [
                ("picnic_kernel_received", "Packets that stayed in the kernel", kernel.packets),
                ("picnic_kernel_delivered", "Packets its network stack got", kernel.delivered),
                ("picnic_kernel_dropped", "Packets that it dropped", kernel.dropped),
            ] {
                sink.counters(name, packets(), help, one(value))?;
            }
        }
        queues(&mut sink, report)?;
        functions(&mut sink, report)?;

        let latency = &report.latency_ns;
        let latency = [("0.5", latency.p50), ("0.99", latency.p99), ("0.999", latency.p999)];
        let latency = latency.into_iter().filter_map(|(quantile, nanoseconds)| {
            let labels = vec![("quantile", quantile.to_owned())];
            nanoseconds.map(|nanoseconds| (labels, nanoseconds as f64 / 1e9))
        });
        let help = "From wire to target routine, since the start, one packet in 16";
        sink.gauges("picnic_latency", seconds(), help, latency)?;
        let latency = &report.latency_ns;
        let parts = [
            ("wire", latency.at_wire),
            ("borrowed_core", latency.on_borrowed_core),
            ("target_ring", latency.in_target_ring),
        ];
        let parts = parts.into_iter().filter_map(|(part, nanoseconds)| {
            let labels = vec![("part", part.to_owned())];
            nanoseconds.map(|nanoseconds| (labels, nanoseconds as f64 / 1e9))
        });
        let help = "Means of the parts of the way from wire to target routine, since the start";
        sink.gauges("picnic_latency_mean", seconds(), help, parts)?;
        let core = &report.borrowed_core;
        if let Some(taken) = core.taken_away {
            let labels = || vec![("core", core.core.to_string())];
            let help = "Had by others, in pieces above the threshold";
            let counter = ConstCounter::new(taken.total_ns as f64 / 1e9);
            let described = ("picnic_borrowed_core_taken_away", help, seconds());
            sink.series(described, MetricType::Counter, [(labels(), counter)])?;
            for (name, unit, help, count) in [
                ("picnic_borrowed_core_absences", "times", "Times others had it", taken.times),
                (
                    "picnic_borrowed_core_absence_drops",
                    "packets",
                    "Packets dropped right behind",
                    taken.drops,
                ),
            ] {
                sink.counters(name, Unit::Other(unit.into()), help, [(labels(), count)])?;
            }
        }
        let softirqs = core.softirq_fraction.map(|share| {
            ("picnic_borrowed_core_softirq", "In softirqs, those of other interfaces too", share)
        });
        let shares = [
            ("picnic_borrowed_core_busy", "In turns that found work", core.busy_fraction),
            ("picnic_borrowed_core_asleep", "Asleep", core.asleep_fraction),
        ];
        for (name, help, share) in shares.into_iter().chain(softirqs) {
            let labels = vec![("core", core.core.to_string())];
            let counter = ConstCounter::new(share * report.duration_s);
            sink.series((name, help, seconds()), MetricType::Counter, [(labels, counter)])?;
        }
        Ok(())
    }
}

fn wires(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    type Field = fn(&crate::report::WireReport) -> u64;
    let fields: [(&str, bool, &str, Field); 5] = [
        ("picnic_wire_received", true, "Packets taken into buffers", |w| w.rx_packets),
        ("picnic_wire_received", false, "Bytes of the packets taken", |w| w.rx_bytes),
        ("picnic_wire_shed", true, "Packets that came and were dropped at the wire", |w| w.rx_shed),
        ("picnic_wire_transmitted", true, "Packets transmitted", |w| w.tx_packets),
        ("picnic_wire_transmitted", false, "Bytes transmitted", |w| w.tx_bytes),
    ];
    for (name, is_packets, help, field) in fields {
        let unit = if is_packets { Unit::Other("packets".into()) } else { Unit::Bytes };
        let wires = report.wires.iter();
        let series = wires.map(|wire| (vec![("wire", wire.name.clone())], field(wire)));
        sink.counters(name, unit, help, series)?;
    }
    Ok(())
}

fn queues(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    type Field = fn(&crate::report::QueueReport) -> u64;
    let labels = |queue: &crate::report::QueueReport| {
        vec![("queue", queue.queue.to_string()), ("core", queue.core.to_string())]
    };
    let fields: [(&str, &str, &str, Field); 7] = [
        ("picnic_queue_delivered", "packets", "Packets handed to the host", |q| q.packets),
        ("picnic_queue_delivered", "bytes", "Their bytes", |q| q.bytes),
        ("picnic_queue", "interrupts", "Interrupts taken", |q| q.interrupts),
        ("picnic_queue", "polls", "Times the ring was looked at", |q| q.polls),
        ("picnic_queue_empty", "polls", "Times it was empty", |q| q.empty_polls),
        ("picnic_queue_transmitted", "packets", "Packets the host sent", |q| q.transmitted),
        ("picnic_queue_ring_full", "packets", "Packets dropped at a full ring", |q| q.ring_full),
    ];
    for (name, unit, help, field) in fields {
        let unit = if unit == "bytes" { Unit::Bytes } else { Unit::Other(unit.into()) };
        let series = report.queues.iter().map(|queue| (labels(queue), field(queue)));
        sink.counters(name, unit, help, series)?;
    }
    let gauges: [(&str, &str, Field); 2] = [
        ("picnic_queue_ring", "Descriptors in the target ring", |q| q.ring_depth),
        ("picnic_queue_ring_size", "Descriptors that fit into it", |q| q.ring_size),
    ];
    for (name, help, field) in gauges {
        let unit = Some(Unit::Other("descriptors".into()));
        let series = report.queues.iter().map(|queue| (labels(queue), field(queue) as f64));
        sink.gauges(name, unit, help, series)?;
    }
    Ok(())
}

/// Each function with the labels of its place.
fn places(report: &Report) -> impl Iterator<Item = (Labels<'static>, &FunctionReport)> {
    let chains = [("rx", &report.functions), ("tx", &report.tx_functions)];
    chains.into_iter().flat_map(|(chain, functions)| {
        functions.iter().enumerate().map(move |(position, function)| {
            let labels = vec![
                ("chain", chain.to_owned()),
                ("position", position.to_string()),
                ("function", function.name.clone()),
            ];
            (labels, function)
        })
    })
}

fn functions(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    type Field = fn(&FunctionReport) -> u64;
    let fields: [(&str, &str, Field); 2] = [
        ("picnic_function_received", "Packets given to a function", |f| f.packets),
        ("picnic_function_dropped", "Packets a function dropped", |f| f.dropped),
    ];
    for (name, help, field) in fields {
        let series = places(report).map(|(labels, function)| (labels, field(function)));
        sink.counters(name, Unit::Other("packets".into()), help, series)?;
    }
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
    let help =
        "What functions count themselves, by the names that they give, since they were inserted";
    sink.series(("picnic_function_counter", help, None), MetricType::Counter, counters)?;
    let gauges = own(|function| &function.gauges, "gauge")
        .filter_map(|(labels, value)| Some((labels, value.as_f64()?)));
    sink.gauges("picnic_function_gauge", None, "Figures of functions that may fall", gauges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use crate::report::{KernelReport, LatencyReport, PollReport, TakenAway};
    use serde_json::json;

    /// The lines of a family, without what is the same in all.
    fn values(text: &str, family: &str) -> Vec<String> {
        let series = text.lines().filter_map(|line| line.strip_prefix(family));
        let series = series.filter_map(|line| line.strip_prefix("{card=\"c\""));
        series.map(|line| line.trim_start_matches(',').replace('}', "")).collect()
    }

    #[test]
    fn each_figure_stands_in_its_family_in_its_unit() {
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
        let function = |name: &str, packets, dropped| FunctionReport {
            name: name.into(),
            packets,
            dropped,
            ns_per_packet: None,
            timed_ns: 0,
            timed_packets: 0,
            counters: Map::new(),
            gauges: Map::new(),
        };
        report.poll = Some(PollReport { packets: 9, taken: 7, lost: 2, delivered: 6, dropped: 3 });
        report.kernel = Some(KernelReport { packets: 91, delivered: 44, dropped: 4 });
        report.functions = vec![function("a", 5, 1), function("b\"\\\n", 4, 0)];
        report.tx_functions = vec![function("c", 3, 2)];
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
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Figures { card: "c".into(), report }));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
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
            assert_eq!(found[1], format!("queue=\"1\",core=\"5\" {count}"), "{family}");
        }
    }
}
