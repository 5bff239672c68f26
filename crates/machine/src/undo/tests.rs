//! Journals: what they hold after a kill, whose they are, and who may write them.

use super::fixture::{Fixture, put};
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

fn setting(fixture: &Fixture, name: &str, becomes: &str) -> Change {
    let path = fixture.machine.sysfs.join(name);
    let was = fixture.machine.read(&path).unwrap();
    Change::Setting { path, was, becomes: becomes.into() }
}

fn write(fixture: &Fixture, name: &str, text: &str) {
    fixture.machine.kernel.write(&fixture.machine.sysfs.join(name), text).unwrap();
}

fn text(fixture: &Fixture, name: &str) -> String {
    fixture.machine.read(&fixture.machine.sysfs.join(name)).unwrap()
}

/// A machine with two settings.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    put(&fixture.machine.sysfs.join("a"), "1");
    put(&fixture.machine.sysfs.join("b"), "x");
    fixture
}

/// Makes the owner of this process' journals one that runs.
fn run_owner(fixture: &Fixture) {
    let me = std::process::id() as i32;
    fixture.start(me, me, 1, 0, "0-7");
}

#[test]
fn changes_are_taken_back_the_youngest_first() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for value in ["2", "3"] {
        journal.record(setting(&fixture, "a", value)).unwrap();
        write(&fixture, "a", value);
    }
    journal.record(setting(&fixture, "b", "y")).unwrap();
    let restored = journal.undo().unwrap();
    assert_eq!(text(&fixture, "a"), "1");
    // That of b was never made.
    assert_eq!((restored.restored, restored.unchanged), (2, 1));
    assert!(restored.is_whole());
    assert!(fixture.journals().is_empty());
}

#[test]
fn a_journal_is_stale_once_its_process_has_ended() {
    let fixture = fixture();
    run_owner(&fixture);
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    write(&fixture, "a", "2");
    assert!(restore_all(&fixture.machine, Which::AllHeld).unwrap().is_empty());
    assert_eq!(text(&fixture, "a"), "2");
    let me = std::process::id() as i32;
    drop(journal);
    // Its number is another's by now.
    fixture.end(me);
    fixture.start(me, me, 1, 0, "0-7");
    let stat = fixture.machine.procfs.join(format!("{me}/task/{me}/stat"));
    let other = fs::read_to_string(&stat).unwrap().replace(&format!(" {} 0", me * 10), " 7 0");
    fs::write(&stat, other).unwrap();
    let restored = restore_all(&fixture.machine, Which::Stale).unwrap();
    assert_eq!(restored.len(), 1);
    assert_eq!((restored[0].restored, restored[0].process), (1, me));
    assert_eq!(text(&fixture, "a"), "1");
    assert!(restore_all(&fixture.machine, Which::AllHeld).unwrap().is_empty());
}

#[test]
fn a_held_journal_outlives_its_process() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    write(&fixture, "a", "2");
    journal.hold().unwrap();
    drop(journal);
    assert!(restore_all(&fixture.machine, Which::Stale).unwrap().is_empty());
    assert!(restore_all(&fixture.machine, Which::Held("other")).unwrap().is_empty());
    let known = journals(&fixture.machine).unwrap().remove(0).unwrap();
    assert!(known.is_held && !known.is_owned && !known.is_stale());
    // It can be gone on with.
    let mut journal = Journal::reopen(&fixture.machine, known).unwrap();
    journal.record(setting(&fixture, "b", "y")).unwrap();
    write(&fixture, "b", "y");
    drop(journal);
    assert_eq!(restore_all(&fixture.machine, Which::Held("test")).unwrap()[0].restored, 2);
    assert_eq!(text(&fixture, "a") + &text(&fixture, "b"), "1x");
    assert!(fixture.journals().is_empty());
}

#[test]
fn a_journal_of_an_earlier_boot_is_only_removed() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    write(&fixture, "a", "2");
    journal.hold().unwrap();
    put(&fixture.machine.procfs.join("sys/kernel/random/boot_id"), "next-boot");
    let restored = restore_all(&fixture.machine, Which::Stale).unwrap();
    assert_eq!((restored[0].restored, restored[0].gone), (0, 1));
    assert_eq!(text(&fixture, "a"), "2");
    assert!(fixture.journals().is_empty());
}

/// Whatever part of the last line was written: that change was not made, all others were.
#[test]
fn a_line_that_was_being_written_does_not_count() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    journal.record(setting(&fixture, "b", "y")).unwrap();
    drop(journal);
    let path = fixture.journals().remove(0);
    let whole = fs::read_to_string(&path).unwrap();
    let ends: Vec<_> = whole.match_indices('\n').map(|(at, _)| at + 1).collect();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        write(&fixture, "a", "2");
        write(&fixture, "b", "y");
        let restored = restore_all(&fixture.machine, Which::Stale).unwrap();
        assert_eq!(restored.len(), 1, "cut at {cut}");
        let a = if cut >= ends[1] { "1" } else { "2" };
        let b = if cut >= ends[2] { "x" } else { "y" };
        assert_eq!((text(&fixture, "a").as_str(), text(&fixture, "b").as_str()), (a, b));
        assert!(!path.exists());
    }
}

#[test]
fn what_cannot_be_taken_back_yet_keeps_the_journal() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for (name, becomes) in [("a", "2"), ("b", "y")] {
        journal.record(setting(&fixture, name, becomes)).unwrap();
        write(&fixture, name, becomes);
    }
    fixture.kill_after(1);
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.failed.len()), (1, 1));
    assert!(restored.to_string().ends_with("/a to 1: killed)"), "{restored}");
    assert!(fixture.revive());
    assert_eq!(restore_all(&fixture.machine, Which::Stale).unwrap()[0].restored, 1);
    assert_eq!(text(&fixture, "a") + &text(&fixture, "b"), "1x");
}

#[test]
fn what_is_gone_or_refused_does_not_keep_the_journal() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for (name, becomes) in [("a", "2"), ("b", "y")] {
        journal.record(setting(&fixture, name, becomes)).unwrap();
        write(&fixture, name, becomes);
    }
    fs::remove_file(fixture.machine.sysfs.join("a")).unwrap();
    fixture.kernel.refuse(&fixture.machine.sysfs.join("b"));
    let restored = journal.undo().unwrap();
    assert_eq!((restored.gone, restored.refused.len(), restored.failed.len()), (1, 1, 0));
    assert!(!restored.is_whole());
    assert!(fixture.journals().is_empty());
}

#[test]
fn a_journal_that_others_can_write_is_not_obeyed() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    let path = fixture.journals().remove(0);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
}

#[test]
fn what_is_no_journal_is_told_with_its_line() {
    let fixture = fixture();
    drop(Journal::create(&fixture.machine, "test").unwrap());
    let path = fixture.journals().remove(0);
    let header = fs::read_to_string(&path).unwrap();
    for (text, expected) in [
        (header.clone() + "{\"change\":\"magic\"}\n", "line 2: "),
        ("{}\n".to_owned(), "line 1: "),
        (header.replace("\"journal\":1", "\"journal\":9"), "found version 9, allowed: 1"),
    ] {
        fs::write(&path, text).unwrap();
        let refusal = refusal(&fixture);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}

#[test]
fn without_journals_nothing_is_made() {
    let fixture = Fixture::new();
    assert!(restore_all(&fixture.machine, Which::AllHeld).unwrap().is_empty());
    assert!(!fixture.machine.state.exists());
}

/// A journal of one change, left by a killed process; its path.
fn left(fixture: &Fixture, change: Change) -> std::path::PathBuf {
    Journal::create(&fixture.machine, "test").unwrap().record(change).unwrap();
    fixture.journals().remove(0)
}

fn restore_one(fixture: &Fixture) -> Restored {
    restore_all(&fixture.machine, Which::Stale).unwrap().remove(0)
}

/// Why the one journal is not obeyed.
fn refusal(fixture: &Fixture) -> String {
    let path = fixture.journals().remove(0);
    let restored = restore_one(fixture);
    assert_eq!((restored.process, restored.failed.len()), (0, 1), "{restored}");
    let start = format!("journal {}: ", path.display());
    restored.failed[0].strip_prefix(&start).unwrap().to_owned()
}

#[test]
fn a_journal_that_cannot_be_read_is_reported_and_keeps_no_other_from_being_taken_back() {
    let fixture = fixture();
    let unreadable = left(&fixture, setting(&fixture, "a", "2"));
    fs::write(&unreadable, "nonsense\n").unwrap();
    let mut journal = Journal::create(&fixture.machine, "other").unwrap();
    journal.record(setting(&fixture, "b", "y")).unwrap();
    write(&fixture, "b", "y");
    drop(journal);
    let all = restore_all(&fixture.machine, Which::Stale).unwrap();
    assert_eq!(text(&fixture, "b"), "x");
    let [unread, other] = &all[..] else { panic!("{all:?}") };
    assert_eq!((other.restored, other.is_whole(), unread.is_whole()), (1, true, false));
    let name = unreadable.file_stem().unwrap().to_str().unwrap();
    assert!(unread.to_string().starts_with(&format!("{name}: 0 taken back")), "{unread}");
    assert!(unread.failed[0].contains("line 1: "), "{unread}");
    // For somebody to look at.
    assert_eq!(fixture.journals(), [unreadable]);
}

#[test]
fn a_journal_of_another_owner_is_not_obeyed() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    if !rustix::process::geteuid().is_root() {
        return picnic_testing::skip("a_journal_of_another_owner_is_not_obeyed", "it needs root");
    }
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
    assert_eq!(text(&fixture, "a"), "2");
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}

#[test]
fn what_stands_in_a_journals_place_is_not_obeyed() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    let moved = fixture.root.join("moved");
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
    fs::remove_dir(&path).unwrap();
    // Neither a link, were it to a good journal, nor a pipe, which would be waited for.
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
    fs::remove_file(&path).unwrap();
    let mode = rustix::fs::Mode::RUSR.union(rustix::fs::Mode::WUSR);
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it: it is not obeyed");
}

#[test]
fn a_journal_is_read_up_to_its_longest_and_no_further() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let whole = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Without ends of lines, all of it is a line that was being written.
    file.set_len(journal::LONGEST + 1).unwrap();
    let expected = format!("{} bytes are no journal of this program", journal::LONGEST + 1);
    assert_eq!(refusal(&fixture), expected);
    file.set_len(journal::LONGEST).unwrap();
    assert_eq!(journals(&fixture.machine).unwrap()[0].as_ref().unwrap().changes.len(), 1);
    file.set_len(whole.len() as u64).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}

/// Two that take back at the same time: the second waits, and finds nothing left to do.
#[test]
fn taking_back_keeps_others_out() {
    let fixture = fixture();
    left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let lock = fs::File::create(fixture.machine.state.join("lock")).unwrap();
    lock.lock().unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let machine = fixture.machine.clone();
            std::thread::spawn(move || restore_all(&machine, Which::Stale).unwrap().len())
        })
        .collect();
    // Long enough for both to have come to the lock: were there none, all would be over.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(others.iter().all(|other| !other.is_finished()));
    assert_eq!(text(&fixture, "a"), "2");
    drop(lock);
    let done: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
    assert_eq!((done, text(&fixture, "a").as_str()), (1, "1"));
}

/// A killed process' command that is still at work would make its change after all was taken back.
#[test]
fn a_command_that_outlives_its_process_is_waited_for() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    let path = fixture.machine.sysfs.join("a");
    let script = format!("sleep 0.3; echo 2 > {}", path.display());
    let command = std::thread::spawn(move || {
        // The journal is closed at once: its lock stays with the command.
        let _ = journal.run(&["sh", "-c", &format!("exec 3<&0; ({script}) >/dev/null 2>&1 &")]);
    });
    command.join().unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
    assert_eq!(text(&fixture, "a"), "1");
}

#[test]
fn a_group_that_is_busy_is_tried_again_and_not_for_ever() {
    for (busy, is_removed) in [(1, true), (99, true), (100, false)] {
        let fixture = Fixture::new();
        let path = fixture.machine.sysfs.join("fs/cgroup/picnic");
        fs::create_dir_all(&path).unwrap();
        left(&fixture, Change::Group { path: path.clone() });
        *fixture.kernel.busy.lock().unwrap() = busy;
        let restored = restore_one(&fixture);
        assert_eq!((restored.restored == 1, !path.exists()), (is_removed, is_removed), "{busy}");
        assert_eq!(restored.failed.is_empty(), is_removed);
        assert_eq!(fixture.journals().is_empty(), is_removed);
    }
}

/// What would reach `ip` as an option or a path, were it not refused.
const NO_NAMES: [&str; 8] = ["-all", "-", "", "a/b", "/a", ".", "..", "a\0b"];

#[test]
fn what_is_no_name_never_reaches_ip() {
    let fixture = Fixture::new();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for name in NO_NAMES {
        let name = name.to_owned();
        journal.record(Change::Namespace { name: name.clone() }).unwrap();
        journal.record(Change::Interface { name: name.clone(), namespace: None }).unwrap();
        let (good, bad) = ("good".to_owned(), Some(name.clone()));
        journal.record(Change::Interface { name, namespace: Some(good.clone()) }).unwrap();
        journal.record(Change::Interface { name: good, namespace: bad }).unwrap();
    }
    let restored = journal.undo().unwrap();
    assert_eq!(restored.refused.len(), 4 * NO_NAMES.len());
    assert!(restored.refused.iter().all(|line| line.ends_with(": that is no name")));
    assert!(fixture.kernel.ip_calls.lock().unwrap().is_empty());
}

#[test]
fn interfaces_and_namespaces_are_removed_the_youngest_first() {
    let fixture = Fixture::new();
    put(&fixture.machine.namespaces.join("picnic-a"), "");
    fs::create_dir_all(fixture.machine.sysfs.join("class/net/veth0")).unwrap();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    let inside =
        |name: &str| Change::Interface { name: name.into(), namespace: Some("picnic-a".into()) };
    journal.record(Change::Namespace { name: "picnic-a".into() }).unwrap();
    journal.record(Change::Interface { name: "veth0".into(), namespace: None }).unwrap();
    journal.record_all([inside("c0"), inside("absent")]).unwrap();
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.gone), (3, 1), "{restored}");
    let calls = fixture.kernel.ip_calls.lock().unwrap().clone();
    let expected = [
        "-n picnic-a link del absent",
        "-n picnic-a link del c0",
        "link del veth0",
        "netns del picnic-a",
    ];
    assert_eq!(calls, expected);
    assert!(!fixture.machine.namespaces.join("picnic-a").exists());
}

#[test]
fn a_command_that_outlives_a_killed_cleanup_is_waited_for() {
    let fixture = Fixture::new();
    let namespace = fixture.machine.namespaces.join("picnic-a");
    put(&namespace, "");
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(Change::Namespace { name: "picnic-a".into() }).unwrap();
    drop(journal);
    fixture.kill_after(0);
    assert_eq!(restore_all(&fixture.machine, Which::Stale).unwrap()[0].failed.len(), 1);
    assert!(fixture.revive());
    // `ip netns del` of the killed one goes on, and ends while the next one waits.
    let running = std::mem::take(&mut *fixture.kernel.running.lock().unwrap());
    assert_eq!(running.len(), 1);
    let command = std::thread::spawn({
        let namespace = namespace.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            fs::remove_file(namespace).unwrap();
            drop(running);
        }
    });
    let restored = &restore_all(&fixture.machine, Which::Stale).unwrap()[0];
    command.join().unwrap();
    assert_eq!((restored.gone, &restored.failed), (1, &Vec::new()), "{restored}");
    assert!(fixture.kernel.ip_calls.lock().unwrap().is_empty());
}

#[test]
fn a_program_is_ended_if_it_is_the_one_that_was_started() {
    let fixture = Fixture::new();
    for process in [40, 41] {
        fixture.start(process, process, 1, 0, "0-7");
    }
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    let start_time = |process: i32| process as u64 * 10;
    for (process, start_time) in [(40, start_time(40)), (41, 7), (42, start_time(42))] {
        journal.record(Change::Process { process, start_time }).unwrap();
    }
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.gone), (1, 2));
    let runs = |process: i32| fixture.machine.procfs.join(process.to_string()).exists();
    assert_eq!((runs(40), runs(41)), (false, true));
}

#[test]
fn only_folders_of_this_program_are_removed() {
    let fixture = Fixture::new();
    let folder = fixture.root.join("picnic-files");
    put(&folder.join("deep/file"), "x");
    let other = fixture.root.join("other");
    put(&other.join("file"), "x");
    let link = fixture.root.join("picnic-link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    let refused = [
        other.clone(),
        link.clone(),
        "picnic-files".into(),
        fixture.root.join("other/../picnic-files"),
        other.join("file"),
        "/".into(),
    ];
    let gone = fixture.root.join("picnic-gone");
    for path in refused.iter().chain([&folder, &gone]) {
        journal.record(Change::Folder { path: path.clone() }).unwrap();
    }
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.gone), (1, 1));
    assert_eq!(restored.refused.len(), refused.len(), "{restored}");
    assert!(!folder.exists() && link.is_symlink() && other.join("file").exists());
}

#[test]
fn interfaces_and_namespaces_that_are_gone_need_nothing() {
    let fixture = Fixture::new();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    let absent = format!("picnic-absent-{}", std::process::id());
    journal.record(Change::Namespace { name: absent.clone() }).unwrap();
    journal.record(Change::Interface { name: absent.clone(), namespace: None }).unwrap();
    journal.record(Change::Interface { name: "x".into(), namespace: Some(absent) }).unwrap();
    for name in ["-all", "", "a/b", "."] {
        journal.record(Change::Namespace { name: name.into() }).unwrap();
    }
    let restored = journal.undo().unwrap();
    assert_eq!((restored.gone, restored.refused.len()), (3, 4));
}

#[test]
fn a_member_goes_back_if_it_is_the_one_that_was_moved() {
    let fixture = Fixture::new();
    let from = fixture.machine.sysfs.join("fs/cgroup/home");
    put(&from.join("cgroup.procs"), "");
    fixture.start(40, 40, 1, 0, "0-7");
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for (process, start_time) in [(40, 400), (40, 7), (41, 410)] {
        journal.record(Change::Member { process, start_time, from: from.clone() }).unwrap();
    }
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.gone), (1, 2), "{restored}");
}

#[test]
fn a_group_that_stays_busy_says_so() {
    let fixture = Fixture::new();
    let path = fixture.machine.sysfs.join("fs/cgroup/picnic");
    fs::create_dir_all(&path).unwrap();
    left(&fixture, Change::Group { path });
    *fixture.kernel.busy.lock().unwrap() = u32::MAX;
    let failed = restore_one(&fixture).failed;
    assert!(failed[0].ends_with(" away: Device or resource busy (os error 16)"), "{failed:?}");
}

#[test]
fn a_journal_is_named_and_may_be_read_and_run_by_others() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let name = format!("test-{}-0.journal", std::process::id());
    assert_eq!(path.file_name().unwrap().to_str(), Some(name.as_str()));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}
