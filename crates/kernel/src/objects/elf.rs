//! Finds the XDP program in an object file before it is loaded.
//!
//! Guarantees: any bytes get an answer. Source: elf(5).

use aya_obj::programs::XdpAttachType;
use aya_obj::{Object, ProgramSection};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `e_machine` of BPF.
const BPF: u16 = 247;

/// The name of the wanted program in an object's bytes: this one, or the only one.
///
/// # Errors
/// The wrong key, and the reason.
pub(super) fn program_of(
    bytes: &[u8],
    wanted: Option<&str>,
) -> Result<String, (&'static str, String)> {
    let wrong = |message: String| ("object", message);
    machine(bytes).map_err(wrong)?;
    let object = not_panicking(|| Object::parse(bytes)).ok_or_else(|| wrong(OUTSIDE.into()))?;
    let object = object.map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        wrong(format!("found an object that cannot be read: {error}{}", source.unwrap_or_default()))
    })?;
    let is_ours = |section: &ProgramSection| {
        matches!(section, ProgramSection::Xdp { attach_type: XdpAttachType::Interface, .. })
    };
    let found = object.programs.iter().filter(|(_, program)| is_ours(&program.section));
    let mut names: Vec<_> = found.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if names.is_empty() {
        let allowed = "one or more programs in SEC(\"xdp\")";
        return Err(wrong(format!("found no section of XDP programs, allowed: {allowed}")));
    }
    let names_shown = names.join(", ");
    match (wanted, &names[..]) {
        (Some(wanted), _) if names.contains(&wanted) => Ok(wanted.into()),
        (Some(wanted), _) => {
            Err(("program", format!("found \"{wanted}\", allowed: {names_shown}")))
        }
        (None, [only]) => Ok((*only).into()),
        (None, _) => Err(("program", format!("found none, allowed: one of {names_shown}"))),
    }
}

/// The error for an object that makes its reader panic.
pub(super) const OUTSIDE: &str = "found an object that points outside itself";

/// The result of an object reader; none if it panics, as `aya-obj` does for types that point
/// outside the file.
pub(super) fn not_panicking<T>(read: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(read)).ok()
}

/// Checks that the bytes are a BPF object in this machine's byte order.
fn machine(bytes: &[u8]) -> Result<(), String> {
    let (true, Some(&[class, order]), Some(&machine)) = (
        bytes.starts_with(b"\x7fELF"),
        bytes.get(4..6).and_then(<[u8]>::as_array),
        bytes.get(18..20).and_then(<[u8]>::as_array),
    ) else {
        return Err(
            "found something other than an ELF file, allowed: an object made by clang -target bpf"
                .into(),
        );
    };
    let (little, big) = (u16::from_le_bytes(machine), u16::from_be_bytes(machine));
    let machine = if order == 1 { little } else { big };
    let own = if cfg!(target_endian = "little") { 1 } else { 2 };
    if (class, machine) == (2, BPF) && order == own {
        return Ok(());
    }
    let found = match machine {
        BPF => "BPF of the other byte order".into(),
        62 => "x86-64".into(),
        183 => "aarch64".into(),
        other => format!("machine {other}"),
    };
    Err(format!("found an object for {found}, allowed: an object for BPF (clang -target bpf)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Elf;
    use crate::object::OBJECT;

    #[test]
    fn an_object_that_points_outside_itself_is_refused() {
        if !crate::is_built() {
            return picnic_testing::skip(
                "an_object_that_points_outside_itself_is_refused",
                "clang",
            );
        }
        assert_eq!(program_of(OBJECT, Some("wire_0")).as_deref(), Ok("wire_0"));
        let mut object = Elf(OBJECT.to_vec());
        let types = object.named(".BTF.ext").unwrap();
        // Number of functions listed for the first section.
        let header = object.word(types.offset + 4).unwrap() as usize;
        let functions = types.offset + header + object.word(types.offset + 8).unwrap() as usize;
        object.set(functions + 8, &0x00ff_ffff_u32.to_ne_bytes()).unwrap();
        assert_eq!(program_of(&object.0, Some("wire_0")), Err(("object", OUTSIDE.into())));
    }
}
