//! Tables for the results of methods: columns of a list of objects.

use serde_json::Value;

/// Format of a cell.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// As text; this if missing.
    Words(&'static str),
    /// As a count.
    Count,
    /// Nanoseconds, in a suitable unit.
    Time,
    /// Text made from the whole row.
    Own(fn(&Value) -> String),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub heading: &'static str,
    /// The key of its values; in an object of the row, `OBJECT/KEY`.
    pub key: &'static str,
    /// Their format.
    pub form: Form,
    /// Whether they are numbers, aligned right.
    pub is_number: bool,
    /// Columns with lower weights are hidden first; those with 9 stay.
    pub weight: u8,
}

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// The key of the list in a result; a result without it is a row itself.
    pub list: &'static str,
    /// Name of the items, for an empty list.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
}

/// A column of words.
pub const fn words(heading: &'static str, key: &'static str, weight: u8) -> Column {
    Column { heading, key, form: Form::Words(""), is_number: false, weight }
}

/// A column of plain numbers; a dash if missing.
pub const fn number(heading: &'static str, key: &'static str, weight: u8) -> Column {
    Column { heading, key, form: Form::Words("-"), is_number: true, weight }
}

/// A column of counts.
pub const fn count(heading: &'static str, key: &'static str, weight: u8) -> Column {
    Column { heading, key, form: Form::Count, is_number: true, weight }
}

/// A column of times in nanoseconds.
pub const fn time(heading: &'static str, key: &'static str, weight: u8) -> Column {
    Column { heading, key, form: Form::Time, is_number: true, weight }
}

/// A column of text made from the whole row.
pub const fn made(heading: &'static str, form: fn(&Value) -> String, weight: u8) -> Column {
    Column { heading, key: "", form: Form::Own(form), is_number: false, weight }
}

/// Filters.
pub const FILTERS: Listing = Listing {
    list: "filters",
    name: "filters",
    columns: &[
        number("id", "id", 9),
        words("name", "name", 9),
        made(
            "where",
            |filter| format!("{} {}", text(&filter["direction"]), text(&filter["place"])),
            6,
        ),
        words("group", "group", 4),
        number("priority", "priority", 5),
        made("matches", matching, 9),
        made("action", action, 9),
        count("packets", "packets", 9),
        count("bytes", "bytes", 3),
        count("short", "short_packets", 2),
        count("unreadable", "unreadable_packets", 1),
    ],
};

/// Tasks.
pub const TASKS: Listing = Listing {
    list: "tasks",
    name: "tasks",
    columns: &[
        number("task", "task", 9),
        words("name", "name", 9),
        words("state", "state", 9),
        time("period", "period_ns", 6),
        number("priority", "priority", 4),
        time("bound", "wcet_ns", 9),
        count("completed", "completed", 9),
        count("segments", "segments", 3),
        time("busy", "busy_ns", 2),
        time("longest", "longest_segment_ns", 1),
        count("overruns", "overruns", 5),
        count("misses", "deadline_misses", 9),
    ],
};

/// Captures.
pub const CAPTURES: Listing = Listing {
    list: "captures",
    name: "capture runs",
    columns: &[
        number("capture", "capture", 9),
        words("stages", "stages", 9),
        Column {
            is_number: true,
            ..made("seconds", |row| format!("{:.1}", row["elapsed_s"].as_f64().unwrap_or(0.0)), 9)
        },
        count("packets", "packets_written", 9),
        count("lost", "packets_lost", 9),
    ],
};

/// Channels to host processes.
pub const CHANNELS: Listing = Listing {
    list: "channels",
    name: "channels",
    columns: &[
        words("channel", "channel", 9),
        number("task", "task", 9),
        made("state", channel_state, 9),
        number("message bytes", "message_bytes", 4),
        number("messages", "messages", 4),
        count("memory", "memory_bytes", 2),
        count("openings", "openings", 5),
        count("sent", "sent_messages", 9),
        count("received", "received_messages", 9),
        count("full", "full_messages", 8),
        count("too long", "too_long_messages", 1),
        count("lost", "lost_messages", 8),
        count("broken", "broken_hosts", 3),
        count("wake-ups", "host_wakeups", 6),
    ],
};

/// The process that has a channel open.
fn channel_state(channel: &Value) -> String {
    match (channel["is_alive"] == true, channel["pid"].as_i64()) {
        (false, _) => "ended".into(),
        (true, None) => "not open".into(),
        (true, Some(pid)) => format!("open, pid {pid}"),
    }
}

/// A value as text, lists joined by commas; empty for null.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The packets that a filter matches.
fn matching(filter: &Value) -> String {
    let names = [
        ("protocol", "protocol"),
        ("source", "from"),
        ("source_ports", "port"),
        ("destination", "to"),
        ("destination_ports", "port"),
        ("base", "bytes of"),
        ("start", "at"),
        ("mask", "mask"),
        ("values", "values"),
    ];
    let given = names.iter().filter(|(key, _)| !filter[key].is_null());
    let mut words: Vec<_> = given
        .map(|(key, name)| format!("{name} {}", text(&filter[key]).replace(", ", ",")))
        .collect();
    if filter["predicate"] == true {
        words.push("predicate".into());
    }
    if words.is_empty() { "every packet".into() } else { words.join(" ") }
}

fn action(filter: &Value) -> String {
    let argument = [&filter["queue"], &filter["mark"]].into_iter().find(|value| !value.is_null());
    let argument = argument.map_or_else(String::new, |value| format!(" {value}"));
    let broken = if filter["broken"] == true { " (broken)" } else { "" };
    format!("{}{argument}{broken}", text(&filter["action"]))
}
