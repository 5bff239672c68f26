//! `picnic new`: a function of one's own, to start from.

use crate::failure::Usage;
use crate::output;
use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  picnic new function steer --lang c && cd steer && make test
  picnic new function steer --lang rust && cd steer && cargo test

The C form is a shared object, and needs nothing but a compiler. The Rust form is a program of its
own with the whole command line; it is built against picnic's source tree.
docs/plugins.md goes on from there.")]
pub(crate) struct NewArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A NIC function, with its tests and a card that runs it
    Function(FunctionArgs),
}

#[derive(Debug, Args)]
struct FunctionArgs {
    /// Its name: a to z, digits and dashes, a letter first
    name: String,
    /// What it is written in
    #[arg(long, value_enum)]
    lang: Language,
    /// The folder to create [default: the name]
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
    /// For rust: picnic's source tree [default: the one this program was built from]
    #[arg(long, value_name = "PATH")]
    picnic: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Language {
    /// A program with picnic's command line
    Rust,
    /// A shared object
    C,
}

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $path, ".in"))
    };
}

/// What is written: the file, and its text.
const RUST: [(&str, &str); 5] = [
    ("Cargo.toml", template!("rust/Cargo.toml")),
    ("src/lib.rs", template!("rust/lib.rs")),
    ("src/main.rs", template!("rust/main.rs")),
    ("tests/function.rs", template!("rust/tests.rs")),
    ("card.toml", template!("card.toml")),
];
const C: [(&str, &str); 5] = [
    ("@name@.c", template!("c/function.c")),
    ("test.c", template!("c/test.c")),
    ("Makefile", template!("c/Makefile")),
    ("picnic_function.h", picnic_plugin::HEADER),
    ("card.toml", template!("card.toml")),
];

/// The source tree that this program was built from.
const BUILT_FROM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn run(args: &NewArgs, json: bool) -> anyhow::Result<()> {
    let What::Function(args) = &args.what;
    check_name(&args.name)?;
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    if folder.exists() {
        let message = format!("{}: is there already, allowed is a new folder", folder.display());
        return Err(Usage(message).into());
    }
    let (files, kind, named) = match args.lang {
        Language::Rust => (RUST, "function", args.name.clone()),
        Language::C => (C, "plugin", format!("{}.so", args.name)),
    };
    let tree = match args.lang {
        Language::Rust => Some(source_tree(args.picnic.as_deref())?),
        Language::C => None,
    };
    let values = [
        ("@name@", args.name.clone()),
        ("@ident@", args.name.replace('-', "_")),
        ("@Type@", type_name(&args.name)),
        ("@kind@", kind.into()),
        ("@named@", named),
        ("@picnic@", tree.as_ref().map_or_else(String::new, |tree| tree.display().to_string())),
    ];
    let fill = |text: &str| {
        values.iter().fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
    };
    let mut written = Vec::new();
    for (name, text) in files {
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
        return output::print_json(&json!({ "function": args.name, "files": written }));
    }
    let folder = folder.display();
    let next = match args.lang {
        Language::Rust => "cargo test\n  cargo run -- run card.toml --duration 5",
        Language::C => "make test\n  picnic run card.toml --duration 5",
    };
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
    let is_taken = crate::registries::registries().functions.iter().any(|entry| entry.name == name)
        || ["test", "core", "std", "self", "super", "crate"].contains(&name);
    match (is_name, is_taken) {
        (true, false) => Ok(()),
        (true, true) => Err(Usage(format!("found the name \"{name}\", which is taken"))),
        (false, _) => Err(Usage(format!(
            "found the name \"{name}\", allowed are a to z, digits and dashes, a letter first, up \
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

/// Where picnic's crates are.
fn source_tree(given: Option<&Path>) -> Result<PathBuf, Usage> {
    let tree = given.unwrap_or(Path::new(BUILT_FROM));
    let found = tree.canonicalize().ok().filter(|tree| tree.join("crates/cli/Cargo.toml").exists());
    found.ok_or_else(|| {
        let tree = tree.display();
        Usage(match given {
            Some(_) => format!(
                "--picnic {tree}: found no crates/cli there, allowed is picnic's source tree"
            ),
            None => format!(
                "the source tree that this program was built from is gone ({tree}); say where \
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
    fn no_mark_is_left_in_what_is_written() {
        let marks = ["@name@", "@ident@", "@Type@", "@kind@", "@named@", "@picnic@"];
        for (name, text) in RUST.iter().chain(&C) {
            let left = marks.iter().fold(text.to_string(), |text, mark| text.replace(mark, ""));
            let words = left.split('@').count();
            // `$@` of a Makefile is one.
            let allowed = left.matches("$@").count() + 1;
            assert_eq!(words, allowed, "{name}");
        }
    }
}
