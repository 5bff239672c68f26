//! PICNIC figures 6 and 8, and 5.3: eight cores, several gigabit NICs or one of 10 Gb/s.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_sim::machine::{Accounts, Cost, Profile};

/// A full frame on the wire: 1514 bytes, check sequence, preamble and gap.
const FRAME_BITS: f64 = 1538.0 * 8.0;
const PER_PACKET: &str = "per_packet = true\ngate = \"none\"";

/// A web server on six cores behind four wires, its packets distributed over `queues` of them.
fn web(profile: &Profile, queues: u16, effort: Effort) -> Result<Passed, String> {
    let cores: Vec<_> = (0..queues).collect();
    let gap_us = (profile.costs.get(Cost::NicGap) / 1000.0).round();
    let wire = "[[wire]]\nport = \"peers\"\nconnections = 50\nfile_bytes = 65160\ndelay_us = 75\n\
                window_bytes = 65536\n";
    let text = format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}\
         [[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n[host]\nattachment = \"model\"\n\
         queues = {queues}\ntarget_cores = {cores:?}\ncores = 6\n\
         ring_size = 4096\n[interrupt]\n{PER_PACKET}\nwire_usecs = {gap_us}\n",
        wire.repeat(4)
    );
    run(profile, &text, effort.lasts(60_000, 120_000, 300_000, 1_000_000), 1)
}

fn gain(profile: &Profile, from: u16, to: u16, effort: Effort) -> Result<f64, String> {
    let of = |queues| web(profile, queues, effort).map(|passed| passed.goodput_bps());
    Ok(of(to)? / of(from)? - 1.0)
}

/// From one queue to two.
pub(crate) fn web_1_to_2(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 1, 2, effort)
}

/// From two queues to six.
pub(crate) fn web_2_to_6(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 2, 6, effort)
}

/// From one queue to six.
pub(crate) fn web_1_to_6(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 1, 6, effort)
}

/// The formula for one queue to two: one core's network work, N cores for all.
pub(crate) fn web_1_to_2_formula(profile: &Profile) -> f64 {
    let Ok(passed) = web(profile, 1, Effort::Quick) else { return f64::NAN };
    let network = passed.accounts.first().map_or(0, Accounts::busy) as f64;
    let all: u64 = passed.accounts.iter().map(Accounts::busy).sum();
    (passed.accounts.len() as f64 * network / all as f64).min(2.0) - 1.0
}

/// Payload in bits per second by number of queues.
pub(crate) fn web_by_queues(profile: &Profile, effort: Effort) -> Result<Vec<(f64, f64)>, String> {
    let payload = |queues| Ok((f64::from(queues), web(profile, queues, effort)?.goodput_bps()));
    [1, 2, 6].into_iter().map(payload).collect()
}

/// Five wires at line rate, each flow to its own target.
fn five_wires(profile: &Profile, effort: Effort) -> Result<Passed, String> {
    let wire = "[[wire]]\nport = \"peers\"\nworkload = \"send\"\nconnections = 1\n\
                window_bytes = 260640\nring = 256\ndelay_us = 50\n";
    let text = format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}\
         [[rx]]\nfunction = \"by-wire\"\n[host]\nattachment = \"model\"\n\
         queues = 5\ntarget_cores = [0, 1, 2, 3, 4]\nreceive_buffer = 524288\nio_bytes = 65536\n\
         [interrupt]\n{PER_PACKET}\nwire_usecs = 125\n",
        wire.repeat(5)
    );
    run(profile, &text, effort.lasts(5_000, 20_000, 50_000, 200_000), 1)
}

/// Load of the borrowed core with five wires.
pub(crate) fn five_wires_load(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(five_wires(profile, effort)?.borrowed_busy)
}

/// Bits per second that the card takes from five wires, with framing.
pub(crate) fn five_wires_bps(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let passed = five_wires(profile, effort)?;
    Ok(passed.received as f64 * FRAME_BITS / passed.seconds)
}

/// The formula: packets per second of five gigabits, times the cost of one.
pub(crate) fn five_wires_formula(profile: &Profile) -> f64 {
    5.0 * 1e9 / FRAME_BITS * profile.costs.get(Cost::CardPacket) / 1e9
}

/// Payload in bits per second by number of queues.
pub(crate) fn bulk_by_queues(profile: &Profile, effort: Effort) -> Result<Vec<(f64, f64)>, String> {
    let payload = |queues| Ok((f64::from(queues), bulk(profile, queues, effort)?));
    [1, 2, 4].into_iter().map(payload).collect()
}

/// 32 connections that send files of 1 MB in pieces of 4 kB over a 10 Gb/s link.
fn bulk(profile: &Profile, queues: u16, effort: Effort) -> Result<f64, String> {
    let cores: Vec<_> = (0..queues).collect();
    let text = format!(
        "[card]\nborrowed_core = 8\nidle = \"spin\"\n[pool]\nbuffers = 32768\n[[wire]]\n\
         port = \"peers\"\nconnections = 32\nfile_bytes = 1000000\nrate_mbps = 10000\n\
         delay_us = 75\n[[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"model\"\n\
         queues = {queues}\ntarget_cores = {cores:?}\ncores = 8\n\
         io_bytes = 4096\nsend_window = 44\nfirst_window = 44\nring_size = 4096\n\
         [interrupt]\nrx_usecs = 0\n"
    );
    let passed = run(profile, &text, effort.lasts(60_000, 100_000, 300_000, 1_000_000), 1)?;
    Ok(passed.goodput_bps())
}

/// Throughput with one queue, in bits per second.
pub(crate) fn bulk_1(profile: &Profile, effort: Effort) -> Result<f64, String> {
    bulk(profile, 1, effort)
}

/// From one queue to two.
pub(crate) fn bulk_1_to_2(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(bulk(profile, 2, effort)? / bulk(profile, 1, effort)? - 1.0)
}

/// From one queue to four.
pub(crate) fn bulk_1_to_4(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(bulk(profile, 4, effort)? / bulk(profile, 1, effort)? - 1.0)
}
