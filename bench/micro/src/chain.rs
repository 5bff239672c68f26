//! The overhead of functions: chains of `pass`, on one core.

use super::{measured, time_per_packet};
use picnic_core::function::{Function, Verdict, per_packet};
use picnic_core::ledger::{Ledger, Stage};
use picnic_core::out::Doors;
use picnic_core::packet::burst::{BURST, Burst};
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::{BuildContext, find};
use picnic_core::time::Time;
use picnic_engine::chain::{Chain, ChainFunction};
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Bursts per timing.
const BURSTS: usize = 4096;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Chains {
    /// Functions in the chain
    #[schemars(range(min = 0, max = 1024))]
    functions: usize,
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Chains {
    fn default() -> Self {
        Chains { functions: 4, repeats: 51 }
    }
}

impl Benchmark for Chains {
    const NAME: &'static str = "chain";
    const HELP: &'static str = "cost of a chain of `pass` functions, per packet";
    const QUICK: &'static str = "repeats = 3";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &Chains, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let mut empty = Bench::new(0, || anyhow::bail!("not called"))?;
    let mut pass = Bench::new(args.functions, pass)?;
    let mut closure = Bench::new(args.functions, || {
        Ok(Box::new(per_packet(|packet| {
            // Typical per-packet work that the compiler cannot remove.
            packet.mark = packet.mark.wrapping_add(1);
            Verdict::Next
        })))
    })?;
    let (mut empty_times, mut pass_times, mut closure_times) = (vec![], vec![], vec![]);
    for round in 0..args.repeats {
        run.round(round.into(), args.repeats.into());
        let alone = empty.run();
        pass_times.push(pass.run() - alone);
        closure_times.push(closure.run() - alone);
        empty_times.push(alone);
    }
    let mut outcome = measured();
    outcome.tell("burst", BURST);
    outcome.add(Figure::of("chain_of_pass_ns", pass_times));
    outcome.add(Figure::of("chain_of_closures_ns", closure_times));
    outcome.add(Figure::of("empty_chain_ns", empty_times));
    Ok(outcome)
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
            (0..functions).map(|_| Ok(ChainFunction::new("bench", make()?))).collect();
        let (pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        let ledger = Arc::new(Ledger::new(0));
        Ok(Bench {
            // The end of the tx chain moves descriptors to a wire's queue: no ring, no core.
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
