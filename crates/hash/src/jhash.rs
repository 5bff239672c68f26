//! Bob Jenkins' hashes as Linux uses them: lookup3 today, lookup2 before.
//!
//! ```
//! use picnic_hash::{V4Tuple, jhash_v4, lookup3};
//!
//! let tuple = V4Tuple::new([10, 0, 0, 1], [10, 0, 0, 2], 49152, 80);
//! let mut hash = [0];
//! jhash_v4(&[tuple], 0, &mut hash);
//! assert_eq!(hash, [lookup3(tuple.input(), 0)]);
//! ```
//!
//! A word is four bytes in the order of memory, the first one lowest
//! (`u32::from_le_bytes`), on every machine. On a little-endian machine that
//! is the field as read from the packet without swapping, so an IPv4 flow is
//! the three words source address, destination address, and ports with the
//! source port in the low half.
//!
//! # Guarantees
//!
//! - The forms over bytes, words and bursts agree wherever they overlap.
//! - Nothing here panics or allocates; a burst call writes the first
//!   `min(tuples.len(), out.len())` hashes.
//!
//! Source: Bob Jenkins, "Hash functions for hash table lookup" and lookup3.c
//! (2006); Dr. Dobb's Journal 22(9), 1997, for lookup2; Linux `jhash.h`.

use crate::{V4Tuple, V6Tuple, avx512};

/// Start value of lookup3 in Linux (`JHASH_INITVAL`) and in Jenkins' own `hashlittle`.
pub(crate) const LOOKUP3_START: u32 = 0xdead_beef;

/// The golden ratio as 32 bits, with which two words of lookup2 start.
const LOOKUP2_START: u32 = 0x9e37_79b9;

/// lookup3 over bytes: Linux `jhash(key, length, init)`.
///
/// All three words start at `0xdeadbeef + length + init`. No bytes at all
/// leave them unmixed, so the hash is then `0xdeadbeef + init`.
pub fn lookup3(key: &[u8], init: u32) -> u32 {
    let start = LOOKUP3_START.wrapping_add(key.len() as u32).wrapping_add(init);
    let mut state = [start; 3];
    let mut rest = key;
    // The last block, full or not, gets the final mixing instead of the usual.
    while rest.len() > 12
        && let Some((block, after)) = rest.split_first_chunk()
    {
        state = mix3(add(state, words(block)));
        rest = after;
    }
    if rest.is_empty() {
        return start;
    }
    finish3(add(state, words(&padded(rest))))
}

/// lookup3 over words: Linux `jhash2(key, length, init)`, and [`lookup3`] over their bytes.
pub fn lookup3_words(key: &[u32], init: u32) -> u32 {
    let start = LOOKUP3_START.wrapping_add((key.len() as u32) << 2).wrapping_add(init);
    let mut state = [start; 3];
    let mut rest = key;
    while rest.len() > 3
        && let Some((block, after)) = rest.split_first_chunk::<3>()
    {
        state = mix3(add(state, *block));
        rest = after;
    }
    let last = match *rest {
        [] => return start,
        [a] => [a, 0, 0],
        [a, b] => [a, b, 0],
        [a, b, c, ..] => [a, b, c],
    };
    finish3(add(state, last))
}

/// lookup3 over three words: Linux `jhash_3words(a, b, c, init)`.
///
/// The same as [`lookup3_words`] over `[a, b, c]`.
#[inline]
pub fn lookup3_3words(a: u32, b: u32, c: u32, init: u32) -> u32 {
    let start = LOOKUP3_START.wrapping_add(12).wrapping_add(init);
    finish3(add([start; 3], [a, b, c]))
}

/// lookup2 over bytes: `jhash(key, length, init)` of the Linux of the paper's time (2.6.17).
///
/// Two words start at the golden ratio, `0x9e3779b9`, the third at `init`.
pub fn lookup2(key: &[u8], init: u32) -> u32 {
    let mut state = [LOOKUP2_START, LOOKUP2_START, init];
    let mut rest = key;
    while let Some((block, after)) = rest.split_first_chunk() {
        state = mix2(add(state, words(block)));
        rest = after;
    }
    let [a, b, c] = words(&padded(rest));
    // The low byte of the third word is kept for the length.
    let c = (c << 8).wrapping_add(key.len() as u32);
    let [_, _, hash] = mix2(add(state, [a, b, c]));
    hash
}

/// [`lookup3`] over each IPv4 tuple's 12 bytes of input.
///
/// The same as `lookup3_3words(source, destination, ports, init)` of each.
pub fn jhash_v4(tuples: &[V4Tuple], init: u32, out: &mut [u32]) {
    let start = LOOKUP3_START.wrapping_add(V4Tuple::INPUT_BYTES as u32).wrapping_add(init);
    // A partial vector block would be copied, which costs more than one tuple at a time.
    let few = tuples.len() < 16;
    if few || !avx512::jhash_v4(tuples, start, out) {
        jhash_v4_portable(tuples, start, out);
    }
}

fn jhash_v4_portable(tuples: &[V4Tuple], start: u32, out: &mut [u32]) {
    for (tuple, hash) in tuples.iter().zip(out) {
        *hash = finish3(add([start; 3], words(tuple.input())));
    }
}

/// [`lookup3`] over each IPv6 tuple's 36 bytes of input.
///
/// The nine words are source address, destination address, and ports.
pub fn jhash_v6(tuples: &[V6Tuple], init: u32, out: &mut [u32]) {
    let start = LOOKUP3_START.wrapping_add(V6Tuple::INPUT_BYTES as u32).wrapping_add(init);
    // A vector block has a fixed cost; from this number of tuples on it is cheaper.
    let few = tuples.len() < 6;
    if few || !avx512::jhash_v6(tuples, start, out) {
        jhash_v6_portable(tuples, start, out);
    }
}

fn jhash_v6_portable(tuples: &[V6Tuple], start: u32, out: &mut [u32]) {
    for (tuple, hash) in tuples.iter().zip(out) {
        let (blocks, _) = tuple.input().as_chunks();
        let [first, second, third] = blocks else { continue };
        let state = mix3(add([start; 3], words(first)));
        let state = mix3(add(state, words(second)));
        *hash = finish3(add(state, words(third)));
    }
}

#[inline]
fn words(block: &[u8; 12]) -> [u32; 3] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *block;
    [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]].map(u32::from_le_bytes)
}

/// The last, short block, filled up with zeros.
#[inline]
fn padded(rest: &[u8]) -> [u8; 12] {
    let mut block = [0; 12];
    block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    block
}

#[inline]
fn add(state: [u32; 3], block: [u32; 3]) -> [u32; 3] {
    let ([a, b, c], [x, y, z]) = (state, block);
    [a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z)]
}

/// lookup3 between blocks: six turns, each over the three words in their next order.
#[inline]
fn mix3(state: [u32; 3]) -> [u32; 3] {
    let turn = |[x, y, z]: [u32; 3], by| {
        let x = x.wrapping_sub(z) ^ z.rotate_left(by);
        [y, z.wrapping_add(y), x]
    };
    let turned = turn(turn(turn(state, 4), 6), 8);
    turn(turn(turn(turned, 16), 19), 4)
}

/// lookup3 after the last block: seven turns, then the last word written is the hash.
#[inline]
fn finish3(state: [u32; 3]) -> u32 {
    let [a, b, c] = state;
    let turn = |to: u32, from: u32, by| (to ^ from).wrapping_sub(from.rotate_left(by));
    let c = turn(c, b, 14);
    let a = turn(a, c, 11);
    let b = turn(b, a, 25);
    let c = turn(c, b, 16);
    let a = turn(a, c, 4);
    let b = turn(b, a, 14);
    turn(c, b, 24)
}

/// lookup2 after every block: three rounds of shifts, right, left, right.
#[inline]
fn mix2(state: [u32; 3]) -> [u32; 3] {
    [[13, 8, 13], [12, 16, 5], [3, 10, 15]].into_iter().fold(state, |[a, b, c], by| {
        let a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> by[0]);
        let b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << by[1]);
        let c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> by[2]);
        [a, b, c]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ipv4_burst_agree() {
        let tuple = |i: u8| V4Tuple::new([i; 4], [i.wrapping_mul(7); 4], i.into(), 80);
        let tuples: Vec<V4Tuple> = (0..100).map(tuple).collect();
        let (mut portable, mut vector) = ([0; 100], [0; 100]);
        jhash_v4_portable(&tuples, LOOKUP3_START + 12, &mut portable);
        jhash_v4(&tuples, 0, &mut vector);
        assert_eq!(portable, vector);
        assert_eq!(portable[99], lookup3(tuples[99].input(), 0));
    }

    #[test]
    fn both_forms_of_an_ipv6_burst_agree() {
        let tuple = |i: u8| V6Tuple::new([i; 16], [i.wrapping_mul(7); 16], i.into(), 80);
        let tuples: Vec<V6Tuple> = (0..100).map(tuple).collect();
        let (mut portable, mut vector) = ([0; 100], [0; 100]);
        jhash_v6_portable(&tuples, LOOKUP3_START + 36, &mut portable);
        jhash_v6(&tuples, 0, &mut vector);
        assert_eq!(portable, vector);
        assert_eq!(portable[99], lookup3(tuples[99].input(), 0));
    }
}
