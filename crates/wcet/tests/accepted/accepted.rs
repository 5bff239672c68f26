#![deny(warnings, missing_docs, unreachable_pub, clippy::all)]
//! Compiles without a warning, with a public and a private task.

/// A task context.
pub struct Card;
impl Card {
    fn next_segment(&self, _segment: u16) {}
    async fn yield_now(&self) {}
}

#[picnic_wcet::wcet(ns = 3)]
fn private() {}

/// A task.
#[picnic_wcet::task]
pub async fn public(card: Card) {
    private();
    while {
        card.yield_now().await;
        true
    } {
        card.yield_now().await;
    }
}

pub(crate) mod inner {
    use super::Card;

    #[picnic_wcet::task]
    pub(super) async fn visible(card: Card) {
        card.yield_now().await;
        super::private();
    }
}

/// Uses them.
pub async fn all(one: Card, other: Card) {
    public(one).await;
    inner::visible(other).await;
    let _ = &public::GRAPH;
}
