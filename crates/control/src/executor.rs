//! Executors: a trait for all engines and worlds, and one for a running card.
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
//! with an [`Executor`], and one line in the lists that offer it: CONTRIBUTING.md.

use crate::error::RunError;
use crate::launch::{Checked, Launch};
use crate::monitor::Monitor;
use crate::report::Report;
use crate::server::Access;
use picnic_engine::view::View;
use picnic_filter::Filters;
use picnic_machine::topology::Placement;
use picnic_os::config::{ProfileCosts, TaskProgress};
use serde_json::Value;
use std::io::Write;
use std::time::Duration;

/// An executor's plan for a card.
#[derive(Clone, Debug, PartialEq)]
pub struct EnginePlan {
    /// As text: a label of one or two words, and a description.
    pub lines: Vec<(&'static str, String)>,
    /// The same for programs.
    pub json: Value,
    /// Whether this is the complete plan: rings, buffers and other parts of the poll engine are not
    /// used.
    pub is_whole: bool,
}

/// Runs cards.
pub trait Executor: Send + Sync {
    /// Its name in `card.engine`.
    fn name(&self) -> &'static str;

    /// One line of help.
    fn help(&self) -> &'static str;

    /// The cores for the card. Nothing is started or changed.
    ///
    /// # Errors
    /// Settings of the card file that this executor does not support. Errors of components are not
    /// checked here.
    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError>;

    /// Checks the card file against this machine; nothing is started or changed.
    ///
    /// # Errors
    /// The card file is wrong, or the machine lacks something it needs.
    fn check(&self, launch: &Launch<'_>) -> Result<Checked, RunError> {
        launch.check_parts(self.place(launch))
    }

    /// Its plan for the card, if there is more than the card file says. Needs no privileges.
    ///
    /// # Errors
    /// Settings of the card file that it does not support.
    fn describe(&self, _launch: &Launch<'_>) -> Result<Option<EnginePlan>, RunError> {
        Ok(None)
    }

    /// Whether its running cards can be observed and changed from outside. In virtual time they
    /// cannot: outside events would come at another moment in each run.
    fn is_served(&self) -> bool {
        true
    }

    /// Whether it starts programs at the end of its cards, so that the thread that ends them must
    /// keep the necessary privileges; its other threads need not: see [`Launch::confined`].
    fn ends_by_programs(&self) -> bool {
        false
    }

    /// Whether it knows all events of its cards: see [`Running::tell_events`].
    fn tells_events(&self) -> bool {
        false
    }

    /// Whether it records its cards in timelines: see [`crate::timeline`].
    fn records(&self) -> bool {
        false
    }

    /// The costs of its packet path, where it knows them without measuring: for admission, unless
    /// the card names a profile.
    fn path_costs(&self) -> Option<ProfileCosts> {
        None
    }

    /// Starts only the card.
    ///
    /// # Errors
    /// The card file is wrong, or the machine lacks something it needs. Then nothing runs.
    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError>;
}

/// A running card.
pub trait Running {
    /// Reads its figures, from any thread.
    fn monitor(&self) -> &Monitor;

    /// Its filters, to be changed from any thread.
    fn filters(&self) -> &Filters;

    /// For changes while it runs; none if already taken, since commands have a single sender, or if
    /// it cannot be changed.
    fn control(&mut self) -> Option<Access>;

    /// Whether the wires have finished, and the card's own core has handled all packets.
    /// [`Running::stop`] handles those still at hosts before it returns, unless told not to wait.
    fn is_finished(&self) -> bool;

    /// Whether the wires have finished and all their packets are handled, even if tasks still run.
    fn wires_are_finished(&self) -> bool {
        self.is_finished()
    }

    /// Progress of the tasks in its card file.
    fn tasks(&self) -> Vec<TaskProgress> {
        Vec::new()
    }

    /// Whether it still works. If not, [`Running::stop`] returns the reason.
    fn is_alive(&self) -> bool {
        true
    }

    /// Writes every event from now on to `sink`, a line each, if its executor
    /// [`tells_events`](Executor::tells_events). A write error is noted in the report.
    fn tell_events(&mut self, _sink: Box<dyn Write + Send>) {}

    /// Messages of its watchdog since the last call.
    fn said(&self) -> Vec<String> {
        Vec::new()
    }

    /// Lets this much of its time pass.
    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Stops it with all rings flushed, and returns the result. A part that does not return is
    /// abandoned, and the report says so: [`Report::failed`].
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

    /// Its cores.
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

    /// An executor and its card with all defaults.
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
    fn executor_defaults_fit_most() {
        assert!(Bare.is_served() && Bare.is_alive());
        assert!(!Bare.ends_by_programs() && Bare.said().is_empty());
        assert!(!Bare.tells_events() && !Bare.records());
        assert!(!Bare.wires_are_finished() && Bare.tasks().is_empty());
        assert_eq!(Bare.path_costs(), None);
        let (start, time) = (Instant::now(), Duration::from_millis(2));
        Bare.pass(time);
        assert!(start.elapsed() >= time, "its time is the machine's");
    }
}
