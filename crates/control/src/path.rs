//! The cost of a card's packet path, for the admission of NIC OS tasks: under the profile in `[os]
//! cost_profile`, else as the executor knows it, else under the built-in profile.

use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::port::{Arrivals, Rate};
use picnic_os::config::{Interrupted, ProfileCosts};
use picnic_os::path::{Costs, Intake, PacketPath};
use picnic_wcet::{CostProfile, PathCosts};

/// The costs of a card's packet path under its profile, or `own`, if it names none; none without NIC
/// OS. Also checks the profile, whether or not a task uses it.
///
/// # Errors
/// The profile cannot be read, or is wrong: file, line, key, found, allowed, with the place in the
/// card file that names it.
pub(crate) fn costs(
    file: &CardFile,
    own: Option<ProfileCosts>,
) -> Result<Option<ProfileCosts>, ConfigError> {
    let Some(keys) = picnic_os::config::asked_for(file) else { return Ok(None) };
    if keys.cost_profile().is_none() && own.is_some() {
        return Ok(own);
    }
    let told = |error: ConfigError| ConfigError::new("os.cost_profile", error.to_string());
    let profile = match keys.cost_profile() {
        None => CostProfile::built_in(),
        Some(path) => CostProfile::load(&file.directory.join(path))
            .map_err(|error| file.locate(told(error)))?,
    };
    let (costs, origin) = match profile.path {
        Some(costs) => (costs, profile.name),
        None => (PathCosts::BUILT_IN, format!("built-in: {} has no [path]", profile.name)),
    };
    Ok(Some(ProfileCosts {
        turn_ns: costs.turn_ns(),
        packet_ns: costs.packet_ns(),
        doorbell_ns: costs.doorbell_ns(),
        longest_doorbell_ns: costs.longest_doorbell_ns(),
        is_assumed: profile.machine.is_none() || profile.path.is_none(),
        interruptions: profile.interruptions.map(|found| Interrupted {
            per_second: found.per_second(),
            shortest_ns: found.shortest_ns,
            longest_ns: found.longest_ns,
        }),
        origin,
    }))
}

/// Time that a core of a card without NIC OS may be interrupted without loss: until its wires or
/// its target rings are full. None if no wire tells a rate, or all packets wait.
pub(crate) fn tolerates_ns(file: &CardFile, arrivals: &[Arrivals]) -> Option<u64> {
    let intake = |arrivals: &Arrivals| match arrivals.rate {
        Rate::Pps(pps) => {
            let room = arrivals.room.unwrap_or(u64::MAX);
            Some(Intake { name: String::new(), pps, burst: arrivals.burst, room })
        }
        Rate::Untold | Rate::Asked => None,
    };
    let costs = Costs { ring: file.host.ring_size as u64, ..Costs::default() };
    PacketPath::new(arrivals.iter().filter_map(intake).collect(), costs).tolerates_ns(0)
}
