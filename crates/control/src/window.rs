//! The figures of a window: the difference of two reports of a running card.

use crate::figures::{Figures, Span, counts};
use crate::latency::{Recorded, merged};
use crate::report::{FilterGroupReport, FunctionReport, LatencyReport, Report};

impl Report {
    /// The figures since `before`, an earlier report of the same card. Packets in flight then count
    /// as in. A function inserted during the window has all its counts; latencies are those of the
    /// window if both reports have the recorded ones, otherwise unavailable.
    #[must_use]
    pub fn since(&self, before: &Report) -> Report {
        let span = &Span { now_s: self.duration_s, before_s: before.duration_s };
        let latencies = match (&self.latencies, &before.latencies) {
            (Some(now), Some(was)) => Some(window(now, was)),
            _ => None,
        };
        let of_queue = |queue| latencies.as_ref()?.iter().find(|part| part.queue == queue);
        let mut queues = each(&self.queues, &before.queues, span);
        for queue in &mut queues {
            queue.latency_ns = of_queue(queue.queue)
                .map_or_else(LatencyReport::default, |part| LatencyReport::of(&part.histogram()));
        }
        let mut ledger = self.ledger.clone();
        let was = &before.ledger;
        ledger.r#in = (ledger.r#in + was.in_flight).saturating_sub(was.r#in);
        ledger.delivered = ledger.delivered.saturating_sub(was.delivered);
        ledger.transmitted = ledger.transmitted.saturating_sub(was.transmitted);
        ledger.consumed = ledger.consumed.saturating_sub(was.consumed);
        ledger.dropped = ledger.dropped.saturating_sub(was.dropped);
        Report {
            duration_s: span.seconds(),
            wires: each(&self.wires, &before.wires, span),
            queues,
            guests: each(&self.guests, &before.guests, span),
            kernel: self.kernel.since(&before.kernel, span),
            poll: self.poll.since(&before.poll, span),
            functions: functions(&self.functions, &before.functions, span),
            tx_functions: functions(&self.tx_functions, &before.tx_functions, span),
            classes: each(&self.classes, &before.classes, span),
            filter_groups: groups(&self.filter_groups, &before.filter_groups, span),
            drops: counts(&self.drops, &before.drops),
            drops_by_stage: counts(&self.drops_by_stage, &before.drops_by_stage),
            ledger,
            latency_ns: latencies
                .as_ref()
                .map_or_else(LatencyReport::default, |parts| LatencyReport::of(&merged(parts))),
            latencies,
            borrowed_core: self.borrowed_core.since(&before.borrowed_core, span),
            target_cores: each(&self.target_cores, &before.target_cores, span),
            notes: Vec::new(),
            ..self.clone()
        }
    }
}

fn each<F: Figures>(now: &[F], before: &[F], span: &Span) -> Vec<F> {
    now.iter().zip(before).map(|(now, before)| now.since(before, span)).collect()
}

fn window(now: &[Recorded], before: &[Recorded]) -> Vec<Recorded> {
    let none = Recorded::default();
    let was = |queue| before.iter().find(|part| part.queue == queue).unwrap_or(&none);
    now.iter().map(|part| part.since(was(part.queue))).collect()
}

fn groups(
    now: &[FilterGroupReport],
    before: &[FilterGroupReport],
    span: &Span,
) -> Vec<FilterGroupReport> {
    // Groups come and go with their filters.
    let was = |group: &str| before.iter().find(|other| other.group == group);
    now.iter()
        .map(|group| was(&group.group).map_or_else(|| group.clone(), |was| group.since(was, span)))
        .collect()
}

fn functions(
    now: &[FunctionReport],
    before: &[FunctionReport],
    span: &Span,
) -> Vec<FunctionReport> {
    let each = now.iter().enumerate().map(|(position, function)| {
        // With fewer packets it is another function.
        let is_same =
            |was: &&FunctionReport| was.name == function.name && was.packets <= function.packets;
        match before.get(position).filter(is_same) {
            Some(was) => function.since(was, span),
            None => function.clone(),
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use crate::report::{GuestReport, KernelReport, PollReport, TakenAway, declared};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    /// Whether a number only grows while a card runs, anywhere in a report.
    fn grows(key: &str) -> bool {
        let counters = declared().into_iter().filter(|(_, figure)| figure.kind.grows());
        // The ledger counts these, too.
        key == "consumed" || counters.map(|(_, figure)| figure.key).any(|name| name == key)
    }

    /// Visits each number that only grows, in a fixed order.
    fn each_count(value: &mut Value, see: &mut impl FnMut(&str, &mut Value)) {
        match value {
            Value::Object(fields) => {
                for (key, field) in fields {
                    if grows(key) && field.is_u64() {
                        see(key, field);
                    } else {
                        each_count(field, see);
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| each_count(value, see)),
            _ => {}
        }
    }

    /// A report of a shared card with two wires and queues and a function in each chain, as JSON.
    fn report() -> Value {
        let monitor = bench::parts(&bench::card("")).monitor;
        monitor.notes.core.absences.threshold_ns.set(1);
        monitor.notes.targets[0].absences.threshold_ns.set(1);
        let mut report = monitor.report_over(2_000_000_000, &[]);
        report.kernel = Some(KernelReport { packets: 0, delivered: 0, dropped: 0 });
        report.poll = Some(PollReport { packets: 0, taken: 0, lost: 0, delivered: 0, dropped: 0 });
        let drops = [("ring_full".to_owned(), 1)].into();
        report.guests = vec![GuestReport { drops, ..GuestReport::default() }];
        let mut report = serde_json::to_value(report).unwrap();
        let function = json!({
            "name": "slot", "packets": 0, "dropped": 0, "ns_per_packet": null,
            "timed_ns": 0, "timed_packets": 0
        });
        report["functions"] = json!([function]);
        report["tx_functions"] = json!([function]);
        report
    }

    fn counted(mut report: Value, count: impl Fn(u64) -> u64) -> Report {
        let mut place = 0;
        each_count(&mut report, &mut |_, field| {
            place += 1;
            *field = count(place).into();
        });
        serde_json::from_value(report).unwrap()
    }

    fn differences(report: Report) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let see = &mut |key: &str, field: &mut Value| {
            found.push((key.to_owned(), field.as_u64().unwrap()));
        };
        each_count(&mut serde_json::to_value(report).unwrap(), see);
        found
    }

    #[test]
    fn windows_subtract_every_counter() {
        let (before, now) =
            (counted(report(), |place| place), counted(report(), |place| 10 * place));
        let found = differences(now.since(&before));
        assert!(found.len() > 50, "{found:?}");
        for (place, (key, count)) in found.iter().enumerate() {
            assert_eq!(*count, 9 * (place as u64 + 1), "{key}");
        }
        let queue = now.since(&before).queues[1].clone();
        let expected = queue.packets as f64 / queue.interrupts as f64;
        assert_eq!(queue.packets_per_interrupt, Some(expected));
        let function = now.since(&before).functions[0].clone();
        let expected = function.timed_ns as f64 / function.timed_packets as f64;
        assert_eq!(function.ns_per_packet, Some(expected));
        // Nothing happened between two equal reports.
        let same = now.since(&now);
        assert!(differences(same.clone()).iter().all(|(_, count)| *count == 0), "{same:?}");
        assert_eq!(same.queues[0].packets_per_interrupt, None);
        assert_eq!(same.functions[0].ns_per_packet, None);
    }

    #[test]
    fn window_counters_are_never_negative() {
        // A function that has had more packets than it has now is another.
        let of_function =
            |key: &str| ["packets", "dropped", "timed_ns", "timed_packets"].contains(&key);
        let (before, now) =
            (counted(report(), |place| 1_000 - place), counted(report(), |place| place));
        let found = differences(now.since(&before));
        let kept: Vec<_> = found.iter().filter(|(_, count)| *count != 0).collect();
        assert!(kept.iter().all(|(key, _)| of_function(key)), "{kept:?}");
        assert_eq!(kept.len(), 8, "{kept:?}");
        // Its other counters may lag behind its packets.
        let mut before = counted(report(), |_| 9);
        let now = counted(report(), |_| 9);
        for function in before.functions.iter_mut().chain(&mut before.tx_functions) {
            (function.dropped, function.timed_ns, function.timed_packets) = (10, 10, 10);
        }
        let function = now.since(&before).functions[0].clone();
        let counts =
            [function.packets, function.dropped, function.timed_ns, function.timed_packets];
        assert_eq!(counts, [0; 4]);
    }

    #[test]
    fn inserted_functions_have_all_their_counts() {
        let before = counted(report(), |_| 5);
        let mut now = counted(report(), |_| 7);
        now.functions[0].name = "other".into();
        now.tx_functions.push(now.tx_functions[0].clone());
        let window = now.since(&before);
        let packets = |functions: &[FunctionReport]| {
            functions.iter().map(|function| function.packets).collect::<Vec<_>>()
        };
        assert_eq!(packets(&window.functions), [7]);
        assert_eq!(packets(&window.tx_functions), [2, 7]);
    }

    #[test]
    fn packets_in_flight_before_count_as_in() {
        let (mut before, mut now) = (counted(report(), |_| 0), counted(report(), |_| 0));
        (before.ledger.r#in, before.ledger.in_flight) = (100, 30);
        (now.ledger.r#in, now.ledger.in_flight) = (150, 20);
        let ledger = now.since(&before).ledger;
        assert_eq!((ledger.r#in, ledger.in_flight), (80, 20));
        before.ledger.r#in = 1_000;
        assert_eq!(now.since(&before).ledger.r#in, 0);
    }

    #[test]
    fn window_drops_are_by_reason() {
        let counts = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
            counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
        };
        let (mut before, mut now) = (counted(report(), |_| 0), counted(report(), |_| 0));
        before.drops = counts(&[("a", 3), ("b", 4), ("c", 9)]);
        now.drops = counts(&[("a", 5), ("b", 4), ("c", 1), ("d", 1)]);
        before.drops_by_stage = counts(&[("a@rx", 1)]);
        now.drops_by_stage = counts(&[("a@rx", 2)]);
        let window = now.since(&before);
        assert_eq!(window.drops, counts(&[("a", 2), ("d", 1)]));
        assert_eq!(window.drops_by_stage, counts(&[("a@rx", 1)]));
    }

    #[test]
    fn shares_are_of_the_window() {
        let (mut before, mut now) = (counted(report(), |_| 0), counted(report(), |_| 0));
        (before.duration_s, now.duration_s) = (2.0, 6.0);
        (before.borrowed_core.busy_fraction, now.borrowed_core.busy_fraction) = (0.25, 0.5);
        (before.borrowed_core.asleep_fraction, now.borrowed_core.asleep_fraction) = (1.0, 0.5);
        (before.target_cores[0].asleep_fraction, now.target_cores[0].asleep_fraction) = (0.0, 0.5);
        let window = now.since(&before);
        assert_eq!(window.duration_s, 4.0);
        let core = &window.borrowed_core;
        assert_eq!((core.busy_fraction, core.asleep_fraction), (0.625, 0.25));
        assert_eq!(window.target_cores[0].asleep_fraction, 0.75);
        // Two of one moment have no time between them.
        let none = now.since(&now);
        assert!(none.duration_s > 0.0 && none.duration_s < 1e-6);
        assert_eq!(none.borrowed_core.busy_fraction, 0.0);
        now.borrowed_core.busy_fraction = 1.0;
        assert_eq!(now.since(&before).borrowed_core.busy_fraction, 1.0);
    }

    #[test]
    fn window_latencies_are_per_queue() {
        let recorded = |queue, counts: &[(u64, u64)]| Recorded { queue, counts: counts.to_vec() };
        let (mut before, mut now) = (counted(report(), |_| 0), counted(report(), |_| 0));
        before.latencies = Some(vec![recorded(0, &[(100, 5)])]);
        now.latencies = Some(vec![recorded(1, &[(700, 2)]), recorded(0, &[(100, 5), (300, 1)])]);
        let window = now.since(&before);
        let expected = vec![recorded(1, &[(700, 2)]), recorded(0, &[(300, 1)])];
        assert_eq!(window.latencies, Some(expected));
        let medians: Vec<_> = window.queues.iter().map(|queue| queue.latency_ns.p50).collect();
        let near = |median: Option<u64>, value: u64| median.unwrap().abs_diff(value) <= value / 100;
        assert!(near(medians[0], 300) && near(medians[1], 700), "{medians:?}");
        assert!(near(window.latency_ns.p50, 700), "{window:?}");
        before.latencies = None;
        let window = now.since(&before);
        assert!(window.latencies.is_none() && window.latency_ns.p50.is_none());
        assert!(window.queues.iter().all(|queue| queue.latency_ns.p50.is_none()));
    }

    #[test]
    fn longest_absence_is_known_if_in_the_window() {
        let away =
            |longest_ns| TakenAway { total_ns: 9, times: 2, longest_ns, drops: 1, threshold_ns: 7 };
        let (mut before, mut now) = (counted(report(), |_| 0), counted(report(), |_| 0));
        for (was, is, expected) in [
            (Some(5), Some(5), None),
            (Some(5), Some(6), Some(6)),
            (None, Some(6), Some(6)),
            (None, None, None),
        ] {
            before.borrowed_core.taken_away = Some(away(was));
            now.borrowed_core.taken_away = Some(away(is));
            let window = now.since(&before).borrowed_core.taken_away.unwrap();
            let expected = TakenAway { total_ns: 0, times: 0, drops: 0, ..away(expected) };
            assert_eq!(window, expected);
        }
        before.borrowed_core.taken_away = None;
        let window = now.since(&before).borrowed_core.taken_away;
        assert_eq!(window, now.borrowed_core.taken_away);
    }

    /// Functions' own counters do not refer to the window.
    #[test]
    fn own_counters_start_at_insertion() {
        let of = |seen: u64, held: u64| {
            let mut report: Report = serde_json::from_value(report()).unwrap();
            report.functions[0].counters.insert("seen".into(), seen.into());
            report.functions[0].gauges.insert("held".into(), held.into());
            report
        };
        let function = &of(8, 2).since(&of(5, 3)).functions[0];
        assert_eq!((&function.counters["seen"], &function.gauges["held"]), (&json!(8), &json!(2)));
    }
}
