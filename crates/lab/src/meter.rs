//! The machine's activity during a point, from the kernel's counts.
//!
//! Each core's time by kind, context switches and interrupts, time that the hypervisor gave to
//! others, and the load of other processes. A point with much of the last two is *noisy*, and is
//! marked.
//!
//! Source: proc_stat(5), proc_pid_stat(5), proc_interrupts(5).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::{read_dir, read_to_string};

/// The share of time given to other machines above which a point is noisy.
const STEAL_ALLOWED: f64 = 0.01;
/// The share of time used by other processes above which a point is noisy.
const OTHERS_ALLOWED: f64 = 0.1;
/// Ticks of all cores below which shares are unknown.
const TICKS_NEEDED: u64 = 40;

/// Parts of a core's time, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreShare {
    /// The core.
    pub core: usize,
    /// Programs.
    pub user: f64,
    /// The kernel for them.
    pub system: f64,
    /// Interrupts of devices.
    pub interrupt: f64,
    /// Soft interrupts: the kernel's network stack.
    pub softirq: f64,
    /// Idle.
    pub idle: f64,
    /// Other machines of the hypervisor.
    pub steal: f64,
}

/// The machine's activity in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// By core; empty if the interval was too short.
    pub cores: Vec<CoreShare>,
    /// Share of all time that the hypervisor gave to others; none if the interval was too short.
    pub steal_fraction: Option<f64>,
    /// Share of all time that other processes ran; none if the interval was too short.
    pub others_fraction: Option<f64>,
    /// On all cores.
    pub context_switches: u64,
    /// On all cores.
    pub interrupts: u64,
    /// Calls and reschedules between cores; none if the kernel does not count them.
    pub inter_processor_interrupts: Option<u64>,
}

impl Load {
    /// Why figures are less reliable; none if they are not.
    pub fn noise(&self) -> Option<String> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let too_much = |share: Option<f64>, allowed| share.filter(|share| *share > allowed);
        let steal = too_much(self.steal_fraction, STEAL_ALLOWED)
            .map(|share| format!("other machines used {} of the time", percent(share)));
        let others = too_much(self.others_fraction, OTHERS_ALLOWED)
            .map(|share| format!("other processes used {} of all cores", percent(share)));
        let words: Vec<_> = steal.into_iter().chain(others).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// A reading of the kernel's counts.
#[derive(Clone, Debug)]
pub struct Meter {
    /// All cores, then each: user, nice, system, idle, iowait, irq, softirq, steal.
    times: Vec<(Option<usize>, [u64; 8])>,
    own: u64,
    context_switches: u64,
    interrupts: u64,
    inter_processor: Option<u64>,
}

impl Meter {
    /// Reads them now.
    pub fn start() -> Self {
        let read = |path: &str| read_to_string(path).unwrap_or_default();
        let mut meter =
            Meter::of(&read("/proc/stat"), &read("/proc/self/stat"), &read("/proc/interrupts"));
        // Without programs started by this one, and without the kernel's threads, which work for
        // all: an ended child's time becomes its parent's.
        let mut left = children(std::process::id());
        if read("/proc/2/comm").trim() == "kthreadd" {
            left.extend(children(2));
        }
        while let Some(process) = left.pop() {
            left.extend(children(process));
            meter.own += ticks(&read(&format!("/proc/{process}/stat")));
        }
        meter
    }

    fn of(stat: &str, own: &str, interrupts: &str) -> Self {
        let mut times = Vec::new();
        let (mut context_switches, mut total_interrupts) = (0, 0);
        for line in stat.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or("");
            let mut numbers = words.map(|word| word.parse().unwrap_or(0u64));
            match name.strip_prefix("cpu") {
                Some(core) => {
                    let mut kinds = [0; 8];
                    kinds.iter_mut().zip(&mut numbers).for_each(|(kind, number)| *kind = number);
                    times.push((core.parse().ok(), kinds));
                }
                None if name == "ctxt" => context_switches = numbers.next().unwrap_or(0),
                None if name == "intr" => total_interrupts = numbers.next().unwrap_or(0),
                None => {}
            }
        }
        let row = |name: &str| {
            let line = interrupts.lines().find(|line| line.trim_start().starts_with(name))?;
            let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
            Some(counts.sum::<u64>())
        };
        let inter_processor = [row("RES:"), row("CAL:")].into_iter().flatten().reduce(|a, b| a + b);
        Meter {
            times,
            own: ticks(own),
            context_switches,
            interrupts: total_interrupts,
            inter_processor,
        }
    }

    /// The activity since `self` was read.
    pub fn stop(&self) -> Load {
        self.until(&Meter::start())
    }

    fn until(&self, end: &Meter) -> Load {
        let mut load = Load {
            context_switches: end.context_switches.saturating_sub(self.context_switches),
            interrupts: end.interrupts.saturating_sub(self.interrupts),
            inter_processor_interrupts: end
                .inter_processor
                .zip(self.inter_processor)
                .map(|(end, start)| end.saturating_sub(start)),
            ..Load::default()
        };
        let own = end.own.saturating_sub(self.own);
        for (core, after) in &end.times {
            let Some((_, before)) = self.times.iter().find(|(other, _)| other == core) else {
                continue;
            };
            let spent: [u64; 8] =
                std::array::from_fn(|kind| after[kind].saturating_sub(before[kind]));
            let all: u64 = spent.iter().sum();
            let share = |ticks: u64| (ticks as f64 / all.max(1) as f64 * 1e4).round() / 1e4;
            let [user, nice, system, idle, wait, irq, softirq, steal] = spent;
            match core {
                None if all >= TICKS_NEEDED => {
                    load.steal_fraction = Some(share(steal));
                    load.others_fraction = Some(share((user + nice + system).saturating_sub(own)));
                }
                None => break,
                Some(core) if all != 0 => load.cores.push(CoreShare {
                    core: *core,
                    user: share(user + nice),
                    system: share(system),
                    interrupt: share(irq),
                    softirq: share(softirq),
                    idle: share(idle + wait),
                    steal: share(steal),
                }),
                Some(_) => {}
            }
        }
        load
    }
}

/// The children of all threads of a process: none without `CONFIG_PROC_CHILDREN`.
fn children(of: u32) -> Vec<u32> {
    let threads = read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| read_to_string(thread.path().join("children")).ok());
    let words = |text: String| -> Vec<u32> {
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    texts.flat_map(words).collect()
}

/// The time of a process and of its ended children, from its `stat`.
fn ticks(stat: &str) -> u64 {
    // A program's name is in parentheses and may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_computed_from_kernel_counts() {
        let before = Meter::of(
            "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\nintr 5 1 1\nctxt 10\n",
            "1 (a b) c) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20",
            "  CPU0\nRES: 3 4 Rescheduling interrupts\nCAL: 1 1 Function call interrupts\n",
        );
        let after = Meter::of(
            "cpu  100 0 20 60 10 0 5 5 0 0\ncpu0 100 0 20 60 10 0 5 5\nintr 105 1 1\nctxt 30\n",
            "1 (a b) c) R 1 1 1 0 -1 0 0 0 0 0 40 10 5 5 20",
            "  CPU0\nRES: 13 4 Rescheduling interrupts\nCAL: 1 6 Function call interrupts\n",
        );
        let load = before.until(&after);
        assert_eq!((load.context_switches, load.interrupts), (20, 100));
        assert_eq!(load.inter_processor_interrupts, Some(15));
        assert_eq!((load.steal_fraction, load.others_fraction), (Some(0.025), Some(0.3)));
        let core = load.cores[0];
        assert_eq!((core.core, core.user, core.softirq, core.idle), (0, 0.5, 0.025, 0.35));
        let noise = load.noise().unwrap();
        assert!(noise.contains("2.5 %") && noise.contains("30.0 %"), "{noise}");
    }

    #[test]
    fn children_count_as_own_while_they_run() {
        // For minutes, so that it still runs when it is looked at.
        let spinning = "i=0; while [ $i -lt 500000000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh").args(["-c", spinning]).spawn().unwrap();
        let ran = |child: &mut std::process::Child| {
            while child.try_wait().unwrap().is_none() {
                let ran = ticks(&read_to_string(format!("/proc/{}/stat", child.id())).unwrap());
                if ran >= 10 {
                    return ran;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            0
        };
        let of_parent = ticks(&read_to_string("/proc/self/stat").unwrap());
        let ran = ran(&mut child);
        let own = Meter::start().own;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ran >= 10 && own >= of_parent + ran, "{of_parent} and {ran}: {own}");
        // Its time is this process's from then on.
        assert!(ticks(&read_to_string("/proc/self/stat").unwrap()) >= of_parent + ran);
    }

    #[test]
    fn short_intervals_have_no_shares() {
        let stat = |idle: u64| format!("cpu 0 0 0 {idle} 0 0 0 0\ncpu0 0 0 0 {idle} 0 0 0 0\n");
        let load = Meter::of(&stat(0), "", "").until(&Meter::of(&stat(10), "", ""));
        assert_eq!((load.steal_fraction, load.noise()), (None, None));
        assert_eq!(load.inter_processor_interrupts, None);
        // This machine's own are read.
        let now = Meter::start();
        assert!(now.times.len() > 1 && now.context_switches > 0);
    }
}
