//! PICNIC figures 6 and 8, and 5.3: eight cores, several gigabit NICs or one of 10 Gb/s.

use super::runs::{Passed, run};
use picnic_lab::experiment::Effort;
use picnic_sim::machine::{Accounts, Cost, Profile};

const PER_PACKET: &str = "per_packet = true\ngate = \"none\"";

/// A web server on six cores behind four wires, its packets spread over `queues` of them.
fn web(profile: &Profile, queues: u16, effort: Effort) -> Result<Passed, String> {
    let cores: Vec<_> = (0..queues).collect();
    let gap_us = (profile.costs.get(Cost::NicGap) / 1000.0).round();
    let wire = "[[wire]]\nport = \"peers\"\nconnections = 50\nfile_bytes = 65160\ndelay_us = 75\n\
                window_bytes = 65536\n";
    let text = format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}\
         [[rx]]\nfunction = \"rss\"\nhash = \"jhash\"\n[host]\nattachment = \"model\"\n\
         queues = {queues}\ntarget_cores = {cores:?}\ncores = 6\nfile_bytes = 65160\n\
         ring_size = 4096\n[interrupt]\n{PER_PACKET}\nwire_usecs = {gap_us}\n",
        wire.repeat(4)
    );
    run(profile, &text, 60_000, effort.of(120_000, 300_000, 1_000_000), 1)
}

fn gain(profile: &Profile, from: u16, to: u16, effort: Effort) -> Result<f64, String> {
    let of = |queues| web(profile, queues, effort).map(|passed| passed.goodput_bps());
    Ok(of(to)? / of(from)? - 1.0)
}

/// From one queue to two.
pub(super) fn web_1_to_2(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 1, 2, effort)
}

/// From two queues to six.
pub(super) fn web_2_to_6(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 2, 6, effort)
}

/// From one queue to six.
pub(super) fn web_1_to_6(profile: &Profile, effort: Effort) -> Result<f64, String> {
    gain(profile, 1, 6, effort)
}

/// The formula for one queue to two: one core's network work, N cores for all.
pub(super) fn web_1_to_2_formula(profile: &Profile) -> f64 {
    let Ok(passed) = web(profile, 1, Effort::Quick) else { return f64::NAN };
    let network = passed.accounts.first().map_or(0, Accounts::busy) as f64;
    let all: u64 = passed.accounts.iter().map(Accounts::busy).sum();
    (passed.accounts.len() as f64 * network / all as f64).min(2.0) - 1.0
}

/// Load of the borrowed core with five wires at line rate, each flow to its own target.
pub(super) fn five_wires(profile: &Profile, effort: Effort) -> Result<f64, String> {
    let wire = "[[wire]]\nport = \"peers\"\nworkload = \"send\"\nconnections = 1\n\
                window_bytes = 260640\nring = 256\ndelay_us = 50\n";
    let text = format!(
        "[card]\nborrowed_core = 7\nidle = \"spin\"\n[pool]\nbuffers = 32768\n{}\
         [[rx]]\nfunction = \"by-wire\"\n[host]\nattachment = \"model\"\nserves = \"sink\"\n\
         queues = 5\ntarget_cores = [0, 1, 2, 3, 4]\nreceive_buffer = 524288\nio_bytes = 65536\n\
         [interrupt]\n{PER_PACKET}\nwire_usecs = 125\n",
        wire.repeat(5)
    );
    Ok(run(profile, &text, 5_000, effort.of(20_000, 50_000, 200_000), 1)?.borrowed_busy)
}

/// The formula: packets per second of five gigabits, times the cost of one.
pub(super) fn five_wires_formula(profile: &Profile) -> f64 {
    5.0 * 81_274.0 * profile.costs.get(Cost::CardPacket) / 1e9
}

/// 32 connections that send files of 1 MB in pieces of 4 kB, over one link of 10 Gb/s.
fn bulk(profile: &Profile, queues: u16, effort: Effort) -> Result<f64, String> {
    let cores: Vec<_> = (0..queues).collect();
    let text = format!(
        "[card]\nborrowed_core = 8\nidle = \"spin\"\n[pool]\nbuffers = 32768\n[[wire]]\n\
         port = \"peers\"\nconnections = 32\nfile_bytes = 1000000\nrate_mbps = 10000\n\
         delay_us = 75\n[[rx]]\nfunction = \"rss\"\n[host]\nattachment = \"model\"\n\
         queues = {queues}\ntarget_cores = {cores:?}\ncores = 8\nfile_bytes = 1000000\n\
         io_bytes = 4096\nsend_window = 44\nfirst_window = 44\nring_size = 4096\n\
         [interrupt]\nrx_usecs = 0\n"
    );
    let passed = run(profile, &text, 60_000, effort.of(100_000, 300_000, 1_000_000), 1)?;
    Ok(passed.goodput_bps())
}

/// Throughput with one queue, in bits per second.
pub(super) fn bulk_1(profile: &Profile, effort: Effort) -> Result<f64, String> {
    bulk(profile, 1, effort)
}

/// From one queue to two.
pub(super) fn bulk_1_to_2(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(bulk(profile, 2, effort)? / bulk(profile, 1, effort)? - 1.0)
}

/// From one queue to four.
pub(super) fn bulk_1_to_4(profile: &Profile, effort: Effort) -> Result<f64, String> {
    Ok(bulk(profile, 4, effort)? / bulk(profile, 1, effort)? - 1.0)
}
