//! Dispatch: the main job at full speed, on a real borrowed core.
//!
//! A generator wire writes each frame anew (or reuses written frames), `rss` parses, hashes and
//! looks up the queue, descriptors move to the target rings, and the consumer cores read each
//! header and return the buffer. Compare one consumer core with the peer
//! `bench/peers/dpdk_dispatch.c`.

use super::{above_zero, measured};
use picnic_control::Launch;
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use picnic_lab::window::Window;
use picnic_machine::topology::cores;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Frames {
    /// The borrowed core writes every frame before it is parsed
    Fresh,
    /// Frames are written once, at the start
    Reuse,
}

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dispatch {
    /// Target queues
    queues: u16,
    /// Consumer cores, which share the queues
    #[schemars(range(min = 1, max = 256))]
    consumers: u16,
    /// Seconds to measure
    seconds: f64,
    /// Whether the borrowed core writes each frame anew, or once at the start
    frames: Frames,
    /// Bytes per frame
    size: u16,
    /// Flows
    flows: u32,
    /// Packets per burst, 1 to 64
    burst: u16,
    /// Descriptors per target ring
    ring_size: u32,
    /// Buffers in the pool
    buffers: u32,
    /// `pass` functions before `rss`
    pass: u16,
    /// Hash function
    hash: String,
}

impl Default for Dispatch {
    fn default() -> Self {
        Dispatch {
            queues: 4,
            consumers: 1,
            seconds: 2.0,
            frames: Frames::Fresh,
            size: 60,
            flows: 4096,
            burst: 64,
            ring_size: 1024,
            buffers: 4096,
            pass: 0,
            hash: "toeplitz".into(),
        }
    }
}

/// Warm-up of caches, page tables and branch predictors.
const WARM_UP: Duration = Duration::from_millis(300);

impl Benchmark for Dispatch {
    const NAME: &'static str = "dispatch";
    const HELP: &'static str = "dispatch from wire to target queue: parse, hash, ring, consumer";
    const QUICK: &'static str = "seconds = 0.05";

    fn check(&self) -> Result<(), ConfigError> {
        above_zero("seconds", self.seconds)?;
        let (found, most) = (usize::from(self.consumers), cores().len() - 1);
        if found > most.max(1) {
            let message = format!("found {found}, expected at most {most}: one core is borrowed");
            return Err(ConfigError::new("consumers", message));
        }
        Ok(())
    }

    fn measure(&self, _: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self)
    }
}

fn measure(args: &Dispatch) -> anyhow::Result<Outcome> {
    let file = card(args)?;
    let running = Launch::new(&file, picnic_host::registries()).start_alone()?;
    let window = Window::of(running, WARM_UP, Duration::from_secs_f64(args.seconds))?;
    let (elapsed, packets, report) = (window.seconds, window.delivered, window.report);
    let received: u64 = report.wires.iter().map(|wire| wire.rx_packets).sum();
    let busy_fraction = report.borrowed_core.busy_fraction;
    let busy_ns = busy_fraction * report.duration_s * 1e9;
    let mut outcome = measured();
    outcome.add(Figure::one("delivered_pps", (packets as f64 / elapsed).round()));
    outcome.add(Figure::one("ns_per_delivered_packet", elapsed * 1e9 / packets.max(1) as f64));
    outcome.add(Figure::one("borrowed_core_ns_per_packet", busy_ns / received.max(1) as f64));
    outcome.add(Figure::one("borrowed_core_busy_fraction", busy_fraction));
    outcome.add(Figure::count("dropped", report.ledger.dropped));
    outcome.add(Figure::one("measured_s", elapsed));
    outcome.notes = report.notes;
    Ok(outcome)
}

fn card(args: &Dispatch) -> anyhow::Result<CardFile> {
    let frames = format!("{:?}", args.frames).to_lowercase();
    let Dispatch { queues, consumers, size, flows, burst, ring_size, buffers, pass, hash, .. } =
        args;
    // Busy polling on both sides: this measures dispatch, not wake-ups.
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
    let cores = cores();
    if cores.len() > 1 {
        let consumers = cores.iter().take(usize::from(*consumers)).cycle();
        let list: Vec<_> = consumers.take(usize::from(*queues)).map(usize::to_string).collect();
        let list = list.join(", ");
        text = text.replace("[host]\n", &format!("[host]\ntarget_cores = [{list}]\n"));
    }
    Ok(CardFile::parse(&text, None)?)
}
