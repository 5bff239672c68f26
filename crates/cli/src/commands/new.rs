//! `picnic new`: creates your own function, task, scheduler or experiment.

use crate::failure::Usage;
use crate::output;
use crate::registries::registries;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use picnic_lab::registry::experiments;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic new function steer --lang c && cd steer && make test
  picnic new function steer --lang rust && cd steer && cargo test
  picnic new task beacon && cd beacon && cargo test
  picnic new scheduler monotonic && cd monotonic && cargo test
  picnic new experiment loads && cd loads && cargo test

A function is a shared object that a card file names. In C, it needs only a compiler; in Rust, it
builds a small part of picnic's source tree. All others, including --lang rust-program, are separate
programs with the whole command line; each builds all of the source tree (many minutes). The next
steps are in docs/plugins.md.")]
pub(crate) struct NewArgs {
    #[command(subcommand)]
    what: NewCommand,
}

#[derive(Debug, Subcommand)]
enum NewCommand {
    /// A NIC function, with its tests and a card that runs it
    Function {
        #[command(flatten)]
        place: NewCrate,
        /// Its language
        #[arg(long, value_enum)]
        lang: Language,
    },
    /// A task of NIC OS, with its tests and a card that runs it
    Task(NewCrate),
    /// A scheduler of NIC OS, with its tests and a card that runs it
    Scheduler(NewCrate),
    /// An experiment of the lab, with its tests
    Experiment(NewCrate),
}

#[derive(Debug, Args)]
struct NewCrate {
    /// Its name: a to z, digits and dashes, a letter first
    name: String,
    /// The folder to create [default: the name]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// For Rust: picnic's source tree [default: the one this program was built from]
    #[arg(long, value_name = "PATH")]
    picnic: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// A shared object, in C
    C,
    /// A shared object, in Rust
    Rust,
    /// A program with picnic's command line, for functions that work on bursts or take commands
    RustProgram,
}

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $path, ".in"))
    };
}

/// The template of one kind of component.
struct Template {
    /// Its name.
    kind: &'static str,
    /// Its key in a card file.
    key: &'static str,
    /// The key's value, with marks.
    named: &'static str,
    /// Path and text of each file.
    files: &'static [(&'static str, &'static str)],
    /// The crates of picnic that it uses; none if it is not in Rust.
    uses: &'static [&'static str],
    /// Further crates that its tests use.
    tested_with: &'static [&'static str],
    /// Crates that its fuzz target uses.
    fuzzed_with: &'static [&'static str],
    /// Further packages in its workspace.
    members: &'static [&'static str],
    /// Whether it is a shared object in Rust.
    is_object: bool,
    /// The next commands to type.
    next: &'static str,
}

const FUNCTION: Template = Template {
    kind: "function",
    key: "plugin",
    named: "target/debug/lib@ident@.so",
    files: &[
        ("Cargo.toml", template!("Cargo.toml")),
        ("src/lib.rs", template!("function/lib.rs")),
        ("tests/function.rs", template!("function/tests.rs")),
        ("fuzz/Cargo.toml", template!("function/fuzz.toml")),
        ("fuzz/src/main.rs", template!("function/fuzz.rs")),
        ("Makefile", template!("function/Makefile")),
        ("card.toml", template!("function/card.toml")),
    ],
    uses: &["sdk"],
    tested_with: &["core", "engine", "plugin"],
    fuzzed_with: &["core", "engine", "plugin", "sdk"],
    members: &["fuzz"],
    is_object: true,
    next: "cargo build\n  picnic run card.toml --duration 5\n  cargo test\n  make fuzz",
};
const PROGRAM: Template = Template {
    key: "function",
    named: "@name@",
    files: &[
        ("Cargo.toml", template!("Cargo.toml")),
        ("src/lib.rs", template!("program/lib.rs")),
        ("src/main.rs", template!("program/main.rs")),
        ("tests/function.rs", template!("program/tests.rs")),
        ("fuzz/Cargo.toml", template!("program/fuzz.toml")),
        ("fuzz/src/main.rs", template!("program/fuzz.rs")),
        ("Makefile", template!("program/Makefile")),
        ("card.toml", template!("function/card.toml")),
    ],
    uses: &["cli", "control", "core"],
    tested_with: &["engine"],
    fuzzed_with: &["core", "engine"],
    is_object: false,
    next: "cargo test\n  make fuzz\n  cargo run -- run card.toml --duration 5",
    ..FUNCTION
};
const C_FUNCTION: Template = Template {
    kind: "function",
    key: "plugin",
    named: "@name@.so",
    files: &[
        ("@name@.c", template!("function-c/function.c")),
        ("test.c", template!("function-c/test.c")),
        ("Makefile", template!("function-c/Makefile")),
        ("picnic_function.h", picnic_plugin::HEADER),
        ("card.toml", template!("function/card.toml")),
    ],
    uses: &[],
    tested_with: &[],
    members: &[],
    next: "make test\n  picnic run card.toml --duration 5",
    ..PROGRAM
};
const TASK: Template = Template {
    kind: "task",
    files: &[
        ("Cargo.toml", template!("Cargo.toml")),
        ("src/lib.rs", template!("task/lib.rs")),
        ("src/main.rs", template!("task/main.rs")),
        ("tests/task.rs", template!("task/tests.rs")),
        ("card.toml", template!("task/card.toml")),
    ],
    uses: &["cli", "control", "core", "os", "tasks", "wcet"],
    tested_with: &["host", "sim"],
    members: &[],
    next: "cargo test\n  cargo run -- run card.toml --duration 5",
    ..PROGRAM
};
const SCHEDULER: Template = Template {
    kind: "scheduler",
    files: &[
        ("Cargo.toml", template!("Cargo.toml")),
        ("src/lib.rs", template!("scheduler/lib.rs")),
        ("src/main.rs", template!("scheduler/main.rs")),
        ("tests/scheduler.rs", template!("scheduler/tests.rs")),
        ("card.toml", template!("scheduler/card.toml")),
    ],
    uses: &["cli", "control", "core", "os"],
    tested_with: &["host", "sim", "tasks"],
    members: &[],
    next: TASK.next,
    ..PROGRAM
};
const EXPERIMENT: Template = Template {
    kind: "experiment",
    files: &[
        ("Cargo.toml", template!("Cargo.toml")),
        ("src/lib.rs", template!("experiment/lib.rs")),
        ("src/main.rs", template!("experiment/main.rs")),
        ("tests/experiment.rs", template!("experiment/tests.rs")),
    ],
    uses: &["cli", "control", "core", "lab", "sim"],
    tested_with: &[],
    members: &[],
    next: "cargo test\n  cargo run -- lab run @name@",
    ..PROGRAM
};

/// Additions to Cargo.toml for a shared object.
const LIBRARY: &str = "\n[lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n";
/// Additions for quick builds: only the data path is optimised.
const PROFILE: &str = "\n[profile.dev.package.\"*\"]\nopt-level = 0\ndebug = false\n\n\
                       [profile.dev.package.picnic-core]\nopt-level = 1\n";

/// The place of the crates in the source tree.
fn folder_of(name: &str) -> &str {
    if name == "tasks" { "apps" } else { "crates" }
}

impl Template {
    /// The text for each mark.
    fn values(&self, name: &str, tree: Option<&Path>) -> [(&'static str, String); 12] {
        let tree = tree.map_or_else(String::new, |tree| tree.display().to_string());
        let of_picnic = |names: &[&str]| -> String {
            let line = |name: &&str| {
                format!("picnic-{name} = {{ path = \"{tree}/{}/{name}\" }}\n", folder_of(name))
            };
            names.iter().map(line).collect()
        };
        let others = "schemars = \"1\"\nserde = { version = \"1\", features = [\"derive\"] }\n\
                      serde_json = \"1\"\n";
        let members = match self.members {
            [] => String::new(),
            members => format!("members = {members:?}\n"),
        };
        // With picnic's features: its lock file has no versions for others.
        let for_tests = "allocation-counter = \"0.8\"\nproptest = { version = \"1\", \
                         default-features = false, features = [\"std\"] }\n";
        [
            // Texts that contain other marks come first.
            ("@named@", self.named.into()),
            ("@kind@", self.key.into()),
            ("@dependencies@", of_picnic(self.uses) + others),
            ("@fuzz-dependencies@", of_picnic(self.fuzzed_with) + others),
            ("@lib@", if self.is_object { LIBRARY.into() } else { String::new() }),
            ("@profile@", if self.is_object { PROFILE.into() } else { String::new() }),
            ("@members@", members),
            ("@dev-dependencies@", of_picnic(self.tested_with) + for_tests),
            ("@name@", name.into()),
            ("@ident@", name.replace('-', "_")),
            ("@Type@", type_name(name)),
            ("@picnic@", tree),
        ]
    }
}

/// The source tree that this program was built from.
const BUILT_FROM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn run(args: &NewArgs, json: bool) -> anyhow::Result<()> {
    let (template, place) = match &args.what {
        NewCommand::Function { place, lang: Language::Rust } => (FUNCTION, place),
        NewCommand::Function { place, lang: Language::RustProgram } => (PROGRAM, place),
        NewCommand::Function { place, lang: Language::C } => (C_FUNCTION, place),
        NewCommand::Task(place) => (TASK, place),
        NewCommand::Scheduler(place) => (SCHEDULER, place),
        NewCommand::Experiment(place) => (EXPERIMENT, place),
    };
    check_name(&place.name)?;
    let folder = place.path.clone().unwrap_or_else(|| PathBuf::from(&place.name));
    if folder.exists() {
        let message = format!("{}: already exists, allowed: a new folder", folder.display());
        return Err(Usage(message).into());
    }
    let tree = match template.uses {
        [] => None,
        _ => Some(source_tree(place.picnic.as_deref())?),
    };
    let values = template.values(&place.name, tree.as_deref());
    let fill = |text: &str| {
        values.iter().fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
    };
    let mut written = Vec::new();
    for (name, text) in template.files {
        let path = folder.join(fill(name));
        let cannot = || format!("{}: cannot be written", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(cannot)?;
        }
        std::fs::write(&path, fill(text)).with_context(cannot)?;
        written.push(path.display().to_string());
    }
    if let Some(lock) = tree.map(|tree| tree.join("Cargo.lock")).filter(|lock| lock.exists()) {
        // The versions that picnic was tested with.
        let path = folder.join("Cargo.lock");
        std::fs::copy(lock, &path).with_context(|| format!("{}", path.display()))?;
        written.push(path.display().to_string());
    }
    if json {
        return output::print_json(&json!({ (template.kind): place.name, "files": written }));
    }
    let (folder, next) = (folder.display(), fill(template.next));
    output::print(&format!("{}\n\nNext:\n  cd {folder}\n  {next}\n", written.join("\n")))
}

fn check_name(name: &str) -> Result<(), Usage> {
    let is_good =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= 32
        && !name.ends_with('-')
        && name.chars().all(is_good);
    // These would be picnic's own, or Rust's.
    let own = registries();
    let taken = own.functions.iter().map(|entry| entry.name);
    let taken = taken.chain(own.tasks.iter().map(|entry| entry.name));
    let taken = taken.chain(own.schedulers.iter().map(|entry| entry.name));
    let mut taken = taken.chain(experiments().map(|entry| entry.name));
    let is_taken = taken.any(|taken| taken == name)
        || ["test", "core", "std", "self", "super", "crate"].contains(&name);
    match (is_name, is_taken) {
        (true, false) => Ok(()),
        (true, true) => Err(Usage(format!("found the name \"{name}\", which is reserved"))),
        (false, _) => Err(Usage(format!(
            "found the name \"{name}\", allowed: a to z, digits and dashes, a letter first, up \
             to 32"
        ))),
    }
}

/// `dns-steer` as a type: `DnsSteer`.
fn type_name(name: &str) -> String {
    let words = name.split('-').filter(|word| !word.is_empty());
    let word = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    words.map(word).collect()
}

/// The place of picnic's crates.
fn source_tree(given: Option<&Path>) -> Result<PathBuf, Usage> {
    let tree = given.unwrap_or(Path::new(BUILT_FROM));
    let found = tree.canonicalize().ok().filter(|tree| tree.join("crates/cli/Cargo.toml").exists());
    found.ok_or_else(|| {
        let tree = tree.display();
        Usage(match given {
            Some(_) => {
                format!("--picnic {tree}: found no crates/cli there, allowed: picnic's source tree")
            }
            None => format!(
                "the source tree that this program was built from does not exist ({tree}); say where \
                 picnic's source tree is: --picnic PATH"
            ),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_made_types() {
        for name in ["steer", "dns-steer", "a1"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "Steer", "1a", "a_b", "a-", "-a", "../a", "rss", "plugin", "test"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!(type_name("dns-steer2"), "DnsSteer2");
        assert_eq!(type_name("a--b"), "AB");
    }

    #[test]
    fn templates_leave_no_marks() {
        for template in [FUNCTION, PROGRAM, C_FUNCTION, TASK, SCHEDULER, EXPERIMENT] {
            let values = template.values("some-name", Some(Path::new("/tree")));
            for (name, text) in template.files {
                let fill = |text: &str| {
                    values
                        .iter()
                        .fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
                };
                let text = fill(text);
                // `$@` of a Makefile is one.
                let words = text.split('@').count();
                assert_eq!(words, text.matches("$@").count() + 1, "{name}: {text}");
                assert!(!fill(name).contains('@'), "{name}");
            }
        }
    }

    /// A template's Cargo.toml has exactly the picnic crates that its text names.
    #[test]
    fn templates_depend_on_the_crates_they_use() {
        for template in [FUNCTION, PROGRAM, TASK, SCHEDULER, EXPERIMENT] {
            let named = |place: &str| -> std::collections::BTreeSet<String> {
                let files = template.files.iter().filter(|(name, _)| name.starts_with(place));
                let words = files.flat_map(|(_, text)| {
                    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                });
                // The static that an object exports is no crate.
                let words = words.filter(|word| *word != picnic_plugin::abi::SYMBOL);
                words.filter_map(|word| word.strip_prefix("picnic_")).map(str::to_owned).collect()
            };
            let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            let (used, depended): (_, std::collections::BTreeSet<String>) =
                (named("src/"), list(template.uses));
            assert_eq!(used, depended, "{}", template.kind);
            let more: Vec<_> = named("tests/").difference(&used).cloned().collect();
            assert_eq!(more, template.tested_with, "{}", template.kind);
        }
    }
}
