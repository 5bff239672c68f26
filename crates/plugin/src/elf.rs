//! Checks a file before it is loaded: is it a complete shared object for this machine?
//!
//! `dlopen` gives poor errors and crashes on truncated files.
//!
//! Guarantees: any bytes get an answer. Source: elf(5).

/// Checks an object's bytes.
///
/// # Errors
/// They are not a shared object for this machine, or are truncated.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err("found something other than an ELF file, allowed: a shared object".into());
    }
    let (Some(&class), Some(&order)) = (bytes.get(4), bytes.get(5)) else {
        return Err(CUT_SHORT.into());
    };
    let (kind, machine) = (number(bytes, 16, 2)?, number(bytes, 18, 2)?);
    if class != 2 || order != 1 || machine != MACHINE {
        let found = match (class, machine) {
            (1, 62) => "x32 (x86-64 with addresses of 32 bits)".into(),
            (_, 62) => "x86-64".into(),
            (_, 183) => "aarch64".into(),
            (_, 3) => "x86 (32 bits)".into(),
            (_, 40) => "arm (32 bits)".into(),
            (_, 243) => "riscv".into(),
            (_, other) => format!("machine {other}"),
        };
        let here = std::env::consts::ARCH.replace("x86_64", "x86-64");
        return Err(format!("found an object for {found}, allowed: an object for {here}"));
    }
    const SHARED: u64 = 3;
    if kind != SHARED {
        return Err(
            "found an object that is not shared, allowed: an object linked with -shared".into()
        );
    }
    // The mapped segments, and the table that linkers put last.
    let (first, size, count) =
        (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    for index in 0..count {
        let header = first.saturating_add(index * size);
        let header = usize::try_from(header).map_err(|_| CUT_SHORT)?;
        let (offset, length) = (
            number(bytes, header.saturating_add(8), 8)?,
            number(bytes, header.saturating_add(32), 8)?,
        );
        if offset.saturating_add(length) > bytes.len() as u64 {
            return Err(CUT_SHORT.into());
        }
    }
    let sections = number(bytes, 40, 8)?;
    let sections = sections.saturating_add(number(bytes, 58, 2)? * number(bytes, 60, 2)?);
    if sections > bytes.len() as u64 {
        return Err(CUT_SHORT.into());
    }
    Ok(())
}

const CUT_SHORT: &str = "found a truncated object, allowed: a complete one";
/// `e_machine` of this processor; 0 matches no object.
const MACHINE: u64 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    u64::MAX
};

fn number(bytes: &[u8], offset: usize, length: usize) -> Result<u64, String> {
    let field = offset.checked_add(length).and_then(|end| bytes.get(offset..end));
    let field = field.ok_or(CUT_SHORT)?;
    Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn own_program_passes() {
        assert_eq!(check(&own()), Ok(()));
    }

    #[test]
    fn foreign_and_truncated_objects_are_refused() {
        let mut bytes = own();
        bytes[18] = if MACHINE == 183 { 62 } else { 183 };
        let found = check(&bytes).unwrap_err();
        assert!(
            found.starts_with("found an object for ") && found.contains(", allowed: an object for")
        );
        (bytes[4], bytes[18]) = (1, 62);
        assert!(check(&bytes).unwrap_err().starts_with("found an object for x32 "));
        bytes = own();
        bytes[16] = 1;
        assert!(check(&bytes).unwrap_err().contains("-shared"));
        assert!(check(b"#!/bin/sh").unwrap_err().contains("other than an ELF file"));
        let whole = own();
        for length in [4, 17, 63, 100, whole.len() / 2, whole.len() - 1] {
            assert_eq!(check(&whole[..length]), Err(CUT_SHORT.into()), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes);
            let start = b"\x7fELF\x02\x01";
            let length = bytes.len().min(start.len());
            bytes[..length].copy_from_slice(&start[..length]);
            let _ = check(&bytes);
        }
    }
}
