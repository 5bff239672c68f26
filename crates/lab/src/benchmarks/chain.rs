//! What functions cost by being there: chains of `pass`, on one core.

use super::{median, time_per_packet};
use clap::Args;
use picnic_core::function::{Function, Verdict, per_packet};
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::out::Doors;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::{BuildContext, find};
use picnic_core::time::Time;
use picnic_engine::chain::{Chain, Link};
use serde_json::{Value, json};
use std::sync::Arc;

/// Bursts per timing.
const BURSTS: usize = 4096;

#[derive(Debug, Args)]
pub struct ChainArgs {
    /// Functions in the chain
    #[arg(long, default_value_t = 4)]
    functions: usize,
    /// Interleaved repeats of each figure
    #[arg(long, default_value_t = 51)]
    repeats: usize,
}

pub fn run(args: &ChainArgs) -> anyhow::Result<Value> {
    let repeats = args.repeats.max(1);
    let mut empty = Bench::new(0, || anyhow::bail!("not called"))?;
    let mut pass = Bench::new(args.functions, pass)?;
    let mut closure = Bench::new(args.functions, || {
        Ok(Box::new(per_packet(|packet| {
            // Something a per-packet function would do, and the compiler cannot drop.
            packet.mark = packet.mark.wrapping_add(1);
            Verdict::Next
        })))
    })?;
    let mut times: [Vec<f64>; 3] = std::array::from_fn(|_| Vec::with_capacity(repeats));
    for _ in 0..repeats {
        times[0].push(empty.run());
        times[1].push(pass.run());
        times[2].push(closure.run());
    }
    let [empty, pass, closure] = times.each_mut().map(|times| median(times));
    Ok(json!({
        "benchmark": "chain",
        "functions": args.functions,
        "chain_of_pass_ns": pass - empty,
        "chain_of_closures_ns": closure - empty,
        "empty_chain_ns": empty,
        "burst": BURST,
        "repeats": repeats,
    }))
}

fn pass() -> anyhow::Result<Box<dyn Function>> {
    let section = picnic_core::config::Section::named("function", "pass");
    let entry = find(picnic_functions::registry::FUNCTIONS, &section)?;
    Ok(entry.build(&section, &BuildContext::default())?)
}

struct Bench {
    chain: Chain,
    doors: Doors,
    burst: Burst,
}

impl Bench {
    fn new(
        functions: usize,
        make: impl Fn() -> anyhow::Result<Box<dyn Function>>,
    ) -> anyhow::Result<Self> {
        let links: anyhow::Result<Vec<_>> =
            (0..functions).map(|_| Ok(Link::new("bench", make()?))).collect();
        let (pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        let ledger = Arc::new(Ledger::new(0));
        Ok(Bench {
            // The end of the tx chain takes descriptors to a wire's queue: no ring, no core.
            chain: Chain::new(Stage::Tx, links?),
            doors: Doors::new(pool, Vec::new(), 1, BURST, ledger),
            burst: Burst::new(),
        })
    }

    fn run(&mut self) -> f64 {
        time_per_packet(BURSTS * BURST, || {
            for _ in 0..BURSTS {
                while self.burst.room() != 0
                    && let Some(packet) = self.doors.pool.allocate(60)
                {
                    let _ = self.burst.push(packet);
                }
                self.chain.run(Time::ZERO, &mut self.burst, &mut self.doors);
                while let Some(packet) = self.doors.backlog.take() {
                    self.doors.pool.free(packet);
                }
            }
        })
    }
}
