//! Places for entries, each at one of two: a search of them looks at no more.
//!
//! An entry that stands in the way of another moves to its own second place.
//!
//! Source: Pagh, Rodler, "Cuckoo Hashing", Journal of Algorithms 51(2), 2004.

/// Entries that are moved to make room for another before all is begun anew.
const MOST_MOVED: usize = 1000;

/// What each of so many slots holds, a power of two, by the numbers of the entries; and what places
/// have to begin with for that. None if there are too many entries.
pub(crate) fn house(
    entries: usize,
    slots: usize,
    places_of: impl Fn(usize, u8) -> [usize; 2],
) -> Option<(u8, Vec<Option<usize>>)> {
    if entries > slots / 2 {
        return None;
    }
    // Entries that find no place from one start do from another.
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
