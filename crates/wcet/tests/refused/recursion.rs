include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

#[bounded]
fn factorial(of: u64) -> u64 {
    if of < 2 { 1 } else { of * factorial(of - 1) } //~ `factorial` calls itself, and recursion has no bound: write it as a loop with `#[bound(n)]`
}

#[task]
async fn again(card: Card) {
    card.sleep(1).await;
    self::again(card); //~ `again` calls itself, and recursion has no bound
}
