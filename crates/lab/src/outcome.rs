//! The result of a benchmark or an experiment: figures with unit, repeats and source.
//!
//! A figure's key is its name for programs, in snake_case with the unit among its words:
//! `request_p50_ns`, `delivered_pps`, `busy_fraction`. The unit is derived from it, so that figures
//! are always shown in the unit they are stored in. A [`Comparison`] has the figures of two sides
//! measured alternately; its ratio is the ratio of the pairs.
//!
//! ```
//! use picnic_lab::outcome::{Comparison, Figure, Outcome, Point, Source};
//! let mut outcome = Outcome::of(Source::Measured);
//! outcome.add(Figure::of("wake_p50_ns", vec![48_000.0, 49_100.0, 52_000.0]));
//! outcome.compare(Comparison::of("p50_ns", ("bare", vec![50.0]), ("card", vec![100.0])));
//! outcome.series("curve").push(Point::at("rate_pps", 1000).with(Figure::of("p50_ns", vec![5.0])));
//! assert_eq!(outcome.fields()["wake_p50_ns"], 49_100.0);
//! assert_eq!(outcome.fields()["ratio_p50"], 2.0);
//! ```

mod comparison;
mod figure;
#[cfg(test)]
mod tests;

pub use comparison::{Comparison, Estimate, Side};
pub use figure::Figure;

use crate::distribution::{self, Distribution};
use crate::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The source of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// By the clocks and counters of a machine.
    #[default]
    Measured,
    /// By a model of one.
    Modelled,
    /// By the model of a paper's machine, for a figure that its costs were not fitted to.
    Predicted,
    /// By the model of a paper's machine, for the figure that a cost was fitted to.
    Fitted,
}

impl Source {
    /// In a word, as in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Modelled => "modelled",
            Source::Predicted => "predicted",
            Source::Fitted => "fitted",
        }
    }
}

/// The results at one point of a series, or of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// The varied values and other non-numeric facts, by key.
    pub labels: Map<String, Value>,
    /// Facts for programs only.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    words: Map<String, Value>,
    /// Two sides of the same figure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// All others.
    pub figures: Vec<Figure>,
}

impl Point {
    /// The point with these labels.
    pub fn with_labels(labels: Map<String, Value>) -> Self {
        Point { labels, ..Point::default() }
    }

    /// The point where `key` is `value`.
    pub fn at(key: &str, value: impl Into<Value>) -> Self {
        Point::default().and(key, value)
    }

    /// With another varied value.
    #[must_use]
    pub fn and(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// With a word that is for programs only.
    #[must_use]
    pub fn told(mut self, key: &str, word: impl Into<String>) -> Self {
        self.words.insert(key.into(), word.into().into());
        self
    }

    /// With this figure.
    #[must_use]
    pub fn with(mut self, figure: Figure) -> Self {
        self.figures.push(figure);
        self
    }

    /// With this comparison.
    #[must_use]
    pub fn comparing(mut self, comparison: Comparison) -> Self {
        self.comparisons.push(comparison);
        self
    }

    /// A figure, a side or a ratio.
    pub fn figure(&self, key: &str) -> Option<Figure> {
        let compared = self.comparisons.iter().flat_map(|comparison| {
            let [baseline, candidate] = comparison.sides();
            [baseline, candidate, comparison.ratio()]
        });
        let mut all = compared.chain(self.figures.iter().cloned());
        all.find(|figure| figure.key == key)
    }

    /// The median of a figure, a side or a ratio.
    pub fn median(&self, key: &str) -> Option<f64> {
        self.figure(key)?.spread().map(|spread| spread.median)
    }

    /// As fields for programs: medians, and the minimum and maximum of repeats.
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = self.labels.clone();
        fields.extend(self.words.clone());
        self.comparisons.iter().for_each(|comparison| comparison.put(&mut fields));
        self.figures.iter().for_each(|figure| figure.put(&mut fields));
        fields
    }

    fn repeat(&mut self, other: Point) {
        for figure in other.figures {
            match self.figures.iter_mut().find(|own| own.key == figure.key) {
                Some(own) => own.values.extend(figure.values),
                None => self.figures.push(figure),
            }
        }
        for comparison in other.comparisons {
            match self.comparisons.iter_mut().find(|own| own.key == comparison.key) {
                Some(own) => {
                    own.again.extend(comparison.again);
                    own.baseline.values.extend(comparison.baseline.values);
                    own.candidate.values.extend(comparison.candidate.values);
                }
                None => self.comparisons.push(comparison),
            }
        }
    }

    fn set_source(&mut self, source: Source) {
        self.comparisons.iter_mut().for_each(|comparison| comparison.source = source);
        self.figures.iter_mut().for_each(|figure| figure.source = source);
    }

    /// A table's row: the content of each column.
    fn cells(&self) -> Vec<(Column, String)> {
        let mut cells: Vec<(Column, String)> = Vec::new();
        let mut add = |heading: String, cell: String| {
            let same = cells.iter().filter(|((other, _), _)| *other == heading).count();
            cells.push(((heading, same), cell));
        };
        for (key, value) in &self.labels {
            add(in_words(key), label_text(key, value));
        }
        for comparison in &self.comparisons {
            for (side, text) in comparison.sides().iter().zip(comparison.side_texts()) {
                add(side.label(), text);
            }
            add("ratio".into(), comparison.ratio_text());
        }
        for figure in self.figures.iter().filter(|figure| !figure.detail) {
            add(figure.label(), figure.text());
        }
        cells
    }
}

/// Points along the varied value, each with the same labels and figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// In snake_case.
    pub name: String,
    /// In the order of the varied value.
    pub points: Vec<Point>,
}

impl Series {
    /// Adds a point.
    pub fn push(&mut self, point: Point) {
        self.points.push(point);
    }

    fn repeat(&mut self, point: Point) {
        match self.points.iter_mut().find(|own| own.labels == point.labels) {
            Some(own) => own.repeat(point),
            None => self.points.push(point),
        }
    }

    /// For people: a row per point. Cells without a value are empty.
    pub fn table(&self) -> Table {
        let mut columns: Vec<Column> = Vec::new();
        for point in &self.points {
            let mut place = 0;
            for (column, _) in point.cells() {
                place = match columns.iter().position(|known| *known == column) {
                    Some(known) => known + 1,
                    None => {
                        columns.insert(place, column);
                        place + 1
                    }
                };
            }
        }
        let rows = self.points.iter().map(|point| {
            let cells = point.cells();
            let cell = |column| cells.iter().find(|(own, _)| own == column);
            columns
                .iter()
                .map(|column| cell(column).map_or("".into(), |cell| cell.1.clone()))
                .collect()
        });
        let rows = rows.collect();
        let words = self.points.first().map_or(0, |point| {
            let is_text = |value: &Value| value.is_string() || value.is_null();
            point.labels.values().take_while(|value| is_text(value)).count()
        });
        let columns = columns.into_iter().map(|(heading, _)| heading).collect();
        Table { title: in_words(&self.name), columns, rows, words }
    }
}

/// The heading of a column, and the number of columns before it with the same heading.
type Column = (String, usize);

/// A table for people: columns, and rows of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Its title; may be empty.
    pub title: String,
    /// Headings.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// Number of leading columns with words; the others have figures, and are right-aligned.
    pub words: usize,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The source of figures that are added.
    source: Source,
    /// Figures of the whole run.
    pub whole: Point,
    /// Those of its parts.
    pub series: Vec<Series>,
    /// Histograms of the whole run, each with a unique key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<Distribution>,
    /// The settings of the run.
    pub settings: Value,
    /// Notes that a reader needs to judge the figures.
    pub notes: Vec<String>,
}

impl Outcome {
    /// An empty one, with figures of this source.
    pub fn of(source: Source) -> Self {
        Outcome { source, ..Outcome::default() }
    }

    /// An empty one for a run with these settings.
    pub fn with_settings(source: Source, settings: &impl Serialize) -> Self {
        let settings = serde_json::to_value(settings).unwrap_or_default();
        Outcome { settings, ..Outcome::of(source) }
    }

    /// The source of its figures.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The median of a figure of the whole run.
    pub fn median(&self, key: &str) -> Option<f64> {
        self.whole.median(key)
    }

    /// Adds a figure of the whole run.
    pub fn add(&mut self, figure: Figure) {
        let source = if figure.basis.is_some() { figure.source } else { self.source };
        self.whole.figures.push(Figure { source, ..figure });
    }

    /// Adds a comparison of the whole run.
    pub fn compare(&mut self, comparison: Comparison) {
        self.whole.comparisons.push(Comparison { source: self.source, ..comparison });
    }

    /// Adds a fact that is not a figure.
    pub fn tell(&mut self, key: &str, value: impl Into<Value>) {
        self.whole.labels.insert(key.into(), value.into());
    }

    /// Adds a histogram; to the one of the same key, if any.
    pub fn distribute(&mut self, mut distribution: Distribution) {
        distribution.source = self.source;
        match self.distributions.iter_mut().find(|own| own.key == distribution.key) {
            Some(own) => *own = own.clone().and(&distribution),
            None => self.distributions.push(distribution),
        }
    }

    /// Adds a note for the reader.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Appends another repeat of the same measurement: values of the same figure are concatenated.
    pub fn repeat(&mut self, other: Outcome) {
        self.whole.repeat(other.whole);
        for series in other.series {
            match self.series.iter_mut().find(|own| own.name == series.name) {
                Some(own) => series.points.into_iter().for_each(|point| own.repeat(point)),
                None => self.series.push(series),
            }
        }
        other.distributions.into_iter().for_each(|one| self.distribute(one));
        let new = other.notes.into_iter().filter(|note| !self.notes.contains(note));
        self.notes.extend(new.collect::<Vec<_>>());
    }

    /// The series of this name, or a new one.
    pub fn series(&mut self, name: &str) -> SeriesBuilder<'_> {
        let found = self.series.iter().position(|series| series.name == name);
        let index = found.unwrap_or_else(|| {
            self.series.push(Series { name: name.into(), points: Vec::new() });
            self.series.len() - 1
        });
        SeriesBuilder { series: &mut self.series[index], source: self.source }
    }

    /// As fields for programs: medians, and the minimum and maximum of repeats.
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("figures_are".into(), self.source.label().into());
        fields.extend(self.whole.fields());
        for series in &self.series {
            let points = series.points.iter().map(|point| Value::Object(point.fields()));
            fields.insert(series.name.clone(), points.collect());
        }
        for one in &self.distributions {
            fields.insert(format!("{}_distribution", one.key), one.json());
        }
        fields
    }

    /// For people: comparisons with both sides, figures with their spread, the series, and
    /// distributions.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for comparison in &self.whole.comparisons {
            let names = [&comparison.baseline, &comparison.candidate].map(|side| side.name.clone());
            let [baseline, candidate] = names.map(|name| in_words(&name));
            let columns = vec!["compared".into(), baseline, candidate, "ratio".into()];
            let [left, right] = comparison.side_texts();
            let row = vec![comparison.label(), left, right, comparison.ratio_text()];
            match tables.iter_mut().find(|table| table.columns == columns) {
                Some(table) => table.rows.push(row),
                None => {
                    tables.push(Table { columns, rows: vec![row], words: 1, ..Table::default() })
                }
            }
        }
        let told = self.whole.labels.iter();
        let mut rows: Vec<_> = told
            .map(|(key, value)| vec![in_words(key), label_text(key, value), String::new()])
            .collect();
        let figures = self.whole.figures.iter().filter(|figure| !figure.detail);
        rows.extend(figures.map(|figure| vec![figure.label(), figure.text(), figure.range_text()]));
        if !rows.is_empty() {
            let columns: &[&str] = match rows.len() == self.whole.labels.len() {
                true => &["figure", "value"],
                false => &["figure", "median", "range"],
            };
            let columns: Vec<_> = columns.iter().copied().map(String::from).collect();
            rows.iter_mut().for_each(|row| row.truncate(columns.len()));
            tables.push(Table { columns, rows, words: 1, ..Table::default() });
        }
        tables.extend(self.series.iter().map(Series::table));
        tables.extend(distribution::table(&self.distributions));
        tables
    }
}

/// A series of an outcome, to add to.
#[derive(Debug)]
pub struct SeriesBuilder<'a> {
    series: &'a mut Series,
    source: Source,
}

impl SeriesBuilder<'_> {
    /// Adds a point.
    pub fn push(&mut self, mut point: Point) {
        point.set_source(self.source);
        self.series.push(point);
    }
}

/// Rounds to the digits that JSON keeps exactly: a number read back is the same.
fn to_15_digits(value: f64) -> f64 {
    format!("{value:.14e}").parse().unwrap_or(value)
}

/// A key for people: without its unit, which is shown with the figure.
pub(crate) fn in_words(key: &str) -> String {
    let unit = Unit::of_key(key);
    let key = key.trim_end_matches("_per_second");
    let words: Vec<_> = key.split('_').collect();
    let kept = match words.split_last() {
        Some((last, rest)) if !rest.is_empty() && unit.is_word(last) => rest,
        _ => &words,
    };
    kept.join(" ")
}

fn label_text(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Number(number) => Unit::of_key(key).short_text(number.as_f64().unwrap_or(f64::NAN)),
        other => other.to_string(),
    }
}
