//! scrub: reads a block of memory piece by piece and reports changes.
//!
//! At each release the whole block is read, 256 bytes a segment, and its CRC-32
//! (IEEE 802.3) compared with the sum of the previous release. If they differ, a frame
//! is sent on wire 0: Ethernet, local experimental type (IEEE 802, 0x88b5), `SCRB`,
//! the old sum and the new one, four bytes each, big-endian.
//!
//! While it runs, `picnic ctl scrub` shows how often the block was read, and its last sum.
//!
//! An example of `#[task]`: three nested loops, with counted or declared bounds, split by
//! a yield. `picnic wcet show scrub` prints its graph and bounds.

use crate::bounds;
use crate::graphs::{Task, Trial};
use picnic_core::command::{CommandEntry, Get, Inspect};
use picnic_core::error::ConfigError;
use picnic_core::registry::{BuildContext, Component};
use picnic_core::stats::Counter;
use picnic_os::config::Setup;
use picnic_os::context::Nic;
use picnic_os::task::{TaskSpec, program};
use picnic_wcet::{CostProfile, bounded, task, wcet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// The task, as card files name it.
#[derive(Debug)]
pub struct Scrub;

/// Its keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Bytes of the block.
    #[schemars(range(min = 1, max = MOST_PIECES * PIECE))]
    pub bytes: usize,
    /// Cost profile for its bounds, as written by `picnic wcet calibrate`; empty: the card's.
    pub profile: String,
}

impl Default for Config {
    fn default() -> Self {
        Config { bytes: MOST_PIECES * PIECE, profile: String::new() }
    }
}

impl Component for Scrub {
    type Product = Setup;
    type Config = Config;
    const NAME: &'static str = "scrub";
    const HELP: &'static str = "read a block of memory piece by piece and report changes";
    const COMMANDS: &'static [CommandEntry] = &[CommandEntry::of::<Get<Arc<Passes>>>()];

    fn build(config: Config, context: &BuildContext) -> Result<Setup, ConfigError> {
        let spec = TaskSpec::new(Self::NAME).periodic(100_000_000);
        let spec = match config.profile.as_str() {
            "" => bounds::bounded(spec, &scrub::GRAPH, context)?,
            path => {
                let profile = CostProfile::load(&context.directory.join(Path::new(path)))
                    .map_err(|error| ConfigError::new("profile", error.to_string()))?;
                bounds::under(spec, &scrub::GRAPH, &profile)?
            }
        };
        let block = vec![0x5a; config.bytes].into_boxed_slice();
        let passes = Arc::new(Passes::default());
        let shown = passes.clone();
        Ok(Setup { spec, program: program(move |nic| scrub(nic, block, passes)).obeying(shown) })
    }
}

impl Task for Scrub {
    const GRAPH: Option<Trial> = Some((&scrub::GRAPH, || {
        let block = vec![0x5a; MOST_PIECES * PIECE].into_boxed_slice();
        program(|nic| scrub(nic, block, Arc::default()))
    }));
}

/// State that a scrub shares with its command.
#[derive(Debug, Default)]
pub struct Passes {
    passes: Counter,
    changes: Counter,
    sum: Counter,
}

/// State of a scrub.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct State {
    /// Times that the whole block was read.
    pub passes: u64,
    /// Times that it had changed since the previous reading.
    pub changes: u64,
    /// Its CRC-32 at the last reading; 0 before the first.
    pub crc32: u64,
}

impl Inspect for Passes {
    type State = State;
    const HELP: &'static str = "number of times the block was read, and of changes found";

    fn inspect(&self) -> State {
        State { passes: self.passes.get(), changes: self.changes.get(), crc32: self.sum.get() }
    }
}

/// Bytes read per segment.
const PIECE: usize = 256;
/// Pieces of the largest block.
pub const MOST_PIECES: usize = 64;
/// Bytes before the sums.
const HEADER: [u8; 18] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // broadcast
    0x02, 0x50, 0x49, 0x43, 0x4e, 0x01, // locally administered
    0x88, 0xb5, b'S', b'C', b'R', b'B',
];

/// The sum of an empty block.
const START: u32 = u32::MAX;

/// Adds a byte to the sum, bit by bit, lowest bit first.
#[bounded]
fn crc_step(sum: u32, byte: u8) -> u32 {
    let mut sum = sum ^ u32::from(byte);
    for _ in 0..8 {
        let carry = sum & 1;
        sum >>= 1;
        if carry == 1 {
            sum ^= 0xedb8_8320;
        }
    }
    sum
}

/// Reports the change.
#[wcet(ns = 2_000)]
fn report(nic: &Nic, old: u32, new: u32) {
    let mut frame = [0; 60];
    frame[..HEADER.len()].copy_from_slice(&HEADER);
    frame[HEADER.len()..][..4].copy_from_slice(&old.to_be_bytes());
    frame[HEADER.len() + 4..][..4].copy_from_slice(&new.to_be_bytes());
    // A frame that cannot be sent is lost.
    let _ = nic.post(0, &frame);
}

/// Reads `block` at each release; bytes past [`MOST_PIECES`] pieces are left out.
#[task]
pub async fn scrub(nic: Nic, block: Box<[u8]>, passes: Arc<Passes>) {
    let mut known: Option<u32> = None;
    loop {
        let mut sum = START;
        #[bound(64)]
        for piece in block.chunks(PIECE).take(MOST_PIECES) {
            #[bound(256)]
            for byte in piece {
                sum = crc_step(sum, *byte);
            }
            nic.yield_now().await;
        }
        if let Some(old) = known
            && old != sum
        {
            report(&nic, !old, !sum);
            passes.changes.set(passes.changes.get().wrapping_add(1));
        }
        passes.passes.set(passes.passes.get().wrapping_add(1));
        passes.sum.set(u64::from(!sum));
        known = Some(sum);
        nic.next_release().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_the_ethernet_sum() {
        let sum = b"123456789".iter().fold(START, |sum, byte| crc_step(sum, *byte));
        assert_eq!(!sum, 0xcbf4_3926);
    }

    #[test]
    fn a_segment_is_bounded_by_one_piece() {
        let profile = picnic_wcet::CostProfile::built_in();
        let bounds = picnic_wcet::bounds(&scrub::GRAPH, &profile).unwrap();
        assert_eq!(bounds.segments.len(), 3);
        // The whole block is read before the wait.
        assert!(bounds.remaining[0] > 60 * bounds.segments[0]);
        assert!(bounds.remaining[0] < u64::MAX);
    }
}
