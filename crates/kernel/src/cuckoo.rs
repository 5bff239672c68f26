//! A hash table in which each entry has two possible places, so a look-up reads at most two.
//!
//! An entry that is in the way of another moves to its own second place.
//!
//! Source: Pagh, Rodler, "Cuckoo Hashing", Journal of Algorithms 51(2), 2004.

/// Most moves to make room for an entry before starting again with other places.
const MOST_MOVED: usize = 1000;

/// The entry in each of `slots` slots (a power of two), by number, and the start value of their
/// places. None if there are too many entries.
pub(crate) fn house(
    entries: usize,
    slots: usize,
    places_of: impl Fn(usize, u8) -> [usize; 2],
) -> Option<(u8, Vec<Option<usize>>)> {
    if entries > slots / 2 {
        return None;
    }
    // Entries that find no place with one start value may with another.
    (0..=u8::MAX).find_map(|start| {
        let mut at = vec![None; slots];
        for entry in 0..entries {
            let (mut homeless, mut away_from) = (entry, None);
            let mut moved = 0;
            loop {
                let [one, other] = places_of(homeless, start).map(|place| place & (slots - 1));
                let free = [one, other].into_iter().find(|&place| at[place].is_none());
                let place = free.unwrap_or(if away_from == Some(one) { other } else { one });
                match at[place].replace(homeless) {
                    None => break,
                    Some(there) => (homeless, away_from) = (there, Some(place)),
                }
                moved += 1;
                if moved == MOST_MOVED {
                    return None;
                }
            }
        }
        Some((start, at))
    })
}
