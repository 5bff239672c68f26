//! A task's line in the registry: its entry, and its graph for `picnic wcet`.

use picnic_core::registry::{Component, Entry};
use picnic_os::config::Setup;
use picnic_os::task::Program;
use picnic_wcet::Graph;

/// A task's graph, and its program with the settings of the longest run.
pub type Trial = (&'static Graph, fn() -> Program);

/// A task that card files can name.
pub trait Task: Component<Product = Setup> {
    /// For tasks written with `#[task]`: used by `picnic wcet` and its `--observe`.
    const GRAPH: Option<Trial> = None;
}

/// A task written with `#[task]`.
#[derive(Clone, Copy)]
pub struct Graphed {
    /// Its name.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// Its control-flow graph.
    pub graph: &'static Graph,
    /// Its program, with the settings of the longest run.
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
    /// The line of a task.
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
