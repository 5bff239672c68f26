//! Experiments about interrupts, on this machine's own cores: short, and nothing asserted that
//! depends on how fast these are.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, Experiment, LabError, World};
use picnic_lab::experiments::knet_livelock::{self, KnetLivelock};
use picnic_lab::experiments::picnic_latency::{self, PicnicLatency};
use picnic_lab::experiments::picnic_utilization::{self, PicnicUtilization};
use picnic_lab::outcome::{Outcome, Point, Source};
use picnic_lab::runner;
use picnic_testing::{machine, skip};

/// What an experiment comes to; none where this machine lets it not run.
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

fn values(point: &Point, key: &str) -> Vec<f64> {
    let values = point.figure(key).unwrap_or_else(|| panic!("no {key}: {point:#?}")).values;
    assert_eq!(values.len(), Effort::Quick.repeats() as usize, "{key}: {point:#?}");
    values
}

/// Whether a figure is there, told or "unavailable".
fn is_told(outcome: &Outcome, key: &str) -> bool {
    let value = &outcome.fields()[key];
    value.is_number() || value == "unavailable"
}

#[test]
fn extra_latency_is_split_and_a_line_and_a_knee_are_looked_for() {
    let settings = picnic_latency::Settings {
        world: World::Host,
        packets_per_millisecond: vec![5.0, 10.0, 20.0, 80.0],
        packets: Some(1_000),
        ..Default::default()
    };
    let Some(outcome) = run::<PicnicLatency>(settings) else { return };
    let loads = outcome.series.iter().find(|series| series.name == "loads").unwrap();
    assert_eq!(loads.points.len(), 4);
    for side in ["per_packet", "moderated"] {
        for key in ["knee_pps", "straight_pps", "line_r_squared", "line_rise_ns"] {
            assert!(is_told(&outcome, &format!("{side}_{key}")), "{side}_{key}");
        }
        for point in &loads.points {
            let of = |key: &str| values(point, &format!("{side}_{key}"));
            assert!(of("delivered_pps").iter().all(|&pps| pps > 0.0), "{point:#?}");
            let parts = ["at_wire_ns", "on_borrowed_core_ns", "in_target_ring_ns"].map(of);
            // A part is cut off at nothing, so that together they may be more.
            for (repeat, extra) in of("extra_ns").into_iter().enumerate() {
                let sum: f64 = parts.iter().map(|part| part[repeat]).sum();
                assert!(extra > 0.0 && extra <= sum, "{extra} of {sum}: {point:#?}");
            }
        }
        // What the NIC holds back is its own moderation, and the card that polls has none.
        let held = loads.points.iter().flat_map(|point| values(point, &format!("{side}_held_ns")));
        assert_eq!(held.into_iter().any(|ns| ns > 0.0), side == "per_packet");
    }
    assert!(outcome.fields()["extra_at_80000_pps_ns"].is_number());
}

#[test]
fn both_curves_of_the_livelock_are_there() {
    let settings = knet_livelock::Settings {
        world: World::Host,
        multiples: vec![0.5, 2.0],
        milliseconds: Some(50),
        ..Default::default()
    };
    let Some(outcome) = run::<KnetLivelock>(settings) else { return };
    let loads = outcome.series.iter().find(|series| series.name == "loads").unwrap();
    assert_eq!(loads.points.len(), 2);
    for point in &loads.points {
        for gate in ["none", "queue"] {
            let delivered = values(point, &format!("{gate}_delivered_pps"));
            assert!(delivered.iter().all(|&pps| pps >= 0.0), "{point:#?}");
        }
        // With a gate the application is never kept from its work.
        assert!(values(point, "queue_delivered_pps").iter().all(|&pps| pps > 0.0), "{point:#?}");
        assert!(values(point, "offered_pps").iter().all(|&pps| pps > 0.0), "{point:#?}");
    }
    for gate in ["none", "queue"] {
        let share = outcome.median(&format!("least_share_of_peak_gate_{gate}")).unwrap();
        assert!((0.0..=1.0).contains(&share), "{gate}: {share}");
    }
}

#[test]
fn the_ways_of_interrupting_are_put_in_order_or_called_too_close() {
    let settings = picnic_utilization::Settings {
        world: World::Host,
        milliseconds: Some(50),
        ..Default::default()
    };
    let Some(outcome) = run::<PicnicUtilization>(settings) else { return };
    let ways = outcome.series.iter().find(|series| series.name == "ways").unwrap();
    assert_eq!(ways.points.len(), 3);
    for way in &ways.points {
        let busy = values(way, "target_core_busy_fraction");
        assert!(busy.iter().all(|share| (0.0..=1.0).contains(share)), "{way:#?}");
        assert!(values(way, "interrupts_per_second").iter().all(|&rate| rate > 0.0), "{way:#?}");
    }
    // Three repeats are too few to be sure, whatever they say.
    for key in ["ways_in_order", "moderation_reduces_it"] {
        assert_eq!(outcome.fields()[key], "too close to tell");
    }
}
