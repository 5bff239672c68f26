//! Commands of running tasks.

use picnic_control::{Launch, Registries, Report};
use picnic_core::command::{CommandEntry, CommandError, Prepared};
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::swap::Command;
use picnic_os::control::TaskControl;
use picnic_os::task::TaskId;
use picnic_sim::{CostModel, Simulation};
use picnic_tasks::registry::TASKS;
use serde_json::{Value, json};

fn command(task: &str, name: &str) -> CommandEntry {
    let entry = TASKS.iter().find(|entry| entry.name == task).unwrap();
    *entry.commands.iter().find(|command| command.name == name).unwrap()
}

fn order(task: &str, name: &str, arguments: &Value) -> Command {
    let context = BuildContext { wires: 2, ..BuildContext::default() };
    let order = command(task, name).prepare(arguments, &context).unwrap();
    Command::Resident(Prepared::new(TaskControl::Task(TaskId(1), order)))
}

/// A card with two wires and this task. A command is sent after 1.05 ms and `get` after 2.05 ms;
/// returns both results and the run's report.
fn told(
    task: &str,
    keys: &str,
    name: &str,
    arguments: &Value,
) -> (Result<Value, CommandError>, Value, Report) {
    let wire = "[[wire]]\nport = \"generator\"\npackets = 1\n";
    let card = "[host]\nqueues = 1\n[os]\nswitch_ns = 0\ncold_ns = 0\n";
    let text = format!("{wire}{wire}{card}[[task]]\ntask = \"{task}\"\n{keys}");
    let file = picnic_host::sections().parse(&text, None).unwrap();
    let registries = Registries { tasks: TASKS, ..picnic_sim::registries() };
    let mut simulation =
        Simulation::new(Launch::new(&file, registries), 1, CostModel::default()).unwrap();
    simulation.at(Time::from_nanos(1_050_000), order(task, name, arguments));
    simulation.at(Time::from_nanos(2_050_000), order(task, "get", &json!({})));
    simulation.run_until(Time::from_nanos(3_000_000));
    let mut orders = simulation.answers().into_iter().map(|(_, answer)| {
        let Command::Resident(control) = answer.replaced else { panic!("another answer") };
        let Ok(TaskControl::Task(_, order)) = control.open() else { panic!("another order") };
        order
    });
    let first = command(task, name).reply(orders.next().unwrap());
    let second = command(task, "get").reply(orders.next().unwrap()).unwrap();
    assert!(orders.next().is_none());
    drop(orders);
    let (outcome, _) = simulation.finish();
    assert!(outcome.ledger.balanced());
    (first, second, outcome)
}

#[test]
fn heartbeat_continues_on_another_wire() {
    let (before, after, outcome) =
        told("heartbeat", "period_us = 100\n", "set", &json!({ "wire": 1 }));
    assert_eq!(before.unwrap(), json!({ "wire": 0, "sent_frames": 11, "missing_frames": 0 }));
    assert_eq!(after, json!({ "wire": 1, "sent_frames": 21, "missing_frames": 0 }));
    let sent: Vec<_> = outcome.wires.iter().map(|wire| wire.tx_packets).collect();
    assert_eq!(sent[0], 11);
    assert!(sent[1] >= 18, "{sent:?}");
    let context = BuildContext { wires: 2, ..BuildContext::default() };
    let refused = command("heartbeat", "set").prepare(&json!({ "wire": 2 }), &context);
    assert_eq!(refused.unwrap_err().to_string(), "wire: found 2, allowed: 0 to 1");
}

#[test]
fn busy_pauses_for_the_set_time() {
    let keys = "segments_ns = [10_000]\npause_us = 200\n";
    let (before, after, _) = told("busy", keys, "set", &json!({ "pause_us": 10 }));
    let (before, done) = (before.unwrap(), &after["invocations"]);
    assert_eq!(before["pause_us"], 200);
    assert_eq!(after["pause_us"], 10);
    let (first, all) = (before["invocations"].as_u64().unwrap(), done.as_u64().unwrap());
    assert!((4..=6).contains(&first), "{before} {after}");
    assert!(all - first > 5 * first, "{before} {after}");

    let (refused, state, _) = told("busy", "period_us = 100\n", "set", &json!({ "pause_us": 10 }));
    let message = "pause_us: found 10, but the task is periodic and has no pause";
    assert_eq!(refused.unwrap_err().to_string(), message);
    assert_eq!(state, json!({ "pause_us": null, "invocations": 21 }));
}

#[test]
fn scrub_reports_its_passes_and_sum() {
    let (first, second, _) =
        told("scrub", "period_us = 1000\nbytes = 300\nwcet_ns = 9000\n", "get", &json!({}));
    let sum = (0..300).fold(u32::MAX, |sum, _| {
        (0..8).fold(sum ^ 0x5a, |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    });
    let first = first.unwrap();
    assert_eq!(first["crc32"], json!(!sum));
    assert_eq!((&first["changes"], &second["changes"]), (&json!(0), &json!(0)));
    let passes = |state: &Value| state["passes"].as_u64().unwrap();
    assert!(passes(&first) >= 1 && passes(&second) == passes(&first) + 1, "{first} {second}");
}
