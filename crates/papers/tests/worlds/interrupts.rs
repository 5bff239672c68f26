//! Experiments about interrupts, on this machine's cores: short, without assertions that depend on
//! their speed.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, World};
use picnic_lab::outcome::{Outcome, Point, Source};
use picnic_lab::runner;
use picnic_papers::knet_livelock::{self, KnetLivelock};
use picnic_papers::picnic_latency::{self, PicnicLatency};
use picnic_papers::picnic_utilization::{self, PicnicUtilization};
use picnic_testing::{machine, skip};

/// The result of an experiment; none if this machine does not allow it.
fn run<C>(settings: C::Config) -> Option<Outcome>
where
    C: Component<Product = Box<dyn Experiment>>,
{
    let _machine = machine();
    let experiment = C::build(settings, &BuildContext::default()).unwrap();
    match runner::outcome(C::NAME, &*experiment, Effort::Quick, &mut |_, _| {}) {
        Err(LabError::Unavailable(why)) => {
            skip(&format!("{} on the host", C::NAME), &why);
            None
        }
        outcome => {
            let outcome = outcome.unwrap();
            assert_eq!(outcome.source(), Source::Measured);
            Some(outcome)
        }
    }
}

/// Values of each repeat with something to measure: a busy machine may give a card no time.
fn values(point: &Point, key: &str) -> Vec<f64> {
    point.figure(key).unwrap_or_else(|| panic!("no {key}: {point:#?}")).values
}

/// Whether a figure was nonzero at some point.
fn is_ever(points: &[Point], key: &str) -> bool {
    points.iter().flat_map(|point| values(point, key)).any(|value| value > 0.0)
}

/// Whether a figure is present, as a number or null.
fn is_told(outcome: &Outcome, key: &str) -> bool {
    let value = &outcome.fields()[key];
    value.is_number() || value.is_null()
}

#[test]
fn extra_latency_has_parts_line_and_knee() {
    let settings = picnic_latency::Settings {
        world: World::Host,
        packets_per_millisecond: vec![20.0, 40.0, 80.0],
        packets: Some(8_000),
        ..Default::default()
    };
    let Some(outcome) = run::<PicnicLatency>(settings) else { return };
    let loads = outcome.series.iter().find(|series| series.name == "loads").unwrap();
    assert_eq!(loads.points.len(), 3);
    for side in ["per_packet", "moderated"] {
        for key in ["knee_pps", "straight_pps", "line_r_squared", "line_rise_ns"] {
            assert!(is_told(&outcome, &format!("{side}_{key}")), "{side}_{key}");
        }
        for point in &loads.points {
            let of = |key: &str| values(point, &format!("{side}_{key}"));
            let parts = ["at_wire_ns", "on_borrowed_core_ns", "in_target_ring_ns"].map(of);
            // Parts are at least zero, so their sum may be larger.
            for (repeat, extra) in of("extra_ns").into_iter().enumerate() {
                let sum: f64 = parts.iter().map(|part| part[repeat]).sum();
                assert!(extra <= sum, "{extra} of {sum}: {point:#?}");
            }
        }
        for key in ["delivered_pps", "extra_ns", "at_wire_ns", "in_target_ring_ns"] {
            assert!(is_ever(&loads.points, &format!("{side}_{key}")), "{side}_{key}");
        }
        // The NIC's delay is its own moderation, and the polling card has none.
        assert_eq!(is_ever(&loads.points, &format!("{side}_held_ns")), side == "per_packet");
    }
    assert!(is_told(&outcome, "extra_at_80000_pps_ns"));
}

#[test]
fn livelock_has_both_curves() {
    let settings = knet_livelock::Settings {
        world: World::Host,
        multiples: vec![0.5, 2.0],
        milliseconds: Some(200),
        ..Default::default()
    };
    let Some(outcome) = run::<KnetLivelock>(settings) else { return };
    let loads = outcome.series.iter().find(|series| series.name == "loads").unwrap();
    assert_eq!(loads.points.len(), 2);
    for key in ["offered_pps", "none_delivered_pps", "queue_delivered_pps"] {
        assert!(is_ever(&loads.points, key), "{key}");
    }
    for gate in ["none", "queue"] {
        let share = outcome.median(&format!("least_share_of_peak_gate_{gate}"));
        // Without a peak, on a machine that lets a card deliver nothing, there is no share of it.
        let key = format!("{gate}_delivered_pps");
        let has_peak = loads.points.iter().any(|point| point.median(&key) > Some(0.0));
        assert_eq!(share.is_some(), has_peak, "{gate}: {outcome:#?}");
        assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{gate}: {share:?}");
    }
}

#[test]
fn variants_are_ordered_or_too_close() {
    let settings = picnic_utilization::Settings {
        world: World::Host,
        milliseconds: Some(200),
        ..Default::default()
    };
    let Some(outcome) = run::<PicnicUtilization>(settings) else { return };
    let ways = outcome.series.iter().find(|series| series.name == "ways").unwrap();
    assert_eq!(ways.points.len(), 3);
    for way in &ways.points {
        let busy = values(way, "target_core_busy_fraction");
        assert!(busy.iter().all(|share| (0.0..=1.0).contains(share)), "{way:#?}");
    }
    for key in ["interrupts_per_second", "target_core_busy_fraction", "target_ns_per_packet"] {
        assert!(is_ever(&ways.points, key), "{key}");
    }
    // Three repeats are never enough to be certain.
    for key in ["ways_in_order", "moderation_reduces_it"] {
        assert_eq!(outcome.fields()[key], "too close");
    }
}
