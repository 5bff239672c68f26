//! Dispatch: the main job at full speed, on a real borrowed core.
//!
//! A generator wire writes each frame anew (or hands over frames written once),
//! `rss` parses, hashes and looks up the queue, descriptors move to the target
//! rings, one consumer core reads each header and returns the buffer. The peer to
//! compare with is `bench/peers/dpdk_dispatch.c`.

use clap::{Args, ValueEnum};
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_engine::view::View;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Frames {
    /// The borrowed core writes every frame before it is parsed
    Fresh,
    /// Frames are written once, at the start
    Reuse,
}

#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// Target queues, all on one consumer core
    #[arg(long, default_value_t = 4)]
    queues: u16,
    /// Seconds to measure
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Whether each frame is written anew
    #[arg(long, value_enum, default_value_t = Frames::Fresh)]
    frames: Frames,
    /// Bytes per frame
    #[arg(long, default_value_t = 60)]
    size: u16,
    /// Flows
    #[arg(long, default_value_t = 4096)]
    flows: u32,
    /// Packets per burst, 1 to 64
    #[arg(long, default_value_t = 64)]
    burst: u16,
    /// Descriptors per target ring
    #[arg(long, default_value_t = 1024)]
    ring_size: u32,
    /// Buffers in the pool
    #[arg(long, default_value_t = 4096)]
    buffers: u32,
    /// `pass` functions in front of `rss`
    #[arg(long, default_value_t = 0)]
    pass: u16,
    /// Hash function
    #[arg(long, default_value = "toeplitz")]
    hash: String,
}

/// Time for caches, page tables and branch predictors to settle.
const WARM_UP: Duration = Duration::from_millis(300);

pub fn run(args: &DispatchArgs) -> anyhow::Result<Value> {
    let file = card(args)?;
    let running = Launch::new(&file, picnic_host::registries()).start_alone()?;
    std::thread::sleep(WARM_UP);
    let delivered =
        |view: &View| -> u64 { view.queues.iter().map(|queue| queue.target.packets.get()).sum() };
    let (start, before) = (Instant::now(), delivered(running.view()));
    std::thread::sleep(Duration::from_secs_f64(args.seconds));
    let (elapsed, after) = (start.elapsed().as_secs_f64(), delivered(running.view()));
    let report = running.stop()?;
    anyhow::ensure!(report.ledger.balanced(), "the ledger does not balance: a bug");
    let received: u64 = report.wires.iter().map(|wire| wire.rx_packets).sum();
    let busy_ns = report.borrowed_core.busy_fraction * report.duration_s * 1e9;
    Ok(json!({
        "benchmark": "dispatch",
        "delivered_pps": ((after - before) as f64 / elapsed).round(),
        "ns_per_delivered_packet": elapsed * 1e9 / (after - before).max(1) as f64,
        "borrowed_core_ns_per_packet": busy_ns / received.max(1) as f64,
        "borrowed_core_busy_fraction": report.borrowed_core.busy_fraction,
        "dropped": report.ledger.dropped,
        "queues": args.queues,
        "frames": format!("{:?}", args.frames).to_lowercase(),
        "flows": args.flows,
        "size_bytes": args.size,
        "burst": args.burst,
        "ring_size": args.ring_size,
        "buffers": args.buffers,
        "pass_functions": args.pass,
        "seconds": elapsed,
        "notes": report.notes,
    }))
}

fn card(args: &DispatchArgs) -> anyhow::Result<CardFile> {
    let frames = format!("{:?}", args.frames).to_lowercase();
    let DispatchArgs { queues, size, flows, burst, ring_size, buffers, pass, hash, .. } = args;
    // Busy polling on both sides: this measures dispatch, not waking.
    let mut text = format!(
        "[card]\nidle = \"spin\"\nburst = {burst}\n\
         [pool]\nbuffers = {buffers}\n\
         [[wire]]\nport = \"generator\"\nflows = {flows}\nsize = {size}\nframes = \"{frames}\"\n\
         [host]\nqueues = {queues}\nring_size = {ring_size}\n\
         [interrupt]\npoll_usecs = 1000000\n"
    );
    for _ in 0..*pass {
        text.push_str("[[rx]]\nfunction = \"pass\"\n");
    }
    text.push_str(&format!("[[rx]]\nfunction = \"rss\"\nhash = \"{hash}\"\n"));
    let cores = picnic_machine::topology::cores();
    if let [first, .., _] = cores[..] {
        let list = vec![first.to_string(); usize::from(*queues)].join(", ");
        text = text.replace("[host]\n", &format!("[host]\ntarget_cores = [{list}]\n"));
    }
    Ok(CardFile::parse(&text, None)?)
}
