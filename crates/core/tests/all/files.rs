//! The files of a card: no output destroys what another key names, whatever it is called there.

use picnic_core::files::{Files, open};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder of its own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("picnic-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("in"), "input").unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn an_output_is_no_other_keys_file_by_whatever_name() {
    let folder = Folder::new("names");
    let at = |name: &str| folder.0.join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::hard_link(at("in"), at("hard")).unwrap();
    symlink("in", at("soft")).unwrap();
    symlink("soft", at("sub/again")).unwrap();
    symlink("../in", at("sub/up")).unwrap();
    symlink("../new", at("sub/dangling")).unwrap();
    for (first, second, same) in [
        ("in", "in", true),
        ("in", "sub/../in", true),
        ("in", "hard", true),
        ("in", "soft", true),
        ("in", "sub/up", true),
        ("new", "new", true),
        ("new", "./sub/../new", true),
        ("new", "sub/dangling", true),
        ("in", "new", false),
        ("new", "sub/new", false),
        ("sub/again", "in", false),
        ("nowhere/new", "new", false),
    ] {
        let files = Files::default();
        files.of("wire[0]").read("path", &at(first)).unwrap();
        let wrote = files.of("trace").write("path", &at(second));
        assert_eq!(wrote.is_err(), same, "{first} {second}");
        // The other way about, and two outputs.
        for writes in [false, true] {
            let files = Files::default();
            files.of("trace").write("path", &at(second)).unwrap();
            let wire = files.of("wire[0]");
            let used = match writes {
                true => wire.write("output", &at(first)),
                false => wire.read("path", &at(first)),
            };
            assert_eq!(used.is_err(), same, "{first} {second}");
        }
    }
    let files = Files::default();
    files.of("wire[0]").read("path", &at("in")).unwrap();
    // Two may read a file.
    files.of("wire[1]").read("path", &at("soft")).unwrap();
    let error = files.of("trace").write("path", &at("hard")).unwrap_err();
    let (found, file) = (error.to_string(), at("hard"));
    let told = format!(
        "found \"{}\", which is read as wire[0].path; allowed: another file",
        file.display()
    );
    assert!(found.contains(&told), "{found}");
}

#[test]
fn a_card_that_is_built_again_has_its_own_files() {
    let folder = Folder::new("again");
    let files = Files::default();
    for _ in 0..2 {
        files.of("wire[0]").read("path", &folder.0.join("in")).unwrap();
        files.of("wire[0]").write("output", &folder.0.join("out")).unwrap();
        files.of("wire[1]").write("output", Path::new("/dev/null")).unwrap();
        files.of("trace").write("path", Path::new("/dev/null")).unwrap();
    }
}

#[test]
fn what_must_be_waited_for_is_not_opened() {
    let folder = Folder::new("fifo");
    let fifo = folder.0.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let refused = |path: &Path| open(path).unwrap_err().to_string();
    assert_eq!(refused(&fifo), "found a FIFO, allowed: a file");
    assert_eq!(refused(&folder.0), "found a folder, allowed: a file");
    assert_eq!(refused(Path::new("/dev/zero")), "found a device, allowed: a file");
    assert!(open(&folder.0.join("in")).is_ok());
}
