//! A one-shot answer that a task waits for.

use crate::shared::lock;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

enum State<T> {
    Waiting(Option<Waker>),
    Answered(T),
    Taken,
}

/// The answering end.
pub(crate) struct Replier<T>(Arc<Mutex<State<T>>>);

/// The waiting end.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Reply<T>(Arc<Mutex<State<T>>>);

/// The two ends.
pub(crate) fn channel<T>() -> (Replier<T>, Reply<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Replier(state.clone()), Reply(state))
}

impl<T> Replier<T> {
    pub(crate) fn answer(self, answer: T) {
        let before = std::mem::replace(&mut *lock(&self.0), State::Answered(answer));
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Future for Reply<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Answered(answer) => Poll::Ready(answer),
            _ => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}
