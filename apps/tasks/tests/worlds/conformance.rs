//! Conformance tests for every task in the registry.

use crate::shared;
use picnic_control::{Launch, Registries};
use picnic_core::command::Prepared;
use picnic_core::config::Section;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use picnic_os::config::Setup;
use picnic_sim::{CostModel, Simulation};
use picnic_tasks::registry::{TASKS, graphs};

#[test]
fn entries_are_explained_and_unknown_keys_refused() {
    shared::entries_are_explained("task", TASKS);
}

/// As built, and while running.
#[test]
fn commands_are_obeyed_as_they_are_declared() {
    let build = |entry: &Entry<Setup>| {
        let folder = tempfile::tempdir().unwrap();
        let keys = entry.example(folder.path()).expect("a task needs nothing of the machine");
        let text = format!("task = \"{}\"\n{keys}", entry.name);
        let section = Section::from_text("task", &text).unwrap();
        entry.build(&section, &BuildContext::default()).unwrap()
    };
    let obey = |setup: &mut Setup, order: &mut Prepared, now| setup.program.obey(order, now);
    shared::commands_are_obeyed(TASKS, &BuildContext::default(), build, obey);
}

/// On a card with packets: admitted, within its bounds, the same twice, and removed with all its
/// state.
#[test]
fn tasks_run_within_bounds_and_leave_nothing() {
    for entry in TASKS {
        let folder = tempfile::tempdir().unwrap();
        let keys = entry.example(folder.path()).expect("a task needs nothing of the machine");
        let text = format!(
            "[[wire]]\nport = \"generator\"\nrate_pps = 100000\ntcp_share = 0.5\n\
             [host]\nqueues = 2\n[[task]]\ntask = \"{}\"\n{keys}\n",
            entry.name
        );
        let sections = picnic_host::sections();
        let file = sections.parse(&text, Some(&folder.path().join("card.toml"))).unwrap();
        let registries = Registries { tasks: TASKS, ..picnic_sim::registries() };
        let run = || {
            let costs = CostModel::default();
            let simulation = Simulation::new(Launch::new(&file, registries), 1, costs);
            let mut simulation = simulation.unwrap_or_else(|error| panic!("{error}\n{text}"));
            simulation.run_until(Time::from_nanos(250_000_000));
            simulation.finish()
        };
        let ((outcome, trace), (_, again)) = (run(), run());
        assert_eq!(trace, again, "{text}");
        // Bounds from a graph are never called stated, and `picnic wcet` has that graph.
        let bounds_from = &outcome.os.as_ref().unwrap().tasks[0].bounds_from;
        let has_graph = graphs().any(|graph| graph.name == entry.name);
        assert_eq!(has_graph, bounds_from != "stated", "{}: {bounds_from}", entry.name);
        assert!(outcome.ledger.balanced(), "{text}{:?}", outcome.ledger);
        assert_eq!((outcome.buffers_missing, outcome.ledger.in_flight), (0, 0), "{text}");
        let os = outcome.os.unwrap();
        let [task] = &os.tasks[..] else { panic!("{:?}", os.tasks) };
        assert_eq!((os.panics, task.overruns, task.deadline_misses), (0, 0, 0), "{text}{task:?}");
        assert!(task.segments > 0, "{text}{task:?}");
    }
}
