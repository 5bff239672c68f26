//! What runs a card: one trait for all engines and worlds, and one for a card at work.
//!
//! ```
//! use picnic_control::launch::Launch;
//! use picnic_control::error::RunError;
//! use std::time::Duration;
//!
//! /// Works with any executor: whichever the launch's registries have for the card's engine.
//! fn second(launch: Launch<'_>) -> Result<u64, RunError> {
//!     let mut running = launch.start_alone()?;
//!     running.pass(Duration::from_secs(1));
//!     Ok(running.stop()?.ledger.delivered)
//! }
//! ```
//!
//! An executor is named by `card.engine`; a world is a set of registries. Adding one is a crate
//! with an [`Executor`], and one line in the list of those who offer it: CONTRIBUTING.md.

use crate::error::RunError;
use crate::launch::{Checked, Launch};
use crate::monitor::Monitor;
use crate::report::Report;
use crate::server::Access;
use picnic_engine::view::View;
use picnic_filter::Filters;
use picnic_machine::topology::Placement;
use picnic_os::config::TaskProgress;
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// What an executor will do with a card.
#[derive(Clone, Debug, PartialEq)]
pub struct EnginePlan {
    /// For people: a word or two, and what there is to say of it.
    pub lines: Vec<(&'static str, String)>,
    /// The same for programs.
    pub json: Value,
    /// Whether that is all: rings, buffers and what else the poll engine has take no part.
    pub is_whole: bool,
}

/// What can run cards.
pub trait Executor: Send + Sync {
    /// What `card.engine` calls it.
    fn name(&self) -> &'static str;

    /// One line of help.
    fn help(&self) -> &'static str;

    /// Which cores the card would get. Nothing is started or changed.
    ///
    /// # Errors
    /// What this executor cannot do for the card file. What its parts say is not asked here.
    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError>;

    /// Checks the card file against this machine; nothing is started or changed.
    ///
    /// # Errors
    /// What is wrong with it, or what the machine cannot give.
    fn check(&self, launch: &Launch<'_>) -> Result<Checked, RunError> {
        launch.check_parts(self.place(launch))
    }

    /// What it will do with the card, if there is more to say than the card file does. Nothing is
    /// looked at but what says so without privileges.
    ///
    /// # Errors
    /// What it cannot do for the card file.
    fn describe(&self, _launch: &Launch<'_>) -> Result<Option<EnginePlan>, RunError> {
        Ok(None)
    }

    /// Whether its cards can be watched and changed from outside while they run. Where time is
    /// virtual they cannot: what comes from outside would come at another moment in each run.
    fn is_served(&self) -> bool {
        true
    }

    /// Whether it starts programs at the end of its cards, so that the thread that ends them must
    /// keep what they need; its other threads need not: see [`Launch::confined`].
    fn ends_by_programs(&self) -> bool {
        false
    }

    /// Whether it knows all that happens on its cards: see [`Running::tell_events`].
    fn tells_events(&self) -> bool {
        false
    }

    /// Starts the card, and nothing beside it.
    ///
    /// # Errors
    /// The card file is wrong, or the machine cannot give what it asks for. Nothing runs then.
    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError>;
}

/// A card at work.
pub trait Running {
    /// Reads its figures, from any thread.
    fn monitor(&self) -> &Monitor;

    /// Its filters, to be changed from any thread.
    fn filters(&self) -> &Filters;

    /// For changes while it runs; none if they are somebody else's already, as they come from
    /// one place only, or if it cannot be changed.
    fn control(&mut self) -> Option<Access>;

    /// Whether the wires have nothing more to hand over, and the card's own core has handled all of
    /// it. What hosts still have is handled before [`Running::stop`] returns, unless it is told not to
    /// wait.
    fn is_finished(&self) -> bool;

    /// Whether the wires have nothing more to hand over and all their packets are handled, whatever
    /// tasks still do.
    fn wires_are_finished(&self) -> bool {
        self.is_finished()
    }

    /// How far the tasks of its card file have run.
    fn tasks(&self) -> Vec<TaskProgress> {
        Vec::new()
    }

    /// Whether it still works. If it does not, [`Running::stop`] says why.
    fn is_alive(&self) -> bool {
        true
    }

    /// Has everything that happens from now on written to `sink`, a line for each event, if its
    /// executor [`tells_events`](Executor::tells_events). An error while writing is noted in the
    /// report.
    fn tell_events(&mut self, _sink: Box<dyn Write + Send>) {}

    /// What its watchdog has to say since the last look.
    fn said(&self) -> Vec<String> {
        Vec::new()
    }

    /// Lets this much of its time pass.
    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Stops it, all rings flushed, and says what the run came to. A part that does not return is left
    /// where it is, and the report says so: [`Report::failed`].
    ///
    /// # Errors
    /// A part of it panicked.
    fn stop(self: Box<Self>) -> Result<Report, RunError>;
}

impl dyn Running + '_ {
    /// Its counters.
    pub fn view(&self) -> &View {
        &self.monitor().view
    }

    /// Where it runs.
    pub fn placement(&self) -> &Placement {
        &self.monitor().placement
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.monitor().elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// An executor, and its card, that say no more than they must.
    struct Bare;

    impl Executor for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }

        fn help(&self) -> &'static str {
            "run nothing"
        }

        fn place(&self, _: &Launch<'_>) -> Result<Placement, RunError> {
            unreachable!()
        }

        fn start(&self, _: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
            unreachable!()
        }
    }

    impl Running for Bare {
        fn monitor(&self) -> &Monitor {
            unreachable!()
        }

        fn filters(&self) -> &Filters {
            unreachable!()
        }

        fn control(&mut self) -> Option<Access> {
            None
        }

        fn is_finished(&self) -> bool {
            false
        }

        fn stop(self: Box<Self>) -> Result<Report, RunError> {
            unreachable!()
        }
    }

    #[test]
    fn what_an_executor_does_not_say_is_so_of_most() {
        assert!(Bare.is_served() && Bare.is_alive());
        assert!(!Bare.ends_by_programs() && !Bare.tells_events() && Bare.said().is_empty());
        assert!(!Bare.wires_are_finished() && Bare.tasks().is_empty());
        let (start, time) = (Instant::now(), Duration::from_millis(2));
        Bare.pass(time);
        assert!(start.elapsed() >= time, "its time is the machine's");
    }
}
