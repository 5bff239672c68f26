//! Users' XDP object files: any bytes get an additional function or are refused.

use picnic_kernel::wrapped;
use std::path::Path;
use std::process::Command;

/// Adds the code that returns to the chain after the program `guard`.
pub fn run(data: &[u8]) {
    if let Some((bytes, name)) = wrapped(data, "guard") {
        assert_eq!(name, "picnic_guard");
        assert!(bytes.len() > data.len(), "nothing was put into it");
    }
}

/// The object files of the examples, if there is a clang to compile them.
///
/// # Panics
/// The folder cannot be created.
pub fn seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder for the objects");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/objects");
    let sources = std::fs::read_dir(&examples).expect("the folder of examples");
    let sources = sources.filter_map(|entry| Some(entry.ok()?.path()));
    let sources = sources.filter(|path| path.extension().is_some_and(|kind| kind == "c"));
    let compiled = sources.filter_map(|source| {
        let object = folder.path().join("seed.o");
        let mut clang = Command::new("clang");
        clang.args(["-target", "bpf", "-O2", "-g", "-c", "-o"]).arg(&object).arg(&source);
        let done = clang.arg("-I").arg(&examples).output().ok()?;
        done.status.success().then(|| std::fs::read(&object).ok()).flatten()
    });
    compiled.collect()
}
