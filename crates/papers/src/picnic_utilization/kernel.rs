//! Cards between a client and the kernel's own stack: in the kernel, or with the poll engine and a
//! tap.
//!
//! ```text
//!  sender, core C ═══ veth ═══ w0, polled on core B: the card ── stack and receiver on core A
//!  sender, core C ═══ veth ═══ w0, the card on core B ══ tap h0: target, stack, receiver on core A
//! ```
//!
//! At 1 Gb/s of TCP in frames of MTU size, `without` stands for a NIC: the interface is
//! polled on the target core, with GRO and checksums that are trusted. Beside it stand cards with
//! an empty function and with `rss`, by both hand-overs. Flat out `without` is the veth as it is,
//! with all of its offloads, whose packets are received on the sender's core.
//!
//! With `attachment = "tap"` the card's three ways of interrupting stand beside `without` instead.
//! The target's thread writes each packet to the tap, and so has the stack's work for it; GRO,
//! which `without` has, is not there.
//!
//! The target core's time is the time of receiver, threads that poll or are the target, softirqs of
//! the network and interrupts, each as the kernel's own events start and end it
//! ([`picnic_kernel::WorkMeter`]); what else runs there is left out. With two cores the sender has
//! that which is borrowed. `capacity_bps` is what the fullest core could carry, had it nothing else
//! to do: of a busy machine it says more than what arrived.

use super::{Attachment, RATE_PPS, SIDES, Settings, WITHOUT, interrupt_of, order};
use crate::columns::{self, Column, hidden, shown};
use anyhow::Context;
use picnic_control::{Launch, Registries, Report, Running};
use picnic_kernel::{Work, WorkMeter};
use picnic_lab::experiment::{Effort, LabError, MeasuredPoint, Run, Spec};
use picnic_lab::outcome::{Comparison, Figure, Outcome, Point, Source};
use picnic_lab::plot::Plot;
use picnic_lab::traffic::{Receive, Send};
use picnic_lab::workloads::hosts::{Hosts, Role, SERVER};
use picnic_lab::workloads::tools;
use picnic_machine::napi::Polling;
use picnic_machine::threads::BORROWED;
use picnic_machine::topology::cores;
use picnic_machine::undo::{Journal, Machine};
use std::thread::JoinHandle;
use std::time::Duration;

const MTU: u32 = 1500;
/// Bytes of TCP in a frame of that size, with time stamps.
const SEGMENT_BYTES: f64 = 1448.0;
const PORT: u16 = 5301;
/// All tasks that may work for the card or the receiver, by prefix of their names.
const TASKS: [&str; 3] = ["traffic", "napi/w0-", "cpumap/"];
/// The same with the poll engine.
const POLL_TASKS: [&str; 3] = ["traffic", BORROWED, "target-"];

/// The label of the offered load.
const LOAD: &str = "load";
const PACED: &str = "paced";
const FLAT_OUT: &str = "flat-out";
/// By hand-over and function.
const CARDS: [&str; 4] = ["skb-pass", "skb-rss", "cpumap-pass", "cpumap-rss"];
const FASTEST: [&str; 3] = [WITHOUT, "skb-rss", "cpumap-rss"];

pub(super) fn points(settings: &Settings, effort: Effort) -> Vec<Spec> {
    let paced = [&[WITHOUT][..], &CARDS].concat();
    let loads = match settings.attachment {
        Attachment::Tap => vec![(PACED, &SIDES[..])],
        Attachment::App => vec![(PACED, &paced[..]), (FLAT_OUT, &FASTEST)],
    };
    let spec = |(load, sides)| Spec::at(LOAD, load).sides(sides).measured(settings.repeats(effort));
    loads.into_iter().map(spec).collect()
}

pub(super) fn measure(
    settings: &Settings,
    point: &Spec,
    side: &str,
    run: &mut Run<'_>,
) -> Result<Outcome, LabError> {
    tools::need_kernel_engine(picnic_kernel::is_built())?;
    tools::need(&[("ethtool", "ethtool")])?;
    let usual = run.effort.of(300, 1000, 2000);
    let time = Duration::from_millis(settings.milliseconds.unwrap_or(usual));
    Ok(Bed::build(settings, point.word(LOAD) == PACED, side, time)?.measure()?)
}

/// Client and server, and the measurement between them.
struct Bed<'a> {
    hosts: Hosts,
    settings: &'a Settings,
    is_paced: bool,
    way: Way<'a>,
    time: Duration,
    target: usize,
    borrowed: usize,
    sender: usize,
}

/// The variant between wire and stack.
#[derive(Clone, Copy)]
enum Way<'a> {
    Without,
    /// A card in the kernel: hand-over and function.
    Kernel(&'a str, &'a str),
    /// A card of the poll engine with a tap: its `[interrupt]` section.
    Poll(&'a str),
}

impl<'a> Way<'a> {
    fn of(side: &'a str) -> Self {
        match (interrupt_of(side), side.split_once('-')) {
            (Some(keys), _) => Way::Poll(keys),
            (None, Some((handover, function))) => Way::Kernel(handover, function),
            (None, None) => Way::Without,
        }
    }

    /// The host of the stack.
    fn server(self) -> Role {
        match self {
            Way::Poll(_) => Role::Server,
            Way::Without | Way::Kernel(..) => Role::Card,
        }
    }
}

/// The thread that takes packets from the wire while measuring.
enum Taker {
    Card(Box<dyn Running>),
    Nic,
    Veth,
}

impl<'a> Bed<'a> {
    fn build(
        settings: &'a Settings,
        is_paced: bool,
        side: &'a str,
        time: Duration,
    ) -> anyhow::Result<Self> {
        let cores = cores();
        let [target, borrowed, ..] = cores[..] else { anyhow::bail!("it needs two cores") };
        let sender = *cores.get(2).unwrap_or(&borrowed);
        let hosts = Hosts::build("lab", MTU)?;
        let way = Way::of(side);
        // The tap has its own.
        if way.server() == Role::Card {
            hosts.ip(Role::Card, &format!("address add {SERVER}/24 dev w0"))?;
        }
        // A sender waits for its NIC; a veth without a queue loses packets when its ring is full.
        // One queue for all of a veth's tx queues, such as `pfifo` at the root, reorders packets
        // when the ring is full (Linux 6.18): one for each does not.
        hosts.within(Role::Client, "tc qdisc replace dev c0 root mq")?;
        let is_by_frame = matches!(way, Way::Kernel("cpumap", _));
        let offloads = match () {
            // XDP carries no mark of partial checksums.
            () if is_by_frame => Some("tx off"),
            () if is_paced => Some("tso off"),
            () => None,
        };
        if let Some(offloads) = offloads {
            hosts.within(Role::Client, &format!("ethtool -K c0 {offloads}"))?;
        }
        Ok(Bed { hosts, settings, is_paced, way, time, target, borrowed, sender })
    }

    /// Makes an interface be polled on a core.
    fn poll(
        &self,
        journal: &mut Journal,
        (role, link): (Role, &str),
        core: usize,
    ) -> anyhow::Result<()> {
        let machine = Machine::this();
        let netns = self.hosts.netns(role);
        let mut polling = Polling::start(&machine, journal, link, Some(&netns))?;
        Ok(polling.pin(&machine, journal, core)?)
    }

    /// The card file; none without a card.
    fn card(&self) -> Option<String> {
        let (port, engine, function, host) = match self.way {
            Way::Without => return None,
            Way::Kernel(handover, function) => (
                "xdp",
                "kernel",
                function,
                format!("attachment = \"stack\"\nhandover = \"{handover}\"\n"),
            ),
            Way::Poll(interrupt) => (
                "packet",
                "poll",
                "rss",
                format!(
                    "attachment = \"tap\"\nname = \"h0\"\naddresses = [\"{SERVER}/24\"]\n\
                     namespace = \"{}\"\n[interrupt]\n{interrupt}",
                    self.hosts.netns(Role::Server)
                ),
            ),
        };
        Some(format!(
            "[card]\nengine = \"{engine}\"\nborrowed_core = {}\n[[wire]]\nport = \"{port}\"\n\
             interface = \"w0\"\nnamespace = \"{}\"\n[[rx]]\nfunction = \"{function}\"\n\
             [host]\nqueues = 1\ntarget_cores = [{}]\n{host}",
            self.borrowed,
            self.hosts.netns(Role::Card),
            self.target
        ))
    }

    fn take(&self, journal: &mut Journal) -> anyhow::Result<Taker> {
        if let Some(text) = self.card() {
            let card = picnic_host::sections().parse(&text, None)?;
            let registries = match self.way {
                Way::Poll(_) => picnic_host::registries(),
                Way::Without | Way::Kernel(..) => {
                    Registries { executors: &[&picnic_kernel::Kernel], ..picnic_host::registries() }
                }
            };
            return Ok(Taker::Card(Launch::new(&card, registries).start_alone()?));
        }
        if !self.is_paced {
            return Ok(Taker::Veth);
        }
        self.poll(journal, (Role::Card, "w0"), self.target)?;
        Ok(Taker::Nic)
    }

    fn measure(&self) -> anyhow::Result<Outcome> {
        let tasks = if let Way::Poll(_) = self.way { POLL_TASKS } else { TASKS };
        let meter = WorkMeter::start(&tasks)?;
        let mut journal = Journal::create(&Machine::this(), "lab")?;
        // The sender's stack processes returning packets on its own core; with segmentation offload
        // on the veth, the other sender would do the work.
        if self.is_paced {
            self.hosts.within(Role::Card, "ethtool -K w0 tso off")?;
            self.poll(&mut journal, (Role::Client, "c0"), self.sender)?;
        }
        let taker = self.take(&mut journal)?;
        let result = self.transfer(&meter);
        let report = match taker {
            Taker::Card(card) => Some(card.stop()?),
            Taker::Nic | Taker::Veth => None,
        };
        journal.undo()?;
        let mut outcome = result?;
        if let Some(Report { ledger, queues, .. }) = report {
            anyhow::ensure!(ledger.balanced(), "the ledger does not balance: this is a bug");
            outcome.add(Figure::count("card_dropped", ledger.dropped));
            let packets = queues.iter().find_map(|queue| queue.packets_per_interrupt);
            outcome.add(Figure::one("packets_per_interrupt", packets));
        }
        Ok(outcome)
    }

    fn transfer(&self, meter: &WorkMeter) -> anyhow::Result<Outcome> {
        let [server, client] =
            [self.way.server(), Role::Client].map(|role| self.hosts.namespace(role));
        let limit = Some(self.time + Duration::from_secs(120));
        let at = format!("0.0.0.0:{PORT}").parse()?;
        let receive = Receive { core: Some(self.target), limit, ..Receive::at(at) };
        let listening = join(server?.spawn(move || receive.listen())?)?;
        let rate_bps = self.is_paced.then_some((f64::from(RATE_PPS) * SEGMENT_BYTES * 8.0) as u64);
        let send = Send {
            core: Some(self.sender),
            rate_bps,
            bytes: self.settings.message_bytes as usize,
            duration: self.time,
            ..Send::to(format!("{SERVER}:{PORT}").parse()?)
        };
        let work = || -> anyhow::Result<[Work; 2]> {
            Ok([meter.of(self.target)?, meter.of(self.borrowed)?])
        };
        let (before, sent_again) = (work()?, self.retransmits()?);
        let sender_before = meter.of(self.sender)?;
        let sending = client?.spawn(move || send.run())?;
        let received = listening.run()?;
        let sent = join(sending)?;
        let after = work()?;
        anyhow::ensure!(received.bytes == sent.bytes, "the connection has lost bytes");
        let segments = received.bytes as f64 / SEGMENT_BYTES;
        let each = |nanoseconds: u64| nanoseconds as f64 / segments;
        let [target, borrowed] = [0, 1].map(|core| after[core].since(&before[core]));
        let sender = meter.of(self.sender)?.since(&sender_before);
        let fullest = [&target, &borrowed, &sender].map(Work::total_ns).into_iter().max();
        let capacity = fullest.map(|ns| received.bytes as f64 * 8e9 / ns.max(1) as f64);
        let [receiver, polling, thread, _] = target.tasks_ns;
        let busy = target.total_ns() as f64 / (received.duration_s * 1e9);
        let mut outcome = Outcome::of(Source::Measured);
        for (key, value) in [
            ("goodput_bps", received.goodput_bps),
            ("capacity_bps", capacity.unwrap_or_default()),
            (BUSY, busy),
            (WORK, each(target.total_ns())),
            ("receiver_ns_per_segment", each(receiver)),
            ("polling_ns_per_segment", each(polling + thread)),
            ("softirqs_ns_per_segment", each(target.softirqs_ns)),
            ("interrupts_ns_per_segment", each(target.interrupts_ns)),
            ("turns_per_segment", each(target.turns)),
            ("borrowed_ns_per_segment", each(borrowed.total_ns())),
            ("retransmits", (self.retransmits()? - sent_again) as f64),
        ] {
            outcome.add(Figure::one(key, value));
        }
        Ok(outcome)
    }

    /// TCP retransmissions of the sender's stack so far.
    fn retransmits(&self) -> anyhow::Result<u64> {
        let told = self.hosts.within(Role::Client, "cat /proc/net/snmp")?;
        let mut lines = told.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let names = lines.next().into_iter().flat_map(str::split_whitespace);
        let values = lines.next().into_iter().flat_map(str::split_whitespace);
        let found = names.zip(values).find(|(name, _)| *name == "RetransSegs");
        let (_, count) = found.context("/proc/net/snmp: missing RetransSegs")?;
        Ok(count.parse()?)
    }
}

fn join<R>(handle: JoinHandle<anyhow::Result<R>>) -> anyhow::Result<R> {
    handle.join().map_err(|_| anyhow::anyhow!("a thread of the connection panicked"))?
}

pub(super) fn conclude(settings: &Settings, points: &[MeasuredPoint]) -> Outcome {
    let mut outcome = Outcome::with_settings(Source::Measured, settings);
    for found in points {
        let (series, key) = match found.spec.word(LOAD) {
            PACED => ("ways", WORK),
            _ => ("flat_out", "goodput_bps"),
        };
        let compared = |side: usize, key: &str| {
            let card = ("card", found.values(side, key));
            Comparison::of(key, (WITHOUT, found.values(0, key)), card)
        };
        for (side, name) in found.spec.sides.iter().enumerate() {
            let mut point = Point::at("way", name.clone());
            if side != 0 {
                point = point.comparing(compared(side, key));
            }
            outcome.series(series).push(columns::row(point, (found, side), &FIGURES));
            if side == 0 {
                continue;
            }
            let own = name.replace('-', "_");
            let changes = |comparison: Comparison| {
                comparison.ratios().into_iter().map(|ratio| ratio - 1.0).collect::<Vec<_>>()
            };
            if series == "flat_out" {
                outcome.add(
                    Figure::of(
                        &format!("{own}_capacity_change"),
                        changes(compared(side, "capacity_bps")),
                    )
                    .called(&format!("{name}: capacity of the busiest core, relative")),
                );
                continue;
            }
            let relative = changes(compared(side, key));
            let busy = [side, 0].map(|side| found.values(side, BUSY));
            let absolute = busy[0].iter().zip(&busy[1]).map(|(card, without)| card - without);
            outcome.add(
                Figure::of(&format!("{own}_relative_change"), relative)
                    .called(&format!("{name}: target core's CPU a bit, relative")),
            );
            outcome.add(
                Figure::of(&format!("{own}_absolute_change"), absolute.collect())
                    .called(&format!("{name}: target core's CPU, absolute")),
            );
        }
    }
    for (key, own, label) in OWN {
        if let Some(found) = outcome.whole.figure(own) {
            outcome.add(Figure::of(key, found.values).called(label));
        }
    }
    if settings.attachment == Attachment::Tap {
        points.iter().for_each(|found| order(&mut outcome, found, WORK));
        outcome
            .note("without the card GRO merges segments ahead of the stack, with it nothing does");
    }
    outcome.note(format!(
        "TCP, {} bytes per write of the sender; paced to {RATE_PPS} segments/s of \
         {SEGMENT_BYTES} bytes",
        settings.message_bytes
    ));
    if cores().len() < 3 {
        outcome.note("the sender has the borrowed core");
    }
    outcome
}

/// The variants whose figures correspond to the paper's: like its card, they have a ring and a
/// thread for each target core, and handle packets one by one.
const OWN: [(&str, &str, &str); 3] = [
    ("relative_change", "cpumap_rss_relative_change", "target core's CPU with the card, relative"),
    ("relative_change", "per_packet_relative_change", "target core's CPU with the card, relative"),
    ("moderated_change", "moderated_relative_change", "the same, moderated"),
];

/// Time of the target core.
const WORK: &str = "target_ns_per_segment";
const BUSY: &str = "target_core_busy_fraction";
const FIGURES: [Column; 12] = [
    shown("goodput_bps", "goodput"),
    shown(BUSY, "target core busy"),
    shown(WORK, "a segment"),
    shown("receiver_ns_per_segment", "receiver"),
    shown("borrowed_ns_per_segment", "other core"),
    shown("retransmits", "sent again"),
    hidden("packets_per_interrupt", ""),
    hidden("capacity_bps", ""),
    hidden("polling_ns_per_segment", ""),
    hidden("softirqs_ns_per_segment", ""),
    hidden("interrupts_ns_per_segment", ""),
    hidden("turns_per_segment", ""),
];

pub(super) fn plots(settings: &Settings) -> Vec<Plot> {
    let paced = Plot::bars("target core at 1 Gb/s by variant", "ways", BUSY);
    match settings.attachment {
        Attachment::Tap => vec![paced],
        Attachment::App => {
            vec![paced, Plot::bars("maximum goodput by variant", "flat_out", "goodput_bps")]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, PicnicUtilization};
    use super::*;
    use picnic_lab::experiment::{Experiment, World};

    fn settings() -> Settings {
        Settings {
            world: World::Host,
            engine: Engine::Kernel,
            milliseconds: Some(100),
            ..Settings::default()
        }
    }

    #[test]
    fn changes_are_computed_from_pairs() {
        let side = |work: [f64; 2], busy: [f64; 2]| {
            let mut outcome = Outcome::of(Source::Measured);
            outcome.add(Figure::of(WORK, work.to_vec()));
            outcome.add(Figure::of(BUSY, busy.to_vec()));
            outcome
        };
        let mut spec = points(&settings(), Effort::Quick).swap_remove(0);
        spec.sides = vec![WITHOUT.into(), "cpumap-rss".into()];
        let sides = vec![side([1000.0, 2000.0], [0.1, 0.2]), side([1100.0, 2200.0], [0.12, 0.22])];
        let outcome = conclude(&settings(), &[MeasuredPoint { spec, sides }]);
        let fields = outcome.fields();
        let is = |key: &str, wanted: f64| {
            let found = fields[key].as_f64().unwrap();
            assert!((found - wanted).abs() < 1e-9, "{key}: {found}");
        };
        is("relative_change", 0.1);
        is("cpumap_rss_relative_change", 0.1);
        is("cpumap_rss_absolute_change", 0.02);
    }

    /// Each variant carries the offered load, and its target core has worked for it.
    #[test]
    fn every_variant_is_measured() {
        let tap = Settings { engine: Engine::Poll, attachment: Attachment::Tap, ..settings() };
        let experiments = [settings(), tap].map(PicnicUtilization);
        let points = |experiment| (experiment, Experiment::points(experiment, Effort::Quick));
        for (experiment, point) in
            experiments.iter().map(points).flat_map(|(experiment, points)| {
                points.into_iter().map(move |point| (experiment, point))
            })
        {
            for side in &point.sides {
                let _machine = picnic_testing::machine();
                let measured = |milliseconds| {
                    let settings =
                        Settings { milliseconds: Some(milliseconds), ..experiment.0.clone() };
                    let mut run = Run::new(Effort::Quick, 1, |_, _| {});
                    PicnicUtilization(settings).measure(&point, side, &mut run)
                };
                let is_carried =
                    |outcome: &Outcome| outcome.median("goodput_bps").is_some_and(|bps| bps > 1e6);
                // A busy machine may give a core no time in so short a run: again, for longer.
                let mut found = measured(100);
                for milliseconds in [1_000, 10_000] {
                    if found.as_ref().is_ok_and(|outcome| !is_carried(outcome)) {
                        found = measured(milliseconds);
                    }
                }
                let outcome = match found {
                    Ok(outcome) => outcome,
                    Err(LabError::Unavailable(why)) => {
                        return picnic_testing::skip("picnic-utilization in the kernel", &why);
                    }
                    Err(error) => panic!("{side}: {error}"),
                };
                let fields = outcome.fields();
                let figure = |key: &str| fields[key].as_f64().unwrap();
                assert!(is_carried(&outcome), "{side}: {fields:#?}");
                assert!(figure(WORK) >= figure("receiver_ns_per_segment"), "{side}: {fields:#?}");
                assert!(figure("receiver_ns_per_segment") > 0.0, "{side}: {fields:#?}");
                let is_nic = side == WITHOUT && point.word(LOAD) == PACED;
                let is_tap = interrupt_of(side).is_some();
                if is_tap {
                    assert!(figure("packets_per_interrupt") > 0.0, "{side}: {fields:#?}");
                }
                if is_nic || is_tap || side.starts_with("cpumap") {
                    assert!(figure("polling_ns_per_segment") > 0.0, "{side}: {fields:#?}");
                }
            }
        }
    }
}
