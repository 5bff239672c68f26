include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

fn plain() -> u32 {
    3
}

mod other {
    pub fn far() -> u32 {
        4
    }
}
use other::far as renamed;

#[task]
async fn calls_what_is_not_known(card: Card) {
    let sum =
        plain(); //~ the cost of this call is not known
    card.sleep(sum).await;
}

#[bounded]
fn so_does_this() -> u32 {
    if true { other::far() } else { renamed() } //~ the cost of this call is not known //~ the cost of this call is not known
}

#[bounded]
fn and_this(value: Option<u32>) -> u32 {
    value.unwrap_or_else(plain) //~ the cost of this call is not known
}
