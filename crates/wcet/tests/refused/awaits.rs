include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

async fn elsewhere() {}

#[task]
async fn of_another(card: Card) {
    #[wcet(ns = 3)]
    let future = elsewhere();
    future.await; //~ this await is not of a method of `card`, and what it awaits cannot be seen from here
}

#[task]
async fn kept(card: Card) {
    let future = async { 3 }; //~ an async block is run where it is awaited
    #[wcet(ns = 100)]
    future.await;
}

#[task]
async fn closure(card: Card) {
    let _work = async |value: u32| value; //~ where an async closure runs cannot be seen
    let _more = || async { 3 }; //~ an async block is run where it is awaited
}

#[task]
async fn in_a_time(card: Card) {
    #[wcet(ns = 3)]
    if card.now() == 3 {
        card.sleep(1).await; //~ a time covers what runs between two yields, and here is a yield inside
    }
}

#[task]
async fn in_a_macro(card: Card) {
    assert!(card.receive().await.is_some()); //~ an await stands in the body of a `#[task]`, not in a macro's arguments
}
