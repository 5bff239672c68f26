//! Isolation of a machine made of files: moved, unmoved and restored threads and interrupts.

use super::*;
use crate::config::SECTIONS;
use crate::topology::{Available, Topology, place};
use crate::undo::Journal;
use crate::undo::fixture::{Fixture, put, put_online};
use picnic_core::config::Sections;
use proptest::prelude::*;
use std::fs;

fn request(fixture: &Fixture, card: &str) -> IsolationRequest {
    let card = Sections::core().with(SECTIONS).parse(card, None).unwrap();
    let topology = Topology::read(&fixture.machine.sysfs);
    let cores = topology.online.iter().collect();
    let available = Available { cores, topology, isolated: None };
    IsolationRequest::of(&card, &place(&card, &available).unwrap())
}

const ETH0: &str = "[[wire]]\nport = \"packet\"\ninterface = \"eth0\"\n";

/// The cores of processes 100, 101, 102, 103, 104, kernel thread 17, and bound thread 15.
fn cores(fixture: &Fixture) -> [String; 7] {
    [100, 101, 102, 103, 104, 17, 15].map(|process| fixture.cores(process))
}

const MOVED: [&str; 7] = ["0-5", "3", "0-5", "5", "0-5", "0-5", "7"];

fn assert_moved(fixture: &Fixture) {
    assert_eq!(cores(fixture), MOVED);
    assert_eq!(
        [1, 24, 25, 26, 27].map(|n| fixture.interrupt(n)),
        ["0-5", "0-5", "7", "4-5", "6-7"]
    );
    let all = fixture.all();
    let text = |path: &str| all[&fixture.root.join(path)].as_str();
    assert_eq!(text("proc/irq/default_smp_affinity"), "3f");
    assert_eq!(text("sys/devices/virtual/workqueue/cpumask"), "3f");
    assert_eq!(text("sys/class/net/eth0/queues/rx-0/rps_cpus"), "3f");
    assert_eq!(text("sys/class/net/eth0/queues/rx-1/rps_cpus"), "00");
    assert!(text("proc/100/task/110/status").ends_with("Cpus_allowed_list:\t2"));
}

/// Runs a test for both methods.
fn both(test: impl Fn(Fixture, Method)) {
    test(Fixture::busy(), Method::Affinity);
    test(Fixture::busy().with_groups(), Method::Cpuset);
}

#[test]
fn plans_list_all_and_change_nothing() {
    let fixture = Fixture::busy();
    let before = fixture.all();
    let plan = plan(&fixture.machine, &request(&fixture, ETH0)).unwrap();
    assert_eq!((plan.borrowed_core, plan.target_cores.to_string()), (7, "0-5".into()));
    assert_eq!((plan.left_out.len(), plan.left_out[0].core), (1, 6));
    let interrupts: Vec<_> = plan
        .interrupts
        .iter()
        .map(|change| (change.interrupt, change.becomes.as_str(), change.is_wire))
        .collect();
    let expected = [
        (1, "0-5", false),
        (24, "0-5", false),
        (25, "7", true),
        (26, "4-5", false),
        (27, "0-5", false),
    ];
    assert_eq!(interrupts, expected);
    assert_eq!(plan.interrupts[1].handlers, ["virtio0-config"]);
    assert_eq!(plan.settings.len(), 3);
    let threads: Vec<_> =
        plan.threads.iter().map(|thread| (thread.thread, thread.becomes.as_str())).collect();
    assert_eq!(
        threads,
        [
            (1, "0-5"),
            (2, "0-5"),
            (17, "0-5"),
            (100, "0-5"),
            (110, "2"),
            (102, "0-5"),
            (103, "5"),
            (104, "0-5")
        ]
    );
    assert_eq!((plan.bound_threads, plan.method), (1, Method::Affinity));
    assert!(plan.method_reason.unwrap().ends_with("is not a control group of version 2"));
    assert_eq!(fixture.all(), before);
    assert!(!fixture.machine.state.exists());
}

#[test]
fn everything_moves_and_is_restored() {
    both(|fixture, method| {
        let before = fixture.all();
        let isolated = apply(&fixture.machine, &request(&fixture, ETH0), false).unwrap();
        assert_moved(&fixture);
        assert_eq!(isolated.plan.method, method);
        assert_eq!(isolated.refused.len(), 1, "{:?}", isolated.refused);
        assert!(isolated.refused[0].starts_with("interrupt 27 (nvme0q7) to 0-5: "));
        let group = fixture.machine.sysfs.join("fs/cgroup/picnic");
        if method == Method::Cpuset {
            let text = |file: &str| fixture.machine.read(&group.join(file)).unwrap();
            assert_eq!(text("cpuset.cpus.partition"), "isolated");
            assert_eq!(
                (text("cpuset.cpus"), text("cgroup.type")),
                ("6-7".into(), "threaded".into())
            );
        } else {
            assert!(!group.exists());
        }
        let restored = isolated.restore().unwrap().unwrap();
        assert!(restored.is_whole(), "{restored}");
        assert_eq!(fixture.all(), before);
        assert!(fixture.journals().is_empty());
    });
}

#[test]
fn each_level_has_its_cores() {
    for (level, reserved) in [("none", "7"), ("smt", "6-7"), ("l2", "6-7")] {
        let fixture = Fixture::busy();
        let before = fixture.all();
        let request = request(&fixture, &format!("[isolation]\nlevel = \"{level}\"\n"));
        assert_eq!(request.reserved().to_string(), reserved);
        let isolated = apply(&fixture.machine, &request, false).unwrap();
        let others = isolated.plan.target_cores.to_string();
        assert_eq!(fixture.cores(100), others);
        // Dropping restores it too.
        drop(isolated);
        assert_eq!(fixture.all(), before);
    }
}

/// Killed at every single moment: cleaning up restores everything, and so does the next start.
#[test]
fn a_kill_at_any_moment_can_be_restored() {
    both(|_, method| {
        let build = || match method {
            Method::Affinity => Fixture::busy(),
            Method::Cpuset => Fixture::busy().with_groups(),
        };
        for changes in 0.. {
            let fixture = build();
            let before = fixture.all();
            let request = request(&fixture, ETH0);
            fixture.kill_after(changes);
            drop(apply(&fixture.machine, &request, true));
            let was_killed = fixture.revive();
            if was_killed && changes % 2 == 0 {
                let isolated = apply(&fixture.machine, &request, false).unwrap();
                assert_eq!(isolated.cleaned.len(), 1);
                assert_moved(&fixture);
                isolated.restore().unwrap();
            } else {
                let which =
                    if was_killed { JournalSelection::Stale } else { JournalSelection::AllHeld };
                let restored = restore_all(&fixture.machine, which).unwrap();
                assert!(restored[0].failed.is_empty(), "{changes}: {restored:?}");
            }
            assert_eq!(fixture.all(), before, "killed after {changes} changes");
            assert!(fixture.journals().is_empty());
            if !was_killed {
                assert!(changes > 15, "{changes} changes are too few");
                break;
            }
        }
    });
}

/// The same, killed while restoring.
#[test]
fn a_kill_while_restoring_can_be_repeated() {
    both(|_, method| {
        for changes in 0.. {
            let fixture = match method {
                Method::Affinity => Fixture::busy(),
                Method::Cpuset => Fixture::busy().with_groups(),
            };
            let before = fixture.all();
            let isolated = apply(&fixture.machine, &request(&fixture, ETH0), false).unwrap();
            fixture.kill_after(changes);
            drop(isolated);
            let was_killed = fixture.revive();
            restore_all(&fixture.machine, JournalSelection::Stale).unwrap();
            assert_eq!(fixture.all(), before, "killed after {changes} changes");
            if !was_killed {
                break;
            }
        }
    });
}

#[test]
fn applying_twice_is_idempotent() {
    both(|fixture, _| {
        let before = fixture.all();
        let request = request(&fixture, ETH0);
        drop(apply(&fixture.machine, &request, true).unwrap());
        assert_moved(&fixture);
        // One thread is new, one has moved back.
        fixture.start(200, 200, 1, 0, "0-7");
        put(&fixture.machine.procfs.join("irq/1/smp_affinity_list"), "0-7");
        let again = plan(&fixture.machine, &request).unwrap();
        assert!(again.is_applied);
        // The refused one is tried again.
        assert_eq!((again.threads.len(), again.interrupts.len()), (1, 2));
        let isolated = apply(&fixture.machine, &request, true).unwrap();
        assert_eq!(isolated.threads_moved, 1);
        drop(isolated);
        assert_eq!(fixture.cores(200), "0-5");
        assert_moved(&fixture);
        // A run uses the held isolation, and leaves it.
        drop(apply(&fixture.machine, &request, false).unwrap());
        assert_moved(&fixture);
        let restored = restore(&fixture.machine).unwrap();
        assert!(restored[0].is_whole(), "{}", restored[0]);
        assert_eq!(fixture.cores(200), "0-7");
        fixture.end(200);
        assert_eq!(fixture.all(), before);
        assert!(restore(&fixture.machine).unwrap().is_empty());
    });
}

#[test]
fn one_core_is_isolated_at_a_time() {
    let fixture = Fixture::busy();
    drop(apply(&fixture.machine, &request(&fixture, ETH0), true).unwrap());
    let found = applied(&fixture.machine).unwrap();
    assert_eq!((found.borrowed_core, found.reserved.to_string()), (7, "6-7".into()));
    let other = request(&fixture, "[card]\nborrowed_core = 3\n");
    let told = plan(&fixture.machine, &other).unwrap();
    assert!(!told.is_applied && told.warnings[0].starts_with("cores 6-7 are isolated now"));
    let error = apply(&fixture.machine, &other, true).unwrap_err().to_string();
    let me = std::process::id();
    assert_eq!(
        error,
        format!("cores 6-7 are already isolated, by process {me}: `picnic isolate restore` first")
    );
    assert_moved(&fixture);
    restore(&fixture.machine).unwrap();
    assert!(applied(&fixture.machine).is_none());
}

#[test]
fn threads_started_or_moved_meanwhile_are_handled() {
    both(|fixture, method| {
        let isolated = apply(&fixture.machine, &request(&fixture, ETH0), false).unwrap();
        // Started by 100, which may run everywhere again; by 102, which has its own cores; by one
        // that has ended since; and one that has chosen its cores itself.
        fixture.start(300, 300, 100, 0, "0-5");
        fixture.start(302, 302, 102, 0, "0-5");
        fixture.start(303, 303, 299, 0, "0-5");
        fixture.start(304, 304, 100, 0, "1");
        // 103 has moved itself, 104 has ended, and 101's number is another's.
        fixture.start(103, 103, 100, 0, "0");
        fixture.end(104);
        fixture.end(101);
        fixture.start(101, 101, 100, 0, "2");
        let stat = fixture.machine.procfs.join("101/task/101/stat");
        let text = std::fs::read_to_string(&stat).unwrap().replace(" 1010 ", " 9999 ");
        std::fs::write(&stat, text).unwrap();
        let restored = isolated.restore().unwrap().unwrap();
        assert!(restored.is_whole(), "{restored}");
        assert!(restored.gone >= 1);
        assert_eq!([300, 302, 303, 304].map(|n| fixture.cores(n)), ["0-7", "6-7", "0-7", "1"]);
        assert_eq!([103, 101].map(|n| fixture.cores(n)), ["0", "2"], "{method:?}");
    });
}

#[test]
fn offline_cores_are_not_an_error() {
    both(|fixture, _| {
        let isolated = apply(&fixture.machine, &request(&fixture, ETH0), false).unwrap();
        put_online(&fixture.machine.sysfs, "0-4,6");
        // The kernel takes such cores from threads.
        for process in [100, 102, 104, 17] {
            fixture.start(process, process, 1, 0, "0-4");
        }
        let restored = isolated.restore().unwrap().unwrap();
        assert!(restored.failed.is_empty(), "{restored}");
        assert!(fixture.journals().is_empty());
        assert_eq!(fixture.cores(100), "0-4,6");
        assert_eq!(fixture.cores(102), "6");
        // It may run only on core 7, which does not exist.
        assert!(restored.refused.iter().any(|what| what.starts_with("thread 104 ")), "{restored}");
        assert_eq!(fixture.interrupt(1), "0-7");
    });
}

#[test]
fn impossible_partitions_fall_back_to_affinity() {
    let fixture = Fixture::busy().with_groups();
    let before = fixture.all();
    let control = fixture.machine.sysfs.join("fs/cgroup/cgroup.subtree_control");
    fixture.kernel.refuse(&control);
    let isolated = apply(&fixture.machine, &request(&fixture, ETH0), false).unwrap();
    assert_moved(&fixture);
    assert_eq!(isolated.plan.method, Method::Affinity);
    assert!(isolated.plan.warnings.iter().any(|told| told.starts_with("no cpuset partition")));
    drop(isolated);
    assert_eq!(fixture.all(), before);
    // Unless the card requires it.
    let insisting = request(&fixture, "[isolation]\nmethod = \"cpuset\"\n");
    let error = apply(&fixture.machine, &insisting, true).unwrap_err().to_string();
    assert!(error.starts_with("isolation.method \"cpuset\" is not possible: "), "{error}");
    assert_eq!(fixture.all(), before);
    assert!(fixture.journals().is_empty());
}

#[test]
fn reasons_against_a_partition_are_reported() {
    let why = |fixture: &Fixture| {
        plan(&fixture.machine, &request(fixture, "")).unwrap().method_reason.unwrap_or_default()
    };
    let fixture = Fixture::busy().with_groups();
    assert_eq!(why(&fixture), "");
    // A card already running there; a module's bound thread.
    fixture.start(400, 400, 1, 0, "7");
    fixture.call(400, "borrowed");
    assert!(why(&fixture).starts_with("process 400 has a card on that core"));
    fixture.end(400);
    fixture.start(401, 401, 2, crate::undo::fixture::BOUND, "5");
    fixture.call(401, "kpktgend_5");
    assert!(why(&fixture).starts_with("kernel thread kpktgend_5 is bound to core 5"));
    fixture.end(401);
    let root = fixture.machine.sysfs.join("fs/cgroup");
    put(&root.join("picnic/cgroup.type"), "domain");
    assert!(why(&fixture).ends_with("already exists"));
    put(&root.join("cgroup.type"), "domain");
    assert!(why(&fixture).starts_with("this is a container"));
    put(&root.join("cgroup.controllers"), "cpu io");
    assert!(why(&fixture).contains("no cpuset controller"));
    let affinity = request(&fixture, "[isolation]\nmethod = \"affinity\"\n");
    assert_eq!(plan(&fixture.machine, &affinity).unwrap().method_reason, None);
}

/// A card in the kernel keeps its threads and interrupts on its core, which excludes a partition.
#[test]
fn claims_of_running_cards_stay() {
    for fixture in [Fixture::busy(), Fixture::busy().with_groups()] {
        let machine = &fixture.machine;
        let steering = machine.sysfs.join("class/net/eth0/queues/rx-0/rps_cpus");
        let before = fixture.all();
        let me = std::process::id() as i32;
        fixture.start(me, me, 1, 0, "0-7");
        let mut card = Journal::create(machine, "kernel").unwrap();
        // As at its start: packet steering, the polling thread, interrupts.
        card.record(Change::Feature {
            interface: "eth0".into(),
            namespace: None,
            feature: "queues/rx-0/rps_cpus".into(),
            was: "c0".into(),
        })
        .unwrap();
        put(&steering, "80");
        fixture.start(600, 600, 2, crate::undo::fixture::KERNEL, "7");
        let start_time = 6000;
        let (was, becomes) = ("0-7".into(), "7".into());
        card.record(Change::Affinity { process: 600, thread: 600, start_time, was, becomes })
            .unwrap();
        bring_interrupts(machine, &mut card, "eth0", None, 7).unwrap();
        let with_card = fixture.all();
        // For a card on that core, and for another one with the same wire.
        for (card, reserved) in [("", "6-7"), (ETH0, "6-7"), ("[card]\nborrowed_core = 2\n", "2-3")]
        {
            let request = request(&fixture, card);
            assert_eq!(request.reserved().to_string(), reserved);
            let isolated = apply(machine, &request, false).unwrap();
            assert_eq!((fixture.interrupt(25), fixture.cores(600)), ("7".into(), "7".into()));
            assert_eq!(machine.read(&steering).unwrap(), "80");
            let told = isolated.plan.warnings.join("\n");
            let message = format!(
                "process {me} has a card that keeps its interrupts, its threads and its packet steering \
                 where they are"
            );
            let is_met = reserved == "6-7";
            assert_eq!(told.contains(&message), is_met, "{told}");
            if is_met {
                assert_eq!(isolated.plan.method, Method::Affinity);
                assert_eq!(fixture.cores(100), "0-5");
            }
            assert!(isolated.plan.threads.iter().all(|thread| thread.thread != 600));
            isolated.restore().unwrap();
            assert_eq!(fixture.all(), with_card);
        }
        fixture.end(600);
        fixture.end(me);
        put(&steering, "c0");
        drop(card);
        put(&machine.procfs.join("irq/25/smp_affinity_list"), "2");
        assert_eq!(fixture.all(), before);
    }
}

#[test]
fn the_only_core_cannot_be_isolated() {
    let fixture = Fixture::busy();
    put_online(&fixture.machine.sysfs, "0");
    let error = plan(&fixture.machine, &request(&fixture, "")).unwrap_err().to_string();
    assert_eq!(error, "core 0 cannot be isolated: there is no other core for everything else");
}

#[test]
fn wires_without_interrupts_are_reported() {
    let fixture = Fixture::busy();
    let card = "[[wire]]\nport = \"packet\"\ninterface = \"veth9\"\n\
                [[wire]]\nport = \"packet\"\ninterface = \"eth0\"\nnamespace = \"lab\"\n";
    let plan = plan(&fixture.machine, &request(&fixture, card)).unwrap();
    let told = plan.warnings.join("\n");
    assert!(told.contains("interface veth9 has no interrupts of its own"), "{told}");
    assert!(told.contains("wire wire1: interface eth0 is in namespace lab"), "{told}");
    assert!(plan.interrupts.iter().all(|interrupt| !interrupt.is_wire));
}

#[test]
fn interrupts_move_to_a_core_and_are_restored() {
    let fixture = Fixture::busy();
    let machine = &fixture.machine;
    let message = |number: i32, handler: &str, cores: &str| {
        put(&machine.procfs.join(format!("irq/{number}/smp_affinity_list")), cores);
        fs::create_dir(machine.procfs.join(format!("irq/{number}/{handler}"))).unwrap();
        put(&machine.sysfs.join(format!("devices/pci0/0000:00:03.0/msi_irqs/{number}")), "msix");
    };
    message(28, "virtio0-output.0", "0-7");
    message(29, "virtio0-control", "6");
    fixture.kernel.refuse(&machine.procfs.join("irq/29/smp_affinity_list"));
    // One that its driver has not requested.
    put(&machine.sysfs.join("devices/pci0/0000:00:03.0/msi_irqs/40"), "msix");
    let now = || [1, 24, 25, 26, 27, 28, 29].map(|number| fixture.interrupt(number));
    let before = (now(), fixture.all());
    let mut journal = Journal::create(machine, "test").unwrap();
    let notes = bring_interrupts(machine, &mut journal, "eth0", None, 7).unwrap();
    assert_eq!(now(), ["0-7", "7", "7", "4-7", "6-7", "7", "6"]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let start = "interface eth0: interrupt 29 (virtio0-control) to 7: ";
    assert!(notes[0].starts_with(start), "{notes:?}");
    // An interrupt already in place is neither changed nor recorded.
    let known = journal.changes().len();
    assert_eq!(known, 3);
    bring_interrupts(machine, &mut journal, "eth0", None, 7).unwrap();
    assert_eq!(journal.changes().len(), known + 1, "only the one that refused");
    assert!(journal.undo().unwrap().is_whole());
    assert_eq!((now(), fixture.all()), before);
}

#[test]
fn a_kill_while_moving_interrupts_is_restored() {
    for changes in 0..3 {
        let fixture = Fixture::busy();
        let before = fixture.all();
        let mut journal = Journal::create(&fixture.machine, "test").unwrap();
        fixture.kill_after(changes);
        let _ = bring_interrupts(&fixture.machine, &mut journal, "eth0", None, 7);
        let _ = bring_interrupts(&fixture.machine, &mut journal, "eth0", None, 3);
        drop(journal);
        fixture.revive();
        restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap();
        assert_eq!(fixture.all(), before);
    }
}

#[test]
fn line_and_shared_interrupts_are_handled() {
    let fixture = Fixture::busy();
    let machine = &fixture.machine;
    let device = machine.sysfs.join("devices/pci0/0000:00:04.0");
    put(&device.join("irq"), "11");
    put(&machine.procfs.join("irq/11/smp_affinity_list"), "0-7");
    fs::create_dir(machine.procfs.join("irq/11/eth1")).unwrap();
    fs::create_dir_all(machine.sysfs.join("class/net/eth1")).unwrap();
    std::os::unix::fs::symlink(device, machine.sysfs.join("class/net/eth1/device")).unwrap();
    let mut journal = Journal::create(machine, "test").unwrap();
    assert!(bring_interrupts(machine, &mut journal, "eth1", None, 3).unwrap().is_empty());
    assert_eq!(fixture.interrupt(11), "3");
    fs::create_dir(machine.procfs.join("irq/11/ata_piix")).unwrap();
    let notes = bring_interrupts(machine, &mut journal, "eth1", None, 5).unwrap();
    let expected = "interface eth1 shares interrupt 11 (ata_piix, eth1), which core 5 handles for \
                    all of them";
    assert_eq!(notes, [expected]);
    assert!(journal.undo().unwrap().is_whole());
    assert_eq!(fixture.interrupt(11), "0-7");
}

#[test]
fn an_interface_without_a_device_needs_no_interrupts() {
    let fixture = Fixture::busy();
    let machine = &fixture.machine;
    fs::create_dir_all(machine.sysfs.join("class/net/veth9")).unwrap();
    let mut journal = Journal::create(machine, "test").unwrap();
    assert!(bring_interrupts(machine, &mut journal, "veth9", None, 7).unwrap().is_empty());
    // A device without any may be polled on any core: that is reported.
    let device = machine.sysfs.join("devices/pci0/0000:00:05.0");
    fs::create_dir_all(&device).unwrap();
    fs::create_dir_all(machine.sysfs.join("class/net/eth2")).unwrap();
    std::os::unix::fs::symlink(device, machine.sysfs.join("class/net/eth2/device")).unwrap();
    let notes = bring_interrupts(machine, &mut journal, "eth2", None, 7).unwrap();
    assert_eq!(notes, ["interface eth2 has no interrupts of its own"]);
    assert!(journal.changes().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Threads of all kinds, some started meanwhile: restored exactly, for any cores.
    #[test]
    fn any_threads_are_restored(
        threads in prop::collection::vec((1..256_u32, any::<bool>(), 0..400_i32), 1..12),
        has_groups in any::<bool>(),
        killed in prop::option::of(0..40_u32),
    ) {
        let mut fixture = Fixture::busy();
        if has_groups {
            fixture = fixture.with_groups();
        }
        for (index, (mask, is_bound, parent)) in threads.iter().enumerate() {
            let cores = CoreSet::parse_mask(&format!("{mask:x}")).unwrap().to_string();
            let flags = if *is_bound { crate::undo::fixture::WORKER } else { 0 };
            let number = 500 + index as i32;
            fixture.start(number, number, *parent, flags, &cores);
        }
        let before = fixture.all();
        let request = request(&fixture, ETH0);
        if let Some(changes) = killed {
            fixture.kill_after(changes);
        }
        let isolated = apply(&fixture.machine, &request, true);
        if killed.is_none() {
            prop_assert!(isolated.is_ok());
            for (index, (mask, is_bound, _)) in threads.iter().enumerate() {
                let was = CoreSet::parse_mask(&format!("{mask:x}")).unwrap();
                let kept = was.and(&CoreSet::parse_list("0-5").unwrap());
                let kept = if kept.is_empty() { "0-5".into() } else { kept.to_string() };
                let expected = if *is_bound { was.to_string() } else { kept };
                prop_assert_eq!(fixture.cores(500 + index as i32), expected);
            }
        }
        drop(isolated);
        fixture.revive();
        restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap();
        prop_assert_eq!(fixture.all(), before);
    }
}
