//! Reads and changes object files in memory.
//!
//! Guarantees: any bytes get an answer; `None` for a truncated file.
//!
//! Source: elf(5).

use std::ops::Range;

/// `sh_type` of a symbol table; below, of relocations without addends.
pub(crate) const SYMBOLS: u32 = 2;
pub(crate) const RELOCATIONS: u32 = 9;

/// Relocation type of a 64-bit immediate, such as a map.
const IMMEDIATE: u32 = 1;

/// An object whose programs use existing maps, by these names and descriptors. Variables are in the
/// map of their section.
pub(crate) fn share(object: &[u8], maps: &[(&str, i32)]) -> Option<Vec<u8>> {
    /// Source register of an immediate that is a map's descriptor; below, of a place in its only
    /// element.
    const MAP: u8 = 1 << 4;
    const PLACE: u8 = 2 << 4;
    let mut object = Elf(object.to_vec());
    let all: Vec<_> = object.sections().filter(|section| section.kind == RELOCATIONS).collect();
    for section in all {
        let (symbols, code) = (object.section(section.link)?, object.section(section.info)?);
        let names = object.section(symbols.link)?;
        let entries = object.get(section.range())?.to_vec();
        let mut kept = Vec::new();
        for entry in entries.as_chunks::<16>().0 {
            let (at, info) = entry.split_at(8);
            let at = usize::try_from(u64::from_ne_bytes(at.try_into().ok()?)).ok()?;
            let info = u64::from_ne_bytes(info.try_into().ok()?);
            let symbol = symbols.offset + (info >> 32) as usize * Symbol::SIZE;
            let symbol = Symbol::read(object.get(symbol..)?)?;
            let name = object.text(&names, symbol.name)?;
            let section = object.section(symbol.section.into()).zip(object.names());
            let section = section.and_then(|(of, names)| object.text(&names, of.name));
            let is_variable = |shared: &[u8]| section == Some(shared);
            let shared = maps
                .iter()
                .find(|(shared, _)| shared.as_bytes() == name || is_variable(shared.as_bytes()));
            let Some((_, map)) = shared.filter(|_| info as u32 == IMMEDIATE) else {
                kept.extend(entry);
                continue;
            };
            let at = code.offset.checked_add(at)?;
            let kind = match shared {
                Some((shared, _)) if is_variable(shared.as_bytes()) => {
                    let place =
                        u32::try_from(symbol.value).ok()?.checked_add(object.word(at + 4)?)?;
                    object.set(at + 12, &place.to_ne_bytes())?;
                    PLACE
                }
                _ => MAP,
            };
            let registers = object.get(at + 1..at + 2)?[0] & 0xf | kind;
            object.set(at + 1, &[registers])?;
            object.set(at + 4, &map.to_ne_bytes())?;
        }
        object.set(section.offset, &kept)?;
        object.set(section.header + 32, &(kept.len() as u64).to_ne_bytes())?;
    }
    Some(object.0)
}

/// The used fields of a section's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) header: usize,
    pub(crate) name: u32,
    pub(crate) kind: u32,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) link: usize,
    pub(crate) info: usize,
}

impl Section {
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.size)
    }
}

/// An entry of the symbol table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    pub(crate) kind: u8,
    pub(crate) other: u8,
    pub(crate) section: u16,
    pub(crate) value: u64,
    pub(crate) size: u64,
}

impl Symbol {
    pub(crate) const SIZE: usize = 24;

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Symbol {
            name: u32::from_ne_bytes(*bytes.first_chunk()?),
            kind: *bytes.get(4)?,
            other: *bytes.get(5)?,
            section: u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?),
            value: u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
            size: u64::from_ne_bytes(*bytes.get(16..)?.first_chunk()?),
        })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Symbol { name, kind, other, section, value, size } = self;
        let mut bytes = name.to_ne_bytes().to_vec();
        bytes.extend([*kind, *other]);
        bytes.extend(section.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes
    }
}

/// A 64-bit object file in this machine's byte order.
pub(crate) struct Elf(pub(crate) Vec<u8>);

impl Elf {
    pub(crate) fn get(
        &self,
        range: impl std::slice::SliceIndex<[u8], Output = [u8]>,
    ) -> Option<&[u8]> {
        self.0.get(range)
    }

    fn half(&self, at: usize) -> Option<usize> {
        Some(u16::from_ne_bytes(*self.get(at..)?.first_chunk()?).into())
    }

    pub(crate) fn word(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.get(at..)?.first_chunk()?))
    }

    pub(crate) fn long(&self, at: usize) -> Option<usize> {
        usize::try_from(u64::from_ne_bytes(*self.get(at..)?.first_chunk()?)).ok()
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) -> Option<()> {
        self.0.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
        Some(())
    }

    pub(crate) fn section(&self, index: usize) -> Option<Section> {
        let header = self.long(40)?.checked_add(index.checked_mul(self.half(58)?)?)?;
        // Whole, so offsets computed from here on are in the file, or next to it.
        self.get(header..header.checked_add(64)?)?;
        let section = Section {
            header,
            name: self.word(header)?,
            kind: self.word(header + 4)?,
            offset: self.long(header + 24)?,
            size: self.long(header + 32)?,
            link: self.word(header + 40)? as usize,
            info: self.word(header + 44)? as usize,
        };
        self.get(section.range()).map(|_| section)
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = Section> {
        (0..self.half(60).unwrap_or_default()).filter_map(|index| self.section(index))
    }

    /// The table of section names.
    pub(crate) fn names(&self) -> Option<Section> {
        self.section(self.half(62)?)
    }

    /// A text of a string table.
    pub(crate) fn text(&self, table: &Section, at: u32) -> Option<&[u8]> {
        self.get(table.range())?.get(at as usize..)?.split(|&byte| byte == 0).next()
    }

    pub(crate) fn named(&self, name: &str) -> Option<Section> {
        let names = self.names()?;
        self.sections().find(|section| self.text(&names, section.name) == Some(name.as_bytes()))
    }

    /// Replaces a section's bytes with others, at the end of the file.
    pub(crate) fn replace(&mut self, section: &Section, bytes: &[u8]) -> Option<()> {
        let offset = self.0.len().next_multiple_of(16);
        self.0.resize(offset, 0);
        self.0.extend(bytes);
        self.set(section.header + 24, &(offset as u64).to_ne_bytes())?;
        self.set(section.header + 32, &(bytes.len() as u64).to_ne_bytes())
    }

    pub(crate) fn append(&mut self, section: &Section, more: &[u8]) -> Option<()> {
        let bytes = [self.get(section.range())?, more].concat();
        self.replace(section, &bytes)
    }
}
