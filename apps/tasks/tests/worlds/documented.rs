//! The example of docs/wcet.md compiles, and its bounds fit a task; docs/control.md lists the
//! commands of tasks as declared.

// The document's example is an application.
#![allow(unreachable_pub)]

include!("../watch.rs.in");

use crate::reference;
use picnic_os::task::{Bounds, TaskSpec};
use picnic_tasks::registry::TASKS;
use picnic_wcet::CostProfile;

#[test]
fn documented_example_is_this_file() {
    let document = include_str!("../../../../docs/wcet.md");
    assert!(document.contains(include_str!("../watch.rs.in")));
}

#[test]
fn example_bounds_fit_a_specification() {
    let bounds = picnic_wcet::bounds(&watch::GRAPH, &CostProfile::built_in()).unwrap();
    let bounds = Bounds { segments: bounds.segments, remaining: bounds.remaining };
    let spec = TaskSpec::new("watch").periodic(1_000_000).bounds(bounds);
    assert_eq!(spec.bounds.segments.len(), 2);
    assert!(spec.bounds.segments[0] >= 32 && spec.bounds.segments[1] < 1_000_000);
    assert_eq!(spec.bounds.segments, spec.bounds.remaining);
    let _ = watch;
}

#[test]
fn commands_of_tasks_are_documented() {
    let with = TASKS.iter().filter(|entry| !entry.commands.is_empty());
    let all = with.map(|entry| reference::commands(entry.name, entry.commands)).collect();
    reference::check("control.md", "", &[("commands of tasks", all)]);
}
