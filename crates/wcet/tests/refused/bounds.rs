include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::bounded;

const MOST: u32 = 4;

#[bounded]
fn zero(words: &[u32]) {
    #[bound(0)] //~ found 0 as the bound of a loop, allowed: a number of rounds, written out: 1 to 4294967295
    for _ in words {}
}

#[bounded]
fn negative(words: &[u32]) {
    #[bound(-3)] //~ found -3 as the bound of a loop
    for _ in words {}
}

#[bounded]
fn no_literal(words: &[u32]) {
    #[bound(MOST)] //~ found something other than a literal as the bound of a loop
    for _ in words {}
}

#[bounded]
fn text(words: &[u32]) {
    #[bound("four")] //~ found something other than a literal as the bound of a loop
    for _ in words {}
}

#[bounded]
fn nothing(words: &[u32]) {
    #[bound] //~ found no number as the bound of a loop
    for _ in words {}
}

#[bounded]
fn too_large(words: &[u32]) {
    #[bound(5_000_000_000)] //~ found 5000000000 as the bound of a loop
    for _ in words {}
}

#[bounded]
fn twice(words: &[u32]) {
    #[bound(3)]
    #[bound(4)] //~ found a second `#[bound]`, allowed: one
    for _ in words {}
}

#[bounded]
fn too_small() {
    #[bound(3)] //~ found 3 as the bound of a loop that runs 4 times
    for _ in 0..4 {}
}

#[bounded]
fn no_loop(words: &[u32]) -> usize {
    #[bound(3)] //~ `#[bound(n)]` is for a loop: found it on something else
    words.len()
}
