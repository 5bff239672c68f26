//! Admission: whether a set of tasks can be scheduled, with the arithmetic.
//!
//! Four questions, in this order:
//! 1. Is every bound finite and every period more than zero?
//! 2. Does the receive side bear the longest segment: do the packets that come in
//!    meanwhile, at the stated line rate, fit into the receive rings?
//! 3. Do the periodic tasks need no more than the processor has, the packet path's
//!    turns between segments included?
//! 4. Does every deadline hold? For EDF, by the condition of Jeffay, Stanat and
//!    Martel; for the cyclic executive, by its timetable, frame for frame.
//!
//! A bound is a bound under the cost profile, and so is the answer. Tasks that are not
//! periodic do not enter 3 and 4: they run in the slack alone.
//!
//! Source: NICOS 4.6; Jeffay, Stanat and Martel, "On Non-Preemptive Scheduling of
//! Periodic and Sporadic Tasks", RTSS 1991, theorem 4.1, checked at its test points
//! from the latest down (Zhang and Burns, "Schedulability Analysis for Real-Time
//! Systems with EDF Scheduling", IEEE TC 58(9), 2009).

use crate::schedulers::Discipline;
use crate::schedulers::Scheduler;
use crate::schedulers::cyclic::{Cyclic, MOST_FRAMES, timetable};
use crate::ticket::{Candidate, Ticket};
use picnic_core::time::Time;

/// A task that asks to be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its name, for messages.
    pub name: String,
    /// Nanoseconds between releases; `None` if it is not periodic.
    pub period_ns: Option<u64>,
    /// Bound of one invocation, all its segments, in nanoseconds; `u64::MAX` if there is none.
    pub invocation_ns: u64,
    /// Bound of its longest segment in nanoseconds; `u64::MAX` if there is none.
    pub segment_ns: u64,
    /// Most segments of one invocation: the packet path has a turn after each.
    pub segments: u64,
}

/// What the packet path needs of the borrowed core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPath {
    /// The card's stated line rate, all wires together, in packets per second; zero: not stated.
    pub line_rate_pps: u64,
    /// Packets that the receive rings of the wires hold.
    pub receive_room: u64,
    /// Bound of one turn of the packet path in nanoseconds.
    pub turn_ns: u64,
}

/// The kind of schedule to judge by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Earliest deadline first.
    EarliestDeadline,
    /// A timetable.
    Timetable,
    /// Unknown: a scheduler of the user's own. Questions 1 to 3 alone.
    Other,
}

/// Why tasks are refused; the message has the arithmetic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A task without a bound.
    #[error(
        "task \"{task}\": its {part} has no finite bound; give its loops #[bound(n)], \
         let it yield, or state wcet_ns"
    )]
    Unbounded {
        /// The task.
        task: String,
        /// What of it.
        part: &'static str,
    },
    /// A period of zero.
    #[error("task \"{task}\": found a period of 0 ns, allowed is 1 or more")]
    NoPeriod {
        /// The task.
        task: String,
    },
    /// A segment longer than the receive rings can absorb.
    #[error(
        "task \"{task}\": its longest segment may take {segment_ns} ns, in which \
         {segment_ns} ns x {line_rate_pps} packets/s = {arriving} packets come in, \
         but the receive rings hold {receive_room}; yield more often, or state a lower line rate"
    )]
    SegmentTooLong {
        /// The task.
        task: String,
        /// Its longest segment.
        segment_ns: u64,
        /// The stated rate.
        line_rate_pps: u64,
        /// Packets that come in meanwhile.
        arriving: u64,
        /// Packets that have room.
        receive_room: u64,
    },
    /// More work than time.
    #[error("the periodic tasks need {percent}.{tenths} % of the borrowed core: {sum}")]
    Overloaded {
        /// Whole percent.
        percent: u64,
        /// Tenths of a percent.
        tenths: u64,
        /// The sum, term by term.
        sum: String,
    },
    /// A deadline that may be missed.
    #[error(
        "task \"{task}\" may miss a deadline: within {within_ns} ns, {blocking_ns} ns of \
         \"{blocker}\", which has begun, and {demand_ns} ns of tasks that are due come to \
         {} ns", blocking_ns.saturating_add(*demand_ns)
    )]
    Late {
        /// The task with the shortest period among those due.
        task: String,
        /// The interval.
        within_ns: u64,
        /// The one that cannot be interrupted.
        blocker: String,
        /// How long it goes on.
        blocking_ns: u64,
        /// What falls due.
        demand_ns: u64,
    },
    /// No timetable of a sensible length.
    #[error(
        "the periods have no timetable: frames of {frame_ns} ns repeat after {frames} frames, \
         allowed is up to {MOST_FRAMES}; choose periods that divide one another"
    )]
    NoTimetable {
        /// The greatest common divisor of the periods.
        frame_ns: u64,
        /// Frames until they repeat.
        frames: u64,
    },
    /// A frame with more work than time.
    #[error(
        "frame {frame} of the timetable lasts {frame_ns} ns, but its tasks may take {load_ns} ns: {sum}"
    )]
    FrameTooFull {
        /// Its number.
        frame: usize,
        /// Its length.
        frame_ns: u64,
        /// Its work.
        load_ns: u64,
        /// The sum, term by term.
        sum: String,
    },
}

/// Judges a set of tasks.
///
/// # Errors
/// The first reason to refuse it.
pub fn admit(
    tasks: &[Demand],
    path: PacketPath,
    order: Order,
    discipline: Discipline,
) -> Result<(), Refusal> {
    for task in tasks {
        check_bounds(task, discipline)?;
        check_room(task, path)?;
    }
    let mut periodic: Vec<Work<'_>> =
        tasks.iter().filter_map(|task| Work::of(task, task.period_ns?, path, discipline)).collect();
    periodic.sort_by_key(|work| work.period_ns);
    check_load(&periodic)?;
    match order {
        Order::EarliestDeadline => check_deadlines(&periodic),
        Order::Timetable => check_frames(&periodic),
        Order::Other => Ok(()),
    }
}

/// A periodic task with the packet path's turns added.
struct Work<'a> {
    name: &'a str,
    period_ns: u64,
    /// All of an invocation.
    whole_ns: u64,
    /// The longest part that the scheduler does not interrupt.
    blocking_ns: u64,
}

impl<'a> Work<'a> {
    fn of(task: &'a Demand, period_ns: u64, path: PacketPath, how: Discipline) -> Option<Self> {
        let turns_ns = task.segments.max(1).saturating_mul(path.turn_ns);
        let whole_ns = task.invocation_ns.saturating_add(turns_ns);
        let blocking_ns = match how {
            Discipline::Completion => whole_ns,
            Discipline::Segment => task.segment_ns.saturating_add(path.turn_ns),
        };
        Some(Work { name: &task.name, period_ns, whole_ns, blocking_ns })
    }
}

fn check_bounds(task: &Demand, discipline: Discipline) -> Result<(), Refusal> {
    let unbounded = |part| Refusal::Unbounded { task: task.name.clone(), part };
    if task.period_ns == Some(0) {
        return Err(Refusal::NoPeriod { task: task.name.clone() });
    }
    if task.segment_ns == u64::MAX {
        return Err(unbounded("longest segment"));
    }
    // A task that is not periodic may go on for ever, one segment at a time.
    let whole = task.period_ns.is_some() || discipline == Discipline::Completion;
    if whole && task.invocation_ns == u64::MAX {
        return Err(unbounded("invocation"));
    }
    Ok(())
}

fn check_room(task: &Demand, path: PacketPath) -> Result<(), Refusal> {
    let arriving = u128::from(task.segment_ns) * u128::from(path.line_rate_pps);
    let arriving = u64::try_from(arriving.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
    if arriving <= path.receive_room {
        return Ok(());
    }
    Err(Refusal::SegmentTooLong {
        task: task.name.clone(),
        segment_ns: task.segment_ns,
        line_rate_pps: path.line_rate_pps,
        arriving,
        receive_room: path.receive_room,
    })
}

fn check_load(tasks: &[Work<'_>]) -> Result<(), Refusal> {
    // In billionths of the core, rounded up: what just fits by rounding does not fit.
    let share = |work: &Work<'_>| {
        let share = u128::from(work.whole_ns) * 1_000_000_000;
        share.div_ceil(u128::from(work.period_ns))
    };
    let exact = tasks.iter().map(|work| work.whole_ns as f64 / work.period_ns as f64).sum::<f64>();
    let load: u128 = tasks.iter().map(share).sum();
    if load <= 1_000_000_000 || exact <= 1.0 {
        return Ok(());
    }
    let permille = u64::try_from(load / 1_000_000).unwrap_or(u64::MAX);
    let terms: Vec<_> = tasks
        .iter()
        .map(|work| format!("{} ns of each {} ns ({})", work.whole_ns, work.period_ns, work.name))
        .collect();
    Err(Refusal::Overloaded {
        percent: permille / 10,
        tenths: permille % 10,
        sum: terms.join(" + "),
    })
}

/// Theorem 4.1: for every task and every interval between the shortest period and the task's
/// own, the task that has just begun and all that falls due within fit into the interval.
fn check_deadlines(tasks: &[Work<'_>]) -> Result<(), Refusal> {
    let Some(shortest) = tasks.first() else { return Ok(()) };
    for (index, blocker) in tasks.iter().enumerate().skip(1) {
        let due = &tasks[..index];
        let demand = |within: u64| {
            due.iter().fold(0u64, |sum, work| {
                sum.saturating_add(((within - 1) / work.period_ns).saturating_mul(work.whole_ns))
            })
        };
        // Intervals with p1 < L < pi, from the longest down. What fits at L fits for all that
        // are no shorter than the demand at L.
        let mut within = blocker.period_ns.saturating_sub(1);
        while within > shortest.period_ns {
            let demand_ns = demand(within);
            let need = blocker.blocking_ns.saturating_add(demand_ns);
            if need > within {
                return Err(Refusal::Late {
                    task: shortest.name.into(),
                    within_ns: within,
                    blocker: blocker.name.into(),
                    blocking_ns: blocker.blocking_ns,
                    demand_ns,
                });
            }
            within = need.saturating_sub(1).min(within - 1);
        }
    }
    Ok(())
}

fn check_frames(tasks: &[Work<'_>]) -> Result<(), Refusal> {
    let Some((frame_ns, frames)) = timetable(tasks.iter().map(|work| work.period_ns)) else {
        return Ok(());
    };
    if frames > MOST_FRAMES {
        return Err(Refusal::NoTimetable { frame_ns, frames });
    }
    // The timetable itself, as the scheduler makes it.
    let candidates: Vec<_> = tasks.iter().map(candidate).collect();
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &candidates);
    for (frame, entries) in cyclic.frames().iter().enumerate() {
        let works = || entries.iter().map(|&entry| &tasks[entry]);
        let load_ns = works().fold(0u64, |sum, work| sum.saturating_add(work.whole_ns));
        if load_ns > frame_ns {
            let terms: Vec<_> =
                works().map(|work| format!("{} ns ({})", work.whole_ns, work.name)).collect();
            let sum = terms.join(" + ");
            return Err(Refusal::FrameTooFull { frame, frame_ns, load_ns, sum });
        }
    }
    Ok(())
}

fn candidate(work: &Work<'_>) -> Candidate {
    let ticket = Ticket {
        wcet_ns: work.whole_ns,
        remaining_ns: work.whole_ns,
        period_ns: Some(work.period_ns),
        priority: 0,
        next_release: Time::ZERO,
        next_deadline: Time::from_nanos(work.period_ns),
    };
    Candidate { ticket, ready: true, begun: false, since: 0 }
}
