//! The summary of a run, and the check of its result.

use crate::explain;
use crate::figures::{self, Show, Table};
use crate::output::{self, count, nanoseconds, percent};
use picnic_control::instrument::TraceReport;
use picnic_control::listing::{self, Listing};
use picnic_control::report::{Report, TakenAway, TargetTakenAway, Times};
use picnic_core::ledger::LedgerTotals;
use picnic_os::report::OsReport;
use std::fmt::Write;

/// The report as text.
pub(crate) fn text(name: &str, report: &Report) -> String {
    let name = crate::output::name(name);
    let softirq = report.borrowed_core.softirq_fraction;
    let softirq = softirq.map(|share| format!(", in softirqs {}", percent(share)));
    let mut text = format!(
        "{name}: {:.2} s{}, engine {}, borrowed core {} busy {}{}, asleep {}\n\n",
        report.duration_s,
        if report.times == Times::Modelled { " (times modelled)" } else { "" },
        report.engine,
        report.borrowed_core.core,
        percent(report.borrowed_core.busy_fraction),
        softirq.unwrap_or_default(),
        percent(report.borrowed_core.asleep_fraction),
    );
    let tables = [
        Some(figures::wires(report, Show::Totals)),
        figures::parts(report, Show::Totals),
        Some(figures::queues(report, Show::Totals)),
        figures::guests(report, Show::Totals),
        figures::functions(report, Show::Totals),
        figures::own_figures(report),
        figures::classes(report, Show::Totals),
        figures::filter_groups(report, Show::Totals),
    ];
    text.push_str(&tables.into_iter().flatten().map(Table::text).collect::<Vec<_>>().join("\n"));
    if let Some(os) = &report.os {
        text.push('\n');
        text.push_str(&tasks(os));
    }
    text.push('\n');
    let mut line = |name: &str, value: String| {
        text.push_str(&output::hanging(&format!("{name:<8} "), &output::name(&value)));
    };
    line("ledger", ledger(&report.ledger));
    if let Some(poll) = &report.poll {
        let [packets, taken, lost] = [poll.packets, poll.taken, poll.lost].map(count);
        line("poll", format!("{packets} to the poll engine: {taken} taken, {lost} lost"));
    }
    for (place, packets) in &report.drops_by_stage {
        line("dropped", format!("{} {place}", count(*packets)));
    }
    for guest in &report.guests {
        let drops = guest.drops.iter();
        let drops: Vec<_> =
            drops.map(|(reason, packets)| format!("{} {reason}", count(*packets))).collect();
        if !drops.is_empty() {
            line("guest", format!("{}: dropped {}", guest.guest, drops.join(", ")));
        }
        for fault in &guest.faults {
            line("guest", format!("{}: {fault}", guest.guest));
        }
    }
    let latency = &report.latency_ns;
    line(
        "latency",
        format!(
            "p50 {}, p99 {}, p999 {} from wire to target routine",
            nanoseconds(latency.p50),
            nanoseconds(latency.p99),
            nanoseconds(latency.p999)
        ),
    );
    if latency.mean.is_some() {
        let part = format!(
            "{} at the wire, {} on the borrowed core, {} in the target ring",
            nanoseconds(latency.at_wire),
            nanoseconds(latency.on_borrowed_core),
            nanoseconds(latency.in_target_ring)
        );
        line("", format!("mean {}: {part}", nanoseconds(latency.mean)));
    }
    if let Some(taken) = &report.borrowed_core.taken_away
        && taken.times != 0
    {
        line("core", taken_away(taken, report));
    }
    for core in &report.target_cores {
        if let Some(taken) = core.taken_away.as_ref().filter(|taken| taken.drops != 0) {
            let TargetTakenAway { total_ns, times, longest_ns, drops, threshold_ns } = *taken;
            let taken = TakenAway { total_ns, times, longest_ns, drops, threshold_ns };
            line("core", preempted(core.core, &taken, report, "while its rings were full"));
        }
    }
    line("limit", explain::limit_in_words(report));
    if let Some(why) = explain::wait_in_words(report) {
        line("wait", why);
    }
    if let Some(trace) = &report.trace {
        let (written, lost) = (count(trace.packets_written), count(trace.packets_lost));
        line("trace", format!("{}: {written} packets written, {lost} lost", trace.path));
    }
    for note in &report.notes {
        line("note", note.clone());
    }
    line("total", explain::total(report));
    text
}

/// Preemptions of the borrowed core, and the packets they cost.
fn taken_away(taken: &TakenAway, report: &Report) -> String {
    preempted(report.borrowed_core.core, taken, report, "right after")
}

/// Preemptions of a core, and the packets they cost.
fn preempted(core: usize, taken: &TakenAway, report: &Report, when: &str) -> String {
    let drops = match report.ledger.dropped {
        0 => "nothing was dropped".into(),
        all => format!("{} of {} drops {when}", count(taken.drops), count(all)),
    };
    format!(
        "core {} was preempted {} times for ≥ {} ({} in total, {}; longest {}); {drops}",
        core,
        count(taken.times),
        nanoseconds(Some(taken.threshold_ns)),
        nanoseconds(Some(taken.total_ns)),
        percent(taken.total_ns as f64 / 1e9 / report.duration_s),
        nanoseconds(taken.longest_ns),
    )
}

/// `in = delivered + transmitted + consumed + dropped + in flight`, with the numbers.
fn ledger(totals: &LedgerTotals) -> String {
    format!(
        "in {} = delivered {} + transmitted {} + consumed {} + dropped {} + in flight {}: {}",
        count(totals.r#in),
        count(totals.delivered),
        count(totals.transmitted),
        count(totals.consumed),
        count(totals.dropped),
        count(totals.in_flight),
        if totals.balanced() { "balanced" } else { "NOT BALANCED" },
    )
}

/// NIC OS and its tasks.
fn tasks(os: &OsReport) -> String {
    const TASKS: Listing = Listing {
        list: "tasks",
        name: "tasks",
        columns: &[
            listing::number("task", "task", 6),
            listing::words("name", "name", 9),
            listing::words("state", "state", 9),
            listing::time("period", "period_ns", 5),
            listing::count("segments", "segments", 3),
            listing::count("overruns", "overruns", 7),
            listing::count("completed", "completed", 9),
            listing::count("misses", "deadline_misses", 9),
            listing::time("response", "response_ns/mean_ns", 9),
            listing::time("deviation", "response_ns/stddev_ns", 2),
            listing::time("p99", "response_ns/p99_ns", 4),
            listing::time("jitter p99", "jitter_ns/p99_ns", 1),
        ],
    };
    let (decisions, idle) = (count(os.decisions), count(os.idle_decisions));
    let arena = &os.memory.arena;
    // A report of numbers and text is always written.
    let mut text = output::listing(&TASKS, &serde_json::to_value(os).unwrap_or_default());
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        " NIC OS: {}, {decisions} decisions, {idle} of them to idle; at most {} of {} bytes of \
         the arena used",
        os.scheduler,
        count(arena.high_water_bytes as u64),
        count(arena.arena_bytes as u64),
    );
    text
}

/// Checks the invariants at the end of every run.
///
/// # Errors
/// A packet has no known fate, or a buffer is lost: both are bugs. Or the requested trace is not
/// complete.
pub(crate) fn verdict(report: &Report) -> anyhow::Result<()> {
    if let Some(why) = &report.failed {
        anyhow::bail!("{why}");
    }
    let totals = &report.ledger;
    anyhow::ensure!(
        totals.balanced(),
        "the ledger does not balance ({}; {} bursts did not on their own): this is a bug in \
         picnic, and the figures of this run are void",
        ledger(totals),
        totals.unbalanced_bursts
    );
    anyhow::ensure!(
        report.buffers_missing == 0,
        "{} buffers were not returned: this is a bug in picnic",
        report.buffers_missing
    );
    if let Some(TraceReport { path, error: Some(error), .. }) = &report.trace {
        anyhow::bail!("the trace {path} ended early: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::OWN_FIGURES;
    use picnic_control::report::{
        CoreReport, FunctionReport, GuestPhase, GuestReport, KernelReport, LatencyReport,
        PollReport, QueueReport, Stamp, TargetCoreReport, WireReport,
    };
    use serde_json::Map;

    fn report() -> Report {
        Report {
            engine: "poll".into(),
            duration_s: 2.0,
            wires: vec![WireReport {
                name: "wire0".into(),
                rx_packets: 2_000,
                rx_bytes: 120_000,
                stamp: Stamp::Arrival,
                ..WireReport::default()
            }],
            queues: vec![QueueReport {
                packets: 1_990,
                bytes: 119_400,
                interrupts: 199,
                packets_per_interrupt: Some(10.0),
                ring_full: 10,
                ring_size: 1024,
                ..QueueReport::default()
            }],
            kernel: Some(KernelReport { packets: 1_930, delivered: 1_923, dropped: 7 }),
            poll: Some(PollReport { packets: 70, taken: 68, lost: 2, delivered: 67, dropped: 3 }),
            functions: vec![FunctionReport {
                name: "rss".into(),
                packets: 2_000,
                ns_per_packet: Some(12.5),
                ..FunctionReport::default()
            }],
            drops: [("ring_full".into(), 10)].into(),
            drops_by_stage: [("ring_full@steer".into(), 10)].into(),
            ledger: LedgerTotals {
                r#in: 2_000,
                delivered: 1_990,
                dropped: 10,
                ..LedgerTotals::default()
            },
            latency_ns: LatencyReport {
                p50: Some(1_500),
                mean: Some(2_000),
                on_borrowed_core: Some(300),
                in_target_ring: Some(1_700),
                ..LatencyReport::default()
            },
            borrowed_core: CoreReport {
                core: 1,
                busy_fraction: 0.25,
                asleep_fraction: 0.5,
                taken_away: Some(TakenAway {
                    total_ns: 80_000_000,
                    times: 40,
                    longest_ns: Some(4_000_000),
                    drops: 9,
                    threshold_ns: 500_000,
                }),
                ..CoreReport::default()
            },
            notes: vec!["something to know".into()],
            ..Report::default()
        }
    }

    #[test]
    fn guests_have_a_table_and_their_losses() {
        let mut report = report();
        assert!(!text("picnic0", &report).contains("guest"));
        report.queues[0].guest = Some("vm0".into());
        let drops = [("no_descriptor".into(), 1_200), ("ring_full".into(), 10)].into();
        let vm0 = GuestReport {
            guest: "vm0".into(),
            state: GuestPhase::Ready,
            ready_queues: 1,
            queues: 2,
            rings: Some("packed".into()),
            mtu_bytes: 9_000,
            packets: 1_990,
            transmitted: 40,
            dropped: 1_210,
            drops,
            faults: vec!["ring 1: its area is too small".into()],
            ..GuestReport::default()
        };
        let vm1 = GuestReport { guest: "vm1".into(), packets: 10, ..GuestReport::default() };
        report.guests = vec![vm0, vm1];
        let text = text("picnic0", &report);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        for line in [
            "guest vm0: dropped 1,200 no_descriptor, 10 ring_full",
            "guest vm0: ring 1: its area is too small",
        ] {
            assert!(lines.iter().any(|found| found == line), "{line} in {text}");
        }
        for (start, parts) in [
            ("guest state queues", &["packets", "tx packets", "dropped"][..]),
            ("vm0 ready 1/2", &["1,990", "40", "1,210"]),
            ("vm1 waiting 0/0", &["10"]),
            ("all guests", &["2,000", "40", "1,210"]),
            ("queue guest core", &["packets"]),
            ("0 vm0 ", &["1,990"]),
        ] {
            let line = lines.iter().find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("{start} in {text}"));
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
    }

    #[test]
    fn summary_shows_the_whole_report() {
        let text = text("picnic0", &report());
        for part in [
            "picnic0: 2.00 s, engine poll, borrowed core 1 busy 25.0 %, asleep 50.0 %",
            "ledger   in 2,000 = delivered 1,990 + transmitted 0 + consumed 0 + dropped 10 \
             + in flight 0: balanced",
            "dropped  10 ring_full@steer",
            "poll     70 to the poll engine: 68 taken, 2 lost",
            "latency  p50 1.5 µs, p99 unavailable",
            "mean 2.0 µs: unavailable at the wire, 300 ns on the borrowed core, 1.7 µs in the target",
            "core     core 1 was preempted 40 times for ≥ 500.0 µs (80.0 ms in total, 4.0 %; \
             longest 4.0 ms); 9 of 10 drops right after",
            "arrival",
            "note     something to know",
            "rss",
            "119,400",
        ] {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
    }

    #[test]
    fn own_counters_are_shown_if_read() {
        let mut report = report();
        assert!(!text("picnic0", &report).contains(OWN_FIGURES));
        report.tx_functions = report.functions.clone();
        let function = &mut report.functions[0];
        function.counters =
            Map::from_iter([("unhashed".into(), 17.into()), ("moved_entries".into(), 0.into())]);
        function.gauges = Map::from_iter([("queues".into(), 2.into())]);
        let text = text("picnic0", &report);
        let own: Vec<_> = text.lines().filter(|line| line.contains("unhashed")).collect();
        assert_eq!(own.len(), 1, "{text}");
        assert_eq!(own[0].trim(), "rx[0] rss  unhashed 17, queues 2");
        assert_eq!(text.matches(OWN_FIGURES).count(), 1, "{text}");
        // A setting is not shown if it has counted nothing.
        report.functions[0].counters["unhashed"] = 0.into();
        assert!(!super::text("picnic0", &report).contains(OWN_FIGURES));
    }

    #[test]
    fn the_parts_of_a_shared_card_have_their_sum_below() {
        let report = report();
        let parts = |report: &Report| figures::parts(report, Show::Totals).map(Table::text);
        let told = parts(&report).unwrap();
        let rows: Vec<Vec<_>> =
            told.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let row = |name: &str| {
            let row = rows.iter().find(|row| row[0] == name).unwrap();
            row[1..].iter().filter(|cell| !cell.is_empty()).copied().collect::<Vec<_>>()
        };
        assert_eq!(row("kernel"), ["1,930", "965", "1,923", "7"]);
        assert_eq!(row("poll engine"), ["70", "35", "67", "3"]);
        assert_eq!(row("both"), ["2,000", "1.0 k", "1,990", "10"]);
        assert_eq!(parts(&Report { kernel: None, ..report }), None);
    }

    #[test]
    fn several_wires_have_their_sum_below() {
        let mut report = report();
        assert!(!text("picnic0", &report).contains("all wires"));
        let wire = report.wires[0].clone();
        report.wires.push(WireReport { name: "wire1".into(), tx_packets: 5, ..wire });
        let text = text("picnic0", &report);
        let all = text.lines().find(|line| line.trim_start().starts_with("all wires")).unwrap();
        for part in ["4,000", "5"] {
            assert!(all.contains(part), "no {part:?} in: {all}");
        }
    }

    #[test]
    fn lost_packets_and_lost_buffers_fail_the_run() {
        assert!(verdict(&report()).is_ok());
        let mut lost = report();
        lost.ledger.delivered -= 1;
        assert!(verdict(&lost).unwrap_err().to_string().contains("NOT BALANCED"));
        let mut burst = report();
        burst.ledger.unbalanced_bursts = 1;
        assert!(verdict(&burst).is_err());
        let missing = Report { buffers_missing: 3, ..report() };
        assert!(verdict(&missing).unwrap_err().to_string().starts_with("3 buffers"));
        let trace = TraceReport {
            path: "all.pcapng".into(),
            packets_written: 5,
            packets_lost: 1,
            interfaces: Vec::new(),
            error: Some("no space".into()),
        };
        let error = verdict(&Report { trace: Some(trace), ..report() }).unwrap_err().to_string();
        assert_eq!(error, "the trace all.pcapng ended early: no space");
    }

    /// The text of a line of the summary.
    fn line(report: &Report, name: &str) -> Option<String> {
        let text = text("picnic0", report);
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.map(|line| line[9..].to_owned())
    }

    #[test]
    fn the_core_that_limits_a_run_is_named_with_the_evidence() {
        let mut report = report();
        let limit = |report: &Report| line(report, "limit").unwrap();
        let full = "target core 0: 10 packets found its rings full";
        assert!(limit(&report).starts_with(full), "{}", limit(&report));
        report.queues[0].ring_full = 0;
        assert!(limit(&report).starts_with("no core of the card: all had idle time"));
        report.borrowed_core.softirq_fraction = Some(0.72);
        assert_eq!(limit(&report), "borrowed core 1: busy 97.0 %");
        assert!(
            text("c", &report).contains("borrowed core 1 busy 25.0 %, in softirqs 72.0 %, asleep")
        );
        report.drops.insert("wire_overrun".into(), 500);
        let overrun = "borrowed core 1: busy 97.0 %, 500 packets found the wires' buffers full";
        assert_eq!(limit(&report), overrun);
        report.target_cores = vec![target(0.04)];
        (report.queues[0].polls, report.queues[0].empty_polls) = (1_000, 100);
        assert_eq!(limit(&report), "target core 0: asleep 4.0 %");
        // Awake, since it polls on without packets.
        report.queues[0].empty_polls = 900;
        assert_eq!(limit(&report), overrun);
    }

    fn target(asleep_fraction: f64) -> TargetCoreReport {
        TargetCoreReport {
            core: 0,
            thread: None,
            asleep_fraction,
            wakeups: 0,
            priority: "normal".into(),
            priority_yields: 0,
            taken_away: None,
        }
    }

    #[test]
    fn drops_that_follow_a_target_cores_preemption_are_shown_with_it() {
        let mut report = report();
        report.borrowed_core.taken_away = None;
        let mut core = target(0.5);
        let taken = |drops| TargetTakenAway {
            total_ns: 20_000_000,
            times: 4,
            longest_ns: Some(9_000_000),
            drops,
            threshold_ns: 100_000,
        };
        for (drops, expected) in [
            (0, None),
            (
                7,
                Some(
                    "core 0 was preempted 4 times for ≥ 100.0 µs (20.0 ms in total, 1.0 %; longest \
                     9.0 ms); 7 of 10 drops while its rings were full",
                ),
            ),
        ] {
            core.taken_away = Some(taken(drops));
            report.target_cores = vec![core.clone()];
            assert_eq!(line(&report, "core").as_deref(), expected);
        }
    }

    #[test]
    fn a_long_wait_in_the_target_ring_is_explained() {
        let mut report = report();
        let wait = |report: &Report| line(report, "wait");
        assert_eq!(wait(&report), None);
        report.latency_ns.p99 = Some(5_900_000);
        report.queues[0].latency_ns.p99 = Some(5_900_000);
        report.target_cores = vec![target(0.4)];
        (report.queues[0].packets, report.queues[0].ring_full) = (340_000, 1_000);
        let why = wait(&report).unwrap();
        let holds = "queue 0 takes 170.0 k packets/s, so its ring of 1024 holds up to 6.0 ms";
        assert!(why.starts_with("p99 5.9 ms: packets wait for target core 0; "), "{why}");
        assert!(why.contains(holds), "{why}");
        report.queues[0].ring_full = 0;
        let why = wait(&report).unwrap();
        assert!(
            why.contains("had time to spare") && why.ends_with("host.priority=real-time"),
            "{why}"
        );
        report.borrowed_core.core = 0;
        assert!(wait(&report).unwrap().contains("is also the borrowed core"));
        report.latency_ns.in_target_ring = Some(10);
        assert_eq!(wait(&report), None, "packets waited elsewhere");
    }

    #[test]
    fn the_last_line_is_the_run_in_short() {
        let last = "total    2,000 packets in 2.00 s, 1.0 k packets/s, 480.0 k bit/s: 1,990 delivered, \
                    0 transmitted, 10 dropped (0.5 %)";
        assert_eq!(text("picnic0", &report()).lines().last(), Some(last));
    }
}
