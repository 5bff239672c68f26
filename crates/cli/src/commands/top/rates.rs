//! The figures of a card between two looks at them.

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
    /// Seconds between the two looks.
    pub(crate) interval_s: f64,
}

impl Rates {
    /// The rates between two reports of a card.
    pub(crate) fn between(card: &str, before: &Report, now: &Report) -> Self {
        let interval_s = now.duration_s - before.duration_s;
        Rates { card: card.into(), now: now.clone(), window: now.since(before), interval_s }
    }

    /// For programs: keys of rates end in `_pps` and `_per_s`.
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
        let functions = window.places().map(|(chain, position, function)| {
            named("place", format!("{chain}[{position}]"), live(&function.figures(), seconds))
        });
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
            ("functions", functions.collect()),
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
