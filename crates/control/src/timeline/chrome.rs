//! Chrome's trace event format: one JSON object with all events; times in microseconds.
//!
//! A card is a process. Its threads are its cores, then its tasks. Spans of a thread nest, and are
//! written as begins and ends in order: a viewer that adds start and duration as floating-point
//! numbers would have neighbours overlap.
//!
//! Source: Trace Event Format, Google, 2016 (phases B, E, i, C, s, f, M).

use super::{Collected, Entry, Event, Names};
use picnic_core::time::Time;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// The thread of a card's first task; threads of cores have the cores' numbers.
const FIRST_TASK: u64 = 1 << 17;

/// Writes the events of all cards.
pub(super) fn write(collected: &Collected, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    let other = json!({ "program": "picnic", "events_not_kept": collected.lost });
    write!(out, "{other},\"traceEvents\":[")?;
    let mut separator = "\n";
    let mut arrows = 0;
    for (card, names) in collected.cards.iter().enumerate() {
        let mut entries: Vec<&Entry> = collected
            .events
            .iter()
            .filter(|(of, _)| *of == card)
            .flat_map(|(_, entries)| entries)
            .collect();
        // Stable: events of one recorder at one moment stay in order.
        entries.sort_by_key(|entry| (entry.start, Reverse(entry.end)));
        let pid = card + 1;
        for line in threads(names, &entries) {
            let (thread, name, order) = line;
            for (kind, value) in [("thread_name", json!({ "name": name })), order] {
                let tid = thread;
                write!(
                    out,
                    "{separator}{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{kind}\",\
                     \"args\":{value}}}"
                )?;
                separator = ",\n";
            }
        }
        let name = json!({ "name": names.card });
        write!(
            out,
            "{separator}{{\"ph\":\"M\",\"pid\":{pid},\"name\":\"process_name\",\"args\":{name}}}"
        )?;
        separator = ",\n";
        let mut writer = Writer { out: &mut *out, pid, names, open: BTreeMap::new() };
        for entry in entries {
            writer.event(entry, &mut arrows)?;
        }
        writer.end_all(Time::MAX)?;
    }
    writeln!(out, "\n]}}")
}

/// The threads of a card: number, name and place in the list.
fn threads<'n>(
    names: &'n Names,
    entries: &[&Entry],
) -> impl Iterator<Item = (u64, String, (&'static str, Value))> + use<'n> {
    let mut cores: BTreeSet<u16> = names.queues.iter().copied().chain(names.borrowed).collect();
    let mut tasks: BTreeSet<u32> = (0..names.tasks.len() as u32).collect();
    for entry in entries {
        cores.insert(entry.core);
        if let Event::Segment { task, .. } = entry.event {
            tasks.insert(task);
        }
    }
    let core = |core: u16| {
        let queues = names.queues.iter().enumerate().filter(|(_, of)| **of == core);
        let queues: Vec<_> = queues.map(|(queue, _)| queue.to_string()).collect();
        let mut name = format!("core {core}");
        if names.borrowed == Some(core) {
            name += ", borrowed";
        }
        match &*queues {
            [] => {}
            [queue] => name += &format!(", queue {queue}"),
            queues => name += &format!(", queues {}", queues.join(" ")),
        }
        (u64::from(core), name, i64::from(names.borrowed != Some(core)))
    };
    let task = |task: u32| {
        let name = names.tasks.get(task as usize);
        let name = name.map_or_else(|| format!("task {task}"), |name| format!("task {name}"));
        (FIRST_TASK + u64::from(task), name, 2)
    };
    let all: Vec<_> = cores.into_iter().map(core).chain(tasks.into_iter().map(task)).collect();
    all.into_iter().map(|(thread, name, place)| {
        (thread, name, ("thread_sort_index", json!({ "sort_index": place })))
    })
}

/// Writes the events of a card, each preceded by a comma.
struct Writer<'w, W> {
    out: &'w mut W,
    pid: usize,
    names: &'w Names,
    /// The ends of the open spans of each thread, the outermost first.
    open: BTreeMap<u64, Vec<Time>>,
}

impl<W: Write> Writer<'_, W> {
    fn event(&mut self, entry: &Entry, arrows: &mut u64) -> io::Result<()> {
        let Entry { start, end, core, event } = *entry;
        let (own, names) = (u64::from(core), self.names);
        match event {
            Event::Turn { received, submitted, transmitted } => {
                let args = json!({
                    "received": received, "submitted": submitted, "transmitted": transmitted,
                });
                self.span(own, "turn", start, end, &args)
            }
            Event::Segment { task, ticket_ns } => {
                let name = names.tasks.get(task as usize).map_or("segment", |name| name);
                let args = json!({ "task": task, "ticket_ns": ticket_ns });
                self.span(own, name, start, end, &args)?;
                self.span(FIRST_TASK + u64::from(task), "segment", start, end, &args)
            }
            Event::Function { direction, position, packets } => {
                let chain = &names.functions[direction as usize];
                let name = chain.get(usize::from(position)).map_or("function", |name| name);
                let args = json!({ "packets": packets, "chain": direction.name() });
                self.span(own, name, start, end, &args)
            }
            Event::Target { packets, transmitted } => {
                let args = json!({ "packets": packets, "transmitted": transmitted });
                self.span(own, "target", start, end, &args)
            }
            Event::Host(work) => self.span(own, work.name(), start, end, &json!({})),
            Event::Slept => self.span(own, "asleep", start, end, &json!({})),
            Event::Preempted { ns } => self.instant(own, "preempted", start, &json!({ "ns": ns })),
            Event::Dropped { reason, stage, packets } => {
                let name = format!("drop {}@{}", reason.name(), stage.name());
                self.instant(own, &name, start, &json!({ "packets": packets }))
            }
            Event::Fill { queue, packets } => {
                let (pid, ts) = (self.pid, micros(start));
                write!(
                    self.out,
                    ",\n{{\"ph\":\"C\",\"pid\":{pid},\"name\":\"target ring {queue}\",\"ts\":{ts},\
                     \"args\":{{\"packets\":{packets}}}}}"
                )
            }
            Event::Doorbell { to } => {
                *arrows += 1;
                for (phase, tid, at) in [("s", core, start), ("f", to, end)] {
                    let (pid, ts) = (self.pid, micros(at));
                    write!(
                        self.out,
                        ",\n{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},\"id\":{arrows},\
                         \"cat\":\"doorbell\",\"name\":\"doorbell\",\"ts\":{ts}}}"
                    )?;
                }
                Ok(())
            }
        }
    }

    /// Begins a span, after the end of those that are over.
    fn span(
        &mut self,
        tid: u64,
        name: &str,
        start: Time,
        end: Time,
        args: &Value,
    ) -> io::Result<()> {
        self.end(tid, start)?;
        self.open.entry(tid).or_default().push(end);
        let (pid, name, ts) = (self.pid, Value::from(name), micros(start));
        write!(
            self.out,
            ",\n{{\"ph\":\"B\",\"pid\":{pid},\"tid\":{tid},\"name\":{name},\"ts\":{ts},\
             \"args\":{args}}}"
        )
    }

    /// Ends the open spans of a thread that end by `now`.
    fn end(&mut self, tid: u64, now: Time) -> io::Result<()> {
        let open = self.open.entry(tid).or_default();
        while let Some(end) = open.pop_if(|end| *end <= now) {
            let (pid, ts) = (self.pid, micros(end));
            write!(self.out, ",\n{{\"ph\":\"E\",\"pid\":{pid},\"tid\":{tid},\"ts\":{ts}}}")?;
        }
        Ok(())
    }

    fn end_all(&mut self, now: Time) -> io::Result<()> {
        let threads: Vec<u64> = self.open.keys().copied().collect();
        threads.into_iter().try_for_each(|tid| self.end(tid, now))
    }

    fn instant(&mut self, tid: u64, name: &str, at: Time, args: &Value) -> io::Result<()> {
        let (pid, name, ts) = (self.pid, Value::from(name), micros(at));
        write!(
            self.out,
            ",\n{{\"ph\":\"i\",\"s\":\"t\",\"pid\":{pid},\"tid\":{tid},\"name\":{name},\
             \"ts\":{ts},\"args\":{args}}}"
        )
    }
}

/// A time in microseconds, with all digits.
fn micros(time: Time) -> String {
    let ns = time.as_nanos();
    format!("{}.{:03}", ns / 1000, ns % 1000)
}
