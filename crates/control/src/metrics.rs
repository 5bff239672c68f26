//! The figures of a running card as Prometheus reads them.
//!
//! Names begin with `picnic_`, end in their unit, and counters in `_total`; each has HELP and
//! TYPE. What can be told apart (wire, queue, function, drop reason) is a label. The text is
//! OpenMetrics, which Prometheus reads since version 2.5.
//!
//! Source: OpenMetrics 1.0; Prometheus, "Metric and label naming".

use crate::monitor::Monitor;
use crate::report::Report;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures now, as text.
pub fn text(card: &str, monitor: &Monitor) -> String {
    let figures = Figures { card: card.into(), report: monitor.report() };
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
        for (name, help, share) in [
            ("picnic_borrowed_core_busy", "In turns that found work", core.busy_fraction),
            ("picnic_borrowed_core_asleep", "Asleep", core.asleep_fraction),
        ] {
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

fn functions(sink: &mut Sink<'_, '_>, report: &Report) -> fmt::Result {
    type Field = fn(&crate::report::FunctionReport) -> u64;
    let fields: [(&str, &str, Field); 2] = [
        ("picnic_function_received", "Packets given to a function", |f| f.packets),
        ("picnic_function_dropped", "Packets a function dropped", |f| f.dropped),
    ];
    for (name, help, field) in fields {
        let chains = [("rx", &report.functions), ("tx", &report.tx_functions)];
        let series = chains.into_iter().flat_map(|(chain, functions)| {
            functions.iter().enumerate().map(move |(position, function)| {
                let labels = vec![
                    ("chain", chain.to_owned()),
                    ("position", position.to_string()),
                    ("function", function.name.clone()),
                ];
                (labels, field(function))
            })
        });
        sink.counters(name, Unit::Other("packets".into()), help, series)?;
    }
    Ok(())
}
