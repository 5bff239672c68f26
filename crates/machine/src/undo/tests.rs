//! Journals: what they hold after a kill, whose they are, and who may write them.

use super::fixture::{Fixture, put};
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

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
    assert!(restore_all(&fixture.machine, Which::Stale).unwrap().is_empty());
    assert!(restore_all(&fixture.machine, Which::Held("other")).unwrap().is_empty());
    let known = journals(&fixture.machine).unwrap().remove(0);
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
    let error = restore_all(&fixture.machine, Which::Stale).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "others could have written it: it is not obeyed");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    assert!(restore_all(&fixture.machine, Which::Stale).is_err());
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
        (header.replace("\"journal\":1", "\"journal\":9"), "found version 9, allowed is 1"),
    ] {
        fs::write(&path, text).unwrap();
        let error = restore_all(&fixture.machine, Which::Stale).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.starts_with(expected), "{cause}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn without_journals_nothing_is_made() {
    let fixture = Fixture::new();
    assert!(restore_all(&fixture.machine, Which::AllHeld).unwrap().is_empty());
    assert!(!fixture.machine.state.exists());
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
