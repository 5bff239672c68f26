//! The fuzz targets and their initial inputs.
//!
//! ```text
//! make fuzz SECONDS=600 TARGETS="rss card"     libFuzzer, on stable Rust
//! cargo +nightly fuzz run rss                  the same targets, under cargo-fuzz
//! ```
//!
//! A target is a module with `run` (the claims, as assertions) and `seeds` (inputs made by code, so
//! that no binary file is kept in the repository). Inputs that libFuzzer finds are kept in
//! `corpus/TARGET`, also outside the repository. An input that caused a failure becomes a line of
//! hex in `regressions/TARGET.txt`, and every run starts with it.

#![forbid(unsafe_code)]

use std::path::Path;

pub mod arena;
pub mod bond;
pub mod capture;
pub mod card;
pub mod channel;
pub mod classifier;
pub mod components;
pub mod control;
pub mod descriptor;
pub mod front_end;
pub mod functions;
pub mod headers;
pub mod object;
pub mod plugin;
pub mod rss;
pub mod sciron;
pub mod storm;
pub mod vhost;

pub use picnic_engine::trial::frames;

/// Writes a target's seeds and regressions to its corpus.
///
/// # Panics
/// The folder cannot be written, or a regression is not hex.
pub fn plant(target: &str, seeds: &[Vec<u8>]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("corpus").join(target);
    std::fs::create_dir_all(&folder).expect("cannot make the corpus folder");
    let put = |name: String, input: &[u8]| {
        std::fs::write(folder.join(name), input).expect("cannot write to the corpus folder");
    };
    for (index, seed) in seeds.iter().enumerate() {
        put(format!("seed-{index}"), seed);
    }
    let list = root.join("regressions").join(format!("{target}.txt"));
    let Ok(text) = std::fs::read_to_string(list) else { return };
    for (index, line) in regressions(&text).enumerate() {
        let input = from_hex(line).unwrap_or_else(|| panic!("{target}.txt: no hex: {line}"));
        put(format!("regression-{index}"), &input);
    }
}

/// The inputs in a regression file; `#` starts a comment.
fn regressions(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .filter(|line| !line.is_empty())
}

/// Decodes hex digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let digits = std::str::from_utf8(pair).ok().filter(|digits| digits.len() == 2)?;
            u8::from_str_radix(digits, 16).ok()
        })
        .collect()
}
