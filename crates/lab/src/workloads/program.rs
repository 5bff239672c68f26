//! Programs in a namespace, which end with us whatever happens.
//!
//! Each runs in a process namespace of its own, whose first process gets a signal when this
//! process ends: so even a server's workers end with a `picnic` that was killed.
//!
//! Source: setpriv(1), unshare(1), pid_namespaces(7).

use super::hosts::{Hosts, Place};
use anyhow::Context;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take until it listens.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A program that is needed, and the Debian package it comes in.
pub type Tool = (&'static str, &'static str);

/// What making namespaces and running programs in them needs.
pub const BASIC: [Tool; 4] = [
    ("ip", "iproute2"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("taskset", "util-linux"),
];

/// Says which of these programs are absent, and the command that mends it.
///
/// # Errors
/// One is.
pub fn need(tools: &[Tool]) -> anyhow::Result<()> {
    let absent: Vec<_> = tools.iter().filter(|(program, _)| !is_installed(program)).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = absent.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = absent.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    let verb = if programs.len() == 1 { "is" } else { "are" };
    anyhow::bail!(
        "{} {verb} not installed: try `apt-get install {}`",
        programs.join(" and "),
        packages.join(" ")
    )
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a command to its end, which must be a good one; what it printed.
///
/// # Errors
/// It cannot be started or does not end well: its last words.
pub fn run(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        // Ctrl-C is for us: what is being undone is undone to its end.
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {}", words[0]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::bail!("`{}`: {}", words.join(" "), last_words(&errors, &text))
}

fn last_words(errors: &str, output: &str) -> String {
    let lines = errors.lines().rev().chain(output.lines().rev());
    lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or("said nothing").to_owned()
}

/// A program at work in a namespace; dropped, it has ended.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl Program {
    /// Starts a program. What it prints goes to files in the hosts' folder.
    ///
    /// To be called by a thread that lives as long as the program is to.
    pub fn start(hosts: &Hosts, place: Place, words: &[&str]) -> anyhow::Result<Self> {
        let name = words[0].to_owned();
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let path = |end: &str| hosts.folder().join(format!("{name}-{number}.{end}"));
        let (output, errors) = (path("out"), path("err"));
        let file = |path: &PathBuf| {
            File::create(path).with_context(|| format!("cannot make {}", path.display()))
        };
        let cores: Vec<String> = hosts.programs_cores().iter().map(usize::to_string).collect();
        let pinned = ["taskset".into(), "--cpu-list".into(), cores.join(",")];
        let child = Command::new("ip")
            .args(["netns", "exec", &hosts.netns(place), "setpriv", "--pdeathsig", "KILL"])
            .args(pinned.iter().filter(|_| !cores.is_empty()))
            .args(["unshare", "--pid", "--fork", "--kill-child=KILL"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(file(&output)?)
            .stderr(file(&errors)?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Program { name, child, output, errors })
    }

    /// Waits until the program listens on this TCP port.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn wait_for_port(&mut self, port: u16) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.listens(port) {
            if self.ended().is_some() {
                anyhow::bail!("{} has ended: {}", self.name, self.last_words());
            }
            anyhow::ensure!(
                start.elapsed() < PATIENCE,
                "{} does not listen on port {port}",
                self.name
            );
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn listens(&self, port: u16) -> bool {
        const LISTEN: &str = "0A";
        let wanted = format!(":{port:04X}");
        ["tcp", "tcp6"].iter().any(|family| {
            let path = format!("/proc/{}/net/{family}", self.child.id());
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                fields.next().is_some_and(|local| local.ends_with(&wanted))
                    && fields.nth(1) == Some(LISTEN)
            })
        })
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// What it has printed to standard output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// The last line it has printed.
    pub fn last_words(&self) -> String {
        last_words(&std::fs::read_to_string(&self.errors).unwrap_or_default(), &self.output())
    }

    /// The programs themselves: the child that was started waits for them only.
    fn children(&self) -> Vec<rustix::process::Pid> {
        let id = self.child.id();
        let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let numbers = text.unwrap_or_default();
        let numbers = numbers.split_whitespace().filter_map(|number| number.parse().ok());
        numbers.filter_map(rustix::process::Pid::from_raw).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // The first of its process namespace: all others there end with it.
        for child in self.children() {
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
        let start = Instant::now();
        while self.ended().is_none() && start.elapsed() < PATIENCE / 10 {
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_named_with_its_package() {
        assert!(need(&[("sh", "dash")]).is_ok());
        let absent: [Tool; 3] = [("no-such-a", "one"), ("sh", "dash"), ("no-such-b", "one")];
        let error = need(&absent).unwrap_err().to_string();
        assert_eq!(error, "no-such-a and no-such-b are not installed: try `apt-get install one`");
    }

    #[test]
    fn a_command_that_fails_says_its_last_words() {
        assert_eq!(run(&["echo", "a b"]).unwrap(), "a b\n");
        let error =
            run(&["sh", "-c", "echo one >&2; echo two >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.ends_with(": two"), "{error}");
    }
}
