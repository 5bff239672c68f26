//! Records the revision that the binary is built from, for `picnic bench`, and writes out the Rust
//! templates of `picnic new`, for the tests.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    // Any change of the revision changes one of these, and any change of the program its sources. Not
    // git's index: reading it may write it, and each later build would begin here again.
    for path in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", path]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for packages in ["../../crates", "../../apps"] {
        for package in fs::read_dir(packages).into_iter().flatten() {
            println!("cargo::rerun-if-changed={}/src", package?.path().display());
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    let revision = git(&["describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]);
    println!(
        "cargo::rustc-env=PICNIC_REVISION={}",
        revision.unwrap_or_else(|| "unavailable".into())
    );
    println!("cargo::rerun-if-changed=templates");
    let out = Path::new(&std::env::var("OUT_DIR")?).join("templates.rs");
    Ok(fs::write(out, templates()?)?)
}

/// The line of a fuzz target that includes the source of its function.
const SOURCE: &str = "#[path = \"../../src/lib.rs\"]";

/// The library, program, tests and fuzz target of each Rust template, as modules of one file.
fn templates() -> Result<String, Box<dyn Error>> {
    let here = std::env::var("CARGO_MANIFEST_DIR")?;
    let mut text = String::new();
    let mut kinds = fs::read_dir("templates")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>, std::io::Error>>()?;
    kinds.sort();
    for folder in kinds.iter().filter(|folder| folder.join("lib.rs.in").exists()) {
        let kind = folder.file_name().and_then(|name| name.to_str()).ok_or("a name")?;
        let initial = kind[..1].to_uppercase();
        let values = [
            ("@name@", format!("own-{kind}")),
            ("@ident@", format!("own_{kind}")),
            ("@Type@", format!("Own{initial}{}", &kind[1..])),
            ("@picnic@", format!("{here}/../..")),
        ];
        for (suffix, file) in
            [("", "lib"), ("_main", "main"), ("_tests", "tests"), ("_fuzz", "fuzz")]
        {
            let path = folder.join(format!("{file}.rs.in"));
            if !path.exists() {
                continue;
            }
            let source = fs::read_to_string(path)?;
            // Comments on a whole file must be at its start.
            let lines = source.lines().filter(|line| !line.starts_with("//!"));
            // A program without `main`, with its function's source, which here is next to it.
            let lines = lines.filter(|line| !["#![no_main]", SOURCE].contains(line));
            let lines = lines.map(|line| match line {
                "mod function;" => "use super::own_@kind@ as function;",
                line => line,
            });
            let source = lines.collect::<Vec<_>>().join("\n").replace("@kind@", kind);
            let fill = |text: String, (mark, value): &(&str, String)| text.replace(mark, value);
            let source = values.iter().fold(source, fill);
            let of = match suffix {
                "" => String::new(),
                "_fuzz" => "use super::libfuzzer_sys;\n".into(),
                _ => format!("use super::own_{kind};\n"),
            };
            write!(text, "mod own_{kind}{suffix} {{\n{of}{source}\n}}\n")?;
        }
    }
    Ok(text)
}

/// Output of git; none without a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
