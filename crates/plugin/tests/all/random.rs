//! An object that returns anything: each packet has one fate, each buffer returns.

use crate::common::Workshop;
use picnic_core::direction::Direction;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::Trial;
use proptest::prelude::*;

#[test]
fn any_return_value_gives_one_fate_per_packet() {
    let Some(workshop) = Workshop::open("any_return_value_gives_one_fate_per_packet") else {
        return;
    };
    workshop.object("random", &[]);
    let section =
        picnic_core::config::Section::from_text("function", "plugin = \"random.so\"").unwrap();
    let frames = prop::collection::vec(prop::collection::vec(any::<u8>(), 1..4000), 1..60);
    let config = ProptestConfig::with_cases(64);
    proptest!(config, |(seed: u64, frames in frames)| {
        let context = BuildContext { seed, ..workshop.context() };
        let mut function = picnic_plugin::ENTRY.build(&section, &context).unwrap();
        let mut trial = Trial::new(&context, Direction::Rx).unwrap();
        let mut outcomes = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let now = Time::from_nanos(number as u64 * 1000);
            outcomes.extend(trial.give(&mut *function, now, 0, frame).unwrap());
        }
        outcomes.extend(trial.end(&mut *function).unwrap());
        prop_assert_eq!(outcomes.len(), frames.len());
        // A packet may be shorter or longer, but is never another's. Other tests check `settle` for
        // a packet's own bytes; here no packet leaves its buffer.
        prop_assert!(outcomes.iter().all(|outcome| outcome.data.len() <= 4000 + 2048));
    });
}
