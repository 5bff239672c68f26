//! Our ratio compared with a paper's.
//!
//! ```
//! use picnic_lab::compare::{Finding, Paper};
//! let web = Paper { ratio: 1.29, within: 0.10 };
//! assert_eq!(web.judge(Ok((1.25, 1.33))).finding, Finding::Reproduced);
//! assert_eq!(web.judge(Ok((1.00, 1.05))).finding, Finding::NotReproduced);
//! ```
//!
//! A prediction is never made from the point it was fitted to: such a point reads "fitted", and a
//! prediction that changes with an assumed cost reads "depends on COST", however well it agrees.

use crate::unit::Unit;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A paper's finding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// The paper's ratio.
    pub ratio: f64,
    /// The relative deviation within which ours counts as equal: the reading accuracy of the
    /// paper's figure, and the difference of machines.
    pub within: f64,
}

/// The result of comparing our ratio with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// All of our interval is near enough.
    Reproduced,
    /// No part of it is.
    NotReproduced,
    /// It could not be measured, or not well enough.
    NotMeasurableHere,
    /// Another value of an assumed cost would give another finding.
    DependsOnWhatWasFitted,
    /// A cost was chosen so that it agrees.
    Fitted,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Finding::Reproduced => "reproduced",
            Finding::NotReproduced => "not reproduced",
            Finding::NotMeasurableHere => "not measurable here",
            Finding::DependsOnWhatWasFitted => "depends on what was fitted",
            Finding::Fitted => "fitted",
        })
    }
}

/// A finding with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaperVerdict {
    /// In a word.
    pub finding: Finding,
    /// A sentence without its full stop.
    pub why: String,
}

impl fmt::Display for PaperVerdict {
    /// The finding with its reason, if it needs one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.finding {
            Finding::Reproduced => self.finding.fmt(f),
            Finding::DependsOnWhatWasFitted => write!(f, "depends on {}", self.why),
            finding => write!(f, "{finding}: {}", self.why),
        }
    }
}

impl Paper {
    /// The range in which ours counts as equal: near enough, and an effect of between half and
    /// twice the paper's. Otherwise no effect would reproduce a paper's +6 %.
    fn allowed(&self) -> (f64, f64) {
        let Paper { ratio, within, .. } = *self;
        let (half, twice) = (ratio.sqrt(), ratio * ratio);
        let (low, high) = (ratio / (1.0 + within), ratio * (1.0 + within));
        (low.max(half.min(twice)), high.min(half.max(twice)))
    }

    /// Judges our ratio, given as the interval from low to high, or gives the reason for no
    /// verdict.
    pub fn judge(&self, ours: Result<(f64, f64), String>) -> PaperVerdict {
        let (low, high) = match ours {
            Ok(interval) => interval,
            Err(why) => return PaperVerdict { finding: Finding::NotMeasurableHere, why },
        };
        let allowed = self.allowed();
        let range = |(low, high): (f64, f64)| match Unit::Ratio.text(low) {
            text if text == Unit::Ratio.text(high) => text,
            _ => Unit::Ratio.range(low, high),
        };
        let why = format!("ours {}; {} would agree", range((low, high)), range(allowed));
        let (finding, why) = if low >= allowed.0 && high <= allowed.1 {
            (Finding::Reproduced, why)
        } else if high < allowed.0 || low > allowed.1 {
            (Finding::NotReproduced, why)
        } else {
            (Finding::NotMeasurableHere, format!("the noise is too high: {why}"))
        };
        PaperVerdict { finding, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_interval_decides() {
        let paper = Paper { ratio: 2.0, within: 0.25 };
        let finding = |low, high| paper.judge(Ok((low, high))).finding;
        assert_eq!(finding(1.7, 2.4), Finding::Reproduced);
        assert_eq!(finding(1.0, 1.5), Finding::NotReproduced);
        assert_eq!(finding(2.6, 3.0), Finding::NotReproduced);
        assert_eq!(finding(1.5, 2.0), Finding::NotMeasurableHere);
        let judged = paper.judge(Err("it needs two machines".into()));
        assert_eq!(judged.finding, Finding::NotMeasurableHere);
        assert_eq!(judged.why, "it needs two machines");
    }

    #[test]
    fn no_effect_reproduces_only_no_effect() {
        let finding = |ratio, ours| Paper { ratio, within: 0.10 }.judge(Ok((ours, ours))).finding;
        for (ratio, ours) in [(1.06, 1.0), (1.06, 1.14), (1.045, 0.99), (0.92, 1.0), (0.95, 0.88)] {
            assert_eq!(finding(ratio, ours), Finding::NotReproduced, "{ratio}: {ours}");
        }
        for (ratio, ours) in [(1.06, 1.04), (1.06, 1.12), (0.92, 0.95), (1.0, 1.0), (1.3, 1.2)] {
            assert_eq!(finding(ratio, ours), Finding::Reproduced, "{ratio}: {ours}");
        }
    }
}
