//! A pool that cannot be created is an error and leaves nothing behind.

use picnic_core::packet::pool::{Pool, PoolConfig};

#[test]
fn pools_larger_than_memory_are_errors() {
    // Address limits are inherited and cannot be undone, hence a child.
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 4000000; exec \"$0\" --exact child_without_addresses --ignored")
        .arg(this)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "run by pools_larger_than_memory_are_errors"]
fn child_without_addresses() {
    let error = Pool::new(&PoolConfig::default(), 1).unwrap_err();
    assert!(error.to_string().starts_with("cannot map "), "{error}");
    // And again: the failure leaves nothing behind.
    assert!(Pool::new(&PoolConfig::default(), 1).is_err());
}
