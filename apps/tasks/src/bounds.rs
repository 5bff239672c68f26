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

use picnic_core::error::ConfigError;
use picnic_core::registry::BuildContext;
use picnic_os::task::{Bounds, TaskSpec};
use picnic_wcet::{CostProfile, Graph};

/// The key of the profile in `[os]`.
const KEY: &str = "cost_profile";

/// The profile for the bounds of a card's tasks.
///
/// # Errors
/// The file cannot be read, or is wrong: file, line, key, found, allowed.
pub fn profile(context: &BuildContext) -> Result<CostProfile, ConfigError> {
    match &context.cost_profile {
        None => Ok(CostProfile::built_in()),
        Some(path) => CostProfile::load(path),
    }
}

/// A specification with the graph's bounds under the card's profile.
///
/// # Errors
/// As [`profile`].
pub fn bounded(
    spec: TaskSpec,
    graph: &Graph,
    context: &BuildContext,
) -> Result<TaskSpec, ConfigError> {
    // The launch has read it before.
    let told = |error: ConfigError| ConfigError::new("task", format!("os.{KEY}: {error}"));
    under(spec, graph, &profile(context).map_err(told)?)
}

/// A specification with the graph's bounds under a profile.
///
/// # Errors
/// The graph has no bounds; graphs from `#[task]` always have.
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
