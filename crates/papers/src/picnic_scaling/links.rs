//! The same with faster links and shorter frames than the settings'; modelled.
//!
//! Each link is run with the fewest and with the most wires that the line is fitted to. Target
//! cores have no work here: the borrowed core is the limit. If the most wires do not saturate it,
//! the line through both predicts the number that would; otherwise the delivered load gives the
//! number of wires.

use super::{FULL, LOSS, Settings, WAYS};
use picnic_lab::compare::median;
use picnic_lab::experiment::{MeasuredPoint, Spec, World};
use picnic_lab::outcome::{Figure, Outcome, Point};
use picnic_sim::CostModel;
use std::time::Duration;

/// Many times the delay of packets that wait for each other.
const LEAST: Duration = Duration::from_millis(2);

/// The points of links and frames other than the settings'.
pub(super) fn points(settings: &Settings) -> Vec<Spec> {
    let others = all(settings).skip(1).filter(|_| settings.world == World::Sim);
    let spec = |(link, bytes)| {
        ends(settings).map(move |wires| {
            Spec::at("link_mbps", link)
                .and("frame_bytes", bytes)
                .and("wires", wires)
                .sides(&WAYS.map(|(name, _)| name))
        })
    };
    others.flat_map(spec).collect()
}

/// Rates of links and lengths of frames, those of the settings first.
fn all(settings: &Settings) -> impl Iterator<Item = (u32, u16)> {
    let Settings { link_mbps, more_links_mbps, frame_bytes, more_frames_bytes, .. } = settings;
    [frame_bytes].into_iter().chain(more_frames_bytes).flat_map(move |&bytes| {
        [link_mbps].into_iter().chain(more_links_mbps).map(move |&link| (link, bytes))
    })
}

/// The fewest wires and the most.
fn ends(settings: &Settings) -> impl Iterator<Item = u32> + use<> {
    let (fewest, most) = (settings.wires.iter().min(), settings.wires.iter().max());
    fewest.copied().into_iter().chain(most.filter(|most| Some(*most) != fewest).copied())
}

/// Whether a point is one of these.
pub(super) fn is_one(point: &Spec) -> bool {
    point.labels.contains_key("link_mbps")
}

/// The settings with the link and the frames of a point.
pub(super) fn at(settings: &Settings, point: &Spec) -> Settings {
    let mut settings = settings.clone();
    if is_one(point) {
        settings.link_mbps = point.number("link_mbps") as u32;
        settings.frame_bytes = point.number("frame_bytes") as u16;
        settings.host_ns = 0;
    }
    settings
}

/// Time for the same number of packets as on the settings' own link.
pub(super) fn time(settings: &Settings, link: &Settings, time: Duration) -> Duration {
    time.mul_f64((settings.link_pps() / link.link_pps()).min(1.0)).max(LEAST.min(time))
}

/// Costs with target cores without work.
pub(super) fn costs(costs: CostModel) -> CostModel {
    CostModel { target_packet_ns: 0, target_turn_ns: 1, ..costs }
}

/// A row for each link and way.
pub(super) fn conclude(outcome: &mut Outcome, settings: &Settings, points: &[MeasuredPoint]) {
    for (side, (name, _)) in WAYS.iter().enumerate() {
        for (link, bytes) in all(settings) {
            let found = |wires: u32| {
                points.iter().find(|found| {
                    let own = at(settings, &found.spec);
                    (own.link_mbps, own.frame_bytes) == (link, bytes)
                        && found.spec.number("wires") as u32 == wires
                })
            };
            let mut ends = ends(settings).filter_map(found);
            let Some(fewest) = ends.next() else { continue };
            let most = ends.next().unwrap_or(fewest);
            let wires = |found: &MeasuredPoint| found.spec.number("wires");
            let of = |key: &str, found: &MeasuredPoint| Figure::of(key, found.values(side, key));
            let busy = |of: &str, found: &MeasuredPoint| {
                Figure::of(&format!("{of}_busy_fraction"), found.values(side, "busy_fraction"))
                    .called(&format!("borrowed core, wires: {}", wires(found)))
            };
            outcome.series("links").push(
                Point::at("way", *name)
                    .and("link_mbps", link)
                    .and("frame_bytes", bytes)
                    .with(busy("fewest", fewest))
                    .with(busy("most", most))
                    .with(of("delivered_bps", most).called("delivered"))
                    .with(of("dropped_fraction", most).called("dropped"))
                    .with(
                        Figure::one("full_at_wires", full_at(link, side, fewest, most))
                            .called("core saturated at wires"),
                    ),
            );
        }
    }
}

/// The number of wires that saturate the borrowed core; none if a target core was saturated before.
fn full_at(
    link_mbps: u32,
    side: usize,
    fewest: &MeasuredPoint,
    most: &MeasuredPoint,
) -> Option<f64> {
    let of = |found: &MeasuredPoint, key: &str| median(&found.values(side, key));
    if of(most, "busiest_target_fraction") > FULL {
        return None;
    }
    if of(most, "busy_fraction") > FULL || of(most, "dropped_fraction") > LOSS {
        return Some(of(most, "delivered_bps") / (f64::from(link_mbps) * 1e6));
    }
    let [first, last] = [fewest, most].map(|found| found.spec.number("wires"));
    let (start, end) = (of(fewest, "busy_fraction"), of(most, "busy_fraction"));
    Some(last + (1.0 - end) * (last - first) / (end - start)).filter(|at| at.is_finite())
}
