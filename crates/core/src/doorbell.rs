//! The doorbell: how one core tells another that there is work.

/// Wakes whoever waits for it. Supplied by the world: a futex on real cores, an
/// event on virtual ones.
pub trait Doorbell: Send + Sync {
    /// Rings. May be called when nobody waits, and then must not be lost: the next wait
    /// returns at once.
    fn ring(&self);
}

/// Wakes nobody: whoever should look does so by the clock, or in turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDoorbell;

impl Doorbell for NoDoorbell {
    fn ring(&self) {}
}
