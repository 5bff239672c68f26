//! Whether this machine can run cards with `engine = "kernel"`, why not, and what would mend it.
//!
//! Guarantees: programs are loaded as for a card, and gone again; nothing is attached or changed.

use crate::object::{Object, is_built};
use crate::plan::Plan;
use picnic_control::error::RunError;
use picnic_core::kernel::Handover;
use picnic_machine::doctor::Finding;
use std::fs::read_to_string;
use std::path::Path;

/// The first Linux with links of tc programs.
const TCX: (u32, u32) = (6, 6);

/// What there is to know of each hand-over.
pub fn examine() -> Vec<Finding> {
    let skb = tcx().and_then(|()| relays()).and_then(|()| load(Handover::Skb));
    [("kernel-skb", skb), ("kernel-cpumap", load(Handover::Cpumap))]
        .map(|(name, found)| {
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

/// Why not, and the mend.
type Missing = (String, &'static str);

fn load(handover: Handover) -> Result<(), Missing> {
    if !is_built() {
        let why = "picnic was built without clang, which compiles its programs";
        return Err((why.into(), "apt-get install clang, then build picnic again"));
    }
    let plan = Plan {
        wires: Vec::new(),
        steps: Vec::new(),
        default_queue: 0,
        handover,
        ring_size: 64,
        wire_usecs: 0,
        wire_polls: 0,
        room: 1,
        is_hybrid: false,
        stamp_mark: 0,
    };
    let loaded = Object::load(&plan, &[0], false).and_then(|mut object| match handover {
        Handover::Skb => object.tc("steer_0").map(drop),
        Handover::Cpumap => object.wire(0).map(drop),
    });
    loaded.map_err(|error: RunError| (error.to_string(), "run as root, on Linux 5.17 or newer"))
}

/// Whether the kernel has links of tc programs, by its release.
fn tcx() -> Result<(), Missing> {
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release).is_none_or(|version| version >= TCX) {
        return Ok(());
    }
    let why = format!("Linux {} has no links of tc programs", release.trim());
    Err((why, "Linux 6.6 or newer; or host.handover = \"cpumap\""))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether relays can be made, which are TAPs.
fn relays() -> Result<(), Missing> {
    if Path::new("/dev/net/tun").exists() {
        return Ok(());
    }
    Err(("there is no /dev/net/tun, of which relays are made".into(), "modprobe tun"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_loaded_is_available() {
        let findings = examine();
        assert_eq!(findings.len(), 2);
        for Finding { name, available, reason, mend, .. } in findings {
            assert_eq!(available, mend.is_none(), "{name}: {reason}");
            assert!(!reason.is_empty());
            if crate::tests::can_load("what_can_be_loaded_is_available") {
                assert!(available || reason.contains("Linux"), "{name}: {reason}");
            }
        }
    }

    #[test]
    fn a_release_says_its_version() {
        assert_eq!(version("6.18.44-x\n"), Some((6, 18)));
        assert_eq!(version("5.4-rc1"), Some((5, 4)));
        assert_eq!(version("unknown"), None);
        assert!((5, 17) < TCX && (6, 6) >= TCX);
    }
}
