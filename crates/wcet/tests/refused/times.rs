include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, wcet};

#[wcet(ns = 0)] //~ found no such time, allowed: `#[wcet(ns = N)]` with N from 1 to 60000000000 nanoseconds
fn zero() {}

#[wcet(us = 3)] //~ found `us`, allowed: `#[wcet(ns = N)]`
fn unit() {}

#[wcet] //~ found no time, allowed: `#[wcet(ns = N)]`
fn nothing() {}

#[wcet(ns = -3)] //~ found no such time
fn negative() {}

#[bounded]
fn statements() {
    #[wcet(ns = 1 << 40)] //~ found no such time
    let _ = 3;
    #[wcet] //~ expected attribute arguments in parentheses
    let _ = 3;
}
