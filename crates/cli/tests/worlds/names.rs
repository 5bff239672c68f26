//! No command lets a name of any kind control a terminal.

use crate::common::*;
use std::path::Path;

/// Sequences that a terminal would obey: clearing itself, a one-letter colour, a bell, an
/// overwritten line, and a line that looks like another message.
const HOSTILE: &str = "a\x1b[2Jb\u{9b}31mc\x07\rd\nFORGED";

/// A string of a card file.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// Checks that the output of a command is harmless; the command may fail.
fn try_out(folder: &Path, arguments: &[&str]) -> String {
    let output = command().args(arguments).current_dir(folder).output().unwrap();
    let text = format!("{}{}", stdout(&output), stderr(&output));
    let is_obeyed = |letter: char| letter.is_control() && !"\n\t".contains(letter);
    assert!(!text.contains(is_obeyed), "{arguments:?}: {text:?}");
    assert!(!text.lines().any(|line| line.starts_with("FORGED")), "{arguments:?}: {text}");
    text
}

/// As the last word of every command, wherever it is taken for something.
const COMMANDS: &[&str] = &[
    "",
    "help",
    "check",
    "run",
    "run --duration",
    "run --world",
    "run --engine",
    "run --seed",
    "functions",
    "ports",
    "attachments",
    "schedulers",
    "tasks",
    "new",
    "new function",
    "try",
    "try --in",
    "demo",
    "demo web",
    "doctor",
    "lab",
    "lab run",
    "lab show",
    "traffic",
    "workload",
    "ctl",
    "ctl --card",
    "ctl info",
    "ctl stats",
    "ctl swap",
    "ctl swap rx",
    "ctl capture",
    "ctl capture stop",
    "ctl capture start --write",
    "ctl filter",
    "ctl filter show",
    "ctl filter add",
    "ctl filter remove",
    "ctl filter reload",
    "ctl sciron reload",
    "ctl tasks show",
    "ctl tasks create",
    "ctl rss",
    "ctl rss key",
    "ctl generator",
    "ctl moderation",
    "top",
    "top --card",
    "capture",
    "capture --card",
    "capture --stage",
    "isolate",
    "net",
    "net up",
    "net down",
    "net qemu",
    "cleanup",
    "bench",
    "bench web",
    "sciron",
    "sciron check",
    "storm node",
    "storm node a",
    "storm check",
    "wcet",
    "completions",
    "card",
    "run --world sim --duration 0.01 --trace missing/../",
];

const KEYS: &[&str] = &[
    "card.name",
    "card.engine",
    "wire[0].name",
    "wire[0].port",
    "host.attachment",
    "host.mode",
    "rx[0].function",
    "os.scheduler",
    "trace.path",
    "control.socket",
    "control.metrics",
    "control.group",
    "interrupt.mode",
    "isolation.method",
    "nonsense",
];

#[test]
fn names_on_the_command_line_cannot_control_the_terminal() {
    let folder = folder(&[]);
    for words in COMMANDS {
        let mut words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        match words.last_mut().filter(|word| word.ends_with('/')) {
            Some(path) => path.push_str(HOSTILE),
            None => words.push(HOSTILE.into()),
        }
        try_out(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>());
        // As an option, too: of those below a command it is refused in the same words.
        if words.len() <= 2 {
            *words.last_mut().unwrap() = format!("--{HOSTILE}");
            try_out(folder.path(), &words.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    for key in KEYS {
        for setting in [format!("{key}={}", quoted(HOSTILE)), format!("{key}={HOSTILE}")] {
            try_out(folder.path(), &["check", "--set", &setting]);
        }
    }
    // The found text is shown in printable form.
    let text = try_out(folder.path(), &["run", "--duration", HOSTILE]);
    assert!(text.contains(r"a\u{1b}[2Jb\u{9b}31mc\u{7}\rd\nFORGED"), "{text}");
}

/// A card whose file, wire and own name are such names, and a card with a listener.
#[test]
fn names_of_running_cards_cannot_control_the_terminal() {
    let name = quoted(HOSTILE);
    let text = format!(
        "[card]\nname = {name}\n[[wire]]\nport = \"generator\"\nname = {name}\nrate_pps = 1000\n\
         [[rx]]\nfunction = \"rss\"\n[[task]]\ntask = \"heartbeat\"\nname = {name}\n"
    );
    let folder = folder(&[("card.toml", text.as_bytes()), (HOSTILE, text.as_bytes())]);
    let _machine = machine();
    assert!(try_out(folder.path(), &["check", HOSTILE]).contains("borrowed core"));
    assert!(try_out(folder.path(), &["run", HOSTILE, "--duration=0.1"]).contains("ledger"));
    let card = Running::start_in(HOSTILE, folder.path(), &[]);
    for words in [
        "info",
        "stats",
        "latency",
        "moderation",
        "chain",
        "capture list",
        "filter list",
        "tasks list",
        "rss get",
        "generator get",
        "app get",
        "sciron show",
    ] {
        let words: Vec<_> = words.split(' ').collect();
        try_out(folder.path(), &[&["ctl", "--card", HOSTILE], &*words].concat());
        try_out(folder.path(), &[&["ctl", "--card", HOSTILE, "--json"], &*words].concat());
    }
    // Names that it is asked for, and told.
    let pair = format!("name={HOSTILE}");
    for words in [
        vec!["tasks", "show", HOSTILE],
        vec!["tasks", "kill", HOSTILE],
        vec!["tasks", "create", HOSTILE],
        vec!["filter", "show", HOSTILE],
        vec!["filter", "remove", HOSTILE],
        vec!["filter", "change", HOSTILE, "action=drop"],
        vec!["filter", "add", &pair, "protocol=udp", "action=accept"],
        vec!["filter", "add", HOSTILE],
        vec!["rss", "set", "--key", HOSTILE],
        vec!["capture", "start", "--write", HOSTILE],
        vec!["capture", "stop", HOSTILE],
        vec!["swap", "rx", HOSTILE],
    ] {
        try_out(folder.path(), &[&["ctl", "--card", HOSTILE], &*words].concat());
    }
    for words in [vec!["top", "--once"], vec!["capture", "--count=1", "--write", HOSTILE]] {
        try_out(folder.path(), &[&*words, &["--card", HOSTILE]].concat());
    }
    // Another card is asked for: those that run are named.
    assert!(try_out(folder.path(), &["ctl", "--card", "x"]).contains("FORGED"));
    card.stop();
}
