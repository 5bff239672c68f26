//! Timelines: what each core of a card did and when, for a trace viewer.
//!
//! ```
//! use picnic_control::timeline::{Event, Timeline};
//! use picnic_core::time::Time;
//!
//! let timeline = Timeline::keeping(1000);
//! let mut recorder = timeline.card("card0").recorder();
//! recorder.span(1, Time::from_nanos(10), Time::from_nanos(25), Event::Slept);
//! drop(recorder);
//! let mut text = Vec::new();
//! timeline.write(&mut text).unwrap();
//! assert!(String::from_utf8(text).unwrap().contains(r#""name":"asleep","ts":0.010"#));
//! ```
//!
//! Each thread of a card has a [`Recorder`] of its own, with room for a set number of events of 32
//! bytes that is reserved before the card runs; later events are counted and not kept. A recorder that is dropped
//! passes its events to the timeline. [`Timeline::write`] writes Chrome's trace event format, which
//! Perfetto reads as well.
//!
//! In virtual time, events are exact and the same for a seed. On real cores, a thread reads its
//! clock at the ends of turns, so a span may include the check for more work.

mod chrome;

use crate::monitor::Monitor;
use picnic_core::direction::Direction;
use picnic_core::ledger::{DropReason, Stage};
use picnic_core::time::Time;
use picnic_engine::chain::{Stopwatch, TimedBurst};
use picnic_engine::poll::{Activity, Card};
use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A turn of the borrowed core that moved packets.
    Turn {
        /// Packets taken from wires.
        received: u16,
        /// Packets taken from tx rings.
        submitted: u16,
        /// Packets that wires took.
        transmitted: u16,
    },
    /// A segment of a task.
    Segment {
        /// The task's number.
        task: u32,
        /// Its ticket: the segment's bound in nanoseconds.
        ticket_ns: u32,
    },
    /// A function's work on a burst, inside a turn.
    Function {
        /// Its chain.
        direction: Direction,
        /// Its position there.
        position: u8,
        /// Packets in the burst.
        packets: u16,
    },
    /// A look of a target core at its queues.
    Target {
        /// Packets that the host got.
        packets: u16,
        /// Packets that the host sent.
        transmitted: u16,
    },
    /// Work of a modelled host.
    Host(HostWork),
    /// The core slept.
    Slept,
    /// Another process, the kernel or another virtual machine had the core for this time.
    Preempted {
        /// In nanoseconds.
        ns: u32,
    },
    /// A doorbell: from its core at the start to this core at the end.
    Doorbell {
        /// The core that it wakes.
        to: u16,
    },
    /// Packets dropped on the borrowed core.
    Dropped {
        /// The reason.
        reason: DropReason,
        /// The stage.
        stage: Stage,
        /// Their number.
        packets: u32,
    },
    /// Packets in a target ring.
    Fill {
        /// The queue.
        queue: u16,
        /// Their number.
        packets: u32,
    },
}

/// Kinds of a modelled host's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostWork {
    /// An interrupt of the card.
    Interrupt,
    /// An interrupt by another core, to wake a process.
    WakeUp,
    /// The target routine, after an interrupt.
    Softirq,
    /// The target routine, in a kernel thread.
    Thread,
    /// A process.
    Process,
}

impl HostWork {
    fn name(self) -> &'static str {
        match self {
            HostWork::Interrupt => "interrupt",
            HostWork::WakeUp => "wake-up interrupt",
            HostWork::Softirq => "softirq",
            HostWork::Thread => "kernel thread",
            HostWork::Process => "process",
        }
    }
}

/// An event at its time and core.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: Time,
    end: Time,
    core: u16,
    event: Event,
}

/// The names around a card's events.
#[derive(Debug, Default)]
struct Names {
    card: String,
    borrowed: Option<u16>,
    /// The core of each queue.
    queues: Vec<u16>,
    functions: [Vec<String>; 2],
    tasks: Vec<String>,
}

#[derive(Debug, Default)]
struct Collected {
    cards: Vec<Names>,
    /// The events of each recorder, with its card's number.
    events: Vec<(usize, Vec<Entry>)>,
    lost: u64,
}

/// The timeline of one or more cards. Clones are the same timeline.
#[derive(Clone, Debug)]
pub struct Timeline {
    collected: Arc<Mutex<Collected>>,
    /// Events that each recorder keeps.
    events: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Timeline>> = const { RefCell::new(None) };
}

impl Timeline {
    /// An empty timeline that keeps this many events of each thread.
    pub fn keeping(events: usize) -> Self {
        Timeline { collected: Arc::default(), events }
    }

    /// Records all cards that this thread launches during `body`.
    pub fn during<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Restored(Option<Timeline>);
        impl Drop for Restored {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restored = Restored(CURRENT.replace(Some(self.clone())));
        body()
    }

    /// The timeline of [`Timeline::during`] on this thread.
    pub(crate) fn current() -> Option<Timeline> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// A card to be recorded.
    pub fn card(&self, name: &str) -> CardTimeline {
        let mut collected = self.lock();
        collected.cards.push(Names { card: name.into(), ..Names::default() });
        CardTimeline { timeline: self.clone(), card: collected.cards.len() - 1 }
    }

    /// A note about the events that were not kept, if there are some.
    pub fn note(&self) -> Option<String> {
        let (kept, lost) = (self.events, self.lock().lost);
        (lost != 0).then(|| {
            format!("timeline: the first {kept} events of each thread are kept, {lost} later not")
        })
    }

    /// Writes the events of all recorders dropped so far as JSON.
    ///
    /// # Errors
    /// A write error.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        chrome::write(&self.lock(), out)
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A card's part of a timeline.
#[derive(Clone, Debug)]
pub struct CardTimeline {
    timeline: Timeline,
    card: usize,
}

impl CardTimeline {
    /// Names the card's cores, functions and tasks.
    pub fn describe(&self, monitor: &Monitor, tasks: Vec<String>) {
        let view = &monitor.view;
        let functions = |direction| {
            let functions = view.functions.of(direction);
            functions.into_iter().map(|function| function.name).collect()
        };
        self.timeline.lock().cards[self.card] = Names {
            card: view.name.clone(),
            borrowed: Some(monitor.placement.borrowed_core as u16),
            queues: monitor.placement.target_cores.iter().map(|&core| core as u16).collect(),
            functions: Direction::ALL.map(functions),
            tasks,
        };
    }

    /// A recorder for one thread; reserves its memory.
    pub fn recorder(&self) -> Recorder {
        let most = self.timeline.events;
        Recorder { entries: Vec::with_capacity(most), most, lost: 0, to: self.clone() }
    }
}

/// Records the events of one thread, in a few nanoseconds each.
#[derive(Debug)]
pub struct Recorder {
    entries: Vec<Entry>,
    most: usize,
    lost: u64,
    to: CardTimeline,
}

impl Recorder {
    /// An event on a core that lasted from `start` to `end`.
    #[inline]
    pub fn span(&mut self, core: usize, start: Time, end: Time, event: Event) {
        if self.entries.len() < self.most {
            self.entries.push(Entry { start, end, core: core as u16, event });
        } else {
            self.lost += 1;
        }
    }

    /// The core was away for `ns` nanoseconds until `now`.
    pub fn preempted(&mut self, core: usize, now: Time, ns: u64) {
        let ns = ns.min(u32::MAX.into()) as u32;
        self.instant(core, now, Event::Preempted { ns });
    }

    /// An event at a moment.
    #[inline]
    pub fn instant(&mut self, core: usize, at: Time, event: Event) {
        self.span(core, at, at, event);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut collected = self.to.timeline.lock();
        collected.events.push((self.to.card, std::mem::take(&mut self.entries)));
        collected.lost += self.lost;
    }
}

/// Records the borrowed core: its turns, what it drops, and how full the target rings are.
#[derive(Debug)]
pub struct CardRecorder {
    core: usize,
    /// For its other events.
    pub recorder: Recorder,
    dropped: u64,
    drops: [[u64; Stage::ALL.len()]; DropReason::ALL.len()],
    fills: Vec<usize>,
}

impl CardRecorder {
    /// Records for this borrowed core. All memory is taken here.
    pub fn new(core: usize, timeline: &CardTimeline, card: &Card) -> Self {
        let drops = [[0; Stage::ALL.len()]; DropReason::ALL.len()];
        let fills = vec![0; card.doors().targets.len()];
        CardRecorder { core, recorder: timeline.recorder(), dropped: 0, drops, fills }
    }

    /// A turn with its packets or its segment, and the packets dropped in it.
    pub fn turn(&mut self, card: &Card, start: Time, end: Time, activity: &Activity) {
        let event = match activity.segment {
            Some(segment) => Event::Segment {
                task: segment.task,
                ticket_ns: segment.model_ns.min(u32::MAX.into()) as u32,
            },
            None if activity.is_without_packets() => return,
            None => Event::Turn {
                received: activity.received as u16,
                submitted: activity.submitted as u16,
                transmitted: activity.transmitted as u16,
            },
        };
        self.recorder.span(self.core, start, end, event);
        let drops = &card.doors().ledger.card.drops;
        let dropped = drops.total();
        if std::mem::replace(&mut self.dropped, dropped) != dropped {
            for (reason, stage, count) in drops.nonzero() {
                let known = &mut self.drops[reason as usize][stage as usize];
                let before = std::mem::replace(known, count);
                let packets = (count - before).min(u32::MAX.into()) as u32;
                if packets != 0 {
                    let event = Event::Dropped { reason, stage, packets };
                    self.recorder.instant(self.core, end, event);
                }
            }
        }
    }

    /// The depths of the target rings that have changed since the last call.
    pub fn fills(&mut self, card: &Card, now: Time) {
        let targets = &card.doors().targets;
        for (queue, (target, last)) in targets.iter().zip(&mut self.fills).enumerate() {
            let depth = target.occupancy();
            if std::mem::replace(last, depth) != depth {
                let event = Event::Fill { queue: queue as u16, packets: depth as u32 };
                self.recorder.instant(self.core, now, event);
            }
        }
    }
}

/// Records each burst of every function by a clock.
pub struct FunctionRecorder<C> {
    clock: C,
    core: usize,
    recorder: Recorder,
}

impl<C: Fn() -> Time + Send> FunctionRecorder<C> {
    /// Records for the borrowed core.
    pub fn new(clock: C, core: usize, recorder: Recorder) -> Self {
        FunctionRecorder { clock, core, recorder }
    }
}

impl<C: Fn() -> Time + Send> Stopwatch for FunctionRecorder<C> {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn bursts(&self) -> u32 {
        1
    }

    fn timed(&mut self, burst: &TimedBurst) {
        let event = Event::Function {
            direction: Direction::at(burst.stage),
            position: burst.position as u8,
            packets: burst.packets as u16,
        };
        self.recorder.span(self.core, burst.start, burst.end, event);
    }
}

#[cfg(test)]
mod tests;
