include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task, wcet};

#[task]
fn not_async(card: Card) { //~ a task is an async function: write `async fn not_async(card: ...)`
    card.now();
}

#[task]
async fn no_context() {} //~ a task's first parameter is its context, a plain name: write `async fn no_context(card: ...)`

#[task]
async fn pattern((card, _): (Card, u32)) { //~ a task's first parameter is its context, a plain name
    card.now();
}

#[task(priority = 3)] //~ found `priority = 3`, allowed: no arguments
async fn arguments(card: Card) {}

#[bounded]
async fn asynchronous(card: Card) {} //~ an async function yields, and its segments are a task's

struct Owner;
impl Owner {
    #[bounded]
    fn method(&self) {} //~ a method's graph cannot be looked up: write a function
}

#[task]
struct NoFunction; //~ expected `fn`

#[wcet(ns = 3)]
struct NoFunctionEither; //~ `#[wcet(ns = N)]` is for a function
