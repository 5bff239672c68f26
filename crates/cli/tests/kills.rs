//! SIGKILL at any moment, then `picnic cleanup`: the machine is as it was before.
//!
//! All of it happens in a sandbox: network, mounts, `/run` and temporary files are namespaces' own,
//! so that everything visible there is ours; processes too, except for cards in the kernel,
//! which need to see the kernel's threads. Needs root. `scripts/e2e kills` runs it: `PICNIC_KILLS`
//! says how many kills (20, and half as many for cards in the kernel), `PICNIC_SEED` which moments
//! (1).

mod common;

use common::*;
use picnic_machine::net;
use picnic_machine::undo::Machine;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Says that the sandbox has been made.
const INSIDE: &str = "PICNIC_SANDBOX";
/// The sandbox's place for temporary files, and the sockets of cards.
const TEMPORARY: &str = "/run/tmp";
const SOCKETS: &str = "/run/cards";
/// How long a process that has been killed may take to its end.
const PATIENCE: Duration = picnic_testing::PATIENCE;

/// A command to kill, its required programs, and the milliseconds within which it is killed.
type Killed = (&'static str, &'static [&'static str], u64);

const KILLED: &[Killed] = &[
    ("demo web --seconds=1 --connections=8", &["nginx", "wrk"], 2500),
    ("bench web --seconds=1", &["nginx", "wrk"], 2500),
    ("bench tcp --seconds=1", &["iperf3"], 3000),
    ("micro wire --ports=packet,xdp --rounds=1 --seconds=0.1", &[], 1500),
    ("lab run nicos-firewall --world host --set milliseconds=20 --set rules=[16]", &[], 600),
    ("lab ab --candidate-set rx[0].hash=jhash --workload-kind iperf3", &["iperf3"], 3000),
    ("run --isolate --quiet --duration 60", &[], 600),
    ("net up net.toml", &[], 150),
    ("workload run webstone --seconds=1 --connections=8", &["apache2"], 4000),
];

/// The same for cards in the kernel.
const IN_THE_KERNEL: &[Killed] = &[
    ("run kernel.toml --quiet --duration 60", &[], 600),
    ("run kernel.toml --quiet --duration 60 --set host.handover=cpumap", &[], 600),
    ("run hybrid.toml --quiet --duration 60", &[], 600),
    ("micro kernel --rules=[16] --packets=1 --runs=1000 --repeats=1", &[], 1000),
    ("micro firewall --rules=[16] --rounds=1 --milliseconds=100", &["nft"], 1500),
    ("micro feed --rounds=1 --milliseconds=100", &[], 1000),
    ("micro hybrid --rounds=1 --milliseconds=100", &[], 1500),
];

/// The program of the micro-benchmarks, which is built with the tests of its crate.
fn micro() -> PathBuf {
    Path::new(PICNIC).with_file_name("picnic-micro")
}

/// The card of `net up`: enough namespaces, links and addresses to take a while.
const NET: &str = r#"
[card]
name = "killed"

[net]
namespaces = ["client", "card", "server"]

[[net.link]]
interface = "w0"
namespace = "card"
peer = "c0"
peer_namespace = "client"
peer_addresses = ["10.88.0.2/24"]

[[net.link]]
interface = "w1"
namespace = "card"
peer = "s0"
peer_namespace = "server"
peer_addresses = ["10.88.1.2/24"]
"#;

/// Cards whose wire the kernel serves: programs, threads and settings of an interface.
const KERNEL: &str = r#"
[card]
name = "killed-kernel"
engine = "kernel"

[[wire]]
port = "xdp"
interface = "k0"

[[rx]]
function = "rss"

[host]
attachment = "stack"
queues = 1
"#;
const HYBRID: &str = r#"
[card]
name = "killed-hybrid"
engine = "hybrid"

[[wire]]
port = "xdp"
interface = "k0"

[[filter]]
name = "echo"
protocol = "udp"
destination_ports = "7"
action = "poll"

[host]
attachment = "app"
mode = "echo"
queues = 1
"#;

/// Why the sandbox cannot be created.
fn why_not() -> Option<&'static str> {
    let is_installed = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() {
        Some("it needs root")
    } else if !Path::new("/dev/net/tun").exists() {
        Some("there is no /dev/net/tun")
    } else if !is_installed("ip") || !is_installed("unshare") {
        Some("iproute2 or util-linux is not installed")
    } else if !sandbox(true).arg("true").output().is_ok_and(|output| output.status.success()) {
        Some("namespaces are not permitted")
    } else {
        None
    }
}

/// A command in a sandbox, with or without its own process namespace.
fn sandbox(has_processes: bool) -> Command {
    let script = "mount -t tmpfs tmpfs /run && mkdir -p \"$TMPDIR\" && \
                  { mount -t sysfs sysfs /sys || true; } && ip link set lo up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--ipc", "--fork"]);
    command.args(["--pid", "--mount-proc"].iter().filter(|_| has_processes));
    command.args(["--kill-child=KILL", "sh", "-c", script, "sh"]);
    command.env("TMPDIR", TEMPORARY).env("PICNIC_RUNTIME_DIR", SOCKETS).env(INSIDE, "1");
    command.env_remove("PICNIC_STATE_DIR");
    command
}

/// Runs a test again in a sandbox, whose kills are these.
fn kill_in_sandbox(test: &str, has_processes: bool, killed: &[Killed], kills: u64) {
    if std::env::var_os(INSIDE).is_some() {
        return inside(test, killed, kills);
    }
    if let Some(reason) = why_not() {
        return skip(test, reason);
    }
    let _machine = machine();
    let me = std::env::current_exe().unwrap();
    let mut command = sandbox(has_processes);
    let status = command.arg(me).args(["--exact", test, "--nocapture"]).status().unwrap();
    assert!(status.success(), "see above");
}

#[test]
fn a_kill_at_any_moment_is_cleaned_up() {
    let kills = number("PICNIC_KILLS", 20);
    kill_in_sandbox("a_kill_at_any_moment_is_cleaned_up", true, KILLED, kills);
}

#[test]
fn a_killed_card_in_the_kernel_is_cleaned_up() {
    const NAME: &str = "a_killed_card_in_the_kernel_is_cleaned_up";
    if !has_kernel_cards(NAME) {
        return;
    }
    kill_in_sandbox(NAME, false, IN_THE_KERNEL, number("PICNIC_KILLS", 20).div_ceil(2));
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn inside(test: &str, killed: &[Killed], kills: u64) {
    let seed = number("PICNIC_SEED", 1);
    let is_installed = |tool: &&str| Command::new(tool).arg("-v").output().is_ok();
    let is_built = |command: &str| !command.starts_with("micro ") || micro().exists();
    let is_there =
        |(command, tools, _): &&Killed| is_built(command) && tools.iter().all(&is_installed);
    let (killed, absent): (Vec<_>, Vec<_>) = killed.iter().partition(is_there);
    for (command, tools, _) in absent {
        let missing = if is_built(command) { tools.join(" or ") } else { "picnic-micro".into() };
        skip(&format!("{test} ({command})"), &format!("{missing} is not installed"));
    }
    // Other processes, to be moved and moved back: one that may run anywhere, one that may not.
    let first = picnic_machine::topology::cores()[0].to_string();
    let _others = [Other::start(&[]), Other::start(&["taskset", "--cpu-list", &first])];
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // Requested output of a run, such as an experiment's points, stays when it is killed.
    let results = tempfile::tempdir_in("/tmp").unwrap();
    for (name, text) in [("net.toml", NET), ("kernel.toml", KERNEL), ("hybrid.toml", HYBRID)] {
        std::fs::write(results.path().join(name), text).unwrap();
    }
    for words in ["link add k0 type veth peer name k1", "link set k0 up", "link set k1 up"] {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    }
    let before = snapshot();
    for kill in 0..kills {
        let (command, _, milliseconds) = killed[kill as usize % killed.len()];
        let after = Duration::from_micros(random.random_range(0..milliseconds * 1000));
        let about = format!("kill {kill} of seed {seed}: `{command}` after {after:?}");
        let (program, words) = match command.strip_prefix("micro ") {
            Some(words) => (micro(), words),
            None => (PICNIC.into(), command),
        };
        let mut child = Command::new(program)
            .args(words.split(' '))
            .current_dir(results.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
        // Now and then the first one to take back is killed over it, too.
        if random.random_ratio(1, 4) {
            let mut cleanup = cleanup().stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
            cleanup.kill().unwrap();
            cleanup.wait().unwrap();
        }
        let output = cleanup().output().unwrap();
        assert!(output.status.success(), "{about}: {} {}", stdout(&output), stderr(&output));
        // One that was whole before the kill is wanted: it stays until it is taken down.
        if command.starts_with("net up") && net::is_up(&Machine::this(), "killed").unwrap() {
            let up = ["card", "client", "server"];
            assert_eq!(names(Path::new("/run/netns")), up, "{about}: {}", stdout(&output));
            let down = Command::new(PICNIC).args(["net", "down"]).output().unwrap();
            assert!(down.status.success(), "{about}: {} {}", stdout(&down), stderr(&down));
        }
        // A process killed a moment ago may not have ended yet.
        let start = Instant::now();
        let mut now = snapshot();
        while now != before && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
            now = snapshot();
        }
        for (what, was) in &before {
            assert_eq!(&now[what], was, "{about}: {what}; {}", stdout(&output));
        }
    }
}

fn cleanup() -> Command {
    let mut command = Command::new(PICNIC);
    command.args(["cleanup", "--json"]).stdin(Stdio::null()).process_group(0);
    command
}

/// A process that has nothing to do with any of it.
struct Other(Child);

impl Other {
    fn start(before: &[&str]) -> Self {
        let words = [before, &["sleep", "1000"]].concat();
        let child = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).spawn().unwrap();
        let name = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
            std::thread::sleep(Duration::from_millis(1));
        }
        Other(child)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Links with their programs and settings, namespaces, processes with their cores, interrupts'
/// cores and files.
fn snapshot() -> BTreeMap<&'static str, Vec<String>> {
    let links = Command::new("ip").args(["-o", "link", "show"]).output().unwrap();
    let links = stdout(&links).lines().map(|line| line.split(':').nth(1).unwrap().trim().into());
    let mut files = Vec::new();
    walk(Path::new("/run"), &mut files);
    let is_ours = |path: &String| {
        !["/run/netns", "/run/picnic", "/run/picnic/lock", SOCKETS, TEMPORARY].contains(&&**path)
            && !path.starts_with("/run/netns/")
    };
    files.retain(is_ours);
    BTreeMap::from([
        ("links", links.collect()),
        ("settings", settings("k0")),
        ("namespaces", names(Path::new("/run/netns"))),
        ("processes", processes()),
        ("interrupts", interrupts()),
        ("files", files),
    ])
}

/// The attributes of an interface that a card in the kernel changes.
fn settings(interface: &str) -> Vec<String> {
    let show = Command::new("ip").args(["-details", "link", "show", interface]).output().unwrap();
    let features = Command::new("ethtool").args(["--show-features", interface]).output();
    let mut found = vec![stdout(&show).to_owned()];
    found.extend(features.map(|features| stdout(&features).to_owned()));
    let folder = Path::new("/sys/class/net").join(interface);
    let mut files = ["threaded", "gro_flush_timeout", "napi_defer_hard_irqs"]
        .map(|file| folder.join(file))
        .to_vec();
    files.extend(
        names(&folder.join("queues"))
            .iter()
            .map(|queue| folder.join("queues").join(queue).join("rps_cpus")),
    );
    found.extend(files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()));
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn walk(folder: &Path, found: &mut Vec<String>) {
    for name in names(folder) {
        let path = folder.join(name);
        if path.is_dir() && !path.is_symlink() {
            walk(&path, found);
        }
        found.push(path.to_string_lossy().into_owned());
    }
}

/// Every living process of the sandbox, with the cores on which it may run.
fn processes() -> Vec<String> {
    let numbers = names(Path::new("/proc"));
    let mounts = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let ours = mounts("self").unwrap();
    let read = |number: &String| {
        let status = std::fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", str::trim).to_owned()
        };
        let is_there = !field("State:").starts_with(['Z', 'X']);
        let line = format!("{number} {} {}", field("Name:"), field("Cpus_allowed_list:"));
        is_there.then_some(line)
    };
    let is_ours =
        |name: &&String| name.parse::<u32>().is_ok() && mounts(name).as_ref() == Some(&ours);
    numbers.iter().filter(is_ours).filter_map(read).collect()
}

fn interrupts() -> Vec<String> {
    let folder = Path::new("/proc/irq");
    let mut paths = vec![folder.join("default_smp_affinity")];
    paths.extend(names(folder).iter().map(|name| folder.join(name).join("smp_affinity_list")));
    paths.push("/sys/devices/virtual/workqueue/cpumask".into());
    let read = |path: &std::path::PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(format!("{} {}", path.display(), text.trim()))
    };
    paths.iter().filter_map(read).collect()
}
