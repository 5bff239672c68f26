//! The cost of recording an event in a timeline: one that is kept, and one past the bound.

use super::{measured, time_per_packet};
use picnic_control::timeline::{Event, Timeline};
use picnic_core::time::Time;
use picnic_lab::experiment::{Benchmark, Run};
use picnic_lab::outcome::{Figure, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;

/// Events of each timing.
const EVENTS: usize = 1 << 15;

/// Settings.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Events {
    /// Interleaved repeats of each figure
    #[schemars(range(min = 1, max = 100_000))]
    repeats: u32,
}

impl Default for Events {
    fn default() -> Self {
        Events { repeats: 51 }
    }
}

impl Benchmark for Events {
    const NAME: &'static str = "timeline";
    const HELP: &'static str = "recording an event in a timeline";
    const QUICK: &'static str = "repeats = 3";

    fn measure(&self, run: &mut Run<'_>) -> anyhow::Result<Outcome> {
        let (mut kept, mut counted) = (Vec::new(), Vec::new());
        for round in 0..self.repeats {
            run.round(round.into(), self.repeats.into());
            let timeline = Timeline::keeping(EVENTS);
            let mut recorder = timeline.card("benchmark").recorder();
            let mut record = || {
                time_per_packet(EVENTS, || {
                    for start in 0..EVENTS as u64 {
                        let (start, end) = (Time::from_nanos(start), Time::from_nanos(start + 9));
                        let event = Event::Turn { received: 64, submitted: 0, transmitted: 0 };
                        recorder.span(1, black_box(start), end, event);
                    }
                })
            };
            kept.push(record());
            counted.push(record());
        }
        let mut outcome = measured();
        outcome.add(Figure::of("kept_event_ns", kept));
        outcome.add(Figure::of("event_past_the_bound_ns", counted));
        Ok(outcome)
    }
}
