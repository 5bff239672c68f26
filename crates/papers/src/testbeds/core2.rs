//! PLACEMENT: core 0 does the protocol work of all links; the application has a core of its choice.
//!
//! Two bonded links are one of twice the rate here. The NICs moderate their interrupts.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_lab::outcome::{Figure, Point};
use picnic_sim::machine::{Accounts, Cost, Profile};

/// What protocol and application share, and the application's core.
pub(crate) const PAIRS: [(&str, usize); 4] =
    [("same-core", 0), ("same-die", 1), ("same-processor", 2), ("same-computer", 4)];
const CORE: usize = 0;
const DIE: usize = 1;

/// The rate that is as fast as possible.
const FLAT_OUT: f64 = 0.0;
/// Payload of a segment.
const PAYLOAD: f64 = 1448.0;
/// Where the paper sees a drop of CPU, and a rate below: in MB/s.
const DROP: f64 = 75.0;
const BELOW_DROP: f64 = 50.0;
/// A low rate.
const LOW: f64 = 10.0;
/// The highest that all scenarios are asked for.
const HIGH: f64 = 100.0;

/// Connections, one on each link of `rate_mbps`, each at a given rate in MB/s.
fn connections(
    profile: &Profile,
    pair: usize,
    (links, rate_mbps): (usize, u32),
    mbytes: f64,
    effort: Effort,
) -> Result<Passed, String> {
    let (_, application) = PAIRS[pair];
    let gap_us = (profile.costs.get(Cost::NicGap) / 1000.0).round();
    let rate = match mbytes {
        FLAT_OUT => String::new(),
        mbytes => format!("segments_per_second = {:.1}\n", mbytes * 1e6 / PAYLOAD),
    };
    let wire = format!(
        "[[wire]]\nport = \"peers\"\nworkload = \"send\"\nconnections = 1\n{rate}\
         window_bytes = 185344\nrate_mbps = {rate_mbps}\ndelay_us = 20\n"
    );
    let cores = vec![0; links];
    let text = format!(
        "[card]\nborrowed_core = 8\nidle = \"spin\"\n[pool]\nbuffers = 16384\n{}[[rx]]\n\
         function = \"by-wire\"\n[host]\nattachment = \"model\"\nqueues = {links}\n\
         target_cores = {cores:?}\ncores = 8\nprocess_core = {application}\nio_bytes = 1448\n\
         receive_buffer = 262144\n[interrupt]\nrx_usecs = {gap_us}\nrx_frames = 0\n",
        wire.repeat(links)
    );
    run(profile, &text, effort.lasts(20_000, 40_000, 100_000, 400_000), 1)
}

fn single(profile: &Profile, pair: usize, rate: f64, effort: Effort) -> Result<Passed, String> {
    connections(profile, pair, (1, 2000), rate, effort)
}

fn multi(profile: &Profile, pair: usize, rate: f64, effort: Effort) -> Result<Passed, String> {
    connections(profile, pair, (4, 1000), rate, effort)
}

fn bps(passed: &Passed) -> f64 {
    passed.host.bytes_read as f64 * 8.0 / passed.seconds
}

/// Busy time of all cores, in cores.
fn cpu(passed: &Passed) -> f64 {
    passed.accounts.iter().map(Accounts::busy).sum::<u64>() as f64 / (passed.seconds * 1e9)
}

/// Something of each pair.
fn each(
    run: impl Fn(usize) -> Result<Passed, String>,
    of: fn(&Passed) -> f64,
) -> Result<[f64; 4], String> {
    let [core, die, processor, computer] =
        [0, 1, 2, 3].map(|pair| run(pair).map(|passed| of(&passed)));
    Ok([core?, die?, processor?, computer?])
}

fn most(values: [f64; 4]) -> f64 {
    values.into_iter().fold(f64::MIN, f64::max)
}

fn least(values: [f64; 4]) -> f64 {
    values.into_iter().fold(f64::MAX, f64::min)
}

// ---------------------------------------------------------------- one connection

/// The share of a rate that the worst pair reaches.
pub(crate) fn least_share(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let rates = each(|pair| single(profile, pair, HIGH, effort), bps)?;
    Ok(least(rates) / (HIGH * 8e6))
}

/// The CPU of the dearest pair at a rate that all reach, relative to the cheapest.
pub(crate) fn cpu_spread(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let cpus = each(|pair| single(profile, pair, HIGH, effort), cpu)?;
    Ok(most(cpus) / least(cpus) - 1.0)
}

/// The change of CPU from below the paper's drop to it; the least of all pairs.
pub(crate) fn cpu_drop(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let at = |rate| each(|pair| single(profile, pair, rate, effort), cpu);
    let (below, above) = (at(BELOW_DROP)?, at(DROP)?);
    Ok(least([0, 1, 2, 3].map(|pair| above[pair] / below[pair] - 1.0)))
}

/// CPU of one core for all, relative to the cheapest other pair, at a low rate.
pub(crate) fn same_core_cpu(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let cpus = each(|pair| single(profile, pair, LOW, effort), cpu)?;
    let others = cpus[1..].iter().copied().fold(f64::MAX, f64::min);
    Ok(cpus[CORE] / others - 1.0)
}

/// At full speed, the worst pair against the best.
pub(crate) fn single_worst(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let rates = each(|pair| single(profile, pair, FLAT_OUT, effort), bps)?;
    Ok(least(rates) / most(rates) - 1.0)
}

// ---------------------------------------------------------------- four connections

fn flat_out(profile: &Profile, effort: Effort) -> Result<[f64; 4], String> {
    each(|pair| multi(profile, pair, FLAT_OUT, effort), bps)
}

/// One core for all, against the best pair.
pub(crate) fn same_core(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let rates = flat_out(profile, effort)?;
    Ok(rates[CORE] / most(rates) - 1.0)
}

/// One core for all, against its own rate with one connection.
pub(crate) fn same_core_to_single(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let alone = bps(&single(profile, CORE, FLAT_OUT, effort)?);
    Ok(flat_out(profile, effort)?[CORE] / alone - 1.0)
}

/// The worst pair against the best.
pub(crate) fn multi_worst(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let rates = flat_out(profile, effort)?;
    Ok(least(rates) / most(rates) - 1.0)
}

/// Two cores that share an L2, against the best other pair.
pub(crate) fn same_die(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let rates = flat_out(profile, effort)?;
    Ok(rates[DIE] / most([rates[CORE], rates[2], rates[3], 0.0]) - 1.0)
}

/// CPU of one core for all, relative to the cheapest other pair, at a low rate of each.
pub(crate) fn multi_same_core_cpu(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let cpus = each(|pair| multi(profile, pair, LOW, effort), cpu)?;
    let others = cpus[1..].iter().copied().fold(f64::MAX, f64::min);
    Ok(cpus[CORE] / others - 1.0)
}

// ---------------------------------------------------------------- curves

type Scenario = fn(&Profile, usize, f64, Effort) -> Result<Passed, String>;

/// Rate and CPU of each pair by offered rate; the last one is full speed.
fn curve(
    profile: &Profile,
    effort: Effort,
    scenario: Scenario,
    rates: &[f64],
) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for &rate in rates {
        for (pair, (name, _)) in PAIRS.iter().enumerate() {
            let passed = scenario(profile, pair, rate, effort)?;
            let point = Point::at("pair", *name)
                .and("offered_mbytes", rate as u64)
                .with(Figure::one("goodput_bps", bps(&passed)))
                .with(Figure::one("both_cores", cpu(&passed)));
            points.push(point);
        }
    }
    Ok(points)
}

pub(crate) fn single_by_rate(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    curve(profile, effort, single, &[10.0, 25.0, 50.0, 75.0, 100.0, 150.0, 200.0, 233.0])
}

pub(crate) fn multi_by_rate(profile: &Profile, effort: Effort) -> Result<Vec<Point>, String> {
    curve(profile, effort, multi, &[10.0, 25.0, 50.0, 75.0, 100.0, 116.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_distances_placement_beside_the_protocol_makes_no_difference() {
        let mut flat = Profile::named("core2").unwrap();
        let near = flat.costs.get(Cost::SharedCacheLine);
        for cost in [Cost::PackageLine, Cost::RemoteLine] {
            flat.costs.set(cost, near);
        }
        let rates = flat_out(&flat, Effort::Quick).unwrap();
        assert!((rates[DIE] / rates[2] - 1.0).abs() < 0.01, "{rates:?}");
        assert!((rates[DIE] / rates[3] - 1.0).abs() < 0.01, "{rates:?}");
    }

    #[test]
    fn a_copy_of_one_line_at_a_time_costs_the_same_core_more() {
        let profile = Profile::named("core2").unwrap();
        let mut slow = profile.clone();
        slow.costs.set(Cost::LinesInFlight, 1.0);
        let of = |profile: &Profile| same_core(profile, Effort::Quick).unwrap();
        assert!(of(&slow) < of(&profile) - 0.1, "{} and {}", of(&slow), of(&profile));
    }
}
