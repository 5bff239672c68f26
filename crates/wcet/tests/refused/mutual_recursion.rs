include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::bounded;

#[bounded]
fn even(of: u64) -> bool { //~ cycle detected when simplifying constant for the type system `even::RECURSION_HAS_NO_BOUND_WRITE_A_LOOP`
    of == 0 || odd(of - 1)
}

#[bounded]
fn odd(of: u64) -> bool {
    of != 0 && even(of - 1)
}
