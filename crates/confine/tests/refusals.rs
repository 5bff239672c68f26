//! A call that is not on a thread's list is refused and counted, and the thread continues.
//!
//! A single test, since the settings and counters belong to the process.

use picnic_confine::{Role, ask_for, notes, set_up};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

#[test]
fn unlisted_calls_are_refused_and_counted_for_every_role() {
    let unconfined = std::thread::spawn(|| {
        set_up(Role::Target, CapabilitySet::empty());
        rustix::process::chdir("/")
    });
    assert_eq!(unconfined.join().unwrap(), Ok(()), "nobody has asked for it yet");
    ask_for();
    assert_eq!(notes(), Vec::<String>::new());
    for (index, role) in Role::ALL.into_iter().enumerate() {
        let thread = std::thread::spawn(move || {
            set_up(role, CapabilitySet::empty());
            for _ in 0..=index {
                assert_eq!(rustix::process::chdir("/"), Err(Errno::PERM), "{role:?}");
            }
            let socket = std::net::TcpListener::bind("127.0.0.1:0");
            assert_eq!(
                socket.unwrap_err().raw_os_error(),
                Some(Errno::PERM.raw_os_error()),
                "{role:?}"
            );
            // It continues: it allocates, reads the time, waits, and makes threads or fails to.
            let memory = vec![1_u8; 4 << 20];
            std::thread::sleep(std::time::Duration::from_millis(1));
            let child = std::thread::Builder::new().spawn(|| 1);
            assert_eq!(child.is_ok(), role == Role::Control, "{role:?}");
            // No program starts, by any call.
            let program = std::process::Command::new("/bin/true").status();
            assert!(!program.is_ok_and(|status| status.success()), "{role:?}");
            memory.len()
        });
        assert_eq!(thread.join().unwrap(), 4 << 20);
        let told = notes();
        let told = told.iter().find(|note| note.contains(&format!(" {} thread", role.name())));
        let times = format!("chdir ({} times)", index + 1);
        assert!(told.is_some_and(|note| note.contains(&times)), "{role:?}: {:?}", notes());
    }
    // A thread that inherits another's filter is subject to both.
    let inherited = std::thread::spawn(|| {
        set_up(Role::Control, CapabilitySet::empty());
        let capture = std::thread::spawn(|| {
            set_up(Role::Capture, CapabilitySet::empty());
            rustix::process::chdir("/")
        });
        capture.join().unwrap()
    });
    assert_eq!(inherited.join().unwrap(), Err(Errno::PERM));
    // A thread that was not set up is free.
    assert_eq!(rustix::process::chdir("/"), Ok(()));
}
