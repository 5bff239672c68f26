//! The files of a card: no output destroys another key's file, under any name.

use picnic_core::files::{Files, open};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A private directory, removed at the end.
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
fn outputs_do_not_collide_under_any_name() {
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
    ] {
        let files = Files::default();
        files.of("wire[0]").read("path", &at(first)).unwrap();
        let wrote = files.of("trace").write("path", &at(second));
        assert_eq!(wrote.is_err(), same, "{first} {second}");
        // In the other order, and two outputs.
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
    // An output that cannot exist has no owner.
    let files = Files::default();
    files.of("wire[0]").read("path", &at("nowhere/new")).unwrap();
    files.of("trace").write("path", &at("new")).unwrap();
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

/// An output is written under another name first, which must not be another key's file either.
#[test]
fn partial_outputs_do_not_collide() {
    let folder = Folder::new("part");
    let at = |name: &str| folder.0.join(name);
    std::fs::write(at("out.part"), "input").unwrap();
    std::fs::hard_link(at("in"), at("hard.part")).unwrap();
    symlink("in", at("soft.part")).unwrap();
    symlink("out", at("link")).unwrap();
    for (output, other, same) in [
        ("out", "out.part", true),
        ("link", "out.part", true),
        ("link", "link.part", false),
        ("hard", "in", true),
        ("soft", "in", true),
        ("new", "new.part", true),
        ("new.part", "out", false),
    ] {
        for writes in [false, true] {
            let files = Files::default();
            files.of("trace").write("path", &at(output)).unwrap();
            let wire = files.of("wire[0]");
            let used = match writes {
                true => wire.write("output", &at(other)),
                false => wire.read("path", &at(other)),
            };
            assert_eq!(used.is_err(), same, "{output} {other} {writes}");
        }
        let files = Files::default();
        files.of("wire[0]").read("path", &at(other)).unwrap();
        let wrote = files.of("trace").write("path", &at(output));
        assert_eq!(wrote.is_err(), same, "{output} {other}");
        if let Err(error) = wrote {
            let part = at(if output == "link" { "out" } else { output }).display().to_string();
            let told = format!("found \"{part}.part\", which is read as wire[0].path");
            assert!(error.to_string().contains(&told), "{error}");
        }
    }
    // Anything but a regular file has none.
    let fifo = at("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let files = Files::default();
    files.of("trace").write("path", &fifo).unwrap();
    files.of("wire[0]").write("output", &at("fifo.part")).unwrap();
}

#[test]
fn outputs_are_checked_before_anything_is_written() {
    let folder = Folder::new("made");
    let at = |name: &str| folder.0.join(name);
    std::fs::create_dir(at("sub")).unwrap();
    std::fs::create_dir(at("x.part")).unwrap();
    symlink("nowhere/new", at("dangling")).unwrap();
    let (long, longer) = ("a".repeat(250), "a".repeat(251));
    for (name, why) in [
        ("new", None),
        ("in", None),
        ("sub/new", None),
        (&*long, None),
        (&*longer, Some("cannot be created: File name too long (os error 36)")),
        ("", Some("found a folder, allowed: a file")),
        ("sub", Some("found a folder, allowed: a file")),
        ("sub/..", Some("found a folder, allowed: a file")),
        ("new/", Some("found a folder, allowed: a file")),
        ("x", Some("found a folder, allowed: a file")),
        ("nowhere/new", Some("cannot be created: its folder does not exist")),
        ("in/new", Some("cannot be created: Not a directory (os error 20)")),
        ("a\0b", Some("cannot be created: file name contained an unexpected NUL byte")),
    ] {
        let wrote = Files::default().write("path", &at(name));
        match (wrote, why) {
            (Ok(()), None) => {}
            (Err(error), Some(why)) => assert!(error.to_string().ends_with(why), "{error}"),
            (wrote, _) => panic!("{name}: {wrote:?}"),
        }
    }
    assert!(Files::default().write("path", Path::new("")).is_err());
    let error = Files::default().write("path", &at("dangling")).unwrap_err();
    assert!(error.to_string().ends_with("its folder does not exist"), "{error}");
}

/// A file that did not exist when it was named may have been created since, or replaced.
#[test]
fn files_created_meanwhile_keep_their_key() {
    let folder = Folder::new("meanwhile");
    let at = |name: &str| folder.0.join(name);
    let files = Files::default();
    files.of("control").bind("socket", &at("new")).unwrap();
    files.of("trace").write("path", &at("trace")).unwrap();
    files.of("wire[0]").read("path", &at("in")).unwrap();
    for name in ["new", "trace.part"] {
        std::fs::write(at(name), "made").unwrap();
    }
    std::fs::rename(at("new"), at("in")).unwrap();
    std::fs::write(at("new"), "made again").unwrap();
    for name in ["new", "trace", "trace.part", "in"] {
        let used = files.of("wire[1]").write("output", &at(name));
        assert!(used.is_err(), "{name}");
    }
    // A socket is final from the first moment on.
    files.of("wire[1]").write("output", &at("new.part")).unwrap();
}

#[test]
fn cards_built_again_keep_their_files() {
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
fn files_that_could_block_are_not_opened() {
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
