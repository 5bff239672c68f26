//! The component of a sampled stack, by a table that is data: `components.toml`.

use super::perf::Sample;
use anyhow::Context;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("components.toml");

/// Functions of the kernel in no list.
pub(super) const OTHER_KERNEL: &str = "other kernel";
/// Threads of the card, outside the kernel.
pub(super) const CARD: &str = "card";
/// Other programs, outside the kernel.
pub(super) const APPLICATION: &str = "application";
/// Nothing to do.
pub(super) const IDLE: &str = "idle";
/// Those of the table in the order of reports, then the others.
pub(super) const ORDER: [&str; 9] =
    ["driver", "buffers", "stack", "socket", "copy", OTHER_KERNEL, CARD, APPLICATION, IDLE];

/// Patterns of functions, with their components.
pub(super) struct Components(Vec<(String, &'static str)>);

impl Components {
    /// The built-in table.
    pub(super) fn built_in() -> anyhow::Result<Self> {
        let table: BTreeMap<String, Vec<String>> =
            toml::from_str(TABLE).context("components.toml")?;
        let mut patterns = Vec::new();
        for (component, functions) in table {
            let known = ORDER.iter().find(|known| **known == component);
            let known = *known.with_context(|| format!("components.toml: found {component}"))?;
            patterns.extend(functions.into_iter().map(|function| (function, known)));
        }
        Ok(Components(patterns))
    }

    /// The component of a function of the kernel, if it is in a list.
    fn of_function(&self, function: &str) -> Option<&'static str> {
        let fitting = self.0.iter().filter(|(pattern, _)| is_like(function, pattern));
        fitting.max_by_key(|(pattern, _)| pattern.len()).map(|(_, component)| *component)
    }

    /// The component of a sample; `own` is the process of the card.
    pub(super) fn of(&self, sample: &Sample, own: u32) -> &'static str {
        let mut kernel = sample.frames.iter().filter(|frame| frame.is_kernel).peekable();
        if kernel.peek().is_none() {
            return if sample.process == own { CARD } else { APPLICATION };
        }
        kernel.find_map(|frame| self.of_function(&frame.function)).unwrap_or(OTHER_KERNEL)
    }
}

fn is_like(function: &str, pattern: &str) -> bool {
    let inner = pattern.trim_matches('*');
    match (pattern.starts_with('*'), pattern.ends_with('*')) {
        (true, true) => function.contains(inner),
        (true, false) => function.ends_with(inner),
        (false, true) => function.starts_with(inner),
        (false, false) => function == inner,
    }
}

#[cfg(test)]
mod tests {
    use super::super::perf::Frame;
    use super::*;

    fn of(process: u32, frames: &[&str]) -> &'static str {
        let frame = |name: &&str| match name.strip_prefix("user ") {
            Some(name) => Frame { function: name.into(), is_kernel: false },
            None => Frame { function: (*name).into(), is_kernel: true },
        };
        let frames = frames.iter().map(frame).collect();
        let sample = Sample { core: 0, process, command: "x".into(), frames };
        Components::built_in().unwrap().of(&sample, 7)
    }

    #[test]
    fn the_innermost_listed_function_decides() {
        let receive = ["tcp_recvmsg_locked", "tcp_recvmsg", "inet_recvmsg", "user read"];
        assert_eq!(of(1, &receive), "socket");
        assert_eq!(
            of(1, &[&["rep_movs_alternative", "_copy_to_iter"], &receive[..]].concat()),
            "copy"
        );
        // A lock is of the function that takes it.
        assert_eq!(of(1, &["_raw_spin_lock", "tcp_v4_rcv", "net_rx_action"]), "stack");
        assert_eq!(of(1, &["kmem_cache_free", "tcp_ack", "net_rx_action"]), "buffers");
        // A softirq in the idle task is not idle.
        assert_eq!(of(0, &["veth_poll", "net_rx_action", "do_idle"]), "driver");
        assert_eq!(of(0, &["pv_native_safe_halt", "default_idle", "do_idle"]), "idle");
        assert_eq!(of(1, &["do_user_addr_fault", "user main"]), OTHER_KERNEL);
        assert_eq!((of(1, &["user main"]), of(7, &["user poll"])), (APPLICATION, CARD));
        assert_eq!(of(7, &["tcp_gro_receive", "napi_gro_receive", "tun_get_user"]), "driver");
    }

    #[test]
    fn each_pattern_is_listed_once() {
        let mut patterns: Vec<_> = Components::built_in().unwrap().0;
        let all = patterns.len();
        patterns.sort_unstable();
        patterns.dedup_by(|a, b| a.0 == b.0);
        assert_eq!(patterns.len(), all);
    }
}
