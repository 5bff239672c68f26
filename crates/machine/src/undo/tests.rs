//! Journals: their content after a kill, their owners, and who may write them.

use super::change::TRIES;
use super::fixture::{Fixture, put};
use super::*;
use picnic_testing::let_pass;
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

/// Marks the owner of this process' journals as running.
fn run_owner(fixture: &Fixture) {
    let me = std::process::id() as i32;
    fixture.start(me, me, 1, 0, "0-7");
}

#[test]
fn changes_are_restored_latest_first() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for value in ["2", "3"] {
        journal.record(setting(&fixture, "a", value)).unwrap();
        write(&fixture, "a", value);
    }
    journal.record(setting(&fixture, "b", "y")).unwrap();
    let restored = journal.undo().unwrap();
    assert_eq!(text(&fixture, "a"), "1");
    // The change of b was never made.
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
    assert!(restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap().is_empty());
    assert_eq!(text(&fixture, "a"), "2");
    let me = std::process::id() as i32;
    drop(journal);
    // Its number now belongs to another.
    fixture.end(me);
    fixture.start(me, me, 1, 0, "0-7");
    let stat = fixture.machine.procfs.join(format!("{me}/task/{me}/stat"));
    let other = fs::read_to_string(&stat).unwrap().replace(&format!(" {} 0", me * 10), " 7 0");
    fs::write(&stat, other).unwrap();
    let restored = restore_all(&fixture.machine, JournalSelection::Stale).unwrap();
    assert_eq!(restored.len(), 1);
    assert_eq!((restored[0].restored, restored[0].process), (1, me));
    assert_eq!(text(&fixture, "a"), "1");
    assert!(restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap().is_empty());
}

#[test]
fn a_held_journal_outlives_its_process() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    write(&fixture, "a", "2");
    journal.hold().unwrap();
    drop(journal);
    assert!(restore_all(&fixture.machine, JournalSelection::Stale).unwrap().is_empty());
    assert!(restore_all(&fixture.machine, JournalSelection::Held("other")).unwrap().is_empty());
    let known = journals(&fixture.machine).unwrap().remove(0).unwrap();
    assert!(known.is_held && !known.is_owned && !known.is_stale());
    // It can be continued.
    let mut journal = Journal::reopen(&fixture.machine, known).unwrap();
    journal.record(setting(&fixture, "b", "y")).unwrap();
    write(&fixture, "b", "y");
    drop(journal);
    assert_eq!(
        restore_all(&fixture.machine, JournalSelection::Held("test")).unwrap()[0].restored,
        2
    );
    assert_eq!(text(&fixture, "a") + &text(&fixture, "b"), "1x");
    assert!(fixture.journals().is_empty());
}

#[test]
fn a_process_can_have_several_journals_of_one_purpose() {
    let fixture = fixture();
    run_owner(&fixture);
    let mut journals: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let mut journal = Journal::create(&fixture.machine, "test").unwrap();
            journal.record(setting(&fixture, name, "2")).unwrap();
            write(&fixture, name, "2");
            journal
        })
        .collect();
    assert_eq!(fixture.journals().len(), 2);
    journals.iter_mut().for_each(|journal| journal.hold().unwrap());
    drop(journals);
    let restored = restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap();
    assert_eq!(restored.iter().map(|one| one.restored).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(text(&fixture, "a") + &text(&fixture, "b"), "1x");
}

#[test]
fn a_journal_of_an_earlier_boot_is_only_removed() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    write(&fixture, "a", "2");
    journal.hold().unwrap();
    put(&fixture.machine.procfs.join("sys/kernel/random/boot_id"), "next-boot");
    let restored = restore_all(&fixture.machine, JournalSelection::Stale).unwrap();
    assert_eq!((restored[0].restored, restored[0].gone), (0, 1));
    assert_eq!(text(&fixture, "a"), "2");
    assert!(fixture.journals().is_empty());
}

/// For any written part of the last line: that change was not made, all others were.
#[test]
fn incomplete_lines_are_ignored() {
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
        let restored = restore_all(&fixture.machine, JournalSelection::Stale).unwrap();
        assert_eq!(restored.len(), 1, "cut at {cut}");
        let a = if cut >= ends[1] { "1" } else { "2" };
        let b = if cut >= ends[2] { "x" } else { "y" };
        assert_eq!((text(&fixture, "a").as_str(), text(&fixture, "b").as_str()), (a, b));
        assert!(!path.exists());
    }
}

#[test]
fn failed_changes_keep_the_journal() {
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
    assert_eq!(restore_all(&fixture.machine, JournalSelection::Stale).unwrap()[0].restored, 1);
    assert_eq!(text(&fixture, "a") + &text(&fixture, "b"), "1x");
}

#[test]
fn missing_and_refused_changes_do_not_keep_the_journal() {
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
fn journals_writable_by_others_are_ignored() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    let path = fixture.journals().remove(0);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
}

#[test]
fn invalid_journals_are_reported_with_their_line() {
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
fn without_journals_nothing_is_created() {
    let fixture = Fixture::new();
    assert!(restore_all(&fixture.machine, JournalSelection::AllHeld).unwrap().is_empty());
    assert!(!fixture.machine.state.exists());
}

/// A journal of one change, left by a killed process; its path.
fn left(fixture: &Fixture, change: Change) -> std::path::PathBuf {
    Journal::create(&fixture.machine, "test").unwrap().record(change).unwrap();
    fixture.journals().remove(0)
}

fn restore_one(fixture: &Fixture) -> Restored {
    restore_all(&fixture.machine, JournalSelection::Stale).unwrap().remove(0)
}

/// Why the only journal is ignored.
fn refusal(fixture: &Fixture) -> String {
    let path = fixture.journals().remove(0);
    let restored = restore_one(fixture);
    assert_eq!((restored.process, restored.failed.len()), (0, 1), "{restored}");
    let start = format!("journal {}: ", path.display());
    restored.failed[0].strip_prefix(&start).unwrap().to_owned()
}

#[test]
fn unreadable_journals_are_reported_and_others_restored() {
    let fixture = fixture();
    let unreadable = left(&fixture, setting(&fixture, "a", "2"));
    fs::write(&unreadable, "nonsense\n").unwrap();
    let mut journal = Journal::create(&fixture.machine, "other").unwrap();
    journal.record(setting(&fixture, "b", "y")).unwrap();
    write(&fixture, "b", "y");
    drop(journal);
    let all = restore_all(&fixture.machine, JournalSelection::Stale).unwrap();
    assert_eq!(text(&fixture, "b"), "x");
    let [unread, other] = &all[..] else { panic!("{all:?}") };
    assert_eq!((other.restored, other.is_whole(), unread.is_whole()), (1, true, false));
    let name = unreadable.file_stem().unwrap().to_str().unwrap();
    assert!(unread.to_string().starts_with(&format!("{name}: 0 restored")), "{unread}");
    assert!(unread.failed[0].contains("line 1: "), "{unread}");
    // Kept for inspection.
    assert_eq!(fixture.journals(), [unreadable]);
}

#[test]
fn journals_of_other_owners_are_ignored() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    if !rustix::process::geteuid().is_root() {
        return picnic_testing::skip("journals_of_other_owners_are_ignored", "it needs root");
    }
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
    assert_eq!(text(&fixture, "a"), "2");
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}

#[test]
fn other_files_in_place_of_journals_are_ignored() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    let moved = fixture.root.join("moved");
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
    fs::remove_dir(&path).unwrap();
    // Neither a link, even to a valid journal, nor a pipe, which could block.
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
    fs::remove_file(&path).unwrap();
    let mode = rustix::fs::Mode::RUSR.union(rustix::fs::Mode::WUSR);
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
    assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
}

#[test]
fn journals_have_a_maximum_length() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let whole = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Without line ends, the whole text is an incomplete line.
    file.set_len(journal::LONGEST + 1).unwrap();
    let expected = format!("{} bytes are too many for a journal", journal::LONGEST + 1);
    assert_eq!(refusal(&fixture), expected);
    file.set_len(journal::LONGEST).unwrap();
    assert_eq!(journals(&fixture.machine).unwrap()[0].as_ref().unwrap().changes.len(), 1);
    file.set_len(whole.len() as u64).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}

/// Two restore at the same time: the second waits, and finds nothing left to do.
#[test]
fn restoring_excludes_others() {
    let fixture = fixture();
    left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let lock = fs::File::create(fixture.machine.state.join("lock")).unwrap();
    lock.lock().unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let machine = fixture.machine.clone();
            std::thread::spawn(move || {
                restore_all(&machine, JournalSelection::Stale).unwrap().len()
            })
        })
        .collect();
    // Long enough for both to reach the lock: without one, both would have finished.
    let_pass(100);
    assert!(others.iter().all(|other| !other.is_finished()));
    assert_eq!(text(&fixture, "a"), "2");
    drop(lock);
    let done: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
    assert_eq!((done, text(&fixture, "a").as_str()), (1, "1"));
}

/// A killed process' command that is still running would make its change after everything was
/// restored.
#[test]
fn restoring_waits_for_running_commands() {
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
fn busy_groups_are_retried_a_limited_time() {
    for (busy, is_removed) in [(1, true), (TRIES - 1, true), (TRIES, false)] {
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

/// Names that would reach `ip` as an option or a path if they were not refused.
const NO_NAMES: [&str; 8] = ["-all", "-", "", "a/b", "/a", ".", "..", "a\0b"];

#[test]
fn invalid_names_never_reach_ip() {
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
    assert!(restored.refused.iter().all(|line| line.ends_with(": not a valid name")));
    assert!(fixture.kernel.ip_calls.lock().unwrap().is_empty());
}

#[test]
fn interfaces_and_namespaces_are_removed_latest_first() {
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
fn restoring_waits_for_commands_of_a_killed_cleanup() {
    let fixture = Fixture::new();
    let namespace = fixture.machine.namespaces.join("picnic-a");
    put(&namespace, "");
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(Change::Namespace { name: "picnic-a".into() }).unwrap();
    drop(journal);
    fixture.kill_after(0);
    assert_eq!(restore_all(&fixture.machine, JournalSelection::Stale).unwrap()[0].failed.len(), 1);
    assert!(fixture.revive());
    // `ip netns del` of the killed one continues, and ends while the next one waits.
    let running = std::mem::take(&mut *fixture.kernel.running.lock().unwrap());
    assert_eq!(running.len(), 1);
    let command = std::thread::spawn({
        let namespace = namespace.clone();
        move || {
            let_pass(50);
            fs::remove_file(namespace).unwrap();
            drop(running);
        }
    });
    let restored = &restore_all(&fixture.machine, JournalSelection::Stale).unwrap()[0];
    command.join().unwrap();
    assert_eq!((restored.gone, &restored.failed), (1, &Vec::new()), "{restored}");
    assert!(fixture.kernel.ip_calls.lock().unwrap().is_empty());
}

#[test]
fn only_the_started_program_is_ended() {
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
fn only_directories_of_this_program_are_removed() {
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
fn missing_interfaces_and_namespaces_need_nothing() {
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
fn only_the_moved_process_is_moved_back() {
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
fn groups_that_stay_busy_are_reported() {
    let fixture = Fixture::new();
    let path = fixture.machine.sysfs.join("fs/cgroup/picnic");
    fs::create_dir_all(&path).unwrap();
    left(&fixture, Change::Group { path });
    *fixture.kernel.busy.lock().unwrap() = u32::MAX;
    let failed = restore_one(&fixture).failed;
    assert!(failed[0].ends_with(" away: Device or resource busy (os error 16)"), "{failed:?}");
}

#[test]
fn journals_can_be_read_by_others() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    write(&fixture, "a", "2");
    let name = format!("test-{}-0.journal", std::process::id());
    assert_eq!(path.file_name().unwrap().to_str(), Some(name.as_str()));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(restore_one(&fixture).restored, 1);
}

#[test]
fn journals_of_root_and_of_this_user_are_trusted() {
    for (owner, me, is_trusted) in
        [(0, 0, true), (0, 5, true), (5, 5, true), (5, 0, false), (5, 6, false), (1, 0, false)]
    {
        assert_eq!(journal::is_trusted(owner, me), is_trusted, "{owner} for {me}");
    }
}

#[test]
fn journals_writable_by_any_other_are_ignored() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    for mode in [0o620, 0o602, 0o622, 0o722] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(refusal(&fixture), "others could have written it, so it is ignored");
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(restore_one(&fixture).unchanged, 1);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&fixture.machine.state), 0o700);
    assert_eq!(mode(&fixture.machine.state.join("lock")), 0o600);
}

#[test]
fn journals_are_owned_held_or_stale() {
    let fixture = fixture();
    let path = left(&fixture, setting(&fixture, "a", "2"));
    let info = journals(&fixture.machine).unwrap().remove(0).unwrap();
    assert_eq!(info.path, path);
    for number in 0..8 {
        let [is_owned, is_held, is_past] = [1, 2, 4].map(|bit| number & bit != 0);
        let info = JournalInfo { is_owned, is_held, is_past, ..info.clone() };
        assert_eq!(info.is_stale(), number == 0 || number >= 4, "{info:?}");
    }
}

#[test]
fn results_of_restoring_are_one_line() {
    let mut restored = Restored {
        purpose: "lab".into(),
        process: 0,
        restored: 3,
        unchanged: 2,
        gone: 1,
        ..Restored::default()
    };
    assert!(restored.is_whole());
    assert_eq!(restored.to_string(), "lab: 3 restored, 2 unchanged, 1 gone");
    restored.process = 42;
    restored.refused = vec!["a".into()];
    assert!(!restored.is_whole());
    let expected = "lab of process 42: 3 restored, 2 unchanged, 1 gone, 1 refused (a)";
    assert_eq!(restored.to_string(), expected);
    restored.failed = vec!["b".into(), "c".into()];
    assert_eq!(restored.to_string(), format!("{expected}, 2 failed (b, ...)"));
    restored.refused.clear();
    assert!(!restored.is_whole());
}

#[test]
fn selections_restore_their_journals() {
    for (which, expected) in [
        (JournalSelection::Stale, &["stale"][..]),
        (JournalSelection::Held("held"), &["stale", "held"]),
        (JournalSelection::AllHeld, &["stale", "other", "held"]),
    ] {
        let fixture = fixture();
        for purpose in ["held", "other", "stale"] {
            let mut journal = Journal::create(&fixture.machine, purpose).unwrap();
            assert_eq!(journal.name(), format!("{purpose}-{}-0", std::process::id()));
            journal.record(setting(&fixture, "a", "2")).unwrap();
            journal.record_all([]).unwrap();
            if purpose != "stale" {
                journal.hold().unwrap();
            }
        }
        // A file not named like a journal is not one.
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"\xff.other");
        fs::write(fixture.machine.state.join(name), "x").unwrap();
        let names: Vec<_> = journals(&fixture.machine)
            .unwrap()
            .into_iter()
            .map(|journal| journal.unwrap().purpose)
            .collect();
        assert_eq!(names, ["held", "other", "stale"], "in the order of their names");
        let restored = restore_all(&fixture.machine, which).unwrap();
        let purposes: Vec<_> = restored.iter().map(|one| one.purpose.as_str()).collect();
        assert_eq!(purposes, expected);
        assert_eq!(fixture.journals().len(), 3 - expected.len());
    }
}

#[test]
fn journals_that_cannot_be_removed_are_reported() {
    let fixture = fixture();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(setting(&fixture, "a", "2")).unwrap();
    let path = fixture.journals().remove(0);
    fs::remove_file(&path).unwrap();
    let restored = journal.undo().unwrap();
    assert_eq!((restored.unchanged, restored.failed.len()), (1, 1));
    let start = format!("journal {} away: ", path.display());
    assert!(restored.failed[0].starts_with(&start), "{restored}");
}

#[test]
fn busy_groups_are_given_time() {
    let fixture = Fixture::new();
    let path = fixture.machine.sysfs.join("fs/cgroup/picnic");
    fs::create_dir_all(&path).unwrap();
    left(&fixture, Change::Group { path });
    *fixture.kernel.busy.lock().unwrap() = 3;
    let begin = std::time::Instant::now();
    assert_eq!(restore_one(&fixture).restored, 1);
    // Three pauses, each at least as long as given.
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record(Change::Group { path: fixture.machine.sysfs.join("absent") }).unwrap();
    assert_eq!(journal.undo().unwrap().gone, 1);
}

#[test]
fn controllers_are_removed_from_the_list() {
    let fixture = Fixture::new().with_groups();
    let path = fixture.machine.sysfs.join("fs/cgroup/cgroup.subtree_control");
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for name in ["memory", "cpuset"] {
        journal.record(Change::Controller { path: path.clone(), name: name.into() }).unwrap();
    }
    let absent = fixture.machine.sysfs.join("fs/cgroup/absent");
    journal.record(Change::Controller { path: absent, name: "cpu".into() }).unwrap();
    let restored = journal.undo().unwrap();
    assert_eq!((restored.restored, restored.unchanged, restored.gone), (1, 1, 1), "{restored}");
    assert_eq!(fixture.machine.read(&path).unwrap(), "cpu");
}

#[test]
fn features_are_set_by_their_command() {
    let words = |namespace, feature| change::feature_words("eth0", namespace, feature, "off");
    assert_eq!(words(None, "gro"), ["ethtool", "-K", "eth0", "gro", "off"]);
    let inside = ["ip", "netns", "exec", "one", "ethtool", "-K", "eth0", "gro", "off"];
    assert_eq!(words(Some("one"), "gro"), inside);
    // Files of the interface, and nothing outside its directory.
    for file in [
        "threaded",
        "gro_flush_timeout",
        "napi_defer_hard_irqs",
        "queues/rx-0/rps_cpus",
        "queues/rx-17/rps_cpus",
    ] {
        let words = words(None, file);
        assert_eq!([&words[..2], &words[3..]].concat(), ["sh", "-c", "sh", "off", "eth0", file]);
    }
    for other in ["queues/rx-0/../rps_cpus", "queues/rx-/rps_cpus", "queues/rx-0", "../x"] {
        assert_eq!(words(None, other), ["ethtool", "-K", "eth0", other, "off"]);
    }

    let fixture = Fixture::new();
    put(&fixture.machine.namespaces.join("one"), "");
    fs::create_dir_all(fixture.machine.sysfs.join("class/net/eth0")).unwrap();
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    for (interface, namespace) in [
        ("eth0", None),
        ("eth1", None),
        ("c0", Some("one")),
        ("c0", Some("two")),
        ("-all", None),
        ("-all", Some("one")),
        ("c0", Some("a/b")),
    ] {
        let feature = Change::Feature {
            interface: interface.into(),
            namespace: namespace.map(String::from),
            feature: "gro".into(),
            was: "on".into(),
        };
        journal.record(feature).unwrap();
    }
    let restored = journal.undo().unwrap();
    let counts = (restored.restored, restored.gone, restored.refused.len());
    assert_eq!(counts, (2, 2, 3), "{restored}");
    assert!(restored.to_string().contains("2 gone (network namespace two), 3 ref"), "{restored}");
    let calls = fixture.kernel.ip_calls.lock().unwrap().clone();
    assert_eq!(calls, ["netns exec one ethtool -K c0 gro on", "ethtool -K eth0 gro on"]);
}

/// For any shell as `sh`.
#[test]
fn missing_interfaces_differ_from_refused_values() {
    for shell in ["sh", "bash"] {
        let said = |interface, value| {
            let mut words = change::feature_words(interface, None, "threaded", value);
            words[0] = shell.into();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            crate::command::run(&words).unwrap_err()
        };
        let found = said("no-such-link", "0");
        if found.kind() == std::io::ErrorKind::NotFound {
            continue;
        }
        assert_eq!(change::is_there(Err(found)), change::UndoResult::Gone);
        let found = change::is_there(Err(said("lo", "nonsense")));
        assert!(matches!(found, change::UndoResult::Failed(_)), "{found:?}");
    }
}

// ---------------------------------------------------------------- threads

fn affinity(thread: i32, was: &str, becomes: &str) -> Change {
    Change::Affinity {
        process: thread,
        thread,
        start_time: thread as u64 * 10,
        was: was.into(),
        becomes: becomes.into(),
    }
}

fn isolation() -> Change {
    Change::Isolation {
        borrowed_core: 7,
        reserved: "6-7".into(),
        others: "0-5".into(),
        is_partition: false,
    }
}

fn undo_all(fixture: &Fixture, changes: Vec<Change>) -> Restored {
    let mut journal = Journal::create(&fixture.machine, "test").unwrap();
    journal.record_all(changes).unwrap();
    journal.undo().unwrap()
}

#[test]
fn listed_threads_return_unless_moved_by_others() {
    let fixture = Fixture::new();
    for (thread, cores) in [(40, "0-3"), (41, "0-3"), (42, "5"), (44, "0-3"), (45, "1-6")] {
        fixture.start(thread, thread, 1, 0, cores);
    }
    let other = Change::Affinity {
        process: 44,
        thread: 44,
        start_time: 7,
        was: "0-7".into(),
        becomes: "0-3".into(),
    };
    let changes = vec![
        affinity(40, "0-7", "0-3"),
        affinity(42, "0-7", "0-3"),
        affinity(43, "0-7", "0-3"),
        other,
        affinity(45, "1-6", "0-3"),
    ];
    let restored = undo_all(&fixture, changes);
    let counts = (restored.restored, restored.unchanged, restored.gone);
    assert_eq!(counts, (1, 2, 2), "{restored}");
    let cores = [40, 41, 42, 44, 45].map(|thread| fixture.cores(thread));
    assert_eq!(cores, ["0-7", "0-3", "5", "0-3", "1-6"]);
}

#[test]
fn threads_started_under_isolation_may_go_everywhere_again() {
    let fixture = Fixture::new();
    for (thread, flags, cores) in
        [(40, 0, "0-5"), (41, 0, "3"), (42, super::fixture::BOUND, "0-5"), (43, 0, "0-7")]
    {
        fixture.start(thread, thread, 1, flags, cores);
    }
    let restored = undo_all(&fixture, vec![isolation()]);
    let counts = (restored.restored, restored.unchanged, restored.gone);
    // Threads that were never moved are no changes.
    assert_eq!((counts, restored.is_whole()), ((1, 0, 0), true), "{restored}");
    let cores = [40, 41, 42, 43].map(|thread| fixture.cores(thread));
    assert_eq!(cores, ["0-7", "3", "0-5", "0-7"]);
}

#[test]
fn children_of_listed_threads_follow_their_parent() {
    let fixture = Fixture::new();
    for (thread, parent, cores) in [
        (40, 1, "0-3"),
        (50, 40, "0-5"),
        (51, 50, "0-3"),
        (52, 40, "2"),
        (53, 1, "0-5"),
        (54, 52, "0-3"),
    ] {
        fixture.start(thread, thread, parent, 0, cores);
    }
    let changes = vec![isolation(), affinity(40, "1-7", "0-5"), affinity(40, "0-5", "0-3")];
    let restored = undo_all(&fixture, changes);
    let cores = [40, 50, 51, 52, 53, 54].map(|thread| fixture.cores(thread));
    assert_eq!(cores, ["1-7", "1-7", "1-7", "2", "0-7", "1-7"]);
    assert_eq!((restored.restored, restored.unchanged, restored.gone), (5, 0, 0), "{restored}");
}

#[test]
fn offline_cores_are_ignored_in_comparisons() {
    let fixture = Fixture::new();
    super::fixture::put_online(&fixture.machine.sysfs, "0-6");
    for (thread, cores) in [(40, "0-5"), (41, "0-6"), (42, "3")] {
        fixture.start(thread, thread, 1, 0, cores);
    }
    let changes = [40, 41, 42].map(|thread| affinity(thread, "0-7", "0-5,7"));
    let restored = undo_all(&fixture, changes.into());
    assert_eq!((restored.restored, restored.unchanged), (1, 2), "{restored}");
    let cores = [40, 41, 42].map(|thread| fixture.cores(thread));
    assert_eq!(cores, ["0-6", "0-6", "3"]);
}

/// Makes each moved thread start another.
#[derive(Debug)]
struct Breeding {
    fixture: std::sync::Arc<Fixture>,
    next: std::sync::atomic::AtomicI32,
}

impl Kernel for Breeding {
    fn write(&self, path: &std::path::Path, text: &str) -> std::io::Result<()> {
        self.fixture.kernel.write(path, text)
    }
    fn make_folder(&self, path: &std::path::Path) -> std::io::Result<()> {
        self.fixture.kernel.make_folder(path)
    }
    fn remove_folder(&self, path: &std::path::Path) -> std::io::Result<()> {
        self.fixture.kernel.remove_folder(path)
    }
    fn remove_tree(&self, path: &std::path::Path) -> std::io::Result<()> {
        self.fixture.kernel.remove_tree(path)
    }
    fn end(&self, process: i32, is_it: &dyn Fn() -> bool) -> std::io::Result<()> {
        self.fixture.kernel.end(process, is_it)
    }
    fn set_affinity(&self, thread: i32, cores: &crate::topology::CoreSet) -> std::io::Result<()> {
        let child = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if child < 64 {
            // Started just before its parent was moved.
            self.fixture.start(child, child, thread, 0, "0-5");
        }
        self.fixture.kernel.set_affinity(thread, cores)
    }
    fn run(&self, lock: &fs::File, words: &[&str]) -> std::io::Result<()> {
        self.fixture.kernel.run(lock, words)
    }
}

#[test]
fn threads_started_during_moves_are_followed() {
    let fixture = std::sync::Arc::new(Fixture::new());
    fixture.start(40, 40, 1, 0, "0-5");
    let kernel = Breeding { fixture: fixture.clone(), next: 60.into() };
    let machine = Machine { kernel: std::sync::Arc::new(kernel), ..fixture.machine.clone() };
    let mut journal = Journal::create(&machine, "test").unwrap();
    journal.record_all([isolation(), affinity(40, "1-7", "0-5")]).unwrap();
    let restored = journal.undo().unwrap();
    let cores = [40, 60, 61, 62, 63].map(|thread| fixture.cores(thread));
    assert_eq!(cores, ["1-7"; 5]);
    assert_eq!((restored.restored, restored.unchanged), (5, 0), "{restored}");
}
