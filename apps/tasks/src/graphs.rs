//! What a line of the registry has of a task: its entry, and its graph for `picnic wcet`.

use picnic_core::registry::{Component, Entry};
use picnic_os::config::Setup;
use picnic_os::task::Program;
use picnic_wcet::Graph;

/// What a task can do, and its program with settings that make it do the most.
pub type Trial = (&'static Graph, fn() -> Program);

/// A task that card files can name.
pub trait Task: Component<Product = Setup> {
    /// Of one written with `#[task]`: for `picnic wcet`, and its `--observe`.
    const GRAPH: Option<Trial> = None;
}

/// A task written with `#[task]`.
#[derive(Clone, Copy)]
pub struct Graphed {
    /// Its name.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// What it can do.
    pub graph: &'static Graph,
    /// Its program, with settings that make it do the most.
    pub program: fn() -> Program,
}

impl std::fmt::Debug for Graphed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graphed").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A line of the registry.
pub(crate) struct Line {
    pub(crate) entry: Entry<Setup>,
    pub(crate) graphed: Option<Graphed>,
}

impl Line {
    /// That of a task.
    pub(crate) const fn of<T: Task>() -> Self {
        let graphed = match T::GRAPH {
            Some((graph, program)) => {
                Some(Graphed { name: T::NAME, help: T::HELP, graph, program })
            }
            None => None,
        };
        Line { entry: Entry::of::<T>(), graphed }
    }
}
