//! What this machine offers to a card, why something is missing, and how to fix it.
//!
//! ```no_run
//! for finding in picnic_machine::doctor::examine() {
//!     println!("{}: {}", finding.name, finding.reason);
//! }
//! ```
//!
//! A probe tries the operation itself if that changes nothing (opens a socket, a
//! device), and otherwise reads the kernel's files. Nothing is changed.

use crate::topology::cores;
use picnic_hash::Key;
use picnic_hash::toeplitz::{Backend, Toeplitz};
use rustix::fs::{Access, access};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;
use std::env;
use std::fs;
use std::path::Path;

/// A feature of the machine that a card may need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name, such as `tap`.
    pub name: &'static str,
    /// Whether it is available.
    pub available: bool,
    /// Why, or why not.
    pub reason: String,
    /// What needs it.
    pub needed_for: &'static str,
    /// A command, or another step, that would make it available, if any.
    pub mend: Option<String>,
}

type Probe = fn() -> (Result<String, String>, &'static str);

/// The features in order of importance: name, what needs it, probe. A probe returns the finding
/// and, if not available, the remedy.
const PROBES: &[(&str, &str, Probe)] = &[
    ("cores", "a borrowed core and target cores", two_cores),
    ("vector-hash", "hashing many packets at a time", vector_hash),
    ("hugepages", "a buffer pool without TLB misses, zero-copy AF_XDP", huge_pages),
    ("clock", "reading the time without a system call", clock),
    ("packet-socket", "the wire `packet`, captures by tcpdump", packet_socket),
    ("tap", "the host `tap`, the wire `tap`", tap),
    ("kvm", "guests of the host `vhost-user` at full speed", kvm),
    ("af-xdp", "the wire `xdp`", xdp_socket),
    ("bpf", "the wire `xdp`: its redirect program", bpf),
    ("network-admin", "creating and configuring interfaces", network_admin),
    ("namespaces", "hosts and wires in network namespaces, the demonstrations", namespaces),
    ("real-time", "target threads that preempt like interrupts", real_time),
    ("cpuset", "isolation by cgroup v2", cpuset),
    ("irq-affinity", "isolation: interrupts away from the borrowed core", irq_affinity),
    ("hardware-counters", "cache misses and instructions by perf", hardware_counters),
];

/// Programs used by demonstrations and tests, with their packages.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("ip", "iproute2", "namespaces and veth pairs of the demonstrations and tests"),
    ("nginx", "nginx-light", "`picnic demo web`"),
    ("wrk", "wrk", "`picnic demo web`"),
    ("iperf3", "iperf3", "`picnic bench tcp`, tests"),
    ("tshark", "tshark", "reading captures, tests"),
    ("perf", "linux-perf", "`picnic lab breakdown`"),
    ("nc", "netcat-openbsd", "sending single packets, as the example cards show"),
    ("ethtool", "ethtool", "offload settings of interfaces, tests"),
    ("qemu-system-x86_64", "qemu-system-x86", "guests of the host `vhost-user`, tests"),
    ("dpdk-testpmd", "dpdk", "DPDK as a guest of the host `vhost-user`, tests"),
];

/// Checks everything.
pub fn examine() -> Vec<Finding> {
    let probes = PROBES.iter().map(|&(name, needed_for, probe)| {
        let (found, mend) = probe();
        let available = found.is_ok();
        let (Ok(reason) | Err(reason)) = found;
        let mend = (!available && !mend.is_empty()).then(|| mend.to_owned());
        Finding { name, available, reason, needed_for, mend }
    });
    let programs = PROGRAMS.iter().map(|&(name, package, needed_for)| {
        let place = on_path(name);
        let available = place.is_some();
        let reason = place.unwrap_or_else(|| "not found on PATH".into());
        let mend = (!available).then(|| format!("apt-get install {package}"));
        Finding { name, available, reason, needed_for, mend }
    });
    probes.chain(programs).collect()
}

fn two_cores() -> (Result<String, String>, &'static str) {
    let cores = cores();
    let numbers: Vec<_> = cores.iter().map(usize::to_string).collect();
    let found = format!("this process may run on {}", numbers.join(", "));
    (
        if cores.len() > 1 { Ok(found) } else { Err(found) },
        "start it with more cores (taskset, cgroup)",
    )
}

fn vector_hash() -> (Result<String, String>, &'static str) {
    let found = if Toeplitz::new(&Key::MICROSOFT).backend() == Backend::Vector {
        Ok("AVX-512 with GFNI".into())
    } else {
        Err("the processor has no AVX-512 with GFNI; tables are used instead".into())
    };
    (found, "")
}

fn huge_pages() -> (Result<String, String>, &'static str) {
    let count = |name: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"));
        text.ok().and_then(|text| text.trim().parse::<u64>().ok())
    };
    let found = match (count("nr_hugepages"), count("free_hugepages")) {
        (Some(all), Some(free)) if free != 0 => Ok(format!("{free} of {all} free, 2 MiB each")),
        (Some(all), _) => {
            Err(format!("{all} reserved, none free; ordinary pages are used instead"))
        }
        _ => Err("the kernel has no 2 MiB pages; ordinary pages are used instead".into()),
    };
    (found, "sysctl vm.nr_hugepages=64")
}

fn clock() -> (Result<String, String>, &'static str) {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = fs::read_to_string(path).unwrap_or_default();
    let found = match source.trim() {
        "" => Err(format!("{path} cannot be read")),
        // Those that the vDSO reads without entering the kernel.
        source @ ("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page") => Ok(source.to_owned()),
        source => Err(format!("{source}: every read of the clock enters the kernel")),
    };
    (found, "boot with clocksource=tsc, if the processor's TSC is stable")
}

fn socket(family: AddressFamily) -> Result<String, String> {
    match socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Ok("a socket can be opened".into()),
        Err(error) => Err(format!("a socket cannot be opened: {error}")),
    }
}

fn packet_socket() -> (Result<String, String>, &'static str) {
    (socket(AddressFamily::PACKET), "run as root, or: setcap cap_net_raw,cap_net_admin+ep picnic")
}

fn xdp_socket() -> (Result<String, String>, &'static str) {
    (socket(AddressFamily::XDP), "run as root, on a kernel with CONFIG_XDP_SOCKETS")
}

fn tap() -> (Result<String, String>, &'static str) {
    let device = fs::File::options().read(true).write(true).open("/dev/net/tun");
    let found = match device {
        Ok(_) => capability(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")
            .map(|_| "/dev/net/tun can be opened".into()),
        Err(error) => Err(format!("/dev/net/tun cannot be opened: {error}")),
    };
    (found, "modprobe tun, and run as root")
}

fn kvm() -> (Result<String, String>, &'static str) {
    let found = match fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Ok("/dev/kvm can be opened".into()),
        Err(error) => {
            Err(format!("/dev/kvm cannot be opened: {error}; guests are emulated, slowly"))
        }
    };
    (found, "modprobe kvm_intel, or kvm_amd, and run as root or in group kvm")
}

fn capability(wanted: CapabilitySet, name: &str) -> Result<String, String> {
    match capabilities(None) {
        Ok(sets) if sets.effective.contains(wanted) => Ok(format!("this process has {name}")),
        Ok(_) => Err(format!("this process has no {name}")),
        Err(error) => Err(format!("capabilities cannot be read: {error}")),
    }
}

fn bpf() -> (Result<String, String>, &'static str) {
    // Either is enough; older kernels only know the latter.
    let found = capability(CapabilitySet::BPF, "CAP_BPF")
        .or_else(|_| capability(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"))
        .map_err(|_| "this process has neither CAP_BPF nor CAP_SYS_ADMIN".into());
    (found, "run as root")
}

fn network_admin() -> (Result<String, String>, &'static str) {
    (capability(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), "run as root")
}

fn namespaces() -> (Result<String, String>, &'static str) {
    let found = if Path::new("/proc/self/ns/net").exists() {
        capability(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")
    } else {
        Err("the kernel has no network namespaces".into())
    };
    (found, "run as root, on a kernel with CONFIG_NET_NS")
}

fn real_time() -> (Result<String, String>, &'static str) {
    // No limit set means unlimited.
    let limit = getrlimit(Resource::Rtprio).current;
    let found = match limit {
        None => Ok("the limit on real-time priority is unlimited".into()),
        Some(limit) if limit != 0 => Ok(format!("the limit on real-time priority is {limit}")),
        Some(_) => capability(CapabilitySet::SYS_NICE, "CAP_SYS_NICE")
            .map_err(|why| format!("the limit on real-time priority is 0, and {why}")),
    };
    (found, "run as root, or raise the limit: prlimit --rtprio=10")
}

fn cpuset() -> (Result<String, String>, &'static str) {
    let root = "/sys/fs/cgroup";
    let found = match fs::read_to_string(format!("{root}/cgroup.controllers")) {
        Err(_) => {
            Err(format!("{root} is not a unified hierarchy; thread affinities are used instead"))
        }
        Ok(list) if !list.split_whitespace().any(|name| name == "cpuset") => Err(
            "the unified hierarchy has no cpuset controller; thread affinities are used instead"
                .into(),
        ),
        Ok(_) => writable(&format!("{root}/cgroup.subtree_control")),
    };
    (found, "mount cgroup v2 with its cpuset controller (systemd.unified_cgroup_hierarchy=1)")
}

fn irq_affinity() -> (Result<String, String>, &'static str) {
    (writable("/proc/irq/default_smp_affinity"), "run as root")
}

fn writable(path: &str) -> Result<String, String> {
    match access(path, Access::WRITE_OK) {
        Ok(()) => Ok(format!("{path} can be written")),
        Err(error) => Err(format!("{path} cannot be written: {error}")),
    }
}

fn hardware_counters() -> (Result<String, String>, &'static str) {
    let found = if Path::new("/sys/bus/event_source/devices/cpu").exists() {
        Ok("the kernel provides the processor's counters".into())
    } else {
        Err("the kernel provides no processor counters, as in most virtual machines".into())
    };
    (found, "")
}

/// The path of a program, if it can be started.
fn on_path(name: &str) -> Option<String> {
    let path = env::var_os("PATH")?;
    // A user's PATH often lacks the directories of these programs.
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut places = folders.map(|folder| folder.join(name));
    let place = places.find(|place| access(place, Access::EXEC_OK).is_ok() && place.is_file())?;
    Some(place.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_have_reason_and_purpose() {
        let findings = examine();
        assert_eq!(findings.len(), PROBES.len() + PROGRAMS.len());
        for finding in &findings {
            assert!(!finding.reason.is_empty() && !finding.needed_for.is_empty(), "{finding:?}");
            assert!(!(finding.available && finding.mend.is_some()), "{finding:?}");
        }
        let mut names: Vec<_> = findings.iter().map(|finding| finding.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), findings.len());
    }

    #[test]
    fn programs_are_found() {
        assert!(on_path("sh").is_some_and(|place| place.ends_with("/sh")));
        assert_eq!(on_path("no-such-program-anywhere"), None);
    }

    #[test]
    fn socket_finding_matches_opening_one() {
        let raw = capability(CapabilitySet::NET_RAW, "CAP_NET_RAW").is_ok();
        assert_eq!(packet_socket().0.is_ok(), raw);
    }
}
