//! The card's arena: boundary tags compared with the list of allocations.
//!
//! Three bytes make a step: an operation and a number. Claims: no two blocks overlap, none moves or
//! changes, tags stay intact, nothing is freed twice, and once everything is freed the arena is one
//! piece.

use picnic_os::alloc::Allocator;
use picnic_os::alloc::boundary_tag::BoundaryTag;
use std::collections::BTreeMap;

/// Bytes of the arena.
const ARENA: usize = 8 << 10;

/// Initial inputs: fill and empty, aligned blocks, foreign pointers.
pub fn seeds() -> Vec<Vec<u8>> {
    let step = |what: u8, number: u16| [what, number as u8, (number >> 8) as u8];
    vec![
        (0..40).flat_map(|number| step(0, number * 13)).collect(),
        (0..90).flat_map(|number| step((number % 3) as u8, number * 57)).collect(),
        (0..60).flat_map(|number| step((number % 8) as u8, number * 301)).collect(),
    ]
}

/// Takes the steps.
///
/// # Panics
/// A claim does not hold.
pub fn run(data: &[u8]) {
    let mut arena = vec![0; ARENA];
    let mut allocator = BoundaryTag::default();
    allocator.reset(&mut arena);
    let whole = allocator.figures(&arena);
    let mut given = BTreeMap::<usize, (usize, u8)>::new();
    for (letter, step) in data.as_chunks::<3>().0.iter().enumerate() {
        let number = usize::from(u16::from_le_bytes([step[1], step[2]]));
        match step[0] % 8 {
            // Small ones more often than large ones, with any alignment.
            kind @ (0 | 3 | 4 | 6) => {
                let bytes = number % [64, 512, 4096, ARENA + 64][usize::from(kind) / 2];
                let align = 1 << (step[0] / 8 % 13);
                let Some(place) = allocator.allocate(&mut arena, bytes, align) else { continue };
                assert_eq!(place % align, 0);
                assert!(place + bytes <= ARENA);
                let before = given.range(..=place).next_back();
                assert!(before.is_none_or(|(&at, &(bytes, _))| at < place && at + bytes <= place));
                assert!(given.range(place..).next().is_none_or(|(&at, _)| place + bytes <= at));
                arena[place..place + bytes].fill(letter as u8);
                given.insert(place, (bytes, letter as u8));
            }
            1 | 2 | 7 => {
                let Some((&place, &(bytes, letter))) =
                    given.iter().nth(number % given.len().max(1))
                else {
                    continue;
                };
                assert!(arena[place..place + bytes].iter().all(|&byte| byte == letter));
                assert!(allocator.free(&mut arena, place));
                assert!(!allocator.free(&mut arena, place));
                given.remove(&place);
            }
            _ => {
                if !given.contains_key(&number) {
                    assert!(!allocator.free(&mut arena, number));
                }
            }
        }
        allocator.check(&arena).unwrap();
    }
    for place in given.into_keys() {
        assert!(allocator.free(&mut arena, place));
    }
    let figures = allocator.figures(&arena);
    assert_eq!(figures.largest_free_bytes, whole.largest_free_bytes);
    assert_eq!((figures.used_bytes, figures.free_blocks), (0, 1));
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_hold() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
