//! Rust functions made with `picnic_sdk`, through the interface of shared objects.

use picnic_core::direction::Direction;
use picnic_core::function::Function as CardFunction;
use picnic_core::registry::BuildContext;
use picnic_core::time::Time;
use picnic_engine::trial::{Fate, Trial, conformance};
use picnic_plugin::linked;
use picnic_sdk::{ConfigError, Context, Exported, Function, Packet, Verdict, table};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// Steers DNS to a queue; `other` decides about other packets.
struct Names {
    keys: Keys,
    names: u64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Other {
    /// Passes to the next function.
    #[default]
    Pass,
    /// Drops.
    Drop,
}

#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct Keys {
    /// The queue for DNS.
    queue: u16,
    /// The fate of other packets.
    other: Other,
    /// A mark for DNS packets.
    mark: Option<u32>,
}

impl Function for Names {
    type Config = Keys;
    const NAME: &'static str = "names";
    const HELP: &'static str = "steer name service to a separate queue";
    const COUNTERS: &'static [(&'static str, &'static str)] = &[("names", "Queries seen.")];

    fn new(keys: Keys, context: &Context) -> Result<Self, ConfigError> {
        match keys.queue < context.queues {
            true => Ok(Names { keys, names: 0 }),
            false => Err(ConfigError::new("queue", "found another, allowed: one of the card")),
        }
    }

    fn process_packet(&mut self, _: Time, packet: &mut Packet<'_>) -> Verdict {
        match packet.udp() {
            Some(udp) if udp.destination_port() == 53 => {
                self.names += 1;
                *packet.mark() = self.keys.mark.unwrap_or(0);
                Verdict::Steer(self.keys.queue)
            }
            _ => match self.keys.other {
                Other::Pass => Verdict::Next,
                Other::Drop => Verdict::Drop,
            },
        }
    }

    fn count(&self, values: &mut [u64]) {
        values[0] = self.names;
    }
}

/// Holds packets for a microsecond, and removes a byte from each it releases.
struct Late(Time);

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoKeys {}

impl Function for Late {
    type Config = NoKeys;
    const NAME: &'static str = "late";
    const HELP: &'static str = "hold packets for a microsecond";
    const HOLDS: bool = true;

    fn new(_: NoKeys, _: &Context) -> Result<Self, ConfigError> {
        Ok(Late(Time::ZERO))
    }

    fn process_packet(&mut self, now: Time, _: &mut Packet<'_>) -> Verdict {
        self.0 = now + 1000;
        Verdict::Hold
    }

    fn next_deadline(&self) -> Option<Time> {
        Some(self.0)
    }

    fn flush(&mut self, _: Time, packet: &mut Packet<'_>) -> Verdict {
        packet.pull_front(1);
        Verdict::Next
    }
}

static NAMES: Exported = table::<Names>();
static LATE: Exported = table::<Late>();

fn build(exported: &Exported, keys: &str) -> Result<Box<dyn CardFunction>, ConfigError> {
    linked(exported, keys, &BuildContext::default())
}

#[test]
fn verdicts_marks_and_bytes_are_the_cards() {
    let mut function = build(&NAMES, "queue = 2\nmark = 7\nother = \"drop\"").unwrap();
    let mut trial = Trial::new(&BuildContext::default(), Direction::Rx).unwrap();
    let frames = picnic_engine::trial::frames::all();
    let mut names = 0;
    for frame in &frames {
        let outcomes = trial.give(&mut *function, Time::ZERO, 0, frame).unwrap();
        match outcomes[0].fate {
            Fate::Queue(2) => {
                names += 1;
                assert_eq!((outcomes[0].mark, &outcomes[0].data), (7, frame));
            }
            Fate::Dropped(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(names > 2, "{names}");
    assert_eq!(trial.end(&mut *function), Ok(vec![]));
    let mut function = build(&LATE, "").unwrap();
    assert!(trial.give(&mut *function, Time::ZERO, 0, &[1, 2, 3]).unwrap().is_empty());
    assert_eq!(trial.end(&mut *function).unwrap()[0].data, [2, 3]);
}

#[test]
fn wrong_keys_are_reported_with_their_lines() {
    let told = |keys: &str| build(&NAMES, keys).err().unwrap().to_string();
    let queue = "card:2: queue: found another, allowed: one of the card";
    assert_eq!(told("queue = 4"), queue);
    assert_eq!(
        told("other = \"hold\""),
        "card:2: other: found \"hold\", allowed: \"pass\", \"drop\""
    );
    assert_eq!(told("mark = true"), "card:2: mark: found true, allowed: a whole number");
    assert!(told("\nmarks = 1").starts_with("card:3: marks: found key \"marks\", allowed: "));
}

#[test]
fn sdk_functions_pass_the_conformance_tests() {
    let context = BuildContext::default();
    for (exported, keys) in [(&NAMES, "queue = 1"), (&LATE, "")] {
        conformance::of_frames(|| build(exported, keys).unwrap(), &context).unwrap();
    }
    // Headers that span buffers are linearised before the function looks.
    conformance::of_pieces(|| build(&NAMES, "queue = 1").unwrap(), &context).unwrap();
}

proptest! {
    #[test]
    fn any_bytes_keep_their_fate(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
        let context = BuildContext { wires: 3, buffer_size: 128, ..BuildContext::default() };
        for exported in [&NAMES, &LATE] {
            conformance::of_bytes(|| build(exported, "").unwrap(), &context, &bytes).unwrap();
        }
    }
}
