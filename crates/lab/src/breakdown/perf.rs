//! Sampled stacks of whole cores, by the program `perf`: the kernel's processor clock as the event, so
//! that it works in virtual machines, and idle time is sampled as well.
//!
//! Guarantee: a recording contains only what happened between its start and its stop, and its file is
//! removed.
//!
//! Source: perf-record(1), perf-script(1).

use crate::experiment::LabError;
use crate::workloads::tools::need_all;
use anyhow::{Context, bail, ensure};
use picnic_machine::signals;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Samples per second and core; no divisor of a timer's rate.
const RATE_HZ: u32 = 1999;
/// The longest time that `perf` may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A function in a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    pub(super) function: String,
    pub(super) is_kernel: bool,
}

/// A stack at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) core: usize,
    pub(super) process: u32,
    pub(super) command: String,
    /// Innermost first.
    pub(super) frames: Vec<Frame>,
}

/// Records the cores of a card.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The cores.
    pub(crate) cores: Vec<usize>,
}

/// A recording in progress.
#[derive(Debug)]
pub(crate) struct Recording {
    perf: Child,
    folder: Folder,
}

/// A recording's folder, removed with it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// Checks whether this process may sample whole cores and read the kernel's symbols.
///
/// # Errors
/// `perf` is not installed, the kernel refuses samples, or its symbols are hidden.
pub(super) fn check() -> Result<(), LabError> {
    need_all(&[("perf", "linux-perf")])?;
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let is_root = rustix::process::geteuid().is_root();
    refusal(is_root, paranoid.trim(), first_line("/proc/kallsyms").as_deref())
        .map_or(Ok(()), |why| Err(LabError::Unavailable(why)))
}

fn first_line(path: &str) -> Option<String> {
    let mut start = [0; 64];
    let length = File::open(path).and_then(|mut file| file.read(&mut start)).ok()?;
    Some(String::from_utf8_lossy(&start[..length]).lines().next()?.to_owned())
}

/// Why samples are of no use: `symbol` is the first line of `/proc/kallsyms`.
fn refusal(is_root: bool, paranoid: &str, symbol: Option<&str>) -> Option<String> {
    if !is_root && paranoid.parse::<i32>().is_ok_and(|level| level > 0) {
        return Some(format!(
            "kernel.perf_event_paranoid is {paranoid}, so the kernel allows samples of whole cores \
             only to root: try it with `sudo`, or `sysctl kernel.perf_event_paranoid=0`"
        ));
    }
    let address = symbol.and_then(|line| line.split(' ').next());
    if address.is_none_or(|address| address.bytes().all(|digit| digit == b'0')) {
        return Some(
            "the kernel hides the addresses of its functions: try `sysctl kernel.kptr_restrict=0`, \
             or `sudo`"
                .into(),
        );
    }
    None
}

impl Recorder {
    /// Starts; returns once samples are taken.
    ///
    /// # Errors
    /// `perf` failed, with its message.
    pub(crate) fn start(&self) -> anyhow::Result<Recording> {
        let folder =
            Folder(std::env::temp_dir().join(format!("picnic-breakdown-{}", std::process::id())));
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir(&folder.0).with_context(|| format!("{}", folder.0.display()))?;
        let [control, answers, data, log] =
            ["control", "answers", "perf.data", "log"].map(|name| folder.0.join(name));
        for fifo in [&control, &answers] {
            mknodat(CWD, fifo.as_path(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
        // Opened for both ways: neither end waits for the other.
        let both = |path| File::options().read(true).write(true).open(path);
        let (mut commands, mut answer) = (both(&control)?, both(&answers)?);
        rustix::io::ioctl_fionbio(&answer, true)?;
        let cores: Vec<_> = self.cores.iter().map(usize::to_string).collect();
        let perf = Command::new("perf")
            .args(["record", "-q", "-e", "cpu-clock", "-g", "-D", "-1", "-F"])
            .arg(RATE_HZ.to_string())
            .args(["-C", &cores.join(","), "--control"])
            .arg(format!("fifo:{},{}", control.display(), answers.display()))
            .arg("-o")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("perf record")?;
        let mut recording = Recording { perf, folder };
        commands.write_all(b"enable\n")?;
        let began = Instant::now();
        let mut text = [0; 16];
        while answer.read(&mut text).is_err() {
            if let Some(status) = recording.perf.try_wait()? {
                bail!("perf record: {status}: {}", recording.log());
            }
            ensure!(began.elapsed() < PATIENCE, "perf record did not start: {}", recording.log());
            signals::sleep(Duration::from_millis(5))?;
        }
        Ok(recording)
    }
}

impl Recording {
    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.0.join("log")).unwrap_or_default();
        text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
    }

    /// Ends it; its samples.
    ///
    /// # Errors
    /// `perf` failed, with its message.
    pub(crate) fn stop(mut self) -> anyhow::Result<Samples> {
        kill_process(Pid::from_child(&self.perf), Signal::INT)?;
        self.perf.wait()?;
        let script = Command::new("perf")
            .args(["script", "--no-inline", "-F", "comm,pid,tid,cpu,ip,sym,dso", "-i"])
            .arg(self.folder.0.join("perf.data"))
            .stdin(Stdio::null())
            .output()
            .context("perf script")?;
        let samples = samples(&String::from_utf8_lossy(&script.stdout));
        if samples.is_empty() {
            let why = String::from_utf8_lossy(&script.stderr);
            bail!("perf took no sample: {}; {}", self.log(), why.trim());
        }
        Ok(Samples(samples))
    }
}

/// Sampled stacks.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(super) Vec<Sample>);

/// The samples in the output of `perf script`: for each a line, then its functions, then an empty line.
fn samples(text: &str) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if !line.starts_with(['\t', ' ']) || line.trim_end().ends_with(']') {
            samples.extend(header(line));
        } else if let (Some(sample), Some(frame)) = (samples.last_mut(), frame(line)) {
            sample.frames.push(frame);
        }
    }
    samples
}

/// `COMMAND PID/TID [CORE]`; the command may contain anything.
fn header(line: &str) -> Option<Sample> {
    let (before, core) = line.trim_end().trim_end_matches(':').rsplit_once('[')?;
    let (command, thread) = before.trim().rsplit_once(char::is_whitespace)?;
    Some(Sample {
        core: core.trim_end_matches(']').parse().ok()?,
        process: thread.split('/').next()?.parse().unwrap_or(0),
        command: command.trim().into(),
        frames: Vec::new(),
    })
}

/// `ADDRESS FUNCTION (FILE)`.
fn frame(line: &str) -> Option<Frame> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (function, file) = rest.rsplit_once(" (")?;
    // Modules of the kernel are in brackets as well.
    let is_kernel = file.starts_with('[') && !["[unknown])", "[vdso])"].contains(&file);
    Some(Frame { function: function.trim().into(), is_kernel })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_perf_script_is_read() {
        let text = "swapper     0/0     [001]\n\tffffffff815f6c23 pv_native_safe_halt ([kernel.kallsyms])\n\
            \tffffffff815f6ecb do_idle ([kernel.kallsyms])\n\n\
            Web Content [a] 4171/4172 [000] \n\t  ffffffffc0a 1 veth_poll ([veth])\n\t  101a37 \
            <a as b>::read (/usr/lib/libc.so.6)\n\t       0 [unknown] ([unknown])\n\n";
        let found = samples(text);
        assert_eq!((found.len(), found[0].core, found[0].process), (2, 1, 0));
        assert_eq!(found[0].frames[1], Frame { function: "do_idle".into(), is_kernel: true });
        assert_eq!((found[1].command.as_str(), found[1].process), ("Web Content [a]", 4171));
        let kinds: Vec<_> = found[1].frames.iter().map(|frame| frame.is_kernel).collect();
        assert_eq!(kinds, [true, false, false]);
        assert_eq!(found[1].frames[1].function, "<a as b>::read");
    }

    #[test]
    fn refusals_say_what_to_change() {
        let address = Some("ffffffff81000000 T _text");
        assert_eq!(refusal(true, "2", address), None);
        assert_eq!(refusal(false, "0", address), None);
        let why = refusal(false, "2", address).unwrap();
        assert!(why.contains("perf_event_paranoid is 2") && why.contains("sudo"), "{why}");
        for hidden in [Some("0000000000000000 T _text"), None] {
            assert!(refusal(true, "2", hidden).unwrap().contains("kptr_restrict=0"));
        }
    }
}
