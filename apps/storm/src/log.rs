//! The log of a member, for `picnic storm check`: one event per line.
//!
//! ```text
//! storm 1 a                      the member's name
//! submit 0                       sequence number
//! deliver b 32 7 85944171f73967e8   sender, sequence number, timestamp, FNV-1a of the payload
//! join                           the member entered a view from outside: messages are missing here
//! end                            the member left after it had delivered all its own messages
//! ```

use crate::member::Delivery;
use std::io::{self, Write};

/// A log that is being written.
#[derive(Debug)]
pub struct Log<W> {
    to: W,
    names: Vec<String>,
}

impl<W: Write> Log<W> {
    /// Starts the log of a member of this group.
    ///
    /// # Errors
    /// The writer's error, here and below.
    pub fn new(mut to: W, names: &[String], me: usize) -> io::Result<Self> {
        writeln!(to, "storm 1 {}", names[me])?;
        Ok(Log { to, names: names.to_vec() })
    }

    /// This member has submitted the message at this position.
    pub fn submitted(&mut self, position: u64) -> io::Result<()> {
        writeln!(self.to, "submit {position}")
    }

    /// A message was delivered.
    pub fn delivered(&mut self, delivery: &Delivery<'_>) -> io::Result<()> {
        let Delivery { sender, position, timestamp, payload } = delivery;
        let hash = payload.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let name = &self.names[usize::from(*sender)];
        writeln!(self.to, "deliver {name} {position} {timestamp} {hash:016x}")
    }

    /// The member entered a view from outside.
    pub fn joined(&mut self) -> io::Result<()> {
        writeln!(self.to, "join")
    }

    /// The member leaves.
    pub fn end(&mut self) -> io::Result<()> {
        writeln!(self.to, "end")?;
        self.to.flush()
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.to
    }

    /// Flushes the buffer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
