//! Other running cards that use the same cores as a new card.
//!
//! Only cards whose control socket this user may use are seen.

use crate::control::Connection;
use picnic_control::Launch;
use picnic_control::socket::running;
use picnic_machine::topology::{Placement, cores};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for a card to name its cores: without its answer there is no warning.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running card and its cores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Neighbour {
    name: String,
    pid: i32,
    borrowed_core: usize,
    target_cores: Vec<usize>,
}

/// A warning for each core that a launch shares with a running card; none in virtual time. A card
/// called `own` is the launch's.
pub(crate) fn warnings(
    launch: &Launch<'_>,
    placement: &Placement,
    own: Option<&str>,
) -> anyhow::Result<Vec<String>> {
    if !launch.executor()?.is_served() {
        return Ok(Vec::new());
    }
    let others = running().into_iter().filter(|card| card.permitted && own != Some(&*card.name));
    let others = others
        .filter_map(|card| {
            let mut connection = Connection::open(card.path, PATIENCE).ok()?;
            Neighbour::of(card.name, card.pid, &connection.call("card.info", json!({})).ok()?)
        })
        .collect::<Vec<_>>();
    if others.is_empty() {
        return Ok(Vec::new());
    }
    Ok(shared(placement, &others, &cores()))
}

impl Neighbour {
    fn of(name: String, pid: i32, info: &Value) -> Option<Self> {
        let core = |value: &Value| value.as_u64().map(|core| core as usize);
        let targets = info["target_cores"].as_array()?.iter().filter_map(core).collect();
        let borrowed_core = core(&info["borrowed_core"])?;
        Some(Neighbour { name, pid, borrowed_core, target_cores: targets })
    }
}

fn shared(own: &Placement, others: &[Neighbour], cores: &[usize]) -> Vec<String> {
    let is_free = |core: usize| {
        let taken =
            |other: &Neighbour| other.borrowed_core == core || other.target_cores.contains(&core);
        !own.target_cores.contains(&core) && !others.iter().any(taken)
    };
    let way_out = match cores.iter().rev().find(|&&core| is_free(core)) {
        Some(core) => format!("try: --set card.borrowed_core={core}"),
        None => "no core is free: stop one of the cards".into(),
    };
    let mut warnings = Vec::new();
    for other in others {
        let card = format!("running card {} (pid {})", other.name, other.pid);
        let borrowed = own.borrowed_core;
        if other.borrowed_core == borrowed {
            warnings.push(format!(
                "core {borrowed} is also the borrowed core of {card}: the cards take turns on it, \
                 and each drops packets while the other runs; {way_out}"
            ));
        } else if other.target_cores.contains(&borrowed) {
            warnings.push(format!(
                "core {borrowed} would be borrowed, but is a target core of {card}: its host loses \
                 the time that this card takes; {way_out}"
            ));
        }
        if own.target_cores.contains(&other.borrowed_core) && other.borrowed_core != borrowed {
            let core = other.borrowed_core;
            warnings.push(format!(
                "target core {core} is the borrowed core of {card}: the host of this card loses the \
                 time that {} takes; try: host.target_cores",
                other.name
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_machine::config::IsolationLevel;

    fn placement(borrowed_core: usize, target_cores: &[usize]) -> Placement {
        let level = IsolationLevel::None;
        let target_cores = target_cores.into();
        Placement { borrowed_core, target_cores, level, left_out: vec![], warnings: vec![] }
    }

    #[test]
    fn each_shared_core_is_named_with_the_other_card_and_a_free_core() {
        let info = json!({ "borrowed_core": 3, "target_cores": [0, 1] });
        let web = Neighbour::of("web".into(), 12, &info).unwrap();
        assert_eq!(Neighbour::of("old".into(), 1, &json!({})), None);
        let told = |borrowed, targets: &[usize], cores: &[usize]| {
            shared(&placement(borrowed, targets), std::slice::from_ref(&web), cores).join("\n")
        };
        let cores = [0, 1, 2, 3];
        let both = told(3, &[0], &cores);
        assert!(both.contains("core 3 is also the borrowed core of running card web (pid 12)"));
        assert!(both.ends_with("try: --set card.borrowed_core=2"), "{both}");
        assert!(told(3, &[2], &cores).ends_with("no core is free: stop one of the cards"));
        assert!(told(1, &[0], &cores).contains("is a target core of running card web (pid 12)"));
        assert!(told(2, &[3], &cores).starts_with("target core 3 is the borrowed core of running"));
        assert_eq!(told(2, &[0], &cores), "", "hosts may share a core");
    }
}
