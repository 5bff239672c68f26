//! Users' own XDP objects: refused with the cause, and run unchanged.

use super::frames::frames;
use super::traffic::Bed;
use super::{can_load, launch, parse, shared};
use crate::object::Object;
use crate::plan::plan;
use aya::programs::{TestRun, TestRunOptions};
use picnic_core::function::Function;
use picnic_core::registry::{BuildContext, Entry};
use picnic_core::time::Time;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with objects, removed when dropped.
pub(super) struct Objects(PathBuf);

impl Drop for Objects {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Objects {
    /// The objects of these tests, and the example, compiled; for a test of this name.
    pub(super) fn compile(test: &str) -> Objects {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = std::env::temp_dir().join(format!("picnic-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let objects = Objects(folder);
        for source in [
            "../../examples/objects/guard.bpf.c",
            "src/tests/objects/verdicts.bpf.c",
            "src/tests/objects/untyped.bpf.c",
        ] {
            let source = own.join(source);
            let name = source.file_stem().unwrap().to_string_lossy().replace(".bpf", ".o");
            objects.clang(&["-g", "-target", "bpf"], &source, &name);
        }
        objects
    }

    fn clang(&self, options: &[&str], source: &Path, name: &str) {
        let clang = std::env::var_os("PICNIC_CLANG").unwrap_or_else(|| "clang".into());
        let mut command = Command::new(clang);
        command.args(["-O2", "-c", "-I"]).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf"));
        let output = command.args(options).arg(source).arg("-o").arg(self.path(name)).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A section of the chain that runs an object.
    pub(super) fn section(&self, name: &str, keys: &str) -> String {
        format!("[[rx]]\nobject = \"{}\"\n{keys}\n", self.path(name).display())
    }
}

fn card(rx: &str) -> String {
    format!(
        "[card]\nengine = \"kernel\"\n[[wire]]\nport = \"xdp\"\ninterface = \"lo\"\n{rx}\n\
         [host]\nattachment = \"stack\"\nhandover = \"cpumap\"\nqueues = 2\ntarget_cores = [0, 1]\n"
    )
}

fn refusal(text: &str) -> String {
    launch(&parse(text)).check().map(drop).unwrap_err().to_string()
}

#[test]
fn check_rejects_invalid_objects() {
    if !crate::is_built() {
        return picnic_testing::skip("check_rejects_invalid_objects", "it needs clang");
    }
    let objects = Objects::compile("refused");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guard = own.join("../../examples/objects/guard.bpf.c");
    let source = |name: &str, text: &str| {
        let path = objects.path(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    objects.clang(
        &["-g", "-target", "bpf"],
        &source("none.c", "int f(void) { return 2; }"),
        "none.o",
    );
    objects.clang(&[], &source("native.c", "int f(void) { return 2; }"), "native.o");
    let whole = std::fs::read(objects.path("guard.o")).unwrap();
    std::fs::write(objects.path("cut.o"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(objects.path("text.o"), "int main(void)").unwrap();
    let other_order = if cfg!(target_endian = "little") { "bpfeb" } else { "bpfel" };
    objects.clang(&["-g", "-target", other_order], &guard, "order.o");
    let here = std::env::consts::ARCH.replace("x86_64", "x86-64");
    for (name, keys, message) in [
        (
            "missing.o",
            "",
            "rx[0].object: ".to_owned() + &objects.path("missing.o").to_string_lossy(),
        ),
        ("missing.o", "", "cannot be read: No such file".into()),
        ("", "", "cannot be read: found a folder".into()),
        ("text.o", "", "found something other than an ELF file, allowed: an object".into()),
        ("cut.o", "", "found an object that cannot be read".into()),
        (
            "native.o",
            "",
            format!("found an object for {here}, allowed: an object for BPF (clang -target bpf)"),
        ),
        ("order.o", "", "found an object for BPF of the other byte order".into()),
        ("none.o", "", "found no section of XDP programs, allowed: one or more programs".into()),
        ("verdicts.o", "", "rx[0].program: ".into()),
        (
            "verdicts.o",
            "",
            "found none, allowed: one of shortens, steers, unbounded, verdicts".into(),
        ),
        ("verdicts.o", "program = \"guard\"", "found \"guard\", allowed: shortens".into()),
        ("guard.o", "mark = 5", "mark".into()),
    ] {
        let found = refusal(&card(&objects.section(name, keys)));
        assert!(
            found.starts_with("card:") && found.contains(&message),
            "{found}\nin place of {message}"
        );
    }
    let found = refusal(&card("[[rx]]\nfunction = \"object\"\n"));
    assert!(
        found.contains("rx[0].object: missing, expected the path of an object file"),
        "{found}"
    );
    // Each hand-over and each engine for its own reason.
    let text = card(&objects.section("guard.o", ""));
    let found = refusal(&text.replace("\"cpumap\"", "\"skb\""));
    assert!(found.contains("host.handover: found \"skb\", allowed with"), "{found}");
    let card = parse("[[rx]]\nobject = \"guard.o\"\n");
    let context = BuildContext::default();
    let found = crate::ENTRY.build(&card.rx[0], &context).map(drop).unwrap_err().to_string();
    let wanted = "rx[0].object: found an XDP program, which the kernel runs, allowed: only with";
    assert!(found.contains(wanted), "{found}");
    let Some(bed) = Bed::new("check_rejects_invalid_objects") else { return };
    let wire = format!("\"k0\"\nnamespace = \"{}\"", bed.0.netns("card"));
    launch(&parse(&text.replace("\"lo\"", &wire))).check().unwrap();
}

#[test]
fn verifier_errors_name_their_cause() {
    if !can_load("verifier_errors_name_their_cause") {
        return;
    }
    let objects = Objects::compile("refusal");
    let text = card(&objects.section("verdicts.o", "program = \"unbounded\""));
    let (plan, placement) = plan(&launch(&parse(&text))).unwrap();
    let error = Object::load(&plan, &placement.target_cores, false).map(drop).unwrap_err();
    let error = error.to_string();
    assert_eq!(launch(&parse(&text)).check().map(drop).unwrap_err().to_string(), error);
    assert!(error.starts_with("card:") && error.contains("rx[0].object: "), "{error}");
    assert!(
        error.contains("the verifier refuses unbounded: R1 offset is outside of the packet"),
        "{error}"
    );
    assert!(error.contains("return *(u8 *)(long)context->data;"), "{error}");
    assert!(error.len() < 400, "{error}");
}

/// Between two functions: passed packets continue, with its changes.
#[test]
fn objects_work_as_a_step_of_the_chain() {
    let test = "objects_work_as_a_step_of_the_chain";
    if !can_load(test) {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return picnic_testing::skip(test, "it needs two cores");
    }
    let objects = Objects::compile("step");
    // Verdicts, and the bytes after the chain's metadata.
    let run = |rx: &str, frames: &[Vec<u8>]| -> Vec<(u32, Vec<u8>)> {
        let (plan, placement) = plan(&launch(&parse(&card(rx)))).unwrap();
        let mut object = Object::load(&plan, &placement.target_cores, true).unwrap();
        let _tables = object.tables(&plan).unwrap();
        let program = object.wire(0).unwrap();
        let run = |frame: &Vec<u8>| {
            let mut out = vec![0; frame.len() + 64];
            let mut options = TestRunOptions::new();
            options.data_in = Some(frame);
            options.data_out = Some(&mut out);
            let result = program.test_run(options).unwrap();
            out.truncate(result.data_size_out as usize);
            (result.return_value, out)
        };
        frames.iter().map(run).collect()
    };
    let frames = frames();
    let rss = "[[rx]]\nfunction = \"rss\"\n";
    let guard = objects.section("guard.o", "");
    let alone = run(rss, &frames);
    let pass = "[[rx]]\nfunction = \"pass\"\n";
    assert_eq!(run(&format!("{guard}{pass}{guard}{rss}"), &frames), alone);
    assert_eq!(run(&format!("{rss}{guard}"), &frames), alone);
    let untyped = objects.section("untyped.o", "");
    assert_eq!(run(&format!("{untyped}{rss}"), &frames), alone);
    // The chain after it sees the changed packet.
    let wrapped: Vec<_> =
        frames.iter().map(|frame| [&[7; 14], &frame[..], &[9; 4]].concat()).collect();
    let shortens = objects.section("verdicts.o", "program = \"shortens\"");
    assert_ne!(run(rss, &wrapped), alone);
    assert_eq!(run(&format!("{shortens}{rss}"), &wrapped), alone);
}

#[test]
fn commands_are_explained_and_wrong_arguments_refused() {
    shared::entries_are_explained("function", &[crate::ENTRY]);
    shared::commands_are_explained(&[crate::ENTRY], &BuildContext::default());
}

/// Each with its example, for an object whose map has that entry. The control thread handles them,
/// so they may allocate.
#[test]
fn commands_are_obeyed_as_they_are_declared() {
    if !can_load("commands_are_obeyed_as_they_are_declared") {
        return;
    }
    let objects = Objects::compile("commands");
    let text = card(&objects.section("guard.o", ""));
    let context = BuildContext::default();
    let build = |entry: &Entry<Box<dyn Function>>| {
        let (plan, placement) = plan(&launch(&parse(&text))).unwrap();
        let mut object = Object::load(&plan, &placement.target_cores, false).unwrap();
        let (_, object) = object.take_users().pop().unwrap();
        let mut function: Box<dyn Function> = Box::new(object);
        let update = entry.commands.iter().find(|command| command.name == "update").unwrap();
        let example = serde_json::from_str(update.example).unwrap();
        let mut order = update.prepare(&example, &context).unwrap();
        assert!(function.obey(&mut order, Time::ZERO));
        function
    };
    let done =
        shared::examples_are_obeyed(&[crate::ENTRY], &context, build, |function, order, now| {
            function.obey(order, now)
        });
    let names: Vec<_> = done.iter().map(|(name, _)| &**name).collect();
    let all = ["object.get", "object.dump", "object.lookup", "object.update", "object.delete"];
    assert_eq!(names, all);
}
