//! `task.*`: the tasks of a running card, by orders to its NIC OS; `channel.*`: their channels.
//!
//! A task is built here, on the control thread; the borrowed core takes it between two bursts,
//! after the same admission as at the start.

use super::{CallResult, Caller, Methods, other_answer, value};
use crate::protocol::{INVALID_PARAMS, REFUSED, RpcError};
use crate::request::Reference;
use picnic_core::command::Prepared;
use picnic_core::config::Sections;
use picnic_core::error::{ConfigError, nearest};
use picnic_engine::swap::Command;
use picnic_os::channel::{OpenError, Opened};
use picnic_os::config::Factory;
use picnic_os::control::{TaskControl, TaskLine};
use picnic_os::keys::{SECTIONS, TaskSection};
use picnic_os::report::TaskReport;
use picnic_os::roster::State;
use picnic_os::task::TaskId;
use serde_json::{Map, Value, json};

/// Figures that are in `task.show` but not in `task.list`.
const TIMES: [&str; 2] = ["response_ns", "jitter_ns"];

impl Methods {
    pub(super) fn channel_list(&self) -> Result<Value, RpcError> {
        let channels: Vec<_> = self.factory()?.channels().list();
        Ok(json!({ "channels": value(&channels)? }))
    }

    pub(super) fn channel_open(&self, name: &str, caller: Caller) -> Result<CallResult, RpcError> {
        let opened = self.factory()?.channels().open(name, caller.number, caller.pid);
        let opened = opened.map_err(|error| {
            let key = match &error {
                OpenError::Unknown(_) | OpenError::Busy { .. } => "name: ",
                OpenError::NoDoorbell | OpenError::System(_) => "",
            };
            RpcError::new(REFUSED, format!("{key}{error}"))
        })?;
        let Opened { files, message_bytes, messages } = opened;
        let result = json!({ "message_bytes": message_bytes, "messages": messages });
        Ok(CallResult::WithFiles(result, files.into()))
    }

    /// The builder of this card's tasks.
    pub(super) fn factory(&self) -> Result<Factory, RpcError> {
        self.tasks.clone().ok_or_else(|| {
            let message = "this card has no NIC OS: its card file has neither [os] nor [[task]]";
            RpcError::new(REFUSED, message)
        })
    }

    pub(super) fn task_list(&mut self) -> Result<Value, RpcError> {
        let factory = self.factory()?;
        let tasks: Result<Vec<_>, _> = self.lines(&factory)?.iter().map(listed).collect();
        Ok(json!({ "tasks": tasks? }))
    }

    pub(super) fn task_show(&mut self, task: &Reference) -> Result<Value, RpcError> {
        let factory = self.factory()?;
        let id = find(&self.lines(&factory)?, task, TaskFilter::Any)?.id;
        self.shown(&factory, id)
    }

    /// Sends the NIC OS an order; returns whether it was done, and the returned order.
    pub(super) fn order(&mut self, control: TaskControl) -> Result<(bool, TaskControl), RpcError> {
        let answer = self.command(Command::Resident(Prepared::new(control)))?;
        let Command::Resident(order) = answer.replaced else { return Err(other_answer()) };
        let order = order.open::<TaskControl>().map_err(|_| other_answer())?;
        Ok((answer.done, order))
    }

    fn lines(&mut self, factory: &Factory) -> Result<Vec<TaskLine>, RpcError> {
        match self.order(TaskControl::list(factory.longest_list()))? {
            (true, TaskControl::List(lines)) => Ok(lines),
            _ => Err(RpcError::new(REFUSED, "the resident of this card is not NIC OS")),
        }
    }

    /// All tasks, ended ones first.
    pub(super) fn task_lines(&mut self) -> Result<Vec<TaskLine>, RpcError> {
        let factory = self.factory()?;
        self.lines(&factory)
    }

    /// A task with its times.
    fn shown(&mut self, factory: &Factory, id: TaskId) -> Result<Value, RpcError> {
        let (_, control) = self.order(TaskControl::Times(id, None))?;
        let times = match control {
            TaskControl::Times(_, times) => times.unwrap_or_default(),
            _ => Box::default(),
        };
        let lines = self.lines(factory)?;
        let line = find(&lines, &Reference::Number(id.0), TaskFilter::Any)?;
        let mut shown = listed(line)?;
        let report = value(&TaskReport::new(line, &times))?;
        for key in TIMES {
            shown[key] = report[key].clone();
        }
        Ok(shown)
    }

    /// Sends an order about one living task; returns the task afterwards.
    pub(super) fn task_change(
        &mut self,
        task: &Reference,
        order: impl FnOnce(TaskId) -> TaskControl,
    ) -> Result<Value, RpcError> {
        let factory = &self.factory()?;
        let id = find(&self.lines(factory)?, task, TaskFilter::Living)?.id;
        let (done, _) = self.order(order(id))?;
        let lines = self.lines(factory)?;
        // Not done: the task has ended meanwhile.
        let wanted = if done { TaskFilter::Any } else { TaskFilter::Living };
        listed(find(&lines, &Reference::Number(id.0), wanted)?)
    }

    pub(super) fn task_create(
        &mut self,
        task: &str,
        keys: &Map<String, Value>,
    ) -> Result<Value, RpcError> {
        let factory = &self.factory()?;
        let wrong = |message: String| RpcError::new(INVALID_PARAMS, message);
        let told = |error: ConfigError| {
            // The section is made here: its keys are meaningful to the caller, its lines are not.
            let key = error.key.strip_prefix("task[0].").unwrap_or(&error.key);
            wrong(format!("{key}: {}", error.message))
        };
        let mut section =
            toml::Table::try_from(keys).map_err(|error| wrong(format!("keys: {error}")))?;
        if section.insert("task".into(), task.into()).is_some() {
            return Err(wrong("keys: found task, which belongs next to keys".into()));
        }
        let mut root = toml::Table::new();
        root.insert("task".into(), vec![toml::Value::Table(section)].into());
        let text = toml::to_string(&root).map_err(|error| wrong(format!("keys: {error}")))?;
        let file = Sections::core().with(SECTIONS).parse(&text, None).map_err(told)?;
        let Some(section) = file.given::<TaskSection>().into_iter().next() else {
            return Err(wrong("keys: missing task".into()));
        };
        if factory.kinds().next().is_none() {
            let message = format!("task: found \"{task}\", but this program has no tasks");
            return Err(wrong(message));
        }
        // Tasks after the first have their own streams of random numbers.
        let position = self.lines(factory)?.len();
        let setup = factory.make(&section, position).map_err(told)?;
        let (_, control) = self.order(TaskControl::create(setup.spec, setup.program))?;
        match control {
            TaskControl::Create { result: Some(Ok(id)), .. } => self.shown(factory, id),
            TaskControl::Create { result: Some(Err(error)), .. } => {
                Err(RpcError::new(REFUSED, error.to_string()))
            }
            _ => Err(other_answer()),
        }
    }
}

/// A living task of a kind: the given one, or the first.
pub(super) fn of_kind(
    lines: &[TaskLine],
    kind: &str,
    task: Option<&Reference>,
) -> Result<TaskId, RpcError> {
    let refused = |message: String| Err(RpcError::new(REFUSED, message));
    let shown = |line: &TaskLine| format!("{} ({})", line.id, line.name);
    if let Some(task) = task {
        let line = find(lines, task, TaskFilter::Living)?;
        return match line.kind == Some(kind) {
            true => Ok(line.id),
            false => {
                let found = line.kind.unwrap_or("a task of no kind");
                refused(format!("task: found {task}, which is {found}, allowed: a {kind}"))
            }
        };
    }
    let mut living = lines.iter().filter(|line| !has_ended(line));
    match living.clone().find(|line| line.kind == Some(kind)) {
        Some(line) => Ok(line.id),
        None => {
            let found: Vec<_> = living.by_ref().map(shown).collect();
            let found = if found.is_empty() { "no task".to_owned() } else { found.join(", ") };
            refused(format!("the card runs no {kind}: found {found}"))
        }
    }
}

/// A task as `task.list` has it.
fn listed(line: &TaskLine) -> Result<Value, RpcError> {
    let mut listed = value(&TaskReport::new(line, &Default::default()))?;
    if let Some(fields) = listed.as_object_mut() {
        for key in TIMES {
            fields.remove(key);
        }
        fields.insert("wcet_ns".into(), json!(line.wcet_ns.filter(|&ns| ns != u64::MAX)));
    }
    Ok(listed)
}

/// Selects tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskFilter {
    Any,
    Living,
}

fn has_ended(line: &TaskLine) -> bool {
    match line.state {
        State::Ready | State::Release | State::Waiting | State::Suspended => false,
        State::Returned | State::Panicked | State::Killed | State::Overran | State::Stopped => true,
    }
}

/// The given task. A name means a living task, or else the last ended task with that name.
fn find<'l>(
    lines: &'l [TaskLine],
    task: &Reference,
    wanted: TaskFilter,
) -> Result<&'l TaskLine, RpcError> {
    let refused = |message: String| Err(RpcError::new(REFUSED, message));
    let meant: Vec<_> = lines
        .iter()
        .filter(|line| match task {
            Reference::Number(number) => line.id.0 == *number,
            Reference::Name(name) => *line.name == **name,
        })
        .collect();
    let living: Vec<_> = meant.iter().copied().filter(|line| !has_ended(line)).collect();
    match (&living[..], meant.last()) {
        ([one], _) => Ok(one),
        ([], Some(ended)) if wanted == TaskFilter::Any => Ok(ended),
        ([], Some(ended)) => {
            let state = value(&ended.state)?;
            let state = state.as_str().unwrap_or("ended");
            refused(format!("task: found {task}, which has ended ({state})"))
        }
        ([], None) => {
            let there: Vec<_> = lines
                .iter()
                .filter(|line| wanted == TaskFilter::Any || !has_ended(line))
                .map(|line| format!("{} ({})", line.id, line.name))
                .collect();
            match there.is_empty() {
                true => refused(format!("task: found {task}, but the card has no tasks")),
                false => {
                    let near = match task {
                        Reference::Name(name) => {
                            nearest(name, lines.iter().map(|line| &*line.name))
                        }
                        Reference::Number(_) => None,
                    };
                    let hint = near.map(|name| format!("; did you mean \"{name}\"?"));
                    let hint = hint.unwrap_or_default();
                    refused(format!("task: found {task}, allowed: {}{hint}", there.join(", ")))
                }
            }
        }
        (several, _) => {
            let numbers: Vec<_> = several.iter().map(|line| line.id.to_string()).collect();
            refused(format!("task: found {task}, use a number: {}", numbers.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn line(id: u64, name: &str, state: State) -> TaskLine {
        TaskLine {
            id: TaskId(id),
            name: name.into(),
            kind: Some("beat"),
            state,
            period_ns: None,
            priority: 0,
            wcet_ns: Some(u64::MAX),
            bounds_from: "stated".into(),
            counters: Arc::default(),
        }
    }

    fn by_name(name: &str) -> Reference {
        Reference::Name(name.into())
    }

    #[test]
    fn tasks_are_found_by_number_and_name() {
        let lines = [
            line(1, "beat", State::Killed),
            line(2, "beat", State::Ready),
            line(3, "load", State::Waiting),
            line(4, "load", State::Suspended),
            line(5, "gone", State::Killed),
            line(6, "gone", State::Panicked),
        ];
        let id = |task: &Reference, wanted| {
            find(&lines, task, wanted).map(|line| line.id.0).map_err(|error| error.message)
        };
        assert_eq!(id(&Reference::Number(3), TaskFilter::Living), Ok(3));
        assert_eq!(id(&Reference::Number(1), TaskFilter::Any), Ok(1));
        assert_eq!(id(&by_name("beat"), TaskFilter::Living), Ok(2), "the one that lives");
        assert_eq!(id(&by_name("gone"), TaskFilter::Any), Ok(6), "the last one");
        for (task, message) in [
            (Reference::Number(1), "task: found 1, which has ended (killed)"),
            (by_name("gone"), "task: found \"gone\", which has ended (panicked)"),
            (Reference::Number(9), "task: found 9, allowed: 2 (beat), 3 (load), 4 (load)"),
            (by_name("x"), "task: found \"x\", allowed: 2 (beat), 3 (load), 4 (load)"),
            (
                by_name("baet"),
                "task: found \"baet\", allowed: 2 (beat), 3 (load), 4 (load); did you mean \"beat\"?",
            ),
            (by_name("load"), "task: found \"load\", use a number: 3, 4"),
        ] {
            assert_eq!(id(&task, TaskFilter::Living), Err(message.into()));
        }
        let none = find(&[], &Reference::Number(1), TaskFilter::Living).unwrap_err();
        assert_eq!(none.message, "task: found 1, but the card has no tasks");
        assert_eq!(none.code, REFUSED);
    }

    #[test]
    fn kind_means_its_first_living_task() {
        let lines = [
            line(1, "dead", State::Killed),
            line(2, "beat", State::Ready),
            line(3, "load", State::Waiting),
        ];
        let id = |lines: &[TaskLine], kind: &str, task: Option<Reference>| {
            let found = of_kind(lines, kind, task.as_ref());
            found.map(|id| id.0).map_err(|error| error.message)
        };
        assert_eq!(id(&lines, "beat", None), Ok(2));
        assert_eq!(id(&lines, "beat", Some(by_name("load"))), Ok(3));
        let other = "task: found \"load\", which is beat, allowed: a ping";
        assert_eq!(id(&lines, "ping", Some(by_name("load"))), Err(other.into()));
        let none = "the card runs no ping: found 2 (beat), 3 (load)";
        assert_eq!(id(&lines, "ping", None), Err(none.into()));
        assert_eq!(
            id(&lines[..1], "beat", None),
            Err("the card runs no beat: found no task".into())
        );
    }

    #[test]
    fn missing_bounds_read_null() {
        let bounded = TaskLine { wcet_ns: Some(7), ..line(1, "beat", State::Ready) };
        assert_eq!(listed(&bounded).unwrap()["wcet_ns"], 7);
        let listed = listed(&line(1, "beat", State::Ready)).unwrap();
        assert_eq!((&listed["wcet_ns"], &listed["task"]), (&Value::Null, &json!(1)));
        assert!(listed.get("jitter_ns").is_none());
    }
}
