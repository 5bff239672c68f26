//! State that the entries of one card share, such as a function of the rx and one of the tx chain.
//!
//! Each chain has its own function. If one function needs the other's state, both request the same
//! type: the first request makes it, and it lives as long as one of them holds it. Both run on the
//! borrowed core.
//!
//! ```
//! use picnic_core::shared::Shared;
//!
//! let shared = Shared::default();
//! let first = shared.get_or_make(|| String::from("made once"));
//! assert!(std::sync::Arc::ptr_eq(&first, &shared.clone().get_or_make(String::new)));
//! ```

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The states of a card, one per type. Clones are the same.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<Weak<dyn Any + Send + Sync>>>>);

impl Shared {
    /// The card's state of this type; `make` is called if there is none.
    pub fn get_or_make<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|state| state.strong_count() != 0);
        let found = states.iter().filter_map(Weak::upgrade).find_map(|state| state.downcast().ok());
        found.unwrap_or_else(|| {
            let made = Arc::new(make());
            let state: Arc<dyn Any + Send + Sync> = made.clone();
            states.push(Arc::downgrade(&state));
            made
        })
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Shared").field("states", &states.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_shared_by_type_until_the_last_holder_drops() {
        let shared = Shared::default();
        let number = shared.get_or_make(|| 7_u32);
        let other = shared.get_or_make(|| 8_u64);
        assert_eq!((*shared.get_or_make(|| 9_u32), *other), (7, 8));
        assert!(!Arc::ptr_eq(&number, &Shared::default().get_or_make(|| 7_u32)));
        drop(number);
        assert_eq!(*shared.get_or_make(|| 9_u32), 9);
    }
}
