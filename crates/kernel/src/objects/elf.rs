//! A look at an object file before it is loaded: which XDP program is it about?
//!
//! Guarantees: any bytes get an answer. Source: elf(5).

use aya_obj::programs::XdpAttachType;
use aya_obj::{Object, ProgramSection};

/// `e_machine` of BPF.
const BPF: u16 = 247;

/// The name of the program that is wanted of an object's bytes: this one, or the only one there is.
///
/// # Errors
/// The key that is wrong, and what is wrong with it.
pub(super) fn program_of(
    bytes: &[u8],
    wanted: Option<&str>,
) -> Result<String, (&'static str, String)> {
    let wrong = |message: String| ("object", message);
    machine(bytes).map_err(wrong)?;
    let object = Object::parse(bytes).map_err(|error| {
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
        let allowed = "one program or more in SEC(\"xdp\")";
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

/// Whether the bytes are an object for BPF, of this machine's byte order.
fn machine(bytes: &[u8]) -> Result<(), String> {
    let (true, Some(&[class, order]), Some(&machine)) = (
        bytes.starts_with(b"\x7fELF"),
        bytes.get(4..6).and_then(<[u8]>::as_array),
        bytes.get(18..20).and_then(<[u8]>::as_array),
    ) else {
        return Err(
            "found no object file, allowed: an ELF file, as made by clang -target bpf".into()
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
    Err(format!("found an object for {found}, allowed: one for BPF (clang -target bpf)"))
}
