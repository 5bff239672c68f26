//! Ends of a card: a stop under load, a lost wire, a kill.

use super::*;
use aya::programs::SchedClassifier;
use aya::programs::loaded_programs;
use aya::programs::tc::TcAttachType;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};

/// Set for a process to be killed: its hand-over, and the namespace of its card.
const VICTIM: &str = "PICNIC_KERNEL_VICTIM";
const VICTIM_NAMESPACE: &str = "PICNIC_KERNEL_VICTIM_NAMESPACE";

/// A lost wire ends the run, and the rest of the machine is restored.
#[test]
fn lost_wires_end_the_run() {
    for handover in HANDOVERS {
        let Some(bed) = Bed::new("lost_wires_end_the_run") else { return };
        let _machine = machine();
        let links = bed.0.ip("card", "link show").unwrap();
        let running = start(&bed.card(handover, "[[rx]]\nfunction = \"rss\"\n"));
        bed.send(64);
        bed.0.ip("card", "link del k0").unwrap();
        wait_until("the card has noticed", || !running.is_alive());
        let report = running.stop().unwrap();
        check(&report, 64);
        assert!(
            report.notes.iter().any(|note| note.contains("an interface disappeared")),
            "{:?}",
            report.notes
        );
        assert!(links.contains("k0"), "{links}");
        let left = bed.0.ip("card", "link show").unwrap();
        assert!(!left.contains("picnic") && !left.contains("k0"), "{left}");
    }
}

/// The tc programs on the wire's receive path. None is a filter of a queueing discipline, which
/// would outlive the process.
fn tc_programs(bed: &Bed) -> usize {
    let disciplines = bed.0.within("card", "tc qdisc show dev k0").unwrap();
    assert!(!disciplines.contains("clsact") && !disciplines.contains("ingress"), "{disciplines}");
    let netns = bed.0.netns("card");
    let asked = within(Some(&netns), || SchedClassifier::query_tcx("k0", TcAttachType::Ingress));
    asked.unwrap().unwrap().1.len()
}

/// The programs attached by this process, in the order of their files.
fn links() -> Vec<String> {
    let mut files: Vec<u32> = std::fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    files.sort_unstable();
    // Programs of other processes may end meanwhile.
    let names: BTreeMap<_, _> = loaded_programs()
        .filter_map(Result::ok)
        .map(|program| (program.id(), program.name_as_str().unwrap_or("").to_owned()))
        .collect();
    let program_of = |file: u32| {
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{file}")).ok()?;
        told.lines().find(|line| line.starts_with("link_type:"))?;
        let id = told.lines().find_map(|line| line.strip_prefix("prog_id:"))?;
        names.get(&id.trim().parse().unwrap()).cloned()
    };
    files.into_iter().filter_map(program_of).collect()
}

#[test]
fn journal_of_a_killed_card_restores_the_machine() {
    let test = "journal_of_a_killed_card_restores_the_machine";
    if let Ok(handover) = std::env::var(VICTIM) {
        let namespace = std::env::var(VICTIM_NAMESPACE).unwrap();
        let keys = if handover == "hybrid" { hybrid::chain() } else { HELD.into() };
        let text = card(&handover, &namespace, &keys);
        // That of the process itself has no name.
        let _running = start(&text.replace("namespace = \"\"\n", ""));
        if handover == "skb" {
            let ours = ["relay_0", "to_ring", "steer_0"];
            let links = links().into_iter().filter(|name| ours.contains(&&**name));
            assert_eq!(links.collect::<Vec<_>>(), ours, "the last is closed first");
        }
        println!("\nrunning");
        loop {
            std::thread::park();
        }
    }
    let Some(bed) = Bed::new(test) else { return };
    let _machine = machine();
    let before = bed.state();
    let state = bed.0.folder().join("state");
    for (handover, is_inside) in
        HANDOVERS.into_iter().flat_map(|handover| [(handover, false), (handover, true)])
    {
        let mut victim = match is_inside {
            true => Victim::start_inside(&bed, handover, &state),
            false => Victim::start(&bed, handover, &state),
        };
        assert_eq!(bed.state(), held_at_work(handover));
        assert_eq!(tc_programs(&bed), usize::from(handover == "skb"));
        victim.kill();
        // The programs ended with their process; settings are restored now.
        wait_until("XDP has gone", || bed.state().program != "cpumap");
        wait_until("tc programs have gone", || tc_programs(&bed) == 0);
        let left = if handover == "skb" { "skb" } else { "" };
        assert_eq!(bed.state(), held_at_work(left));
        let machine = Machine { state: state.clone(), ..Machine::this() };
        let restored = restore_all(&machine, JournalSelection::Stale).unwrap();
        assert!(
            restored.iter().all(|journal| journal.is_whole()) && restored.len() == 1,
            "{restored:?}"
        );
        assert_eq!(bed.state(), before, "{handover}, inside: {is_inside}");
        assert_eq!(restore_all(&machine, JournalSelection::Stale).unwrap(), []);
    }
}

/// PICNIC, section 3.2.1: packets in a ring at the end of the card still reach the host.
#[test]
fn ending_under_load_loses_nothing() {
    let Some(bed) = Bed::new("ending_under_load_loses_nothing") else { return };
    let _machine = machine();
    // A change of polling loses a veth's packets: it starts in the card's mode.
    bed.0.within("card", "ethtool -K k0 gro on").unwrap();
    let netns = bed.0.netns("card");
    let set = "echo 1 > /sys/class/net/k0/threaded; \
               for of in all default; do echo 0 > /proc/sys/net/ipv4/conf/$of/rp_filter; done";
    picnic_machine::command::run(&["ip", "netns", "exec", &netns, "sh", "-c", set]).unwrap();
    let state = bed.0.folder().join("state");
    for handover in HANDOVERS {
        let card = bed.card(handover, "[[rx]]\nfunction = \"rss\"\ntypes = [\"udp-ipv4\"]\n");
        bed.under_load(|arrived| {
            let more = || {
                let wanted = arrived.load(Relaxed) + 500;
                wait_until("more has arrived", || arrived.load(Relaxed) >= wanted);
            };
            for _ in 0..5 {
                let running = start(&card);
                more();
                let report = running.stop().unwrap();
                let (ledger, packets) = (&report.ledger, report.wires[0].rx_packets);
                assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger:?}");
                assert_eq!((packets, ledger.dropped), (ledger.delivered, 0), "{report:?}");
                assert!(packets > 100, "there was no load: {packets}");
                assert!(report.notes.iter().all(|note| !note.contains("bug")), "{report:?}");
            }
            for _ in 0..3 {
                let mut victim = Victim::start(&bed, handover, &state);
                more();
                victim.kill();
                more();
                let machine = Machine { state: state.clone(), ..Machine::this() };
                let restored = restore_all(&machine, JournalSelection::Stale).unwrap();
                assert!(restored.iter().all(|journal| journal.is_whole()), "{restored:?}");
            }
        });
    }
}

/// A card in a child process, to be killed.
pub(super) struct Victim(Child);

impl Victim {
    pub(super) fn start(bed: &Bed, handover: &str, state: &Path) -> Self {
        let program = Command::new(std::env::current_exe().unwrap());
        Self::run(program, handover, &bed.0.netns("card"), state)
    }

    /// The same, started in its wire's namespace, as by `ip netns exec`.
    fn start_inside(bed: &Bed, handover: &str, state: &Path) -> Self {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &bed.0.netns("card")]);
        program.arg(std::env::current_exe().unwrap());
        Self::run(program, handover, "", state)
    }

    fn run(mut program: Command, handover: &str, namespace: &str, state: &Path) -> Self {
        let mut child = program
            .args(["tests::traffic::ends::journal_of_a_killed_card_restores_the_machine"])
            .args(["--exact", "--nocapture"])
            .env(VICTIM, handover)
            .env(VICTIM_NAMESPACE, namespace)
            .env("PICNIC_STATE_DIR", state)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        wait_for("the card has started", || (lines.next()?.ok()? == "running").then_some(()));
        Victim(child)
    }

    pub(super) fn kill(&mut self) {
        // Otherwise it ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}
