//! Whether this machine can run cards with `engine = "kernel"`; if not, the reason and the fix.
//!
//! Guarantees: programs are loaded as for a card and unloaded; nothing is attached or changed.

use crate::object::{Object, is_built};
use crate::plan::Plan;
use aya::maps::MapType;
use aya::sys::is_map_supported;
use picnic_control::error::RunError;
use picnic_forms::Handover;
use picnic_machine::doctor::Finding;
use std::fs::read_to_string;

/// The first Linux with links of tc programs.
const TCX: (u32, u32) = (6, 6);

/// The finding for each hand-over.
pub fn examine() -> Vec<Finding> {
    let kernel = Facts::of_this();
    [("kernel-skb", Handover::Skb), ("kernel-cpumap", Handover::Cpumap)]
        .map(|(name, handover)| {
            let found = kernel.lacks(handover).map_or_else(|| load(handover), Err);
            let available = found.is_ok();
            let (reason, mend) = match found {
                Ok(()) => ("the programs can be loaded".into(), None),
                Err((reason, mend)) => (reason, Some(mend.to_owned())),
            };
            let needed_for = match name {
                "kernel-skb" => "engine = \"kernel\"",
                _ => "engine = \"kernel\" with handover = \"cpumap\"",
            };
            Finding { name, available, reason, needed_for, mend }
        })
        .into()
}

/// The reason, and the fix.
pub(crate) type Missing = (String, &'static str);

/// Features of a kernel that the hand-overs need.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) release: String,
    pub(crate) has_cpumap: bool,
}

impl Facts {
    pub(crate) fn of_this() -> Self {
        let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Facts {
            release: release.trim().into(),
            // An unprivileged user gets the reason when the programs are loaded.
            has_cpumap: is_map_supported(MapType::CpuMap).unwrap_or(true),
        }
    }

    /// The first missing requirement of a hand-over.
    pub(crate) fn lacks(&self, handover: Handover) -> Option<Missing> {
        match handover {
            Handover::Skb if version(&self.release).is_some_and(|version| version < TCX) => {
                let why = format!("Linux {} has no links of tc programs", self.release);
                Some((why, "Linux 6.6 or newer; or host.handover = \"cpumap\""))
            }
            _ if !self.has_cpumap => {
                let why = "this kernel has no cpumap";
                Some((why.into(), "Linux 5.17 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET"))
            }
            Handover::Skb | Handover::Cpumap => None,
        }
    }
}

fn load(handover: Handover) -> Result<(), Missing> {
    if !is_built() {
        let why = "picnic was built without clang, which compiles its programs";
        return Err((why.into(), "apt-get install clang, then build picnic again"));
    }
    let plan = Plan { handover, ring_size: 64, room: 1, ..Plan::default() };
    let loaded = Object::load(&plan, &[0], false).and_then(|mut object| object.verify(&plan));
    loaded.map_err(|error: RunError| (error.to_string(), "run as root, on Linux 5.17 or newer"))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loadable_handovers_are_available() {
        let findings = examine();
        assert_eq!(findings.len(), 2);
        for Finding { name, available, reason, mend, .. } in findings {
            assert_eq!(available, mend.is_none(), "{name}: {reason}");
            assert!(!reason.is_empty());
            if crate::tests::can_load("loadable_handovers_are_available") {
                assert!(available || reason.contains("Linux"), "{name}: {reason}");
            }
        }
    }

    #[test]
    fn missing_kernel_features_are_named_with_the_fix() {
        let all = Facts { release: "6.6.0-x".into(), has_cpumap: true };
        let lacks = |facts: &Facts| {
            [Handover::Skb, Handover::Cpumap].map(|handover| facts.lacks(handover).map(|it| it.0))
        };
        assert_eq!(lacks(&all), [None, None]);
        let old = Facts { release: "6.1.0-x".into(), ..all.clone() };
        let why = "Linux 6.1.0-x has no links of tc programs";
        assert_eq!(lacks(&old), [Some(why.into()), None]);
        let without_cpumap = Facts { has_cpumap: false, ..all };
        let why = Some("this kernel has no cpumap".into());
        assert_eq!(lacks(&without_cpumap), [why.clone(), why]);
    }

    #[test]
    fn kernel_release_has_its_version() {
        assert_eq!(version("6.18.44-x\n"), Some((6, 18)));
        assert_eq!(version("5.4-rc1"), Some((5, 4)));
        assert_eq!(version("unknown"), None);
        assert!((5, 17) < TCX && (6, 6) >= TCX);
    }
}
