//! KNET's three systems behind a card and a tap.
//!
//! `knet`: the tap has a queue for each target core. `clas`: it has one, whose flows the kernel
//! spreads over the same cores by receive packet steering. `napi`: it has one, and its core does
//! the stack's work for all.
//!
//! Source: KNET, "In-kernel Classifier"; Linux, `Documentation/networking/scaling.rst`, "RPS:
//! Receive Packet Steering".

use anyhow::Context;
use picnic_core::config::Setting;

/// The systems as sides.
pub(super) const SYSTEMS: [&str; 3] = ["knet", "clas", "napi"];

/// The settings that make a card one of the three.
pub(super) fn keys(side: &str, targets: &[usize]) -> anyhow::Result<Vec<Setting>> {
    let first = targets.first().copied().context("the card has no target core")?;
    let list = |key: &str, cores: &[usize]| {
        Setting::parse(&format!("{key}={cores:?}")).map_err(anyhow::Error::msg)
    };
    let queues = if side == SYSTEMS[0] { targets } else { &[first] };
    let mut keys = vec![
        Setting::number("host.queues", queues.len() as u32),
        list("host.target_cores", queues)?,
        Setting::number("interrupt.rx_usecs", 0),
    ];
    if side == SYSTEMS[1] {
        keys.push(list("host.rps_cores", targets)?);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_has_one_core_and_steering_has_all() {
        for (side, cores, steered) in
            [("knet", "[0,2]", None), ("clas", "[0]", Some("[0,2]")), ("napi", "[0]", None)]
        {
            let mut wanted = vec![
                Setting::number("host.queues", cores.split(',').count() as u32),
                Setting::parse(&format!("host.target_cores={cores}")).unwrap(),
                Setting::number("interrupt.rx_usecs", 0),
            ];
            let steered = steered.map(|cores| Setting::parse(&format!("host.rps_cores={cores}")));
            wanted.extend(steered.map(Result::unwrap));
            let found = keys(side, &[0, 2]).unwrap();
            assert_eq!(format!("{found:?}"), format!("{wanted:?}"), "{side}");
        }
        assert!(keys("knet", &[]).is_err());
    }
}
