//! NIC OS: a decision, a switch of schedulers, a yield and resume, and its cost to packets when idle.
//!
//! Decisions of the registered schedulers over a slice of 64 tasks, half of them
//! periodic, a quarter ready. A switch of schedulers includes the check that the new one can schedule
//! as many tasks, and its first decision. A yield and resume is a whole turn of the executor with one
//! task that does nothing else, under a scheduler that always picks it. A block is allocated and
//! freed by a task through an allocator that it installed, and by calling the same allocator
//! directly. The packet path is a card driven by
//! hand on one core, with and without a NIC OS whose tasks sleep; rounds alternate.

use super::{measured, time_per_packet};
use anyhow::Context;
use picnic_control::{Launch, Registries};
use picnic_core::config::Section;
use picnic_core::doorbell::{Doorbell, NoDoorbell};
use picnic_core::ledger::Ledger;
use picnic_core::out::Doors;
use picnic_core::packet::pool::{Pool, PoolConfig};
use picnic_core::registry::BuildContext;
use picnic_core::resident::{Resident, Turn};
use picnic_core::time::Time;
use picnic_engine::assemble::{Assembled, assemble};
use picnic_filter::Filters;
use picnic_lab::compare::median;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point};
use picnic_os::alloc::{Allocator, slots::Slots};
use picnic_os::control::TaskControl;
use picnic_os::executor::{Named, Os, OsSettings, Switch};
use picnic_os::schedulers::registry::SCHEDULERS;
use picnic_os::schedulers::{Decision, Discipline, Scheduler};
use picnic_os::task::{TaskSpec, program};
use picnic_os::ticket::{Candidate, Ticket};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};

/// Turns, decisions or packets per timing.
const COUNT: usize = 1 << 16;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NicOs {
    /// Tasks that the schedulers choose among
    #[schemars(range(min = 1, max = 1024))]
    tasks: u16,
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for NicOs {
    fn default() -> Self {
        NicOs { tasks: 64, repeats: 21 }
    }
}

impl Benchmark for NicOs {
    const NAME: &'static str = "os";
    const HELP: &'static str = "NIC OS: a decision, a yield and resume, and its cost when idle";
    const QUICK: &'static str = "repeats = 2";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        measure(self, run)
    }
}

fn measure(args: &NicOs, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
    let candidates = candidates(args.tasks);
    let mut schedulers = Vec::new();
    for entry in SCHEDULERS {
        let section = Section::named("scheduler", entry.name);
        let mut scheduler = entry.build(&section, &BuildContext::default())?;
        scheduler.tasks_changed(Time::ZERO, &candidates);
        schedulers.push((entry.name, scheduler, Vec::new()));
    }
    let (mut bare, mut idle) = (Card::new("")?, Card::new(IDLE)?);
    let mut yields = Yielding::new()?;
    let mut switches = Vec::new();
    for pair in [["edf", "edf-plus"], ["cyclic", "cyclic-plus"], ["event", "edf-plus"]] {
        switches.push((pair.join(", "), Switching::new(args.tasks, pair)?, Vec::new()));
    }
    let (mut resumed, mut without, mut with, mut differences) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut blocks = Blocks::new()?;
    let (mut direct, mut installed, mut checked) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..args.repeats {
        run.round(repeat.into(), args.repeats.into());
        for (_, scheduler, times) in &mut schedulers {
            times.push(decide(&mut **scheduler, &candidates));
        }
        for (_, switching, times) in &mut switches {
            times.push(switching.run());
        }
        resumed.push(yields.run());
        let (alone, through) = (blocks.direct(), blocks.installed());
        direct.push(alone);
        installed.push(through);
        checked.push(through - alone);
        // The second finds the caches as the first left them: take turns.
        let (a, b) = match repeat % 2 {
            0 => {
                let a = bare.run();
                (a, idle.run())
            }
            _ => {
                let b = idle.run();
                (bare.run(), b)
            }
        };
        without.push(a);
        with.push(b);
        differences.push(b - a);
    }
    let mut outcome = measured();
    let sides = (("without_os", without), ("with_idle_os", with));
    outcome.compare(Comparison::of("packet_path_ns", sides.0, sides.1));
    outcome.add(Figure::of("yield_and_resume_ns", resumed));
    let sides = (("direct_call", direct), ("installed", installed));
    outcome.compare(Comparison::of("allocate_and_free_ns", sides.0, sides.1));
    outcome.add(Figure::of("installed_allocator_overhead_ns", checked));
    outcome.add(Figure::of("idle_os_per_packet_ns", differences));
    let slowest = |times: &mut dyn Iterator<Item = &Vec<f64>>| {
        times.max_by(|a, b| median(a).total_cmp(&median(b))).cloned().unwrap_or_default()
    };
    let decisions = slowest(&mut schedulers.iter().map(|(_, _, times)| times));
    outcome.add(Figure::of("slowest_decision_ns", decisions));
    let longest = slowest(&mut switches.iter().map(|(_, _, times)| times));
    outcome.add(Figure::of("slowest_switch_ns", longest));
    let mut series = outcome.series("decisions");
    for (name, _, times) in schedulers {
        series.push(Point::at("scheduler", name).with(Figure::of("decision_ns", times)));
    }
    let mut series = outcome.series("switches");
    for (pair, _, times) in switches {
        series.push(Point::at("between", pair).with(Figure::of("switch_ns", times)));
    }
    Ok(outcome)
}

/// Half of them periodic; one in four ready.
fn candidates(tasks: u16) -> Vec<Candidate> {
    let candidate = |index: u64| {
        let period_ns = index.is_multiple_of(2).then_some(1_000_000 << (index % 3));
        let next_release = Time::from_nanos(1_000_000 + index * 1_000);
        Candidate {
            ticket: Ticket {
                wcet_ns: 500 + index * 10,
                remaining_ns: 2_000 + index * 40,
                period_ns,
                priority: (index % 4) as u8,
                next_release,
                next_deadline: next_release + period_ns.unwrap_or(0),
            },
            // Some that are not periodic, so that slack must be computed.
            ready: index % 4 == 1,
            begun: false,
            since: index,
        }
    };
    (0..u64::from(tasks)).map(candidate).collect()
}

fn decide(scheduler: &mut dyn Scheduler, candidates: &[Candidate]) -> f64 {
    time_per_packet(COUNT, || {
        for round in 0..COUNT as u64 {
            black_box(scheduler.decide(Time::from_nanos(round % 900_000), black_box(candidates)));
        }
    })
}

/// Always picks the first task.
struct First;

impl Scheduler for First {
    fn periodic(&mut self, _: Time, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn next_periodic(&self, _: Time, _: &[Candidate]) -> Option<Time> {
        None
    }
    fn filler(&mut self, _: Time, _: u64, _: &[Candidate]) -> Option<usize> {
        None
    }
    fn decide(&mut self, _: Time, tasks: &[Candidate]) -> Decision {
        if tasks.first().is_some_and(|task| task.ready) {
            return Decision::Run(0);
        }
        Decision::Idle(None)
    }
    fn discipline(&self) -> Discipline {
        Discipline::Segment
    }
}

struct Yielding {
    os: Os,
    doors: Doors,
}

impl Yielding {
    fn new() -> anyhow::Result<Self> {
        let mut os = Os::new(&OsSettings::default(), Box::new(First));
        let body = program(|nic| async move {
            loop {
                nic.yield_now().await;
            }
        });
        os.create(TaskSpec::new("yields"), body)?;
        let (pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        Ok(Yielding { os, doors: Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0))) })
    }

    fn run(&mut self) -> f64 {
        time_per_packet(COUNT, || {
            for round in 1..=COUNT as u64 {
                let turn = self.os.turn(Time::from_nanos(round), &mut self.doors);
                debug_assert!(matches!(turn, Turn::Ran(_)));
                black_box(self.os.ended(Time::from_nanos(round + 1)));
            }
        })
    }
}

impl Drop for Yielding {
    fn drop(&mut self) {
        self.os.stop(Time::MAX, &mut self.doors);
    }
}

/// Bytes of the blocks.
const BLOCK_BYTES: usize = 64;

/// An allocator called directly, and the same installed by a task.
struct Blocks {
    arena: Vec<u8>,
    slots: Box<dyn Allocator>,
    os: Os,
    doors: Doors,
    now: Time,
    /// Nanoseconds of an allocation and its return, by the task.
    took: Arc<Mutex<f64>>,
}

impl Blocks {
    fn new() -> anyhow::Result<Self> {
        let mut slots: Box<dyn Allocator> = Box::new(Slots::of(BLOCK_BYTES));
        let mut arena = vec![0; 1 << 16];
        slots.reset(&mut arena);
        let mut os = Os::new(&OsSettings::default(), Box::new(First));
        os.attach_filters(Filters::new(1));
        let took = Arc::new(Mutex::new(f64::NAN));
        let result = took.clone();
        let body = program(move |nic| async move {
            let slots = Box::new(Slots::of(BLOCK_BYTES));
            if nic.install_allocator("slots", 1 << 16, slots).await.is_err() {
                return;
            }
            loop {
                let time = time_per_packet(COUNT, || {
                    (0..COUNT).for_each(|_| drop(black_box(nic.allocate(black_box(BLOCK_BYTES)))));
                });
                *result.lock().unwrap_or_else(PoisonError::into_inner) = time;
                nic.yield_now().await;
            }
        });
        os.create(TaskSpec::new("allocates"), body)?;
        let (pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        let doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
        let mut blocks = Blocks { arena, slots, os, doors, now: Time::ZERO, took };
        // It installs its allocator first.
        while blocks.installed().is_nan() && blocks.now < Time::from_nanos(100) {}
        anyhow::ensure!(!blocks.installed().is_nan(), "the allocator was not installed");
        Ok(blocks)
    }

    fn direct(&mut self) -> f64 {
        let Blocks { arena, slots, .. } = self;
        time_per_packet(COUNT, || {
            for _ in 0..COUNT {
                if let Some(place) = slots.allocate(arena, black_box(BLOCK_BYTES), 16) {
                    black_box(slots.free(arena, black_box(place)));
                }
            }
        })
    }

    fn installed(&mut self) -> f64 {
        self.now = self.now + 1;
        let _ = self.os.turn(self.now, &mut self.doors);
        let _ = self.os.ended(self.now);
        *self.took.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.os.stop(Time::MAX, &mut self.doors);
    }
}

/// Alternating schedulers of tasks that wait for their release.
struct Switching {
    os: Os,
    doors: Doors,
    /// The other scheduler, which does not decide, and its name.
    spare: Option<Named>,
}

/// Switches per timing.
const SWITCHES: usize = 256;

impl Switching {
    fn new(tasks: u16, pair: [&'static str; 2]) -> anyhow::Result<Self> {
        let make = |name: &str| {
            let entry = SCHEDULERS.iter().find(|entry| entry.name == name);
            let entry = entry.context("no such scheduler")?;
            Ok::<_, anyhow::Error>(
                entry.build(&Section::named("scheduler", name), &BuildContext::default())?,
            )
        };
        let settings = OsSettings { tasks: tasks.into(), ..OsSettings::default() };
        let mut os = Os::new(&settings, make(pair[0])?);
        for index in 0..u64::from(tasks) {
            let spec = TaskSpec::new("waits").wcet_ns(1_000).offset_ns(1 << 40);
            let spec = match index % 2 {
                0 => spec.periodic(1_000_000 << (index % 6)),
                _ => spec,
            };
            os.create(spec, program(|_| std::future::pending()))?;
        }
        let (pool, _) = Pool::new(&PoolConfig { buffers: 256, ..PoolConfig::default() }, 0)?;
        let doors = Doors::new(pool, Vec::new(), 1, 64, Arc::new(Ledger::new(0)));
        let spare = Some(Named { name: pair[1].into(), scheduler: make(pair[1])? });
        Ok(Switching { os, doors, spare })
    }

    fn run(&mut self) -> f64 {
        time_per_packet(SWITCHES, || {
            for round in 1..=SWITCHES as u64 {
                let now = Time::from_nanos(round);
                let Some(Named { name, scheduler }) = self.spare.take() else { return };
                let mut order = TaskControl::Switch(Switch::to(name, scheduler));
                self.os.control(now, &mut order);
                if let TaskControl::Switch(mut done) = order {
                    debug_assert!(done.result.is_some_and(|result| result.is_ok()));
                    self.spare = done.schedulers.pop();
                }
                black_box(self.os.turn(now, &mut self.doors));
            }
        })
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.os.stop(Time::MAX, &mut self.doors);
    }
}

/// Eight tasks that sleep longer than the benchmark lasts.
const IDLE: &str = "[[task]]\ntask = \"busy\"\noffset_us = 1000000000000\n";

/// A card with both sides driven by one thread.
struct Card {
    assembled: Assembled,
    burst: picnic_core::packet::burst::Burst,
    now: Time,
}

impl Card {
    fn new(task: &str) -> anyhow::Result<Self> {
        let tasks = task.repeat(8);
        let text = format!(
            "[[wire]]\nport = \"generator\"\nframes = \"reuse\"\n[host]\nqueues = 1\n\
             [[rx]]\nfunction = \"pass\"\n{tasks}"
        );
        let file = picnic_host::sections().parse(&text, None)?;
        let registries =
            Registries { tasks: picnic_tasks::registry::TASKS, ..picnic_host::registries() };
        let parts = Launch::new(&file, registries).build()?.parts;
        let bell = || Arc::new(NoDoorbell) as Arc<dyn Doorbell>;
        let assembled = assemble(&file, parts, &[bell()], bell())?;
        let burst = picnic_core::packet::burst::Burst::new();
        Ok(Card { assembled, burst, now: Time::ZERO })
    }

    /// Nanoseconds per packet, from wire to host.
    fn run(&mut self) -> f64 {
        let Card { assembled, burst, now } = self;
        let mut packets = 0;
        let total = time_per_packet(1, || {
            while packets < COUNT {
                *now = *now + 100;
                assembled.card.poll(*now);
                packets += assembled.queues[0].poll(*now, burst).packets;
            }
        });
        total / packets as f64
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.assembled.card.stop_receiving(self.now);
        while self.assembled.queues[0].poll(self.now, &mut self.burst).packets != 0 {}
        self.assembled.card.finish(self.now);
    }
}
