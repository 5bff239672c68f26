//! Bounds of tasks under the card's cost profile: `[os] cost_profile`, or the built-in one.
//!
//! ```
//! use picnic_core::registry::BuildContext;
//! use picnic_os::task::TaskSpec;
//! use picnic_tasks::{bounds, heartbeat};
//! let context = BuildContext::default(); // of a card that names no profile
//! let spec = bounds::bounded(TaskSpec::new("mine"), &heartbeat::heartbeat::GRAPH, &context).unwrap();
//! assert!(spec.bounds_from.starts_with("built-in"));
//! ```

use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::registry::BuildContext;
use picnic_os::config::ProfileCosts;
use picnic_os::task::{Bounds, TaskSpec};
use picnic_wcet::{CostProfile, Graph, PathCosts};

/// The key that names the profile, below `[os]`.
const KEY: &str = "cost_profile";

/// The profile that tasks of a card are bounded under.
///
/// # Errors
/// The file cannot be read, or what is wrong in it: file, line, key, found, allowed.
pub fn profile(context: &BuildContext) -> Result<CostProfile, ConfigError> {
    match &context.cost_profile {
        None => Ok(CostProfile::built_in()),
        Some(path) => CostProfile::load(path),
    }
}

/// What the packet path of a card costs under its profile, which is checked by that, whether or
/// not a task has use for one; none without NIC OS.
///
/// # Errors
/// As [`profile`], with the place in the card file that names it.
pub fn path_costs(file: &CardFile) -> Result<Option<ProfileCosts>, ConfigError> {
    let Some(keys) = picnic_os::config::asked_for(file) else { return Ok(None) };
    let told = |error: ConfigError| ConfigError::new(format!("os.{KEY}"), error.to_string());
    let profile = match keys.cost_profile() {
        None => CostProfile::built_in(),
        Some(path) => CostProfile::load(&file.directory.join(path))
            .map_err(|error| file.locate(told(error)))?,
    };
    let (costs, origin) = match profile.path {
        Some(costs) => (costs, profile.name),
        None => (PathCosts::BUILT_IN, format!("built-in: {} has no [path]", profile.name)),
    };
    let (turn_ns, packet_ns) = (costs.turn_ns(file.host.queues), costs.packet_ns());
    Ok(Some(ProfileCosts { turn_ns, packet_ns, origin }))
}

/// A specification with the bounds that a graph has under the card's profile.
///
/// # Errors
/// As [`profile`].
pub fn bounded(
    spec: TaskSpec,
    graph: &Graph,
    context: &BuildContext,
) -> Result<TaskSpec, ConfigError> {
    // Of a card file that went through `path_costs`, this is right.
    let told = |error: ConfigError| ConfigError::new("task", format!("os.{KEY}: {error}"));
    under(spec, graph, &profile(context).map_err(told)?)
}

/// A specification with the bounds that a graph has under a profile.
///
/// # Errors
/// The graph has none, which is none that `#[task]` makes.
pub fn under(
    spec: TaskSpec,
    graph: &Graph,
    profile: &CostProfile,
) -> Result<TaskSpec, ConfigError> {
    let bounds = picnic_wcet::bounds(graph, profile)
        .map_err(|error| ConfigError::new("task", error.to_string()))?;
    let bounds = Bounds { segments: bounds.segments, remaining: bounds.remaining };
    Ok(spec.bounds(bounds).bounds_from(profile.name.clone()))
}
