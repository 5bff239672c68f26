//! An XDP program wrapped in a few instructions that return to the card's chain after it.
//!
//! The bytes of the object file, in memory, get one function more, in the section of the program:
//!
//! ```c
//! int picnic_guard(struct xdp_md *context)
//! {
//!     int verdict = guard(context), zero = 0;
//!     struct object_state *state = bpf_map_lookup_elem(&OBJECT_STATE, &zero);
//!
//!     if (state) {
//!         state->verdict = verdict;
//!         bpf_tail_call(context, &OBJECTS, RESUME);
//!     }
//!     return verdict;
//! }
//! ```
//!
//! It has the types (BTF) of the program that it calls. The program becomes a static function of
//! the file, so that the verifier follows the call with its knowledge of the arguments. Otherwise
//! it would use the types alone, which may describe a context as `void *`.
//!
//! Guarantees: no instruction of the program itself is changed. The program has its usual rights,
//! except for the last 32 bytes of its stack.
//!
//! Source: elf(5); RFC 9669; Documentation/bpf/btf.rst, section BTF.ext.

use crate::elf::{Elf, SYMBOLS, Section, Symbol};

/// The card's maps for the wrapper, by descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Back {
    /// `OBJECT_STATE`.
    pub(super) state: i32,
    /// `OBJECTS`.
    pub(super) programs: i32,
    /// Index of `resume` there.
    pub(super) resume: u32,
}

/// Size of an instruction, in bytes.
const INSTRUCTION: usize = 8;
/// The section of programs for multi-buffer packets. The chain's programs have one.
const FRAGS: &[u8; 10] = b"xdp.frags\0";

/// The object with a wrapper around one of its programs, and the wrapper's name.
pub(super) fn wrap(object: &[u8], program: &str, back: Back) -> Option<(Vec<u8>, String)> {
    let mut object = Elf(object.to_vec());
    let symbols = object.sections().find(|section| section.kind == SYMBOLS)?;
    let names = object.section(symbols.link)?;
    let count = symbols.size / Symbol::SIZE;
    let symbol = (0..count).find_map(|index| {
        let symbol = Symbol::read(object.get(symbols.offset + index * Symbol::SIZE..)?)?;
        let is_it =
            symbol.kind & 0xf == 2 && object.text(&names, symbol.name)? == program.as_bytes();
        is_it.then_some(symbol)
    })?;
    let code = object.section(symbol.section.into())?;
    let own = instructions(symbol.value as usize, code.size, back);
    let place = (symbol.value as u32, code.size as u32);
    object.clone_types(&code, place)?;
    object.as_one_piece(&code)?;
    let name = format!("picnic_{program}");
    let wrapper = Symbol {
        name: names.size as u32,
        value: code.size as u64,
        size: own.len() as u64,
        ..symbol
    };
    object.append(&code, &own)?;
    object.append(&symbols, &wrapper.bytes())?;
    // It may also be the section of names: nothing in it moves.
    object.append(&object.section(symbols.link)?, &[name.as_bytes(), b"\0"].concat())?;
    Some((object.0, name))
}

/// The wrapper at `place` of the function at `program`, both in bytes.
fn instructions(program: usize, place: usize, back: Back) -> Vec<u8> {
    const LOAD_IMMEDIATE: u8 = 0x18;
    const MOVE_IMMEDIATE: u8 = 0xb7;
    const MOVE: u8 = 0xbf;
    const ADD_IMMEDIATE: u8 = 0x07;
    const STORE_IMMEDIATE: u8 = 0x62;
    const STORE: u8 = 0x63;
    const JUMP_IF_EQUAL: u8 = 0x15;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    /// Source registers: of a call within the program; below, of an immediate that is a map's
    /// descriptor.
    const OWN: u8 = 1 << 4;
    const MAP: u8 = 1 << 4;
    const LOOKUP: i32 = 1;
    const TAIL_CALL: i32 = 12;
    let call = (program as i64).wrapping_sub((place + INSTRUCTION) as i64) / INSTRUCTION as i64 - 1;
    // The context in r6, the verdict in r7.
    let all: [(u8, u8, i16, i32); 18] = [
        (MOVE, 6 | 1 << 4, 0, 0),
        (CALL, OWN, 0, call as i32),
        (MOVE, 7, 0, 0),
        (STORE_IMMEDIATE, 10, -4, 0),
        (MOVE, 2 | 10 << 4, 0, 0),
        (ADD_IMMEDIATE, 2, 0, -4),
        (LOAD_IMMEDIATE, 1 | MAP, 0, back.state),
        (0, 0, 0, 0),
        (CALL, 0, 0, LOOKUP),
        (JUMP_IF_EQUAL, 0, 6, 0),
        (STORE, 7 << 4, 0, 0),
        (MOVE, 1 | 6 << 4, 0, 0),
        (LOAD_IMMEDIATE, 2 | MAP, 0, back.programs),
        (0, 0, 0, 0),
        (MOVE_IMMEDIATE, 3, 0, back.resume as i32),
        (CALL, 0, 0, TAIL_CALL),
        (MOVE, 7 << 4, 0, 0),
        (EXIT, 0, 0, 0),
    ];
    let bytes = all.into_iter().flat_map(|(operation, registers, offset, immediate)| {
        let [low, high] = offset.to_ne_bytes();
        let [a, b, c, d] = immediate.to_ne_bytes();
        [operation, registers, low, high, a, b, c, d]
    });
    bytes.collect()
}

impl Elf {
    /// Copies the type information of a function to the new one.
    fn clone_types(&mut self, code: &Section, (function, place): (u32, u32)) -> Option<()> {
        let (Some(types), Some(info)) = (self.named(".BTF"), self.named(".BTF.ext")) else {
            return Some(());
        };
        let names = self.names()?;
        let name = self.text(&names, code.name)?.to_vec();
        let at = info.offset;
        let header = self.word(at + 4)? as usize;
        let texts = |text: u32| self.type_text(&types, text);
        // It is renamed to the section name for single-buffer packets, which no other section uses
        // then.
        let is_other = |text: u32| name == FRAGS[..9] && texts(text) == Some(b"xdp");
        let mut new = self.get(at..at + header)?.to_vec();
        let (mut body, mut own_type) = (Vec::new(), None);
        // Functions, lines, and last (if present) the relocations by type, which stay.
        for field in [8, 16, 24].into_iter().filter(|field| field + 8 <= header) {
            let start = at + header + self.word(at + field)? as usize;
            let part = self.get(start..start + self.word(at + field + 4)? as usize)?;
            let of_code = |text: u32| texts(text) == Some(&name);
            let part = match field {
                24 => part.to_vec(),
                _ => {
                    let (part, own) = with_record(part, of_code, is_other, function, place)?;
                    own_type = own.filter(|_| field == 8).or(own_type);
                    part
                }
            };
            new[field..field + 4].copy_from_slice(&(body.len() as u32).to_ne_bytes());
            new[field + 4..field + 8].copy_from_slice(&(part.len() as u32).to_ne_bytes());
            body.extend(part);
        }
        new.extend(body);
        if let Some(own_type) = own_type {
            self.make_static(&types, own_type)?;
        }
        self.replace(&info, &new)
    }

    /// Marks a function, itself a type, as called only by its own file.
    fn make_static(&mut self, types: &Section, function: u32) -> Option<()> {
        const FUNCTION: u32 = 12;
        let mut at = types.offset + self.word(types.offset + 4)? as usize;
        at += self.word(types.offset + 8)? as usize;
        // Counted from one.
        for _ in 1..function {
            let info = self.word(at + 4)?;
            let count = (info & 0xffff) as usize;
            // The bytes after the twelve of each type, by its kind.
            at += 12
                + match info >> 24 & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    _ => 0,
                };
        }
        let info = self.word(at + 4)?;
        if info >> 24 & 0x1f == FUNCTION {
            self.set(at + 4, &(info & !0xffff).to_ne_bytes())?;
        }
        Some(())
    }

    /// A text among the types.
    fn type_text(&self, types: &Section, text: u32) -> Option<&[u8]> {
        let texts = types.offset + self.word(types.offset + 4)? as usize;
        let start = texts + self.word(types.offset + 16)? as usize + text as usize;
        self.get(start..types.range().end)?.split(|&byte| byte == 0).next()
    }

    /// Renames a section for multi-buffer packets, in both places of its name.
    fn as_one_piece(&mut self, code: &Section) -> Option<()> {
        let names = self.names()?;
        if self.text(&names, code.name)? != &FRAGS[..9] {
            return Some(());
        }
        let dot = b"xdp".len();
        self.set(names.offset + code.name as usize + dot, b"\0")?;
        let types = self.named(".BTF");
        while let Some(types) = types
            && let Some(at) =
                self.get(types.range())?.windows(FRAGS.len()).position(|it| it == FRAGS)
        {
            self.set(types.offset + at + dot, b"\0")?;
        }
        Some(())
    }
}

/// A part of BTF.ext with one more record for a section, copied from a function, at another place;
/// without the records of other sections. Also returns the record's first word.
fn with_record(
    part: &[u8],
    of_code: impl Fn(u32) -> bool,
    is_other: impl Fn(u32) -> bool,
    function: u32,
    place: u32,
) -> Option<(Vec<u8>, Option<u32>)> {
    let word = |at: usize| Some(u32::from_ne_bytes(*part.get(at..)?.first_chunk()?));
    let (mut new, mut says) = (Vec::new(), None);
    if part.is_empty() {
        return Some((new, says));
    }
    let size = word(0)? as usize;
    new.extend(part.get(..4)?);
    let mut at = 4;
    while at < part.len() {
        let (name, count) = (word(at)?, word(at + 4)?);
        let records = part.get(at + 8..size.checked_mul(count as usize)?.checked_add(at + 8)?)?;
        at += 8 + records.len();
        if is_other(name) {
            continue;
        }
        let own = records
            .chunks(size.max(4))
            .find(|record| record.first_chunk() == Some(&function.to_ne_bytes()))
            .filter(|_| of_code(name));
        let more: Vec<u8> =
            own.map_or_else(Vec::new, |own| [&place.to_ne_bytes(), &own[4..]].concat());
        let first = own.and_then(|own| own.get(4..)?.first_chunk());
        says = first.map(|word| u32::from_ne_bytes(*word)).or(says);
        let count = count + u32::from(own.is_some());
        new.extend([name.to_ne_bytes(), count.to_ne_bytes()].concat());
        new.extend([records, &more].concat());
    }
    Some((new, says))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::OBJECT;
    use proptest::prelude::*;

    const BACK: Back = Back { state: 3, programs: 4, resume: 8 };

    #[test]
    fn wrapping_keeps_the_object_and_adds_a_function() {
        if !crate::is_built() {
            return picnic_testing::skip("wrapping_keeps_the_object_and_adds_a_function", "clang");
        }
        let (wrapped, name) = wrap(OBJECT, "wire_3", BACK).unwrap();
        assert_eq!(name, "picnic_wire_3");
        let [before, after] =
            [OBJECT, &wrapped].map(|bytes| aya_obj::Object::parse(bytes).unwrap());
        assert_eq!(after.programs.len(), before.programs.len() + 1);
        let of = |object: &aya_obj::Object, name: &str| {
            object.functions.values().find(|function| function.name == name).unwrap().clone()
        };
        for name in before.programs.keys() {
            let code = |object| format!("{:?}", of(object, name).instructions);
            assert_eq!(code(&before), code(&after), "{name}");
        }
        let [own, wrapper] = ["wire_3", "picnic_wire_3"].map(|name| of(&after, name));
        assert_eq!(wrapper.section_index, own.section_index);
        assert_eq!(wrapper.instructions.len(), 18);
        // The call leads to the program, whose types are its own.
        let call = wrapper.instructions[1].imm as i64;
        assert_eq!(wrapper.address as i64 + 8 * (call + 2), own.address as i64);
        let types = |function: &aya_obj::Function| {
            function.func_info.func_info.iter().map(|info| info.type_id).collect::<Vec<_>>()
        };
        assert!(!types(&own).is_empty());
        assert_eq!(types(&wrapper), types(&own));
        assert_eq!(wrapper.line_info.line_info.len(), 1);
        assert!(wrap(OBJECT, "no_such", BACK).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_get_an_answer(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            // The header, and the section headers at the end of the file.
            in_header in prop::collection::vec((0..64_usize, any::<u8>()), 0..2),
            end in any::<prop::sample::Index>(),
            is_cut in any::<bool>(),
        ) {
            let mut bytes = OBJECT.to_vec();
            if !bytes.is_empty() {
                changes.iter().for_each(|(place, byte)| { let at = place.index(bytes.len()); bytes[at] = *byte; });
                in_header.iter().for_each(|&(at, byte)| bytes[at] = byte);
                let table = bytes.len() - bytes.len().min(4096);
                changes.iter().for_each(|(place, byte)| { let at = table + place.index(bytes.len() - table); bytes[at] = *byte; });
                if is_cut { bytes.truncate(end.index(bytes.len())); }
            }
            let _ = wrap(&bytes, "wire_0", BACK);
        }
    }
}
