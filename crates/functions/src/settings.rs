//! Checks that several functions make of their settings.

use picnic_core::error::ConfigError;

/// Refuses a queue that the card does not have.
pub(crate) fn check_queue(key: &str, found: u16, queues: u16) -> Result<(), ConfigError> {
    if found < queues {
        return Ok(());
    }
    let last = queues.saturating_sub(1);
    Err(ConfigError::new(key, format!("found queue {found}, allowed is 0 to {last}")))
}
