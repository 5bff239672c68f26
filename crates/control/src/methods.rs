//! The control thread's work for clients: reading, and commands to the borrowed core.
//!
//! The parts for a change are built here, on the control thread, and replaced parts return here to
//! be freed.

use crate::captures::Captures;
use crate::launch::Registries;
use crate::metrics;
use crate::monitor::Monitor;
use crate::protocol::{NO_ANSWER, REFUSED, RpcError, VERSION, invalid};
use crate::report::{self, Report};
use crate::request::{Request, methods, wrong};
use crate::server::{Access, PollPart, SwapRx};
use picnic_core::config::{CardFile, GateMode, InterruptSection, Sections};
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::hook::Hooks;
use picnic_core::registry::BuildContext;
use picnic_core::stop::Stop;
use picnic_engine::chain::ChainFunction;
use picnic_engine::rx::check_throttle;
use picnic_engine::swap::{Answer, Command, Controller};
use picnic_engine::view::Functions;
use picnic_filter::Filters;
use picnic_os::channel::Channels;
use picnic_os::config::Factory;
use picnic_os::control::TaskControl;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

mod chains;
pub mod components;
mod filters;
mod scheduler;
mod tasks;
#[cfg(test)]
mod tests;

/// Longest wait for the borrowed core to obey: it checks at least every 20 ms, but a busy machine may
/// give it no time for seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait per function for figures that may be omitted, and for a core that is late already.
const SCRAPE_PATIENCE: Duration = Duration::from_millis(200);
/// Note for captures of a card that the kernel shares with the poll engine.
const IN_PART: &str = "only packets of the poll engine; tcpdump on the wire's interface shows those \
                       that stay in the kernel";
/// Interval between checks for its answer.
const NAP: Duration = Duration::from_micros(50);

/// The card, for the control thread.
pub struct Methods {
    monitor: Monitor,
    line: Line,
    /// To the poll engine's part of a shared card.
    beside: Option<Part>,
    /// Longest wait for the borrowed core to obey.
    patience: Duration,
    /// The same for figures that may be omitted.
    scrape_patience: Duration,
    registries: Registries,
    context: BuildContext,
    sections: Sections,
    about: CardInfo,
    interrupt: InterruptSection,
    hooks: Hooks,
    captures: Captures,
    filters: Filters,
    /// None if the card has no NIC OS.
    tasks: Option<Factory>,
    fixed: Option<&'static str>,
    swap_rx: Option<Box<dyn SwapRx>>,
    stop: Stop,
    /// The figures of the last reset.
    reset: Option<Report>,
}

/// A command line to a core.
struct Line {
    controller: Controller,
    /// Commands without a waiting client.
    abandoned: usize,
    /// Whether the core was silent for longer than `again`, which is then the longest wait.
    is_silent: bool,
    again: Duration,
    /// Whether the last command is half of a swap whose other half failed: it is undone
    /// before the next command.
    is_half_done: bool,
}

/// The poll engine's part of a card shared with the kernel.
struct Part {
    line: Line,
    /// Positions of functions of the rx chain that only it has.
    alone: Vec<usize>,
    functions: Functions,
}

/// The result of a call.
#[derive(Debug)]
pub enum CallResult {
    /// Its result.
    Now(Value),
    /// The result of a capture, once it has ended.
    WhenEnded(u32),
    /// Its result, and descriptors for the caller.
    WithFiles(Value, Vec<OwnedFd>),
}

/// The connection that a call came from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// Tells connections apart.
    pub number: u64,
    /// The process at its other end, if known.
    pub pid: Option<i32>,
}

/// Properties that do not change while a card runs.
struct CardInfo {
    report: report::RunInfo,
    /// By wire.
    ports: Vec<String>,
    attachment: String,
    metrics: Option<SocketAddr>,
    web: Option<SocketAddr>,
}

impl Methods {
    /// The methods of a running card. `stop` is set when a client requests the end.
    pub fn new(
        file: &CardFile,
        about: report::RunInfo,
        [metrics, web]: [Option<SocketAddr>; 2],
        access: Access,
        captures: Captures,
        stop: Stop,
    ) -> Self {
        let Access { monitor, controller, registries, hooks, filters, tasks, fixed, .. } = access;
        let (swap_rx, beside) = (access.swap_rx, access.beside);
        let about = CardInfo {
            report: about,
            ports: file.wires.iter().map(|wire| wire.port.name().into()).collect(),
            attachment: file.host.section.name().into(),
            metrics,
            web,
        };
        Methods {
            monitor,
            line: Line::new(controller),
            beside: beside.map(|PollPart { controller, alone, functions }| Part {
                line: Line::new(controller),
                alone,
                functions,
            }),
            patience: PATIENCE,
            scrape_patience: SCRAPE_PATIENCE,
            registries,
            context: BuildContext { stop: stop.clone(), ..picnic_engine::build::context(file) },
            sections: file.sections().clone(),
            about,
            interrupt: file.interrupt.clone(),
            hooks,
            captures,
            filters,
            tasks,
            fixed,
            swap_rx,
            stop,
            reset: None,
        }
    }

    /// The figures for Prometheus, with functions' own counters unless the card is stopping or does
    /// not answer in time.
    pub fn metrics(&mut self, is_stopping: bool) -> String {
        let mut report = self.monitor.report();
        if is_stopping || self.own_figures(&mut report, self.scrape_patience).is_err() {
            // Not the ledgers of a part: counters would fall.
            let functions = report.functions.iter_mut().chain(&mut report.tx_functions);
            functions.for_each(|function| {
                function.counters.clear();
                function.gauges.clear();
            });
        }
        metrics::text(&self.about.report.card, report)
    }

    /// The data of the live page: the answers of `card.info`, `card.stats` and `task.list`. Tasks
    /// are null without NIC OS, while the card is stopping, or if it does not answer in time.
    pub fn live(&mut self, is_stopping: bool) -> Value {
        let patience = std::mem::replace(&mut self.patience, self.scrape_patience);
        let tasks = (!is_stopping && self.tasks.is_some()).then(|| self.task_list().ok());
        self.patience = patience;
        let stats = self.stats(true, false, false).ok();
        json!({ "info": self.info(), "stats": stats, "tasks": tasks.flatten() })
    }

    /// The card's captures.
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// The channels of the card's tasks.
    pub fn channels(&self) -> Channels {
        self.tasks.as_ref().map(|tasks| tasks.channels().clone()).unwrap_or_default()
    }

    /// Executes a call. `file` came with it.
    ///
    /// # Errors
    /// The error for the caller.
    pub fn call(
        &mut self,
        request: Request,
        caller: Caller,
        file: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<CallResult, RpcError> {
        use Request as R;
        let moderates = matches!(request, R::ModerationGet {} | R::ModerationSet(_));
        let changes = moderates
            || matches!(request, R::CaptureStart(_))
            || matches!(request, R::ChainSwap(_)) && self.swap_rx.is_none();
        if let Some(why) = self.fixed.filter(|_| changes) {
            return Err(RpcError::new(REFUSED, why));
        }
        let captures = self.captures();
        match request {
            R::CaptureStop { capture } => {
                captures.stop(capture)?;
                return Ok(CallResult::WhenEnded(capture));
            }
            R::CaptureWait { capture } => {
                captures.known(capture)?;
                return Ok(CallResult::WhenEnded(capture));
            }
            R::CaptureList {} => Ok(captures.list()),
            R::CaptureStart(wanted) => {
                let started = captures.start(wanted, file(), self.monitor.elapsed(), caller.number);
                started.map(|mut started| {
                    if self.beside.is_some() {
                        started["note"] = IN_PART.into();
                    }
                    started
                })
            }
            R::Info {} => Ok(self.info()),
            R::Stats { latencies, since_reset, counters } => {
                self.stats(latencies, since_reset, counters)
            }
            R::Reset {} => {
                let report = self.reset.insert(self.monitor.report());
                Ok(json!({ "reset_at_s": report.duration_s }))
            }
            R::Stop {} => {
                self.stop.ask();
                Ok(json!({ "stopping": true }))
            }
            R::Component(call) => self.component(&call),
            R::ModerationGet {} => value(&self.interrupt),
            R::ModerationSet(change) => self.moderate(&change),
            R::ChainList {} => Ok(self.chains()),
            R::ChainSwap(swap) => self.swap(&swap),
            R::FilterList { group } => self.filter_list(group.as_deref()),
            R::FilterShow { id } => self.filter_show(&id),
            R::FilterAdd { keys } => self.filter_add(&keys),
            R::FilterChange { id, keys } => self.filter_change(&id, &keys),
            R::FilterRemove { id } => self.filter_remove(&id),
            R::FilterReload { groups, filters } => self.filter_reload(groups, &filters),
            R::ChannelList {} => self.channel_list(),
            R::ChannelOpen { name } => return self.channel_open(&name, caller),
            R::OsScheduler { scheduler, keys } => self.scheduler(scheduler.as_deref(), &keys),
            R::TaskList {} => self.task_list(),
            R::TaskShow { task } => self.task_show(&task),
            R::TaskCreate { task, keys } => self.task_create(&task, &keys),
            R::TaskKill { task } => self.task_change(&task, TaskControl::Kill),
            R::TaskSuspend { task } => self.task_change(&task, TaskControl::Suspend),
            R::TaskResume { task } => self.task_change(&task, TaskControl::Resume),
            R::TaskSetPriority { task, priority } => {
                self.task_change(&task, |id| TaskControl::SetPriority(id, priority))
            }
        }
        .map(CallResult::Now)
    }

    fn stats(
        &mut self,
        latencies: bool,
        since_reset: bool,
        counters: bool,
    ) -> Result<Value, RpcError> {
        let mut report = self.monitor.report();
        report.about = Some(self.about.report.clone());
        if since_reset {
            let before = self.reset.as_ref().ok_or_else(|| {
                RpcError::new(REFUSED, "the figures have not been reset: card.reset does that")
            })?;
            report = report.since(before);
        }
        report.latencies = report.latencies.filter(|_| latencies);
        if counters {
            self.own_figures(&mut report, self.patience)?;
        }
        value(&report)
    }

    fn info(&self) -> Value {
        let view = &self.monitor.view;
        let names = |direction| {
            let functions = view.functions.of(direction).into_iter();
            functions.map(|function| function.name).collect::<Vec<_>>()
        };
        let wires: Vec<_> = view.wires.iter().map(|wire| &wire.name).collect();
        let placement = &self.monitor.placement;
        let methods = methods().iter().map(|method| method.name.clone());
        let methods: Vec<_> = methods.chain(self.component_methods()).collect();
        json!({
            "protocol": VERSION,
            "version": env!("CARGO_PKG_VERSION"),
            "name": self.about.report.card,
            "file": self.about.report.file,
            "pid": std::process::id(),
            "engine": self.monitor.engine,
            "elapsed_s": self.monitor.elapsed().as_secs_f64(),
            "borrowed_core": placement.borrowed_core,
            "target_cores": placement.target_cores,
            "wires": wires,
            "attachment": self.about.attachment,
            "metrics": self.about.metrics,
            "web": self.about.web,
            "rx": names(Direction::Rx),
            "tx": names(Direction::Tx),
            "moderation": self.interrupt,
            "methods": methods,
        })
    }

    /// Changes the parts of the card's moderation that differ from the section, one at a time.
    fn moderate(&mut self, change: &Map<String, Value>) -> Result<Value, RpcError> {
        let replaced = self.interrupt.clone();
        let wanted = replaced.changed(change).map_err(wrong)?;
        let of_wires = |keys: &InterruptSection| (keys.wire_usecs, keys.wire_frames);
        let moderates_wires = of_wires(&wanted) != of_wires(&replaced);
        if moderates_wires {
            self.check_wires(&wanted)?;
        }
        if wanted.poll_usecs != replaced.poll_usecs {
            self.command(Command::Poll(u64::from(wanted.poll_usecs) * 1000))?;
            self.interrupt.poll_usecs = wanted.poll_usecs;
        }
        if wanted.tx_usecs != replaced.tx_usecs {
            self.command(Command::TxPause(u64::from(wanted.tx_usecs) * 1000))?;
            self.interrupt.tx_usecs = wanted.tx_usecs;
        }
        if wanted.tx_complete != replaced.tx_complete {
            self.command(Command::Complete(wanted.tx_complete))?;
            self.interrupt.tx_complete = wanted.tx_complete;
        }
        if moderates_wires {
            let (usecs, frames) = of_wires(&wanted);
            self.command(Command::Throttle(usecs, frames))?;
            (self.interrupt.wire_usecs, self.interrupt.wire_frames) = (usecs, frames);
        }
        if wanted.gate != replaced.gate {
            self.command(Command::Unmask(wanted.gate == GateMode::None))?;
            self.interrupt.gate = wanted.gate;
        }
        if wanted.moderation() != replaced.moderation() {
            self.command(Command::Moderate(wanted.moderation()))?;
        }
        self.interrupt = wanted;
        Ok(json!({ "moderation": self.interrupt, "replaced": replaced }))
    }

    /// Checks whether the wires support this moderation.
    fn check_wires(&self, wanted: &InterruptSection) -> Result<(), RpcError> {
        let InterruptSection { wire_usecs, wire_frames, .. } = *wanted;
        if self.beside.is_some() && wire_usecs != 0 {
            let message = format!(
                "wire_usecs: found {wire_usecs}, allowed with engine = \"hybrid\": 0, as packets of \
                 the poll engine would be held twice"
            );
            return Err(invalid(message));
        }
        let mut wires = self.monitor.view.wires.iter();
        wires
            .try_for_each(|wire| check_throttle(wire.capabilities, wire_usecs, wire_frames))
            .map_err(|ConfigError { key, message, .. }| {
                invalid(format!("{}: {message}", key.trim_start_matches("interrupt.")))
            })
    }

    /// Sends a command to the borrowed core and waits for its answer; for a shared card, to the
    /// kernel's part if it has one.
    fn command(&mut self, command: Command) -> Result<Answer, RpcError> {
        self.command_within(command, self.patience)
    }

    /// The same, with a time limit.
    fn command_within(&mut self, command: Command, patience: Duration) -> Result<Answer, RpcError> {
        let line = match &mut self.beside {
            Some(Part { line, alone, .. }) => match command {
                Command::Function(Direction::Rx, position, _) if !alone.contains(&position) => {
                    &mut self.line
                }
                _ => line,
            },
            None => &mut self.line,
        };
        line.command(command, patience)
    }

    /// Whether both the kernel and the poll engine have a function of the rx chain.
    fn is_twice(&self, position: usize) -> bool {
        self.beside.as_ref().is_some_and(|part| !part.alone.contains(&position))
    }
}

impl Line {
    fn new(controller: Controller) -> Line {
        let (is_silent, is_half_done) = (false, false);
        Line { controller, abandoned: 0, is_silent, again: SCRAPE_PATIENCE, is_half_done }
    }

    /// One half of a swap. If its answer comes too late, the other half is not made, so this one is
    /// undone.
    fn half_of_swap(
        &mut self,
        links: Vec<ChainFunction>,
        patience: Duration,
    ) -> Result<Answer, RpcError> {
        self.obey(Command::Swap(Direction::Rx, links), patience, true)
    }

    fn command(&mut self, command: Command, patience: Duration) -> Result<Answer, RpcError> {
        self.obey(command, patience, false)
    }

    /// A core that was silent for long is not waited for as long again: other clients need service,
    /// for example to stop the card.
    fn limited(&self, patience: Duration) -> Duration {
        if self.is_silent { patience.min(self.again) } else { patience }
    }

    /// Undoes half of a swap that was answered too late; false if it is not answered yet.
    fn undo_half(&mut self, give_up: Instant) -> bool {
        while self.is_half_done {
            match self.controller.answer() {
                Some(Answer { done, replaced }) => {
                    (self.abandoned, self.is_silent) = (self.abandoned - 1, false);
                    self.is_half_done = self.abandoned != 0;
                    if done && !self.is_half_done && self.controller.send(replaced).is_ok() {
                        self.abandoned = 1;
                    }
                }
                None if Instant::now() >= give_up => return false,
                None => std::thread::sleep(NAP),
            }
        }
        true
    }

    fn obey(
        &mut self,
        command: Command,
        patience: Duration,
        is_half: bool,
    ) -> Result<Answer, RpcError> {
        let silent = |patience: Duration| {
            let seconds = patience.as_secs_f64();
            let message = format!("the borrowed core has not answered for {seconds} s");
            RpcError::new(NO_ANSWER, message)
        };
        let limited = self.limited(patience);
        if !self.undo_half(Instant::now() + limited) {
            return Err(silent(limited));
        }
        // Late answers are collected before, so that commands never run out.
        while self.abandoned != 0 && self.controller.answer().is_some() {
            (self.abandoned, self.is_silent) = (self.abandoned - 1, false);
        }
        let patience = self.limited(patience);
        let give_up = Instant::now() + patience;
        let silent = || silent(patience);
        if self.controller.send(command).is_err() {
            return Err(silent());
        }
        loop {
            match self.controller.answer() {
                Some(_) if self.abandoned != 0 => {
                    (self.abandoned, self.is_silent) = (self.abandoned - 1, false);
                }
                Some(answer) => {
                    self.is_silent = false;
                    return Ok(answer);
                }
                None if Instant::now() >= give_up => {
                    self.abandoned += 1;
                    self.is_silent |= patience > self.again;
                    self.is_half_done = is_half;
                    return Err(silent());
                }
                None => std::thread::sleep(NAP),
            }
        }
    }
}

/// The answer belongs to another command than the one sent.
fn other_answer() -> RpcError {
    RpcError::new(NO_ANSWER, "the answer was to another command")
}

/// A result as JSON.
fn value(result: &impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(|error| RpcError::new(REFUSED, error.to_string()))
}
