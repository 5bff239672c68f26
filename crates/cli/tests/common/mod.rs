//! Common parts of the tests of the `picnic` binary.

#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[path = "../../../host/tests/common/bed.rs"]
pub mod bed;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

pub const PICNIC: &str = env!("CARGO_BIN_EXE_picnic");

/// `picnic`, whose cards have their sockets where no other test looks for them. It keeps no costs of
/// this machine, which is busy with tests: admission relies on the built-in ones.
pub fn command() -> Command {
    let mut command = Command::new(PICNIC);
    command.env("PICNIC_RUNTIME_DIR", sockets()).env("XDG_CACHE_HOME", "/dev/null");
    command
}

/// The directory of the sockets of this test's cards. A running card creates it, and the last one
/// removes it.
pub fn sockets() -> PathBuf {
    // A test's thread has its name.
    let mut test = DefaultHasher::new();
    std::thread::current().name().hash(&mut test);
    let name = format!("picnic-test-{}-{:x}", std::process::id(), test.finish());
    std::env::temp_dir().join(name)
}

/// Starts a command whose output is read.
pub fn piped(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs `picnic` with these arguments, in a folder.
pub fn picnic_in(folder: &Path, arguments: &[&str]) -> Output {
    let _machine = arguments.starts_with(&["run"]).then(machine);
    command().args(arguments).current_dir(folder).output().unwrap()
}

/// Runs `picnic` with these arguments.
pub fn picnic(arguments: &[&str]) -> Output {
    picnic_in(Path::new("/"), arguments)
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Standard error of an output, without the lines about missing costs of this machine.
pub fn told(output: &Output) -> String {
    let of_costs = ["costs that were measured on no machine", "machine could not be measured"];
    let is_told = |line: &&str| !of_costs.iter().any(|text| line.contains(text));
    stderr(output).split_inclusive('\n').filter(is_told).collect()
}

/// Standard output of a run that must go well.
pub fn good(arguments: &[&str]) -> String {
    let output = picnic(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    assert_eq!(told(&output), "", "{arguments:?}");
    stdout(&output).to_owned()
}

/// The output of a long run, which may print its progress to standard error.
pub fn printed(arguments: &[&str]) -> String {
    let output = picnic(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

/// The one JSON object that standard output must be.
pub fn json(output: &Output) -> Value {
    let text = stdout(output);
    let value: Value = serde_json::from_str(text)
        .unwrap_or_else(|error| panic!("{error} in stdout:\n{text}\nstderr:\n{}", stderr(output)));
    assert!(value.is_object(), "{text}");
    // In any test, a card's threads need no system call that they gave up.
    let notes = value["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let refused: Vec<_> = notes.filter(|note| note.contains("system calls")).collect();
    assert!(refused.is_empty(), "{refused:?}");
    value
}

pub fn good_json(arguments: &[&str]) -> Value {
    let output = picnic(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    json(&output)
}

/// A folder with these files.
pub fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// The program, copied into a folder that others may read. Another process does it: were the copy
/// open here for writing while another test starts a program, that one would hold it open, too, and
/// it could not be run ("Text file busy").
pub fn copy_of_picnic(folder: &Path) -> PathBuf {
    let binary = folder.join("picnic");
    assert!(Command::new("cp").arg(PICNIC).arg(&binary).status().unwrap().success());
    binary
}

/// A card file in a separate folder.
pub fn card(text: &str) -> (TempDir, PathBuf) {
    let folder = folder(&[("card.toml", text.as_bytes())]);
    let path = folder.path().join("card.toml");
    (folder, path)
}

/// A run's ledger, packet by packet.
pub fn assert_balanced(report: &Value) {
    let ledger = &report["ledger"];
    let count = |name: &str| ledger[name].as_u64().unwrap_or_else(|| panic!("{name}: {ledger}"));
    let fates = ["delivered", "transmitted", "consumed", "dropped", "in_flight"].map(count);
    assert_eq!(count("in"), fates.iter().sum::<u64>(), "{ledger}");
    assert_eq!(ledger["balanced"], true);
    assert_eq!(count("in_flight"), 0, "a stopped card has nothing in flight: {ledger}");
    assert_eq!(report["buffers_missing"], 0);
    let drops: u64 = report["drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(drops, count("dropped"));
}

/// A capture in the classic format, of Ethernet, with these packets.
pub fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for (index, packet) in packets.iter().enumerate() {
        let length = packet.len() as u32;
        for word in [1_700_000_000, index as u32, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// An Ethernet frame with IPv4 and TCP, of the flow with this number.
pub fn tcp_frame(flow: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, (flow >> 8) as u8, flow as u8, 10, 9, 9, 9]);
    frame.extend((1024 + flow).to_be_bytes());
    frame.extend(80u16.to_be_bytes());
    frame.extend([0; 8]);
    frame.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.extend([0; 6]);
    frame
}

/// Starts `picnic`, and waits until its card has its threads. To be called with the machine.
pub fn start(_machine: &picnic_testing::Machine, arguments: &[&str]) -> Child {
    let mut command = command();
    let child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    wait_for_threads(child.id());
    child
}

/// How many threads a process has; none once it has ended.
pub fn threads_of(id: u32) -> usize {
    std::fs::read_dir(format!("/proc/{id}/task")).map_or(0, Iterator::count)
}

/// Waits until a card has its threads.
pub fn wait_for_threads(id: u32) {
    wait_until("the card has its threads", || threads_of(id) >= 3);
}

/// Ctrl-C for a child.
pub fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// A field of each thread's status as a hexadecimal number, by the thread's name.
pub fn statuses(id: u32, field: &str) -> Vec<(String, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let value = |status: &str, name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    statuses
        .map(|status| {
            let number = u64::from_str_radix(&value(&status, field), 16).unwrap_or(u64::MAX);
            (value(&status, "Name:"), number)
        })
        .collect()
}

pub use picnic_testing::{let_pass, machine, skip, wait_for, wait_until};

/// The ledger of the running card of this name; zero until it answers.
pub fn counted(card: &str, part: &str) -> u64 {
    let mut ctl = command();
    let output = ctl.args(["ctl", "--card", card, "stats", "--json"]).output().unwrap();
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    stats["ledger"][part].as_u64().unwrap_or(0)
}

/// A card that runs by the command line, and is asked. It ends with the test.
pub struct Running {
    name: String,
    child: Option<Child>,
    folder: PathBuf,
    /// Goes with it.
    own: Option<TempDir>,
}

impl Running {
    /// Runs the `card.toml` of a folder, whose card has this name, for ten minutes at most.
    pub fn start(name: &str, folder: TempDir) -> Self {
        let mut running = Running::start_in(name, folder.path(), &[]);
        running.own = Some(folder);
        running
    }

    /// The same of a folder that stays, with more options.
    pub fn start_in(name: &str, folder: &Path, more: &[&str]) -> Self {
        let mut run = command();
        run.args(["run", "card.toml", "--duration", "600", "--quiet", "--json"]).args(more);
        run.current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Some(run.spawn().unwrap());
        let running = Running { name: name.into(), child, folder: folder.into(), own: None };
        wait_until("the card answers", || running.ctl(&["info"]).status.code() == Some(0));
        running
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn child(&self) -> &Child {
        self.child.as_ref().expect("it runs")
    }

    pub fn ctl(&self, arguments: &[&str]) -> Output {
        picnic_in(self.folder(), &[&["ctl", "--card", &self.name], arguments].concat())
    }

    /// The output of a command that succeeds.
    pub fn good(&self, arguments: &[&str]) -> String {
        let output = self.ctl(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        stdout(&output).to_owned()
    }

    /// The same, as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// The exit code and errors of a command that fails.
    pub fn bad(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.ctl(arguments);
        assert_eq!(stdout(&output), "", "{arguments:?}");
        (output.status.code(), stderr(&output).to_owned())
    }

    /// Waits for the card's end: returns its report, whose ledger must balance, and its other
    /// output.
    pub fn ended(mut self) -> (Value, String) {
        let output = self.child.take().expect("it runs").wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let report = json(&output);
        assert_balanced(&report);
        (report, stderr(&output).to_owned())
    }

    /// Stops the card.
    pub fn stop(self) -> (Value, String) {
        self.good(&["stop"]);
        self.ended()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether this machine runs cards in the kernel; prints the reason if not.
pub fn has_kernel_cards(test: &str) -> bool {
    let doctor = good_json(&["doctor", "--json"]);
    let findings = doctor["findings"].as_array().unwrap();
    let can = findings.iter().find(|finding| finding["name"] == "kernel-cpumap").unwrap();
    let can_run = can["available"] == true;
    if !can_run {
        skip(test, can["found"].as_str().unwrap_or("no cpumap"));
    }
    can_run
}
