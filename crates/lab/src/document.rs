//! The stored form of a result: one JSON object, with figures as flat fields.
//!
//! Besides the fields for scripts it has the outcome with all repeats, from which tables, reports
//! and comparisons are derived.

use crate::facts::Facts;
use crate::outcome::Outcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The list that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measures the gain of a feature.
    Experiment,
    /// Measures the cost of the card.
    Benchmark,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Experiment, Kind::Benchmark];

    /// The field that holds the entry's name.
    pub fn key(self) -> &'static str {
        match self {
            Kind::Experiment => "experiment",
            Kind::Benchmark => "benchmark",
        }
    }
}

/// The result of an entry, with the facts it must be read with.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Experiment or benchmark.
    pub kind: Kind,
    /// The entry's name.
    pub name: String,
    /// The findings.
    pub outcome: Outcome,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// The machine and the build.
    pub facts: Facts,
}

/// The common fields of all documents; figures are flat fields beside them.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Document")]
pub struct Fields<'d> {
    /// The name of the experiment or question.
    #[serde(skip_serializing_if = "Option::is_none")]
    experiment: Option<&'d str>,
    /// The benchmark's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    benchmark: Option<&'d str>,
    /// How long it took, in seconds.
    took_s: f64,
    /// The machine and the build.
    facts: &'d Facts,
    /// Its settings.
    settings: &'d Value,
    /// Notes that a reader needs to judge the figures.
    notes: &'d [String],
    /// All figures with their repeats.
    outcome: &'d Outcome,
}

impl Document {
    /// As one object.
    pub fn to_json(&self) -> Value {
        let named = |kind| (self.kind == kind).then_some(self.name.as_str());
        let fields = Fields {
            experiment: named(Kind::Experiment),
            benchmark: named(Kind::Benchmark),
            took_s: self.took_s,
            facts: &self.facts,
            settings: &self.outcome.settings,
            notes: &self.outcome.notes,
            outcome: &self.outcome,
        };
        let mut object = self.outcome.fields();
        if let Ok(Value::Object(fields)) = serde_json::to_value(fields) {
            object.extend(fields);
        }
        Value::Object(object)
    }

    /// Reads the output of [`Document::to_json`].
    ///
    /// # Errors
    /// The missing or wrong part.
    pub fn from_json(object: &Value) -> Result<Self, String> {
        let found =
            Kind::ALL.into_iter().find_map(|kind| Some((kind, object[kind.key()].as_str()?)));
        let (kind, name) = found.ok_or("missing field \"experiment\" or \"benchmark\"")?;
        fn field<T: serde::de::DeserializeOwned>(object: &Value, name: &str) -> Result<T, String> {
            let value = object.get(name).ok_or_else(|| format!("missing field \"{name}\""))?;
            serde_json::from_value(value.clone()).map_err(|error| format!("{name}: {error}"))
        }
        Ok(Document {
            kind,
            name: name.into(),
            outcome: field(object, "outcome")?,
            took_s: field(object, "took_s")?,
            facts: field(object, "facts")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts;
    use crate::outcome::{Figure, Source};

    #[test]
    fn documents_round_trip() {
        let mut outcome = Outcome::of(Source::Modelled);
        outcome.add(Figure::of("wake_ns", vec![1.5, 2.5]));
        let (kind, name) = (Kind::Benchmark, "x".to_owned());
        let document = Document { kind, name, outcome, took_s: 1.0, facts: facts("r") };
        let json = document.to_json();
        assert_eq!((&json["benchmark"], &json["wake_ns"]), (&"x".into(), &2.5.into()));
        assert_eq!(Document::from_json(&json), Ok(document));
        let error = Document::from_json(&serde_json::json!({ "experiment": "x" })).unwrap_err();
        assert_eq!(error, "missing field \"outcome\"");
    }
}
