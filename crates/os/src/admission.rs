//! Admission: checks whether a set of tasks can be scheduled, and shows the arithmetic.
//!
//! Six questions, in this order:
//! 1. Is every bound finite and every period more than zero?
//! 2. Can the wires buffer the packets that arrive during the longest segment, at their
//!    rates?
//! 3. Does the packet path take packets faster than they arrive? If not, no task is to
//!    blame; this is checked only if the rate was stated, not reported by a wire.
//! 4. Does it catch up after the longest segment within its budget?
//! 5. Do periodic tasks and packets together need at most the whole processor:
//!    `rate x cost per packet + tasks <= 1`?
//! 6. Is every deadline met, with the packet path catching up after each segment, and with a
//!    release in the middle of a turn? For EDF, by
//!    the condition of Jeffay, Stanat and Martel; for the cyclic executive, by its timetable,
//!    frame for frame.
//!
//! A bound is valid under the cost profile, and so is the answer; the time of the packet path is
//! bounded in [`crate::path`]. Aperiodic tasks are not part of 5 and 6: they only run in the slack.
//! The extra time of a task's first pass (`cold_ns`) is part of 2 and 4, not of 5 and 6.
//!
//! Source: NICOS 4.6; Jeffay, Stanat and Martel, "On Non-Preemptive Scheduling of
//! Periodic and Sporadic Tasks", RTSS 1991, theorem 4.1, checked at its test points
//! from the latest down (Zhang and Burns, "Schedulability Analysis for Real-Time
//! Systems with EDF Scheduling", IEEE TC 58(9), 2009).

use crate::path::{BILLION, PacketPath};
use crate::schedulers::Discipline;
use crate::schedulers::Scheduler;
use crate::schedulers::cyclic::{Cyclic, MOST_FRAMES, timetable};
use crate::ticket::{Candidate, Ticket};
use picnic_core::time::Time;
use std::borrow::Borrow;
use std::fmt;

/// A task that requests admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its name, for messages.
    pub name: String,
    /// Nanoseconds between releases; `None` if it is not periodic.
    pub period_ns: Option<u64>,
    /// Bound of one invocation, all its segments, in nanoseconds; `u64::MAX` if unbounded.
    pub invocation_ns: u64,
    /// Bound of its longest segment in nanoseconds; `u64::MAX` if unbounded.
    pub segment_ns: u64,
    /// Most segments of one invocation: the packet path has a turn after each.
    pub segments: u64,
}

/// The schedule to check against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Earliest deadline first.
    EarliestDeadline,
    /// A timetable.
    Timetable,
    /// Unknown: a user's own scheduler. Only questions 1 to 5.
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
        /// The unbounded part.
        part: &'static str,
    },
    /// A period of zero.
    #[error("task \"{task}\": found a period of 0 ns, allowed: 1 or more")]
    NoPeriod {
        /// The task.
        task: String,
    },
    /// A segment during which the wires lose packets.
    #[error(
        "task \"{task}\": its longest segment may take {segment_ns} ns, and the turn before it \
         {turn_ns} ns{}, in which {} ns x {pps} packets/s = {arriving} packets arrive on {wire}, \
         but {room} fit; yield more often, or state a lower line rate",
        Interrupted(*interruption_ns),
        segment_ns.saturating_add(*turn_ns).saturating_add(*interruption_ns)
    )]
    SegmentTooLong {
        /// The task.
        task: String,
        /// Its longest segment, including a switch.
        segment_ns: u64,
        /// A turn of the packet path.
        turn_ns: u64,
        /// An interruption that is allowed for.
        interruption_ns: u64,
        /// The wire.
        wire: String,
        /// Its rate.
        pps: u64,
        /// Packets that arrive in that time.
        arriving: u64,
        /// Packets that have room.
        room: u64,
    },
    /// Packets arrive faster than they are taken.
    #[error(
        "{pps} packets/s x {packet_ns} ns per packet = {}.{} % of the borrowed core: the card loses \
         packets without any task; state a lower line rate", share_ppb / 10_000_000,
        share_ppb / 1_000_000 % 10
    )]
    PathTooSlow {
        /// The stated rate.
        pps: u64,
        /// The cost of a packet.
        packet_ns: u64,
        /// Billionths of the core.
        share_ppb: u64,
    },
    /// The packet path needs longer than allowed.
    #[error(
        "task \"{task}\": after its longest segment of {segment_ns} ns{} the packet path needs \
         {catch_up_ns} ns to catch up ({pps} packets/s x {packet_ns} ns per packet), but may take \
         {budget_ns} ns (os.catch_up_us); yield more often, or give it more",
        Interrupted(*interruption_ns)
    )]
    CatchUpTooLong {
        /// The task.
        task: String,
        /// Its longest segment, including a switch.
        segment_ns: u64,
        /// An interruption that is allowed for.
        interruption_ns: u64,
        /// The time that the path then needs.
        catch_up_ns: u64,
        /// The rate.
        pps: u64,
        /// The cost of a packet.
        packet_ns: u64,
        /// The allowed time.
        budget_ns: u64,
    },
    /// More work than time.
    #[error("tasks and packets need {percent}.{tenths} % of the borrowed core: {sum}")]
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
         \"{blocker}\", which has begun, and {demand_ns} ns of due tasks add up to \
         {} ns", blocking_ns.saturating_add(*demand_ns)
    )]
    Late {
        /// The task with the shortest period among those due.
        task: String,
        /// The interval.
        within_ns: u64,
        /// The task that cannot be interrupted.
        blocker: String,
        /// Its remaining time.
        blocking_ns: u64,
        /// The demand of due tasks.
        demand_ns: u64,
    },
    /// There is no timetable of reasonable length.
    #[error(
        "no timetable exists for these periods: frames of {frame_ns} ns repeat after {frames} frames, \
         allowed: up to {MOST_FRAMES}; choose periods that divide one another"
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

/// An interruption that is allowed for, for a message; empty if none is.
struct Interrupted(u64);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            ns => write!(f, ", and an interruption of {ns} ns (os.interruption_us)"),
        }
    }
}

/// Checks a set of tasks.
///
/// # Errors
/// The first reason to refuse it.
pub fn admit<D: Borrow<Demand>>(
    tasks: &[D],
    path: &PacketPath,
    order: Order,
    discipline: Discipline,
) -> Result<(), Refusal> {
    let all = || tasks.iter().map(<D as Borrow<Demand>>::borrow);
    for task in all() {
        check_bounds(task, discipline)?;
        check_room(task, path)?;
    }
    check_path(path)?;
    for task in all() {
        check_catch_up(task, path)?;
    }
    let mut periodic: Vec<Work<'_>> = all()
        .filter_map(|task: &Demand| Work::of(task, task.period_ns?, path, discipline))
        .collect();
    periodic.sort_by_key(|work| work.period_ns);
    check_load(&periodic, path)?;
    match order {
        Order::EarliestDeadline => {
            check_turn(&periodic, path.whole_turn_ns())?;
            check_deadlines(&periodic)
        }
        Order::Timetable => check_frames(&periodic, path.whole_turn_ns()),
        Order::Other => Ok(()),
    }
}

/// A periodic task with the work between its segments.
struct Work<'a> {
    name: &'a str,
    period_ns: u64,
    /// A whole invocation, with a switch and a turn of the packet path per segment, without
    /// packets.
    busy_ns: u64,
    /// The same until the next segment may begin: the packet path has caught up after each.
    whole_ns: u64,
    /// The longest part that the scheduler does not interrupt.
    blocking_ns: u64,
}

impl<'a> Work<'a> {
    fn of(task: &'a Demand, period_ns: u64, path: &PacketPath, how: Discipline) -> Option<Self> {
        let segments = task.segments.max(1);
        let switches_ns = segments.saturating_mul(path.segment_ns(0, false));
        let taken_ns = task.invocation_ns.saturating_add(switches_ns);
        let whole_ns = path.until_next_of_ns(taken_ns, segments);
        let blocking_ns = match how {
            Discipline::Completion => whole_ns,
            Discipline::Segment => path.until_next_ns(path.segment_ns(task.segment_ns, false)),
        };
        let turns_ns = segments.saturating_mul(path.turn_ns());
        let busy_ns = taken_ns.saturating_add(turns_ns);
        Some(Work { name: &task.name, period_ns, busy_ns, whole_ns, blocking_ns })
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
    // An aperiodic task may run for ever, one segment at a time.
    let whole = task.period_ns.is_some() || discipline == Discipline::Completion;
    if whole && task.invocation_ns == u64::MAX {
        return Err(unbounded("invocation"));
    }
    Ok(())
}

fn check_room(task: &Demand, path: &PacketPath) -> Result<(), Refusal> {
    let segment_ns = path.segment_ns(task.segment_ns, true);
    let turn_ns = path.whole_turn_ns();
    let interruption_ns = path.costs().interruption_ns;
    let time_ns = segment_ns.saturating_add(turn_ns).saturating_add(interruption_ns);
    for intake in path.intakes() {
        let arriving = path.arriving(intake, time_ns);
        if intake.pps != 0 && arriving > intake.room {
            return Err(Refusal::SegmentTooLong {
                task: task.name.clone(),
                segment_ns,
                turn_ns,
                interruption_ns,
                wire: intake.name.clone(),
                pps: intake.pps,
                arriving,
                room: intake.room,
            });
        }
    }
    Ok(())
}

fn check_path(path: &PacketPath) -> Result<(), Refusal> {
    if path.catches_up() || !path.is_stated() {
        return Ok(());
    }
    let (pps, packet_ns) = (path.pps(), path.per_packet_ns());
    Err(Refusal::PathTooSlow { pps, packet_ns, share_ppb: path.share_ppb() })
}

fn check_catch_up(task: &Demand, path: &PacketPath) -> Result<(), Refusal> {
    let segment_ns = path.segment_ns(task.segment_ns, true);
    let interruption_ns = path.costs().interruption_ns;
    let catch_up_ns = path.catch_up_ns(segment_ns.saturating_add(interruption_ns));
    let budget_ns = path.costs().catch_up_ns;
    if path.pps() == 0 || !path.catches_up() || catch_up_ns <= budget_ns {
        return Ok(());
    }
    Err(Refusal::CatchUpTooLong {
        task: task.name.clone(),
        segment_ns,
        interruption_ns,
        catch_up_ns,
        pps: path.pps(),
        packet_ns: path.per_packet_ns(),
        budget_ns,
    })
}

fn check_load(tasks: &[Work<'_>], path: &PacketPath) -> Result<(), Refusal> {
    if tasks.is_empty() {
        return Ok(());
    }
    let packets_ppb = if path.catches_up() { path.share_ppb() } else { 0 };
    // In billionths of the core, rounded up: an exact fit by rounding is not a fit.
    let share = |work: &Work<'_>| {
        let share = u128::from(work.busy_ns) * u128::from(BILLION);
        share.div_ceil(u128::from(work.period_ns))
    };
    let packets = packets_ppb as f64 / BILLION as f64;
    let exact = tasks.iter().map(|work| work.busy_ns as f64 / work.period_ns as f64).sum::<f64>();
    let load: u128 = tasks.iter().map(share).sum::<u128>() + u128::from(packets_ppb);
    if load <= u128::from(BILLION) || exact + packets <= 1.0 {
        return Ok(());
    }
    let permille = u64::try_from(load / 1_000_000).unwrap_or(u64::MAX);
    let mut terms: Vec<_> = tasks
        .iter()
        .map(|work| format!("{} ns of every {} ns ({})", work.busy_ns, work.period_ns, work.name))
        .collect();
    if packets_ppb != 0 {
        terms.push(format!("{} packets/s x {} ns", path.pps(), path.per_packet_ns()));
    }
    Err(Refusal::Overloaded {
        percent: permille / 10,
        tenths: permille % 10,
        sum: terms.join(" + "),
    })
}

/// A release may find the packet path in a turn that has just begun: including that, everything due
/// within an interval must fit into it. If a segment has begun instead, theorem 4.1 applies.
fn check_turn(tasks: &[Work<'_>], turn_ns: u64) -> Result<(), Refusal> {
    let Some(shortest) = tasks.first().filter(|_| turn_ns != 0) else { return Ok(()) };
    let load = tasks.iter().map(|work| work.whole_ns as f64 / work.period_ns as f64).sum::<f64>();
    let demand = |within: u64| {
        tasks.iter().fold(0u64, |sum, work| {
            sum.saturating_add(((within - 1) / work.period_ns).saturating_mul(work.whole_ns))
        })
    };
    // The demand within an interval is at most its share: beyond this interval, a turn fits on top.
    // A load of the whole core leaves room for none, as the first period shows or the longest does.
    let longest = tasks.last().map_or(0, |work| work.period_ns);
    let left = (1.0 - load).max(1e-6);
    let mut within = (turn_ns as f64 / left) as u64 + 1;
    within = within.min(longest.saturating_mul(1_000)).max(shortest.period_ns + 1);
    while within > shortest.period_ns {
        let demand_ns = demand(within);
        let need = turn_ns.saturating_add(demand_ns);
        if need > within {
            return Err(Refusal::Late {
                task: shortest.name.into(),
                within_ns: within,
                blocker: "the packet path".into(),
                blocking_ns: turn_ns,
                demand_ns,
            });
        }
        within = need.saturating_sub(1).min(within - 1);
    }
    Ok(())
}

/// Theorem 4.1: for every task and every interval between the shortest period and the task's own,
/// the task that has just begun and all demand within the interval must fit into it.
fn check_deadlines(tasks: &[Work<'_>]) -> Result<(), Refusal> {
    let Some(shortest) = tasks.first() else { return Ok(()) };
    for (index, blocker) in tasks.iter().enumerate().skip(1) {
        let due = &tasks[..index];
        let demand = |within: u64| {
            due.iter().fold(0u64, |sum, work| {
                sum.saturating_add(((within - 1) / work.period_ns).saturating_mul(work.whole_ns))
            })
        };
        // Intervals with p1 < L < pi, from the longest down. A fit at L is a fit for all intervals
        // down to the demand at L.
        let mut within = blocker.period_ns - 1;
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

fn check_frames(tasks: &[Work<'_>], turn_ns: u64) -> Result<(), Refusal> {
    let Some((frame_ns, frames)) = timetable(tasks.iter().map(|work| work.period_ns)) else {
        return Ok(());
    };
    if frames > MOST_FRAMES {
        return Err(Refusal::NoTimetable { frame_ns, frames });
    }
    // The timetable, as the scheduler makes it.
    let candidates: Vec<_> = tasks.iter().map(candidate).collect();
    let mut cyclic = Cyclic::default();
    cyclic.tasks_changed(Time::ZERO, &candidates);
    for (frame, entries) in cyclic.frames().iter().enumerate() {
        let works = || entries.iter().map(|&entry| &tasks[entry]);
        if entries.is_empty() {
            continue;
        }
        // The packet path may be in a turn when the frame begins.
        let load_ns = works().fold(turn_ns, |sum, work| sum.saturating_add(work.whole_ns));
        if load_ns > frame_ns {
            let mut terms: Vec<_> =
                works().map(|work| format!("{} ns ({})", work.whole_ns, work.name)).collect();
            if turn_ns != 0 {
                terms.push(format!("{turn_ns} ns (the packet path)"));
            }
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
