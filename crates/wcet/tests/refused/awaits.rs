include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

async fn elsewhere() {}

#[task]
async fn of_another(card: Card) {
    #[wcet(ns = 3)]
    let future = elsewhere();
    future.await; //~ this await is not of a method of `card`, and its future is unknown here
}

#[task]
async fn kept(card: Card) {
    let future = async { 3 }; //~ an async block runs where it is awaited
    #[wcet(ns = 100)]
    future.await;
}

#[task]
async fn closure(card: Card) {
    let _work = async |value: u32| value; //~ the place where an async closure runs is unknown
    let _more = || async { 3 }; //~ an async block runs where it is awaited
}

#[task]
async fn in_a_time(card: Card) {
    #[wcet(ns = 3)]
    if card.now() == 3 {
        card.sleep(1).await; //~ a time covers code between two yields, and this code yields
    }
}

#[task]
async fn in_a_macro(card: Card) {
    assert!(card.receive().await.is_some()); //~ an await belongs in the body of a `#[task]`, not in a macro's arguments
}
