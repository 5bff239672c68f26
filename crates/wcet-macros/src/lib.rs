//! The `#[task]` attribute: see `picnic-wcet`.
