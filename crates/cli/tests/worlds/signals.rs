//! A stop is clean however it is requested: by a key, a kill, a closed terminal.

use crate::common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ALL: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::QUIT, Signal::HUP];

#[test]
fn every_stop_signal_stops_cleanly() {
    let (_folder, path) = card("[host]\nqueues = 2\n");
    let machine = machine();
    for signal in ALL {
        let child = start(&machine, &["run", path.to_str().unwrap(), "--json", "--duration=600"]);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{signal:?}: {}", stderr(&output));
        assert_balanced(&json(&output));
    }
}

/// Packets that have entered a card, which may be about to stop: a command for the borrowed core
/// would be refused then.
fn has_received(name: &str) -> bool {
    let Ok(mut socket) = UnixStream::connect(sockets().join(format!("{name}.sock"))) else {
        return false;
    };
    let mut line = String::new();
    let ask = socket.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"card.stats\"}\n");
    let answer = ask.and_then(|()| BufReader::new(socket).read_line(&mut line));
    let stats: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    answer.is_ok() && stats["result"]["ledger"]["in"].as_u64().is_some_and(|packets| packets > 0)
}

/// Files of the card that somebody is to read who never comes.
#[test]
fn missing_readers_do_not_delay_a_stop() {
    let capture = pcap(&[tcp_frame(1), tcp_frame(2)]);
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\n[host]\nmode = \"echo\"\n";
    let folder = folder(&[("in.pcap", &capture), ("card.toml", text.as_bytes())]);
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _machine = machine();
    let (trace, output) = ("trace.path=fifo", "wire[0].output=fifo");
    let by_signal = ALL.map(Some).into_iter().zip([trace, output].into_iter().cycle());
    for (signal, key) in by_signal.chain([(None, trace), (None, output)]) {
        // For a card that has finished, and for one that continues.
        for loops in ["wire[0].loops=1", "wire[0].loops=0"] {
            let mut run = command();
            run.args(["run", "card.toml", "--json", "--set", loops, "--set", key]);
            run.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = run.spawn().unwrap();
            wait_until("packets come", || has_received("picnic0"));
            match signal {
                Some(signal) => kill_process(Pid::from_child(&child), signal).unwrap(),
                None => drop(good(&["ctl", "stop"])),
            }
            let output = child.wait_with_output().unwrap();
            let report = json(&output);
            assert_balanced(&report);
            // A trace that is not whole is a failure.
            let code = if key == trace { 1 } else { 0 };
            assert_eq!(output.status.code(), Some(code), "{signal:?} {loops}: {}", stderr(&output));
            let told = report["notes"].to_string() + &report["trace"]["error"].to_string();
            assert!(told.contains("no process reads it"), "{told}");
        }
    }
}

#[test]
fn waiting_commands_end_at_the_first_signal() {
    let folder = folder(&[]);
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let machine = machine();
    let card = start(&machine, &["run", "--json", "--duration=600"]);
    let capture: &[&str] = &["capture", "--json", "--write", "fifo"];
    let events: &[&str] = &["run", "--world=sim", "--duration=1", "--json", "--trace", "fifo"];
    for (signal, words) in ALL.into_iter().zip([capture, events].into_iter().cycle()) {
        let mut waiting = command();
        let waiting = waiting.args(words).current_dir(folder.path());
        let mut waiting = piped(waiting);
        // With its handlers in place, SIGHUP's last, it looks for a reader
        // again and again.
        let status = format!("/proc/{}/status", waiting.id());
        let handles = || {
            let status = read(&status);
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
            u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & 1 != 0
        };
        wait_until("it handles signals", handles);
        kill_process(Pid::from_child(&waiting), signal).unwrap();
        wait_until("it goes on", || has_ended(&mut waiting));
        let output = waiting.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{signal:?} {words:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("no process reads it"), "{}", stderr(&output));
    }
    interrupt(&card);
    card.wait_with_output().unwrap();
}

/// Whether a pipe takes nothing more until somebody reads.
fn is_full(pipe: &impl AsFd) -> bool {
    let mut source = [PollFd::new(pipe, PollFlags::OUT)];
    poll(&mut source, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0
}

/// A full pipe: output waits for its reader.
#[test]
fn slow_readers_do_not_delay_a_stop_in_virtual_time() {
    let capture = pcap(&[tcp_frame(1), tcp_frame(2)]);
    let text = "[[wire]]\nport = \"pcap\"\npath = \"in.pcap\"\nloops = 0\n\
                [host]\nmode = \"echo\"\n";
    let folder = folder(&[("in.pcap", &capture), ("card.toml", text.as_bytes())]);
    let path = folder.path().join("fifo");
    let files: [&[&str]; 4] = [
        &["--trace=-"],
        &["--trace=fifo"],
        &["--set=wire[0].output=fifo"],
        &["--set=wire[0].output=/dev/stdout"],
    ];
    for (signal, words) in ALL.into_iter().cycle().zip(files) {
        // A new one each time: another test's child, about to run its program, may still hold the
        // last one, full. Open for both, so that it has a reader.
        _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let fifo = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        let mut child = {
            let mut run = command();
            run.args(["run", "card.toml", "--json", "--world=sim"]).args(words);
            run.current_dir(folder.path()).stdout(write.try_clone().unwrap());
            run.stderr(Stdio::piped()).spawn().unwrap()
        };
        wait_until("it is full", || is_full(&fifo) || is_full(&write));
        drop(write);
        kill_process(Pid::from_child(&child), signal).unwrap();
        wait_until("it goes on", || has_ended(&mut child));
        let output = child.wait_with_output().unwrap();
        let mut said = Vec::new();
        read.read_to_end(&mut said).unwrap();
        let told = String::from_utf8_lossy(&said) + stderr(&output);
        assert!(told.contains("no process reads it"), "{signal:?} {words:?}: {told}");
        let has_room = words[0].ends_with("fifo");
        assert_eq!(output.status.code(), Some(i32::from(!has_room)), "{signal:?} {words:?}");
    }
}

/// For a card whose threads have dropped unneeded privileges.
#[test]
fn reports_can_be_written_to_a_socket() {
    let _machine = machine();
    let (theirs, ours) = UnixStream::pair().unwrap();
    let child = {
        let mut run = command();
        run.args(["run", "--json", "--duration=600"]).stdout(OwnedFd::from(ours));
        run.stderr(Stdio::piped()).spawn().unwrap()
    };
    wait_until("packets come", || has_received("picnic0"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = std::io::read_to_string(theirs).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_balanced(&serde_json::from_str(&report).unwrap());
}

#[test]
fn further_hang_ups_do_not_kill() {
    let machine = machine();
    let child = start(&machine, &["run", "--json", "--duration=600"]);
    for _ in 0..3 {
        kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_balanced(&json(&output));
}

#[test]
fn nohup_survives_a_hang_up() {
    let _machine = machine();
    let mut command = Command::new("nohup");
    command.arg(PICNIC).args(["run", "--json", "--duration=600", "--set=control.socket=off"]);
    let mut child = piped(&mut command);
    wait_for_threads(child.id());
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let_pass(1000);
    assert!(!has_ended(&mut child), "it goes on");
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_balanced(&json(&output));
}

/// A terminal: the user's end, and the programs' end.
fn terminal() -> (OwnedFd, File) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    use std::os::unix::fs::OpenOptionsExt;
    let noctty = rustix::fs::OFlags::NOCTTY.bits() as i32;
    let programs =
        OpenOptions::new().read(true).write(true).custom_flags(noctty).open(path).unwrap();
    (user, programs)
}

/// Starts a program whose terminal this is, its output in a file.
fn on_terminal(programs: &File, words: &[&str], output: &Path) -> Child {
    let (input, errors) = (programs.try_clone().unwrap(), programs.try_clone().unwrap());
    let mut setsid = Command::new("setsid");
    setsid.arg("--ctty").args(words).env("PICNIC_RUNTIME_DIR", sockets());
    setsid.stdin(input).stdout(File::create(output).unwrap()).stderr(errors).spawn().unwrap()
}

#[test]
fn a_closed_terminal_gets_a_clean_stop() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let run = format!("{PICNIC} run --json --duration=600");
    // As the terminal's own program, and under a shell that goes before it.
    for (index, script) in [format!("exec {run}"), format!("{run}; true")].iter().enumerate() {
        let (user, programs) = terminal();
        let file = folder.path().join(index.to_string());
        let mut child = on_terminal(&programs, &["sh", "-c", script], &file);
        drop(programs);
        let id = || {
            let threads = Path::new("/proc").join(child.id().to_string()).join("task");
            let path = threads.join(child.id().to_string()).join("children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            children.split_whitespace().next().map_or(child.id(), |id| id.parse().unwrap())
        };
        wait_until("no card", || threads_of(id()) >= 3);
        let id = id();
        drop(user);
        child.wait().unwrap();
        wait_until("it goes on", || threads_of(id) == 0);
        let text = std::fs::read_to_string(&file).unwrap();
        let report = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{script}: no report, killed: {error}: {text:?}"));
        assert_balanced(&report);
    }
}

#[test]
fn top_ends_with_its_terminal_or_on_request() {
    let machine = machine();
    let card = start(&machine, &["run", "--json", "--duration=600"]);
    let folder = tempfile::tempdir().unwrap();
    let errors = folder.path().join("errors");
    let script = format!("exec {PICNIC} top 2> {}", errors.display());
    // The terminal is closed while it draws, and while it waits for a key.
    let closed = [(None, false), (None, true)];
    for (signal, waits) in
        closed.into_iter().chain([Signal::HUP, Signal::QUIT].map(|signal| (Some(signal), false)))
    {
        let (user, programs) = terminal();
        let name = ptsname(&user, Vec::new()).unwrap();
        // Its output is the terminal, too.
        let out = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let script = format!("{script} > {}", out.display());
        let mut top = on_terminal(&programs, &["sh", "-c", &script], &folder.path().join("unused"));
        drop(programs);
        // It draws.
        let mut bytes = [0; 256];
        assert!(rustix::io::read(&user, &mut bytes).unwrap() > 0);
        if waits {
            let path = format!("/proc/{}/stat", top.id());
            wait_until("it never waits", || read(&path).contains(") S "));
        }
        match signal {
            None => drop(user),
            Some(signal) => {
                kill_process(Pid::from_child(&top), signal).unwrap();
                // Its output is read, otherwise it could not continue.
                while rustix::io::read(&user, &mut bytes).is_ok_and(|count| count > 0) {}
            }
        }
        wait_until("it goes on", || has_ended(&mut top));
        let status = top.wait().unwrap();
        let said = std::fs::read_to_string(&errors).unwrap();
        assert!(status.code().is_some(), "{signal:?}: {status}: {said}");
        if signal.is_some() {
            assert_eq!(status.code(), Some(0), "{signal:?}: {said}");
        }
    }
    interrupt(&card);
    card.wait_with_output().unwrap();
}

#[test]
fn a_capture_ends_whole_by_any_signal() {
    let machine = machine();
    let card = start(&machine, &["run", "--json", "--duration=600", "--set=wire[0].rate_pps=1000"]);
    let folder = tempfile::tempdir().unwrap();
    for signal in ALL {
        let file = folder.path().join("x.pcapng");
        let mut capture = command();
        let capture = capture.args(["capture", "--json", "-w"]).arg(&file);
        let capture = piped(capture);
        wait_until("no packets", || file.metadata().is_ok_and(|file| file.len() > 4096));
        kill_process(Pid::from_child(&capture), signal).unwrap();
        let output = capture.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{signal:?}: {}", stderr(&output));
        assert!(json(&output)["packets_written"].as_u64().unwrap() > 0);
        std::fs::remove_file(&file).unwrap();
    }
    interrupt(&card);
    card.wait_with_output().unwrap();
}

/// The default affinity and the affinity of each interrupt.
fn interrupts() -> Vec<(String, String)> {
    let mut masks = vec![("default".to_owned(), read("/proc/irq/default_smp_affinity"))];
    let folders = std::fs::read_dir("/proc/irq").unwrap().flatten();
    let folders = folders.filter(|entry| entry.path().join("smp_affinity").is_file());
    masks.extend(folders.map(|entry| {
        let path = entry.path().join("smp_affinity");
        (entry.file_name().to_string_lossy().into_owned(), read(&path.display().to_string()))
    }));
    masks.sort();
    masks
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// `picnic` without other processes, so that isolation moves no other threads.
fn alone(state: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", PICNIC]).args(arguments);
    command.env("PICNIC_STATE_DIR", state).env("PICNIC_RUNTIME_DIR", state.join("sockets"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn has_ended(child: &mut Child) -> bool {
    child.try_wait().unwrap().is_some()
}

/// The program that `unshare` runs.
fn within(unshare: &Child) -> Option<Pid> {
    Pid::from_raw(*children(unshare.id()).first()? as i32)
}

/// The processes that a process has started, oldest first.
fn children(id: u32) -> Vec<u32> {
    let children = read(&format!("/proc/{id}/task/{id}/children"));
    children.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// The cores that a process may run on.
fn cores_of(id: u32) -> String {
    let status = read(&format!("/proc/{id}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

fn journals(state: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(state).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("isolate")).collect()
}

#[test]
fn isolation_is_undone_for_any_stop() {
    const NAME: &str = "isolation_is_undone_for_any_stop";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "it needs root");
    }
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let before = interrupts();
    let method = "--set=isolation.method=affinity";
    // Other threads beside the card: one that may run everywhere, and one for each core.
    let cores = std::thread::available_parallelism().unwrap().get();
    let sleepers = (0..cores)
        .map(|core| format!("taskset -c {core} sleep 600 & all=\"$all $!\"; "))
        .collect::<String>();
    // Each is on its core before the card looks.
    let script = format!(
        "sleep 600 & all=$!; {sleepers}\
         for id in $all; do \
         until read name < /proc/$id/comm && [ \"$name\" = sleep ]; do :; done; done; \
         \"$@\"; echo $? > ended; read line"
    );
    for signal in ALL {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c", &script]);
        command.args(["sh", PICNIC, "run", "--isolate", "--json", "--duration=600", method]);
        command.env("PICNIC_STATE_DIR", state).env("PICNIC_RUNTIME_DIR", state.join("sockets"));
        command.current_dir(state).stdin(Stdio::piped());
        let mut child = piped(&mut command);
        let shell =
            || within(&child).map_or(Vec::new(), |id| children(id.as_raw_nonzero().get() as u32));
        let is_card = |id: &u32| threads_of(*id) >= 3;
        wait_until("no card", || shell().len() == cores + 2 && shell().iter().any(is_card));
        let (card, sleepers): (Vec<_>, Vec<_>) = shell().into_iter().partition(is_card);
        let affinities = || -> Vec<_> { sleepers.iter().map(|id| cores_of(*id)).collect() };
        assert_eq!(journals(state).len(), 1, "{:?}", journals(state));
        let meanwhile = affinities();
        kill_process(Pid::from_raw(card[0] as i32).unwrap(), signal).unwrap();
        wait_until("the card goes on", || {
            !read(&state.join("ended").display().to_string()).is_empty()
        });
        let after = affinities();
        drop(child.stdin.take());
        let output = child.wait_with_output().unwrap();
        let code = std::fs::read_to_string(state.join("ended")).unwrap();
        std::fs::remove_file(state.join("ended")).unwrap();
        assert_eq!(code.trim(), "0", "{signal:?}: {}", stderr(&output));
        assert_balanced(&json(&output));
        assert_eq!(journals(state), Vec::<String>::new(), "{signal:?}");
        assert_eq!(interrupts(), before, "{signal:?}");
        // The first may run where this test may; each of the others on its core.
        let mine = cores_of(std::process::id());
        let expected: Vec<_> =
            std::iter::once(mine).chain((0..cores).map(|core| core.to_string())).collect();
        assert_eq!(after, expected, "{signal:?}");
        assert_ne!(meanwhile, expected, "isolation moved none of them");
    }
    // `apply` at some moment: all of it, or nothing.
    for milliseconds in 0..20 {
        let signal = ALL[milliseconds % ALL.len()];
        let mut child = alone(state, &["isolate", "apply", method]);
        // It may have done its work before anybody looks.
        wait_until("not started", || within(&child).is_some() || has_ended(&mut child));
        std::thread::sleep(Duration::from_millis(milliseconds as u64));
        if let Some(id) = within(&child) {
            let _ = kill_process(id, signal);
        }
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => {
                let mut restore = command();
                restore.args(["isolate", "restore"]).env("PICNIC_STATE_DIR", state);
                assert!(restore.output().unwrap().status.success());
            }
            // Asked for in time, or before anything was done.
            _ => assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output)),
        }
        assert_eq!(journals(state), Vec::<String>::new(), "{signal:?}: {}", stderr(&output));
        assert_eq!(interrupts(), before, "{signal:?} after {milliseconds} ms");
    }
}

#[test]
fn stopped_benchmarks_remove_their_namespaces() {
    const NAME: &str = "stopped_benchmarks_remove_their_namespaces";
    if !rustix::process::geteuid().is_root() {
        return skip(NAME, "it needs root");
    }
    let _machine = machine();
    for signal in ALL {
        let mut bench = command();
        let bench = bench.args(["bench", "tcp", "--seconds=600"]);
        let bench = piped(bench);
        let id = bench.id();
        let left = || {
            let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.contains(&format!("-{id}-"))).collect::<Vec<_>>()
        };
        wait_until("no namespaces", || left().len() == 3);
        kill_process(Pid::from_child(&bench), signal).unwrap();
        let output = bench.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{signal:?}: {}", stderr(&output));
        assert_eq!(left(), Vec::<String>::new(), "{signal:?}");
    }
}
