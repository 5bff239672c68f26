include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

#[task]
async fn never_ends(card: Card) {
    let mut sum = 0u32;
    loop { //~ this loop neither yields nor has a bound: yield on every path (`card.yield_now().await`), or state how often it runs at most: `#[bound(n)]` before it
        sum = sum.wrapping_add(1);
    }
}

#[task]
async fn waits_for_a_flag(card: Card, flag: &std::cell::Cell<bool>) {
    while !flag.get() {} //~ this loop neither yields nor has a bound
    card.sleep(1).await;
}

#[task]
async fn goes_over_any_number(card: Card, words: &[u32]) {
    for word in words { //~ this loop neither yields nor has a bound
        if *word == 0 {
            return;
        }
    }
    card.sleep(1).await;
}

#[task]
async fn yields_on_one_way_only(card: Card, mut words: u32) {
    loop { //~ this loop yields on some paths but not on all (not on the one through line 34)
        if words > 3 {
            card.yield_now().await;
        } else {
            words += 1;
        }
    }
}

#[task]
async fn yields_but_for_a_continue(card: Card, words: u32) {
    'outer: loop { //~ this loop yields on some paths but not on all
        #[bound(3)]
        loop {
            if words == 3 {
                continue 'outer;
            }
            if words == 4 {
                break;
            }
        }
        card.yield_now().await;
    }
}

#[task]
async fn yields_in_a_loop_that_may_not_run(card: Card, words: &[u32]) {
    loop { //~ this loop yields on some paths but not on all
        for _ in words {
            card.yield_now().await;
        }
    }
}

#[task]
async fn inside_a_bounded_one(card: Card, words: &[u32]) {
    for _ in 0..4 {
        for _ in words {} //~ this loop neither yields nor has a bound
    }
    card.sleep(1).await;
}

#[task]
async fn in_a_closure(card: Card, words: &[u32]) {
    let count = || {
        for _ in words {} //~ this loop has no bound
        1
    };
    count();
    card.sleep(1).await;
}

#[bounded]
fn in_a_function(words: &[u32]) {
    while words.len() > 3 {} //~ this loop has no bound: state how often it runs at most: `#[bound(n)]` before it
}

#[task]
async fn variable_range(card: Card, most: u32) {
    for _ in 0..most {} //~ this loop neither yields nor has a bound
    card.sleep(1).await;
}
