//! Deficit round robin: queues share a server by bytes, for packets of any size.
//!
//! ```
//! use picnic_core::turns::{Turns, TurnEnd};
//! // Two queues of packet lengths, and a burst of 27 packets.
//! let mut queues = [vec![60; 50], vec![1514; 50]];
//! let (mut turns, mut burst) = (Turns::new(2), Vec::new());
//! turns.serve(&mut queues, |queue| !queue.is_empty(), |index, queue, deficit| loop {
//!     match queue.last() {
//!         None => return TurnEnd::Empty,
//!         Some(length) if *length > *deficit => return TurnEnd::Spent,
//!         Some(_) if burst.len() == 27 => return TurnEnd::Full,
//!         Some(length) => *deficit -= length,
//!     }
//!     queue.pop();
//!     burst.push(index);
//! });
//! // The same number of bytes of both.
//! assert_eq!(burst, [vec![0; 25], vec![1], vec![0]].concat());
//! ```
//!
//! Guarantees: nothing is allocated after the start; an empty queue accumulates no credit.
//!
//! Source: Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin, 1995.

/// Bytes a queue may send per turn: the largest frame on an ordinary wire.
pub const QUANTUM_BYTES: u32 = 1514;

/// Why a queue's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// It has no packets.
    Empty,
    /// Its next packet exceeds the rest of its quantum.
    Spent,
    /// It has packets, but may send none for another reason.
    Held,
    /// Nothing more can be taken from any queue: the queue continues with the rest of its quantum.
    Full,
}

/// A queue's credit in bytes.
#[derive(Clone, Copy, Debug)]
struct Credit {
    /// Bytes that it may still send.
    deficit: u32,
    /// Bytes that it gets per turn.
    quantum: u32,
}

/// The queue whose turn it is, and what each may still send.
#[derive(Debug)]
pub struct Turns {
    /// By queue.
    credits: Vec<Credit>,
    turn: usize,
    /// The queue whose turn it is has had its quantum.
    granted: bool,
}

impl Turns {
    /// The turns of a number of queues.
    pub fn new(queues: usize) -> Self {
        Turns::weighted(&vec![QUANTUM_BYTES; queues])
    }

    /// The turns of queues with these quanta, in bytes: they share the server in proportion.
    pub fn weighted(quanta: &[u32]) -> Self {
        let credit = |&quantum: &u32| Credit { deficit: 0, quantum: quantum.max(1) };
        Turns { credits: quanta.iter().map(credit).collect(), turn: 0, granted: false }
    }

    /// Serves queue after queue, a quantum each, until there is no room or no queue has packets
    /// that it may send. `earns` tells whether a queue gets its quantum; `take` takes packets of a
    /// queue within its deficit, which it reduces.
    #[inline]
    pub fn serve<Q>(
        &mut self,
        queues: &mut [Q],
        mut earns: impl FnMut(&mut Q) -> bool,
        mut take: impl FnMut(usize, &mut Q, &mut u32) -> TurnEnd,
    ) {
        let count = queues.len().min(self.credits.len());
        // A packet longer than a quantum takes several rounds.
        let mut saving = true;
        while saving {
            saving = false;
            for _ in 0..count {
                let (queue, credit) = (&mut queues[self.turn], &mut self.credits[self.turn]);
                let Credit { deficit, quantum } = credit;
                if !std::mem::take(&mut self.granted) && earns(queue) {
                    *deficit = deficit.saturating_add(*quantum);
                }
                match take(self.turn, queue, deficit) {
                    TurnEnd::Empty => *deficit = 0,
                    TurnEnd::Held => {}
                    TurnEnd::Spent => saving = true,
                    TurnEnd::Full => {
                        self.granted = true;
                        return;
                    }
                }
                self.turn = if self.turn + 1 == count { 0 } else { self.turn + 1 };
            }
        }
    }
}
