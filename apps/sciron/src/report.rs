//! The output of `picnic sciron check`, as text and as JSON.

use crate::check::{Findings, Pair};
use crate::rules::{Fault, Faults, Rules};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// The report on one file.
#[derive(Clone, Debug)]
pub struct Report {
    file: String,
    outcome: Result<(Rules, Findings), Faults>,
}

/// Reads and checks a file.
pub fn of(path: &Path) -> Report {
    let outcome = Rules::load(path).map(|rules| {
        let findings = rules.check();
        (rules, findings)
    });
    Report { file: path.display().to_string(), outcome }
}

impl Report {
    /// As one JSON object.
    pub fn json(&self) -> serde_json::Value {
        #[derive(Serialize)]
        struct Good<'a> {
            file: &'a str,
            valid: bool,
            default: crate::rules::Verdict,
            unreadable: picnic_filter::Unreadable,
            #[serde(flatten)]
            findings: &'a Findings,
        }
        #[derive(Serialize)]
        struct Bad<'a> {
            file: &'a str,
            valid: bool,
            faults: &'a [Fault],
        }
        let file = &self.file;
        let object = match &self.outcome {
            Ok((rules, findings)) => {
                let Rules { default, unreadable, .. } = *rules;
                let good = Good { file, valid: true, default, unreadable, findings };
                serde_json::to_value(&good)
            }
            Err(faults) => serde_json::to_value(Bad { file, valid: false, faults: &faults.faults }),
        };
        // Plain data can always be written.
        object.unwrap_or_default()
    }

    /// As text; empty if the file is wrong.
    pub fn text(&self) -> String {
        let Ok((rules, findings)) = &self.outcome else { return String::new() };
        let mut text = String::new();
        let rule = |line| rules.rules.iter().find(|rule| rule.line == line);
        let mut tell = |pairs: &[Pair], what: &str, why: &str| {
            for pair in pairs {
                let Some((later, earlier)) = rule(pair.line).zip(rule(pair.earlier_line)) else {
                    continue;
                };
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{}:{}: {what}: {later}\n    {why} line {}: {earlier}",
                    self.file, pair.line, pair.earlier_line
                );
            }
        };
        tell(&findings.shadowed, "shadowed", "never applies; the opposite is decided by");
        tell(&findings.redundant, "redundant", "never applies; the same is decided by");
        tell(&findings.overlaps, "overlap", "decides differently for packets that also match");
        let _ = writeln!(
            text,
            "{}: {} rules, default {}; {} shadowed, {} redundant, {} overlaps{}",
            self.file,
            findings.rules,
            rules.default,
            findings.shadowed.len(),
            findings.redundant.len(),
            findings.overlap_count,
            if findings.overlap_count > findings.overlaps.len() {
                format!(" (the first {} are shown)", findings.overlaps.len())
            } else {
                String::new()
            }
        );
        text
    }

    /// The findings in a valid file.
    ///
    /// # Errors
    /// The faults of the file.
    pub fn findings(&self) -> Result<&Findings, &Faults> {
        self.outcome.as_ref().map(|(_, findings)| findings)
    }
}
