//! Counts of each side's functions, to detect functions that did nothing.

use super::Side;
use crate::outcome::{Figure, Point, Series};
use crate::unit::Unit;
use picnic_control::Report;

/// Functions that change only some packets, the counters of changes, and a verb for the message.
const ACTS: &[(&str, &[&str], &str)] = &[
    ("lro", &["merged"], "merged"),
    ("tso", &["super_frames"], "segmented"),
    ("header-split", &["split"], "split"),
    ("timestamp", &["corrected"], "corrected"),
    ("tunnel", &["decapsulated", "encapsulated", "exposed"], "processed"),
    ("vlan", &["filtered", "rewritten", "stripped", "inserted"], "changed"),
    ("mirror", &["copies"], "copied"),
];
/// Longer packets were merged by the sender, or by something ahead of the card.
const LONGEST_FRAME: f64 = 1600.0;

/// The counts of one side's functions, over all runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    functions: Vec<Function>,
    /// Packets and bytes from wires.
    received: (u64, u64),
}

#[derive(Clone, Debug)]
struct Function {
    chain: &'static str,
    name: String,
    packets: u64,
    dropped: u64,
    /// By name, in the function's order.
    counters: Vec<(String, u64)>,
}

impl Counts {
    pub(super) fn add(&mut self, report: &Report) {
        for wire in &report.wires {
            self.received.0 += wire.rx_packets;
            self.received.1 += wire.rx_bytes;
        }
        let chains = [("rx", &report.functions), ("tx", &report.tx_functions)];
        let all =
            chains.into_iter().flat_map(|(chain, all)| all.iter().map(move |one| (chain, one)));
        for (place, (chain, one)) in all.enumerate() {
            if place == self.functions.len() {
                let (name, counters) = (one.name.clone(), Vec::new());
                self.functions.push(Function { chain, name, packets: 0, dropped: 0, counters });
            }
            let own = &mut self.functions[place];
            own.packets += one.packets;
            own.dropped += one.dropped;
            for (name, count) in &one.counters {
                let count = count.as_u64().unwrap_or(0);
                match own.counters.iter_mut().find(|(other, _)| other == name) {
                    Some((_, sum)) => *sum += count,
                    None => own.counters.push((name.clone(), count)),
                }
            }
        }
    }

    /// A row for each function.
    pub(super) fn add_to(&self, series: &mut Series, side: &str) {
        for function in &self.functions {
            let counted = function.counters.iter().filter(|(_, count)| *count != 0);
            let counted: Vec<_> = counted
                .map(|(name, count)| {
                    format!("{} {}", name.replace('_', " "), Unit::Count.text(*count as f64))
                })
                .collect();
            let counted = if counted.is_empty() { "-".into() } else { counted.join(", ") };
            let point = Point::at("at", format!("{side}, {} chain", function.chain))
                .and("function", function.name.as_str())
                .and("counted", counted)
                .with(Figure::count("packets", function.packets))
                .with(Figure::count("dropped", function.dropped));
            let figures = function.counters.iter();
            let figures = figures.map(|(name, count)| Figure::count(name, *count).in_detail());
            series.push(figures.fold(point, Point::with));
        }
    }

    /// A sentence for each function that has seen packets and changed none.
    pub(super) fn idle(&self, side: &Side) -> Vec<String> {
        let idle = self.functions.iter().filter_map(|function| {
            let (_, counters, done) = ACTS.iter().find(|(name, ..)| *name == function.name)?;
            let acted = function.counters.iter().filter(|(name, _)| counters.contains(&&**name));
            let is_idle = function.packets != 0
                && function.dropped == 0
                && acted.map(|(_, count)| count).sum::<u64>() == 0;
            is_idle.then(|| {
                let packets = Unit::Count.text(function.packets as f64);
                let why = match (&*function.name, self.mean_bytes()) {
                    ("lro", Some(bytes)) if bytes > LONGEST_FRAME => format!(
                        ": packets arrive merged ({} on average): try --no-client-tso",
                        Unit::Bytes.text(bytes.round())
                    ),
                    _ => String::new(),
                };
                format!("{}: {} {done} 0 of {packets} packets{why}", side.name, function.name)
            })
        });
        idle.collect()
    }

    fn mean_bytes(&self) -> Option<f64> {
        let (packets, bytes) = self.received;
        (packets != 0).then(|| bytes as f64 / packets as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lro(merged: u64, bytes: u64) -> Counts {
        let counters = vec![("merged".to_owned(), merged), ("single".to_owned(), 8_517 - merged)];
        let (chain, name) = ("rx", "lro".to_owned());
        let functions = vec![Function { chain, name, packets: 8_517, dropped: 0, counters }];
        Counts { functions, received: (8_517, 8_517 * bytes) }
    }

    #[test]
    fn idle_functions_are_reported_with_a_reason() {
        let side = Side { name: "candidate".into(), path: None, set: Vec::new() };
        let wanted = "candidate: lro merged 0 of 8,517 packets: packets arrive merged (24,000 B \
                      on average): try --no-client-tso";
        assert_eq!(lro(0, 24_000).idle(&side), [wanted]);
        assert_eq!(lro(0, 1_500).idle(&side), ["candidate: lro merged 0 of 8,517 packets"]);
        assert!(lro(17, 24_000).idle(&side).is_empty());
    }

    #[test]
    fn each_side_has_a_row_with_its_counts() {
        let mut series = Series { name: "functions".into(), points: Vec::new() };
        lro(17, 1_500).add_to(&mut series, "candidate");
        let row = ["candidate, rx chain", "lro", "merged 17, single 8,500", "8,517", "0"];
        assert_eq!(series.table().rows, [row.map(String::from)]);
        assert_eq!(series.points[0].fields()["merged"], 17);
    }
}
