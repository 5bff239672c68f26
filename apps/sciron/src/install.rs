//! Rules as filters: in their own group, in the order of the file.

use crate::rules::{Rules, Verdict};
use picnic_filter::reload::Reloaded;
use picnic_filter::{
    Action, Direction, Filter, FilterError, Filters, FiveTuple, Place, Unreadable,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The group of SCIRON's filters.
pub const GROUP: &str = "sciron";
/// Name of the default's filter. Its priority follows the last possible line.
const DEFAULT: &str = "default";

/// Direction of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sides {
    /// From the wire.
    #[default]
    Rx,
    /// To the wire.
    Tx,
    /// Both.
    Both,
}

impl Sides {
    fn directions(self) -> &'static [Direction] {
        match self {
            Sides::Rx => &[Direction::Rx],
            Sides::Tx => &[Direction::Tx],
            Sides::Both => &[Direction::Rx, Direction::Tx],
        }
    }
}

/// The place where the rules are installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// At the card or at the driver.
    pub place: Place,
    /// Direction of the packets.
    pub sides: Sides,
}

impl Rules {
    /// The filters of the rules. A rule's line is its priority.
    pub fn filters(&self, installation: &Installation) -> Vec<Filter> {
        let action = |verdict| match verdict {
            Verdict::Accept => Action::Accept,
            Verdict::Drop => Action::Drop,
        };
        let of_direction = |&direction: &Direction| {
            let rules = self.rules.iter().map(|rule| {
                let line = i32::try_from(rule.line).unwrap_or(i32::MAX - 1);
                Filter::new("rule", rule.tuple, action(rule.verdict)).with_priority(line)
            });
            let default = Filter::new(DEFAULT, FiveTuple::default(), action(self.default));
            let filters = rules.chain([default.with_priority(i32::MAX)]);
            let place = installation.place;
            filters.map(move |filter| {
                let drops = filter.action == Action::Drop;
                let unreadable = if drops { self.unreadable } else { Unreadable::default() };
                filter.on(direction).at(place).in_group(GROUP).with_unreadable(unreadable)
            })
        };
        installation.sides.directions().iter().flat_map(of_direction).collect()
    }

    /// Replaces the installed rules at once. A rule that stays keeps its counters, even if its line
    /// changes.
    ///
    /// # Errors
    /// The card has no room for these filters; then nothing is changed.
    pub fn install(
        &self,
        filters: &Filters,
        installation: &Installation,
    ) -> Result<Reloaded, FilterError> {
        filters.replace(&[GROUP], self.filters(installation))
    }
}
