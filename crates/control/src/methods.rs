//! What the control thread does for its clients: reads, and commands to the borrowed core.
//!
//! What a change needs is built here, on the control thread, and what it replaces comes
//! back here to be freed.

use crate::captures::Captures;
use crate::metrics;
use crate::monitor::{Monitor, function_reports};
use crate::protocol::{
    CaptureNumber, INVALID_PARAMS, METHODS, ModerationParams, ModerationSet, NO_ANSWER, Place,
    REFUSED, Request, RpcError, RssSet, Swap, VERSION,
};
use crate::server::Access;
use picnic_core::config::CardFile;
use picnic_core::direction::Direction;
use picnic_core::error::ConfigError;
use picnic_core::hook::Hooks;
use picnic_core::registry::BuildContext;
use picnic_core::ring::moderation::ModerationMode;
use picnic_engine::build::{Registries, links};
use picnic_engine::swap::{Answer, Command, Controller};
use picnic_filter::{FilterError, Filters, request as filter};
use picnic_functions::rss::{Change, Control, Refusal, Settings};
use picnic_hash::{IndirectionTable, Key};
use picnic_os::config::Factory;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod tasks;

/// How long the borrowed core may take to obey: it looks at least every 20 ms.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks for its answer.
const NAP: Duration = Duration::from_micros(50);

/// The card, as the control thread sees it.
pub struct Methods {
    monitor: Monitor,
    controller: Controller,
    /// Commands whose answer nobody waits for any more.
    abandoned: usize,
    registries: Registries,
    context: BuildContext,
    about: About,
    moderation: ModerationMode,
    poll_usecs: u32,
    tx_usecs: u32,
    hooks: Hooks,
    captures: Captures,
    filters: Filters,
    /// None if the card has no NIC OS.
    tasks: Option<Factory>,
    stop: Arc<AtomicBool>,
}

/// What came of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Its result.
    Now(Value),
    /// Its result will be that of a capture, when it has ended.
    WhenEnded(CaptureNumber),
}

/// What does not change while a card runs.
struct About {
    name: String,
    file: Option<String>,
    attachment: String,
    metrics: Option<SocketAddr>,
}

impl Methods {
    /// The methods of a card that runs. `stop` is set when a client asks for the end.
    pub fn new(
        file: &CardFile,
        metrics: Option<SocketAddr>,
        access: Access,
        captures: Captures,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let Access { monitor, controller, registries, hooks, filters, tasks } = access;
        let about = About {
            name: file.card.name.clone(),
            file: file.path().map(|path| path.display().to_string()),
            attachment: file.host.attachment.name().into(),
            metrics,
        };
        Methods {
            monitor,
            controller,
            abandoned: 0,
            registries,
            context: picnic_engine::build::context(file),
            about,
            moderation: file.interrupt.moderation(),
            poll_usecs: file.interrupt.poll_usecs,
            tx_usecs: file.interrupt.tx_usecs,
            hooks,
            captures,
            filters,
            tasks,
            stop,
        }
    }

    /// The figures as Prometheus reads them.
    pub fn metrics(&self) -> String {
        metrics::text(&self.about.name, &self.monitor)
    }

    /// The card's captures.
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// Does what a call asks for. `file` came along with it, from connection `client`.
    ///
    /// # Errors
    /// What the caller is to be told.
    pub fn call(
        &mut self,
        request: Request,
        client: u64,
        file: impl FnOnce() -> Option<OwnedFd>,
    ) -> Result<Outcome, RpcError> {
        let captures = self.captures();
        match request {
            Request::CaptureStop(number) => {
                captures.stop(number)?;
                return Ok(Outcome::WhenEnded(number));
            }
            Request::CaptureWait(number) => {
                captures.known(number)?;
                return Ok(Outcome::WhenEnded(number));
            }
            Request::CaptureList => Ok(captures.list()),
            Request::CaptureStart(wanted) => {
                captures.start(wanted, file(), self.monitor.elapsed(), client)
            }
            Request::Info => Ok(self.info()),
            Request::Stats => value(&self.monitor.report()),
            Request::Stop => {
                self.stop.store(true, Ordering::Release);
                Ok(json!({ "stopping": true }))
            }
            Request::RssGet(place) => self.rss_get(&place),
            Request::RssSet(set) => self.rss_set(&set),
            Request::ModerationGet => value(&self.moderation()),
            Request::ModerationSet(set) => self.moderate(set),
            Request::ChainList => Ok(self.chains()),
            Request::ChainSwap(swap) => self.swap(&swap),
            Request::Filter(request) => self.filter(request),
            Request::Task(request) => self.task(request),
        }
        .map(Outcome::Now)
    }

    fn info(&self) -> Value {
        let view = &self.monitor.view;
        let names = |direction| {
            let functions = view.functions.of(direction).into_iter();
            functions.map(|function| function.name).collect::<Vec<_>>()
        };
        let wires: Vec<_> = view.wires.iter().map(|wire| &wire.name).collect();
        let placement = &self.monitor.placement;
        json!({
            "protocol": VERSION,
            "version": env!("CARGO_PKG_VERSION"),
            "name": self.about.name,
            "file": self.about.file,
            "pid": std::process::id(),
            "engine": "poll",
            "elapsed_s": self.monitor.elapsed().as_secs_f64(),
            "borrowed_core": placement.borrowed_core,
            "target_cores": placement.target_cores,
            "wires": wires,
            "attachment": self.about.attachment,
            "metrics": self.about.metrics,
            "rx": names(Direction::Rx),
            "tx": names(Direction::Tx),
            "moderation": self.moderation(),
            "methods": METHODS,
        })
    }

    fn moderation(&self) -> ModerationParams {
        ModerationParams::of(self.moderation, self.poll_usecs, self.tx_usecs)
    }

    fn moderate(&mut self, set: ModerationSet) -> Result<Value, RpcError> {
        let replaced = self.moderation();
        if let Some(usecs) = set.poll_usecs {
            self.command(Command::Poll(u64::from(usecs) * 1000))?;
            self.poll_usecs = usecs;
        }
        if let Some(usecs) = set.tx_usecs {
            self.command(Command::TxPause(u64::from(usecs) * 1000))?;
            self.tx_usecs = usecs;
        }
        if let Some(mode) = set.mode {
            self.command(Command::Moderate(mode))?;
            self.moderation = mode;
        }
        Ok(json!({ "moderation": self.moderation(), "replaced": replaced }))
    }

    fn chains(&self) -> Value {
        let mut lists = Map::new();
        for direction in Direction::ALL {
            let reports = function_reports(&self.monitor.view, direction).into_iter().enumerate();
            let list = reports.map(|(position, report)| {
                json!({
                    "position": position,
                    "function": report.name,
                    "packets": report.packets,
                    "dropped": report.dropped,
                })
            });
            lists.insert(direction.name().into(), list.collect());
        }
        Value::Object(lists)
    }

    /// Has the borrowed core obey a command, and waits for its answer.
    fn command(&mut self, command: Command) -> Result<Answer, RpcError> {
        let give_up = Instant::now() + PATIENCE;
        let silent = || {
            let seconds = PATIENCE.as_secs();
            let message = format!("the borrowed core has not answered for {seconds} s");
            RpcError::new(NO_ANSWER, message)
        };
        // Answers that came too late are taken in before, so that commands never run out.
        while self.abandoned != 0 && self.controller.answer().is_some() {
            self.abandoned -= 1;
        }
        if self.controller.send(command).is_err() {
            return Err(silent());
        }
        loop {
            match self.controller.answer() {
                Some(_) if self.abandoned != 0 => self.abandoned -= 1,
                Some(answer) => return Ok(answer),
                None if Instant::now() >= give_up => {
                    self.abandoned += 1;
                    return Err(silent());
                }
                None => std::thread::sleep(NAP),
            }
        }
    }

    // ------------------------------------------------------------------ rss

    /// Where the `rss` stands that a place means.
    fn rss_at(&self, place: &Place) -> Result<(Direction, usize), RpcError> {
        let direction = place.chain;
        let functions = self.monitor.view.functions.of(direction);
        let is_rss = |position: usize| {
            functions.get(position).is_some_and(|function| function.name == "rss")
        };
        let chain = direction.name();
        let names = || match functions.is_empty() {
            true => "no function".to_owned(),
            false => {
                let names: Vec<_> = functions.iter().map(|function| &*function.name).collect();
                names.join(", ")
            }
        };
        match place.position {
            Some(position) if is_rss(position) => Ok((direction, position)),
            Some(position) => {
                let message = format!(
                    "position: found {position}, but no rss is there; {chain} has {}",
                    names()
                );
                Err(RpcError::new(INVALID_PARAMS, message))
            }
            None => (0..functions.len()).find(|&position| is_rss(position)).map_or_else(
                || {
                    let message = format!("{chain} has no rss: found {}", names());
                    Err(RpcError::new(REFUSED, message))
                },
                |position| Ok((direction, position)),
            ),
        }
    }

    /// Gives a message to an `rss`; what it did, and the message with what was replaced.
    fn rss_control(
        &mut self,
        (direction, position): (Direction, usize),
        message: Control,
    ) -> Result<(usize, Change), RpcError> {
        let command = Command::Control(direction, position, Box::new(message));
        let Command::Control(_, _, message) = self.command(command)?.replaced else {
            return Err(RpcError::new(NO_ANSWER, "the answer was to another command"));
        };
        let message = message.downcast::<Control>().ok();
        match message.map(|message| *message) {
            Some(Control { change, outcome: Some(Ok(moved)) }) => Ok((moved, change)),
            Some(Control { outcome: Some(Err(refusal)), .. }) => {
                let key = if refusal == Refusal::NoKey { "key" } else { "table" };
                Err(RpcError::new(INVALID_PARAMS, format!("{key}: {refusal}")))
            }
            _ => Err(RpcError::new(REFUSED, "the function there is no rss")),
        }
    }

    fn rss_settings(&mut self, at: (Direction, usize)) -> Result<Box<Settings>, RpcError> {
        match self.rss_control(at, Control::show())? {
            (_, Change::Show(settings)) => Ok(settings),
            _ => Err(RpcError::new(NO_ANSWER, "the answer was to another command")),
        }
    }

    fn rss_get(&mut self, place: &Place) -> Result<Value, RpcError> {
        let at = self.rss_at(place)?;
        let settings = self.rss_settings(at)?;
        Ok(json!({
            "chain": at.0.name(),
            "position": at.1,
            "hash": settings.hash,
            "key": settings.key.map(|key| key.to_string()),
            "symmetric": settings.key.is_some_and(|key| key == Key::symmetric()),
            "jhash_init": settings.key.is_none().then_some(settings.init),
            "queues": self.context.queues,
            "table": settings.table(),
        }))
    }

    fn rss_set(&mut self, set: &RssSet) -> Result<Value, RpcError> {
        let wrong = |key: &str, error: &dyn std::fmt::Display| {
            RpcError::new(INVALID_PARAMS, format!("{key}: {error}"))
        };
        let at = self.rss_at(&Place { chain: set.chain, position: set.position })?;
        // All is checked before anything is changed.
        let queues = self.context.queues;
        let key = match set.key.as_deref() {
            None => None,
            Some("symmetric") => Some(Key::symmetric()),
            Some(text) => Some(text.parse::<Key>().map_err(|error| wrong("key", &error))?),
        };
        let table = match (&set.table, set.table_size) {
            (Some(entries), _) => {
                let table = IndirectionTable::from_entries(entries, queues);
                Some(table.map_err(|error| wrong("table", &error))?)
            }
            (None, Some(size)) => {
                let table = IndirectionTable::uniform(size, queues);
                Some(table.map_err(|error| wrong("table_size", &error))?)
            }
            (None, None) => None,
        };
        if key.is_some() && self.rss_settings(at)?.key.is_none() {
            return Err(wrong("key", &Refusal::NoKey));
        }
        let mut moved = 0;
        if let Some(table) = table {
            moved += self.rss_control(at, Control::table(table))?.0;
        }
        if let Some(key) = key {
            moved += self.rss_control(at, Control::key(&key))?.0;
        }
        Ok(json!({ "chain": at.0.name(), "position": at.1, "moved_entries": moved }))
    }

    // ------------------------------------------------------------------ filters

    fn filter(&self, request: filter::FilterRequest) -> Result<Value, RpcError> {
        match self.filters.answer(request) {
            Ok(reply) => value(&reply),
            Err(error @ FilterError::Invalid { .. }) => {
                Err(RpcError::new(INVALID_PARAMS, error.to_string()))
            }
            Err(error) => Err(RpcError::new(REFUSED, error.to_string())),
        }
    }

    // ------------------------------------------------------------------ chains

    fn swap(&mut self, swap: &Swap) -> Result<Value, RpcError> {
        let direction = swap.chain;
        let chain = direction.name();
        let text = match (&swap.toml, &swap.functions) {
            (Some(text), _) => text.clone(),
            (None, functions) => as_toml(swap.chain, functions.as_deref().unwrap_or_default())?,
        };
        let path = swap.file.as_deref();
        let file = CardFile::parse(&text, path).map_err(config_error)?;
        if !file.has(chain) {
            let message = format!("is missing, wanted are sections [[{chain}]], or {chain} = []");
            return Err(config_error(file.locate(ConfigError::new(chain, message))));
        }
        let sections = if direction == Direction::Rx { &file.rx } else { &file.tx };
        let directory = match path {
            Some(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
            None => self.context.directory.clone(),
        };
        let context = BuildContext { directory, ..self.context.clone() };
        let links = links(sections, direction, &self.registries, &context, &self.hooks)
            .map_err(config_error)?;
        let before: Vec<_> = function_reports(&self.monitor.view, direction);
        let answer = self.command(Command::Swap(direction, links))?;
        let functions: Vec<_> = sections.iter().map(|section| section.name()).collect();
        // The functions that were replaced end here.
        drop(answer);
        Ok(json!({ "chain": chain, "functions": functions, "replaced": before }))
    }
}

/// A result as JSON.
fn value(result: &impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(|error| RpcError::new(REFUSED, error.to_string()))
}

/// The error of a card file, with its place as data.
fn config_error(error: ConfigError) -> RpcError {
    let file = error.file.as_ref().map(|file| file.display().to_string());
    let line = (error.line != 0).then_some(error.line);
    let data = json!({ "file": file, "line": line, "key": error.key, "message": error.message });
    RpcError { data: Some(data), ..RpcError::new(INVALID_PARAMS, error.to_string()) }
}

/// Sections given as JSON objects, as the card file's text that says the same.
fn as_toml(chain: Direction, functions: &[Map<String, Value>]) -> Result<String, RpcError> {
    let name = chain.name();
    let sections = functions.iter().enumerate().map(|(position, keys)| {
        toml::Table::try_from(keys).map(toml::Value::Table).map_err(|error| {
            let message = format!("functions[{position}]: {error}");
            RpcError::new(INVALID_PARAMS, message)
        })
    });
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    let mut root = toml::Table::new();
    root.insert(name.into(), toml::Value::Array(sections));
    toml::to_string(&root).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}
