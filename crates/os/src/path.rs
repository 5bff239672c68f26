//! The work between two segments: the switch, and the packet path catching up.
//!
//! ```
//! use picnic_os::path::{Costs, Intake, PacketPath};
//! let wire = Intake { name: "wire0".into(), pps: 1_000_000, burst: 1, room: 1_024 };
//! let costs = Costs { turn_ns: 512, packet_ns: 92, burst: 64, wires: 1, ..Costs::default() };
//! let path = PacketPath::new(vec![wire], costs);
//! // Packets need a tenth of the core: after a segment of 0.9 ms they need 0.1 ms.
//! assert_eq!(path.share_ppb(), 100_000_000);
//! assert!((1_000_000..1_002_000).contains(&path.until_next_ns(900_000)));
//! ```
//!
//! A turn takes up to a burst from every wire and costs *t* (`turn_ns`), `packet_ns` for each
//! packet, and a doorbell for each queue that it wakes: *T* at most. After a segment the path has
//! turn after turn until one takes less than a burst from each wire. Every packet of the turns
//! before costs *e* = `packet_ns + (t + d) / burst` at most, where *d* is what such a turn spends
//! on doorbells ([`crate::doorbells`]), and packets that come at a rate *R* take a share *R e* of
//! the core. In a segment of *s*, in the turn before it and while the path catches up for a time
//! *x*, *R (s + T + x)* packets come, so *x <= R e (s + T + x) + r*, where *r* is the last turn and
//! the doorbells that were due before: the next segment may begin *x = (R e (s + T) + r) / (1 - R
//! e)* after this one has ended, and a little later if packets come in bursts.
//!
//! Source: NICOS 4.6 has tasks alone; that the busy period ends, and when, is the recurrence of
//! response-time analysis (Joseph and Pandya, "Finding Response Times in a Real-Time System",
//! Computer Journal 29(5), 1986) for one source of interruptions.

use crate::doorbells::Doorbells;
use picnic_core::resident::PATIENCE_NS;

/// Billionths: of the core, of a second.
pub(crate) const BILLION: u64 = 1_000_000_000;

/// Arrivals at a wire, or at all wires together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Its name, for messages.
    pub name: String,
    /// Maximum packets per second.
    pub pps: u64,
    /// Packets that may arrive together on top of that; at least one.
    pub burst: u64,
    /// Packets that wait without loss; `u64::MAX` if all do.
    pub room: u64,
}

/// The cost of packets, in nanoseconds, and how many are taken at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Bound of a turn of the packet path, without its packets.
    pub turn_ns: u64,
    /// Bound of one packet of a turn.
    pub packet_ns: u64,
    /// Maximum packets that a turn takes from a wire.
    pub burst: u64,
    /// Wires that a turn polls.
    pub wires: u64,
    /// How long the packet path may continue after a segment, with packets left or not.
    pub catch_up_ns: u64,
    /// The cost of waking target cores.
    pub doorbells: Doorbells,
    /// How long the core may be interrupted between two segments without losing packets.
    pub interruption_ns: u64,
    /// Packets that each target ring holds.
    pub ring: u64,
}

impl Default for Costs {
    /// Packets cost nothing.
    fn default() -> Self {
        Costs {
            turn_ns: 0,
            packet_ns: 0,
            burst: 64,
            wires: 1,
            catch_up_ns: PATIENCE_NS,
            doorbells: Doorbells::default(),
            interruption_ns: 0,
            ring: u64::MAX,
        }
    }
}

/// The packet path as seen by tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketPath {
    intakes: Vec<Intake>,
    is_stated: bool,
    costs: Costs,
    switch_ns: u64,
    cold_ns: u64,
    share_ppb: u64,
    /// One turn in which each queue is rung, in nanoseconds, without its packets.
    ringing_turn_ns: u64,
    /// Doorbells in turns of whole bursts; in picoseconds per packet.
    doorbells_ps: u128,
    /// Relative growth of a time between two segments, in billionths.
    stretch_ppb: u64,
    /// Addition of the last turn and bursts to the catch-up time, in nanoseconds.
    rest_ns: u64,
}

impl Default for PacketPath {
    /// No packets, and costs of nothing.
    fn default() -> Self {
        PacketPath::new(Vec::new(), Costs::default())
    }
}

impl PacketPath {
    /// The path of a card with these arrivals. Wires that report no rate are ignored: the results
    /// then do not cover their packets.
    pub fn new(intakes: Vec<Intake>, costs: Costs) -> Self {
        let mut path = PacketPath {
            intakes,
            is_stated: false,
            costs,
            switch_ns: 0,
            cold_ns: 0,
            share_ppb: 0,
            ringing_turn_ns: 0,
            doorbells_ps: 0,
            stretch_ppb: 0,
            rest_ns: 0,
        };
        let burst = u128::from(costs.burst.max(1));
        let full_ns = costs.packet_ns.saturating_mul(costs.burst.max(1));
        let rung = costs.doorbells.rung(&costs, full_ns.saturating_add(costs.turn_ns));
        path.ringing_turn_ns = costs.turn_ns.saturating_add(rung.turn_ns);
        path.doorbells_ps = rung.each_turn_ps.div_ceil(burst);
        // Per packet in turns of whole bursts, in picoseconds.
        let each_ps = u128::from(costs.packet_ns) * 1_000
            + (u128::from(costs.turn_ns) * 1_000).saturating_add(rung.each_turn_ps).div_ceil(burst);
        let pps: u128 = path.intakes.iter().map(|intake| u128::from(intake.pps)).sum();
        path.share_ppb = narrow(pps.saturating_mul(each_ps).div_ceil(1_000));
        if path.catches_up() {
            let left = u128::from(BILLION - path.share_ppb);
            let share = u128::from(path.share_ppb);
            path.stretch_ppb = narrow((share * u128::from(BILLION)).div_ceil(left));
            let coming = path.intakes.iter().filter(|intake| intake.pps != 0);
            let bursts: u128 = coming.map(|intake| u128::from(intake.burst)).sum();
            let work_ns =
                bursts.saturating_mul(each_ps).div_ceil(1_000) + u128::from(path.ringing_turn_ns);
            let work_ns = work_ns + rung.before_ps.div_ceil(1_000);
            path.rest_ns = narrow(work_ns.saturating_mul(u128::from(BILLION)).div_ceil(left));
        }
        path
    }

    /// The same path with a stated rate: it must sustain that, with or without tasks.
    #[must_use]
    pub fn stated(self) -> Self {
        PacketPath { is_stated: true, ..self }
    }

    /// The same path between segments, each of which may take `switch_ns` on top of its bound for a
    /// decision and a switch, and `cold_ns` more the first time through; in nanoseconds.
    #[must_use]
    pub fn switching(self, switch_ns: u64, cold_ns: u64) -> Self {
        PacketPath { switch_ns, cold_ns, ..self }
    }

    /// Whether its rate was stated, not reported by the wires.
    pub fn is_stated(&self) -> bool {
        self.is_stated
    }

    /// Its costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The arrivals at its wires.
    pub fn intakes(&self) -> &[Intake] {
        &self.intakes
    }

    /// Packets per second of all wires together.
    pub fn pps(&self) -> u64 {
        self.intakes.iter().fold(0, |sum, intake| sum.saturating_add(intake.pps))
    }

    /// The cost of a packet in turns of whole bursts, in nanoseconds, rounded up.
    pub fn per_packet_ns(&self) -> u64 {
        let turn_ps =
            (u128::from(self.costs.turn_ns) * 1_000).div_ceil(self.costs.burst.max(1).into());
        let share_ns = narrow((turn_ps + self.doorbells_ps).div_ceil(1_000));
        self.costs.packet_ns.saturating_add(share_ns)
    }

    /// Bound of a turn in which each queue is rung, in nanoseconds, without its packets.
    pub fn turn_ns(&self) -> u64 {
        self.ringing_turn_ns
    }

    /// Billionths of the core that the packets need.
    pub fn share_ppb(&self) -> u64 {
        self.share_ppb
    }

    /// Whether the path takes packets faster than they arrive.
    pub fn catches_up(&self) -> bool {
        self.share_ppb < BILLION
    }

    /// Bound of one turn that takes a burst from every wire, in nanoseconds.
    pub fn whole_turn_ns(&self) -> u64 {
        let Costs { packet_ns, burst, wires, .. } = self.costs;
        burst.saturating_mul(wires).saturating_mul(packet_ns).saturating_add(self.ringing_turn_ns)
    }

    /// A segment of this bound including a switch, and cold caches if it is its first time.
    pub fn segment_ns(&self, bound_ns: u64, is_first: bool) -> u64 {
        let cold_ns = if is_first { self.cold_ns } else { 0 };
        bound_ns.saturating_add(self.switch_ns).saturating_add(cold_ns)
    }

    /// From the end of a segment of `taken_ns`, including the switch, until the path has caught up,
    /// in nanoseconds. For a path that never does, the cost of the following turn: the rest is
    /// lost.
    pub fn catch_up_ns(&self, taken_ns: u64) -> u64 {
        if !self.catches_up() {
            return self.ringing_turn_ns;
        }
        let time_ns = taken_ns.saturating_add(self.whole_turn_ns());
        self.behind_ns(time_ns).saturating_add(self.rest_ns)
    }

    /// Time in which the path takes the packets of `time_ns`, and the packets that arrive in that
    /// time.
    fn behind_ns(&self, time_ns: u64) -> u64 {
        let behind = u128::from(time_ns) * u128::from(self.stretch_ppb);
        narrow(behind.div_ceil(u128::from(BILLION)))
    }

    /// From the start of a segment of `taken_ns`, including the switch, until the next may begin,
    /// in nanoseconds.
    pub fn until_next_ns(&self, taken_ns: u64) -> u64 {
        taken_ns.saturating_add(self.catch_up_ns(taken_ns))
    }

    /// The same for several segments that take `taken_ns` together.
    pub fn until_next_of_ns(&self, taken_ns: u64, segments: u64) -> u64 {
        // All except the segment's own time is the same for each, and the resulting arrivals add
        // up.
        let each_ns = self.until_next_ns(0).saturating_mul(segments.max(1));
        let behind_ns = if self.catches_up() { self.behind_ns(taken_ns) } else { 0 };
        taken_ns.saturating_add(behind_ns).saturating_add(each_ns)
    }

    /// Time that the core may be interrupted without loss, in nanoseconds, in addition to segments
    /// of up to `segment_ns` including the switch: packets find room at their wires and in the
    /// target rings, and the path catches up in time. None if arrivals are unknown, or all of them
    /// wait.
    pub fn tolerates_ns(&self, segment_ns: u64) -> Option<u64> {
        let taken_ns = u128::from(segment_ns) + u128::from(self.whole_turn_ns());
        let pps = self.pps();
        let bursts =
            self.intakes.iter().fold(0, |sum: u64, intake| sum.saturating_add(intake.burst));
        let rings = (self.costs.ring, pps, bursts);
        let wires = self.intakes.iter().map(|intake| (intake.room, intake.pps, intake.burst));
        let limited = wires.chain([rings]).filter(|&(room, pps, _)| room != u64::MAX && pps != 0);
        let by_room = limited.map(|(room, pps, burst)| {
            let packets = u128::from(room.saturating_sub(burst.max(1)));
            packets * u128::from(BILLION) / u128::from(pps)
        });
        // For a path that never catches up, only packets that find room are not lost.
        let in_time = (self.catches_up() && self.stretch_ppb != 0).then(|| {
            let budget_ns = self.costs.catch_up_ns.saturating_sub(self.rest_ns);
            u128::from(budget_ns) * u128::from(BILLION) / u128::from(self.stretch_ppb)
        });
        let longest_ns = by_room.min()?.min(in_time.unwrap_or(u128::MAX));
        Some(narrow(longest_ns.saturating_sub(taken_ns)))
    }

    /// Packets that arrive at a wire in this time.
    pub fn arriving(&self, intake: &Intake, time_ns: u64) -> u64 {
        let packets = u128::from(time_ns) * u128::from(intake.pps) / u128::from(BILLION);
        narrow(packets).saturating_add(intake.burst.max(1))
    }
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
