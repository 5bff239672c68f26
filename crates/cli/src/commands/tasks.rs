//! `picnic ctl tasks`: the tasks of a running card's NIC OS.

use super::filter::Call;
use crate::failure::Usage;
use crate::output::{self, Column, count, nanoseconds};
use crate::registries::registries;
use clap::{Args, Subcommand};
use picnic_core::config::{Setting, keys_of};
use picnic_os::keys::TaskSection;
use serde_json::{Map, Value, json};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic ctl tasks                        all tasks with their counters
  picnic ctl tasks create heartbeat period_us=1000 wire=0
  picnic ctl tasks create busy name=load segments_ns=[20000,50000] priority=3
  picnic ctl tasks show load              one task with its response times and jitter
  picnic ctl tasks suspend heartbeat
  picnic ctl tasks resume heartbeat
  picnic ctl tasks kill 2

TASK is a number, or a name if only one task has it. `picnic tasks` lists the kinds and their keys.
A task that the card cannot schedule is refused, with the arithmetic.")]
pub(crate) struct TasksArgs {
    #[command(subcommand)]
    command: Option<TasksCommand>,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// All tasks, ended ones first (the default)
    List,
    /// One task, with its response times and jitter
    Show {
        /// Its number or name
        task: String,
    },
    /// Create a task
    Create {
        /// Its kind: picnic tasks
        kind: String,
        /// Its keys, as in [[task]] of a card file
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
    },
    /// End a task and release its resources
    Kill {
        /// Its number or name
        task: String,
    },
    /// Suspend a task until it is resumed
    Suspend {
        /// Its number or name
        task: String,
    },
    /// Resume a suspended task
    Resume {
        /// Its number or name
        task: String,
    },
    /// Give a task another priority: among equals, a higher number goes first
    SetPriority {
        /// Its number or name
        task: String,
        /// The priority, 0 to 255
        priority: u8,
    },
}

/// A task or a filter as the card is asked for it.
pub(super) fn reference(wanted: &str) -> Value {
    wanted.parse::<u64>().map_or_else(|_| wanted.into(), Value::from)
}

/// What `ctl tasks` calls.
pub(crate) fn call(args: &TasksArgs) -> anyhow::Result<Call> {
    let about = |method, task: &str, text| Call {
        method,
        params: json!({ "task": reference(task) }),
        text,
    };
    Ok(match args.command.as_ref().unwrap_or(&TasksCommand::List) {
        TasksCommand::List => Call { method: "task.list", params: json!({}), text: list },
        TasksCommand::Show { task } => about("task.show", task, shown),
        TasksCommand::Create { kind, keys } => {
            let params = json!({ "task": kind, "keys": keys_from(kind, keys)? });
            Call { method: "task.create", params, text: created }
        }
        TasksCommand::Kill { task } => about("task.kill", task, one),
        TasksCommand::Suspend { task } => about("task.suspend", task, one),
        TasksCommand::Resume { task } => about("task.resume", task, one),
        TasksCommand::SetPriority { task, priority } => {
            let params = json!({ "task": reference(task), "priority": priority });
            Call { method: "task.set_priority", params, text: one }
        }
    })
}

/// Keys of `KEY=VALUE` words. Whether they are right the card says, which may know other kinds.
fn keys_from(kind: &str, words: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut known = keys_of::<TaskSection>();
    known.extend(
        registries().tasks.iter().filter(|entry| entry.name == kind).flat_map(|entry| entry.keys()),
    );
    let mut keys = Map::new();
    for word in words {
        let setting = Setting::parse(word).map_err(|wrong| Usage(format!("{word}: {wrong}")))?;
        let (key, value) = setting.json(&known);
        if keys.insert(key.clone(), value).is_some() {
            return Err(Usage(format!("found key \"{key}\" twice, allowed: once")).into());
        }
    }
    Ok(keys)
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn time(value: &Value) -> String {
    // Means have fractions of nanoseconds.
    let ns = value.as_u64().or_else(|| value.as_f64().map(|ns| ns.round() as u64));
    ns.map_or_else(|| "-".into(), |ns| nanoseconds(Some(ns)))
}

fn list(result: &Value) -> String {
    let number = |value: &Value| count(value.as_u64().unwrap_or(0));
    let rows: Vec<_> = result["tasks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|task| {
            vec![
                text_of(&task["task"]),
                text_of(&task["name"]),
                text_of(&task["state"]),
                time(&task["period_ns"]),
                text_of(&task["priority"]),
                time(&task["wcet_ns"]),
                number(&task["completed"]),
                number(&task["segments"]),
                time(&task["busy_ns"]),
                time(&task["longest_segment_ns"]),
                number(&task["overruns"]),
                number(&task["deadline_misses"]),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no tasks\n".into();
    }
    let columns = [
        Column::Number("task"),
        Column::Text("name"),
        Column::Text("state"),
        Column::Number("period"),
        Column::Number("priority"),
        Column::Number("bound"),
        Column::Number("completed"),
        Column::Number("segments"),
        Column::Number("busy"),
        Column::Number("longest"),
        Column::Number("overruns"),
        Column::Number("misses"),
    ];
    output::narrow_table(
        &columns,
        &["longest", "busy", "segments", "priority", "overruns", "period"],
        rows,
    )
}

fn one(task: &Value) -> String {
    list(&json!({ "tasks": [task] }))
}

fn shown(task: &Value) -> String {
    let rows = [("response", "response_ns"), ("jitter", "jitter_ns")].map(|(name, key)| {
        let times = ["mean_ns", "stddev_ns", "p50_ns", "p99_ns", "max_ns"];
        let mut row = vec![name.to_owned()];
        row.extend(times.map(|figure| time(&task[key][figure])));
        row
    });
    let columns = [
        Column::Text("time"),
        Column::Number("mean"),
        Column::Number("deviation"),
        Column::Number("p50"),
        Column::Number("p99"),
        Column::Number("max"),
    ];
    let from = text_of(&task["bounds_from"]);
    format!("{}\n{}\nbounds from: {from}\n", one(task), output::table(&columns, rows))
}

fn created(task: &Value) -> String {
    format!("created task {}\n{}", task["task"], one(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_keys_of_a_section() {
        let words = ["period_us=1_000", "wait=true", "name=3", "wire=0"].map(str::to_owned);
        let keys = keys_from("heartbeat", &words).unwrap();
        assert_eq!(
            Value::Object(keys),
            json!({ "period_us": 1000, "wait": true, "name": "3", "wire": 0 })
        );
        let keys = keys_from("busy", &["segments_ns=[20_000, 5]".into()]).unwrap();
        assert_eq!(keys["segments_ns"], json!([20_000, 5]));
        let keys = keys_from("ping-drop", &["place=driver".into()]).unwrap();
        assert_eq!(keys["place"], "driver");
        for (words, message) in [
            (vec!["period_us"], "period_us: found no `=`, allowed: KEY=VALUE"),
            (vec!["wire=0", "wire=1"], "found key \"wire\" twice"),
        ] {
            let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
            let error = keys_from("heartbeat", &words).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn numbers_are_numbers_and_names_names() {
        assert_eq!(reference("3"), json!(3));
        assert_eq!(reference("beat-3"), json!("beat-3"));
    }
}
