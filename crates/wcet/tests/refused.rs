//! Sources that must not compile, with line and text of each error.
//!
//! Files in `tests/refused` mark their lines: `//~ WORDS` expects an error on that line whose
//! message contains these words. No other error may occur. The files are compiled by `rustc` alone,
//! against the library that this test was built with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Definitions for these files: a task context and a few functions.
const PRELUDE: &str = "tests/refused/prelude.in";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds of this library, newest first; old ones may remain, and other builds replace them.
fn libraries() -> Vec<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libpicnic_wcet-") && name.ends_with(".rlib")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    assert!(!found.is_empty(), "no library in {}", folder.display());
    found.into_iter().map(|(_, path)| path).collect()
}

fn compile(source: &Path, format: &str) -> String {
    let mut said = String::new();
    let folder = tempfile::tempdir().unwrap();
    for library in libraries() {
        let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
            .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "-o"])
            // Never a device: the compiler would replace it with its output.
            .arg(folder.path().join("refused.rmeta"))
            .arg(format!("--error-format={format}"))
            .arg(format!("--extern=picnic_wcet={}", library.display()))
            .arg(format!("-Ldependency={}", library.parent().unwrap().display()))
            .env("PICNIC_PRELUDE", root().join(PRELUDE))
            .arg(source)
            .output()
            .expect("rustc");
        said = String::from_utf8(output.stderr).unwrap();
        // A library whose dependencies are from another build proves nothing about the source.
        if !said.contains("E0460") && !said.contains("E0463") && !said.contains("E0786") {
            return said;
        }
    }
    panic!("no library fits: {said}");
}

/// Errors by line.
fn errors(source: &Path) -> BTreeMap<usize, Vec<String>> {
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for line in compile(source, "short").lines() {
        let Some((place, message)) = line.split_once(": error") else { continue };
        let place = place.strip_prefix(source.to_str().unwrap());
        let number = place.and_then(|place| place.trim_start_matches(':').split(':').next());
        let number = number.and_then(|number| number.parse().ok()).unwrap_or(0);
        found.entry(number).or_default().push(message.into());
    }
    found
}

fn check(name: &str) {
    let source = root().join("tests/refused").join(name);
    let text = std::fs::read_to_string(&source).unwrap();
    let found = errors(&source);
    let mut wrong = Vec::new();
    let mut wanted = 0;
    for (place, line) in text.lines().enumerate() {
        let told = found.get(&(place + 1)).map_or(&[][..], Vec::as_slice);
        let marks: Vec<_> = line.split("//~ ").skip(1).map(str::trim).collect();
        wanted += marks.len();
        for mark in &marks {
            if !told.iter().any(|message| message.contains(mark)) {
                wrong.push(format!("{name}:{}: wanted `{mark}`, found {told:?}", place + 1));
            }
        }
        if told.len() > marks.len() {
            wrong.push(format!("{name}:{}: found {told:?}, wanted {marks:?}", place + 1));
        }
    }
    if let Some(elsewhere) = found.get(&0) {
        wrong.push(format!("{name}: {elsewhere:?}"));
    }
    assert!(wanted != 0, "{name} marks no line");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

macro_rules! refused {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(concat!(stringify!($name), ".rs")); })*

        /// Each file has a test.
        #[test]
        fn no_file_is_forgotten() {
            let mut files: Vec<_> = std::fs::read_dir(root().join("tests/refused")).unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
                .collect();
            files.sort();
            let mut tests = vec![$(stringify!($name).to_owned()),*];
            tests.sort();
            assert_eq!(files, tests);
        }
    };
}

refused! { loops bounds signatures calls unknown recursion mutual_recursion awaits times }

#[test]
fn unknown_calls_are_reported_with_a_remedy() {
    let said = compile(&root().join("tests/refused/unknown.rs"), "human");
    assert!(said.contains("put `#[bounded]` on the called function"), "{said}");
}

#[test]
fn correct_sources_compile_without_warnings() {
    let said = compile(&root().join("tests/accepted/accepted.rs"), "short");
    assert_eq!(said, "");
}
