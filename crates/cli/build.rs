//! Notes the revision that the binary is built from, for `picnic bench`.

use std::process::Command;

fn main() {
    // Whatever changes the revision or the files of it changes one of these.
    for path in ["HEAD", "logs/HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", path]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    let revision = git(&["describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]);
    println!(
        "cargo::rustc-env=PICNIC_REVISION={}",
        revision.unwrap_or_else(|| "unavailable".into())
    );
}

/// What git says; nothing where there is no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
