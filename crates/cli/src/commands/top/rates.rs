//! The figures of a card between two reports.

use crate::figures::{drop_rates, live};
use picnic_control::Report;
use picnic_control::figures::Figures;
use serde_json::{Map, Value, json};

/// The rates of an interval.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    pub(crate) card: String,
    /// The figures since the card started.
    pub(crate) now: Report,
    /// Those of the interval.
    pub(crate) window: Report,
    /// Length of the interval in seconds.
    pub(crate) interval_s: f64,
}

impl Rates {
    /// The rates between two reports of a card.
    pub(crate) fn between(card: &str, before: &Report, now: &Report) -> Self {
        let interval_s = now.duration_s - before.duration_s;
        Rates { card: card.into(), now: now.clone(), window: now.since(before), interval_s }
    }

    /// As JSON: keys of rates end in `_pps` and `_per_s`.
    pub(crate) fn json(&self) -> Value {
        let (window, core) = (&self.window, &self.window.borrowed_core);
        let seconds = window.duration_s;
        let named = |name: &str, value: String, mut group: Map<String, Value>| {
            group.insert(name.into(), value.into());
            Value::from(group)
        };
        let wires = window.wires.iter().map(|wire| live(&wire.figures(), seconds));
        let parts = window.parts().into_iter().flatten();
        let parts = parts
            .map(|(part, kernel)| named("part", part.into(), live(&kernel.figures(), seconds)));
        let queues = window.queues.iter().map(|queue| live(&queue.figures(), seconds));
        let guests = window.guests.iter().map(|guest| live(&guest.figures(), seconds));
        let functions = window.places().map(|(chain, position, function)| {
            named("place", format!("{chain}[{position}]"), live(&function.figures(), seconds))
        });
        let classes = window.classes.iter().map(|class| live(&class.figures(), seconds));
        let groups = window.filter_groups.iter().map(|group| live(&group.figures(), seconds));
        let drops = drop_rates(&self.now, window).map(|(place, pps, packets)| {
            let (reason, stage) = place.split_once('@').unwrap_or((place, ""));
            json!({ "reason": reason, "stage": stage, "pps": pps, "packets": packets })
        });
        let mut all = live(&window.latency_ns.figures(), seconds);
        for (key, value) in [
            ("card", json!(self.card)),
            ("elapsed_s", json!(self.now.duration_s)),
            ("interval_s", json!(self.interval_s)),
            ("wires", wires.collect()),
            ("parts", parts.collect()),
            ("queues", queues.collect()),
            ("guests", guests.collect()),
            ("functions", functions.collect()),
            ("classes", classes.collect()),
            ("filter_groups", groups.collect()),
            ("drops", drops.collect()),
            ("borrowed_core", json!(core.core)),
            ("busy_fraction", json!(core.busy_fraction)),
            ("asleep_fraction", json!(core.asleep_fraction)),
            ("taken_away", json!(core.taken_away)),
        ] {
            all.insert(key.into(), value);
        }
        all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_control::report::{
        FunctionReport, GuestReport, KernelReport, PollReport, QueueReport, WireReport,
    };

    /// Programs depend on them.
    #[test]
    fn json_keys_stay() {
        let report = Report {
            wires: vec![WireReport::default()],
            queues: vec![QueueReport::default()],
            guests: vec![GuestReport::default()],
            functions: vec![FunctionReport::default()],
            kernel: Some(KernelReport::default()),
            poll: Some(PollReport::default()),
            drops_by_stage: [("ring_full@steer".into(), 3)].into(),
            ..Report::default()
        };
        let json = Rates::between("c", &report, &report).json();
        // Whether an object keeps the order of its keys depends on features of `serde_json` that
        // other crates enable.
        let keys = |value: &Value| {
            let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        let top = "asleep_fraction borrowed_core busy_fraction card classes drops elapsed_s \
                   filter_groups functions guests interval_s latency_p50_ns latency_p99_ns parts queues taken_away wires";
        assert_eq!(keys(&json).join(" "), top);
        for (list, expected) in [
            ("wires", "name rx_bits_per_s rx_pps shed_pps tx_bits_per_s tx_pps"),
            ("parts", "delivered_pps dropped_pps part rx_pps"),
            (
                "queues",
                "bits_per_s core guest interrupts_per_s latency_p50_ns latency_p99_ns \
                 packets_per_interrupt pps queue ring_depth ring_full_pps ring_size \
                 tx_bits_per_s tx_pps",
            ),
            (
                "guests",
                "bits_per_s broken_rings dropped_pps guest pps queues ready_queues state \
                 tx_bits_per_s tx_pps",
            ),
            ("functions", "counters dropped_pps gauges name ns_per_packet place pps"),
            ("drops", "packets pps reason stage"),
        ] {
            assert_eq!(keys(&json[list][0]).join(" "), expected, "{list}");
        }
    }
}
