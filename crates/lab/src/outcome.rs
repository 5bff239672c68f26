//! The result of a benchmark or an experiment: figures with unit, repeats and source.
//!
//! A figure's key is its name for programs, in snake_case with the unit among its words:
//! `request_p50_ns`, `delivered_pps`, `busy_fraction`. The unit is derived from it, so that figures
//! are always shown in the unit they are stored in. A [`Comparison`] has the figures of two sides
//! measured in turns; its ratio is that of the pairs.
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

use crate::compare::{self, Interval, Judgement, Rule, Spread, counted, spread};
use crate::distribution::{self, Distribution};
use crate::fit::Basis;
use crate::unit::Unit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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

/// A figure: one value for each repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Its name for programs, with the unit among its words.
    pub key: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// In the order of measurement; empty if unavailable.
    pub values: Vec<f64>,
    /// Its name for people, if not its key in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// For programs only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detail: bool,
    /// Each value is a change from one side of a pair to the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    of_pairs: bool,
    /// Its 95 % interval, if not derived from pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bounds: Option<[f64; 2]>,
    /// The fit behind it, if a paper's machine was fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

impl Figure {
    /// A figure with these repeats, to 15 digits. Values that are not numbers are dropped.
    pub fn of(key: &str, mut values: Vec<f64>) -> Self {
        values.retain(|value| value.is_finite());
        values.iter_mut().for_each(|value| *value = to_15_digits(*value));
        let unit = Unit::of_key(key);
        let source = Source::default();
        let (label, detail, of_pairs, bounds, basis) = (None, false, false, None, None);
        Figure { key: key.into(), unit, source, values, label, detail, of_pairs, bounds, basis }
    }

    /// The change between two sides measured in turns, from the ratio of each pair.
    pub fn of_pairs(key: &str, ratios: &[f64]) -> Self {
        let changes = ratios.iter().map(|ratio| ratio - 1.0).collect();
        Figure { of_pairs: true, ..Figure::of(key, changes) }
    }

    /// A figure of one value; unavailable if none.
    pub fn one(key: &str, value: impl Into<Option<f64>>) -> Self {
        Figure::of(key, value.into().into_iter().collect())
    }

    /// A number of things.
    pub fn count(key: &str, count: u64) -> Self {
        Figure::one(key, count as f64)
    }

    /// With this name for people.
    #[must_use]
    pub fn called(self, label: &str) -> Self {
        Figure { label: Some(label.into()), ..self }
    }

    /// Under another key of the same unit.
    #[must_use]
    pub fn keyed(self, key: &str) -> Self {
        Figure { key: key.into(), ..self }
    }

    /// With its 95 % interval; none if an end is unknown.
    #[must_use]
    pub fn within(self, low: Option<f64>, high: Option<f64>) -> Self {
        Figure { bounds: low.zip(high).map(<[f64; 2]>::from), ..self }
    }

    /// Of a fitted machine: predicted, or the fit point itself.
    #[must_use]
    pub fn resting_on(self, basis: Basis) -> Self {
        let source = if basis.fitted.is_some() { Source::Fitted } else { Source::Predicted };
        Figure { source, basis: Some(basis), ..self }
    }

    /// For programs only: it is not in tables.
    #[must_use]
    pub fn in_detail(self) -> Self {
        Figure { detail: true, ..self }
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| in_words(&self.key))
    }

    /// The spread of its values; `None` if unavailable.
    pub fn spread(&self) -> Option<Spread> {
        spread(&mut self.values.clone())
    }

    /// The judgement of its pairs, if they were measured and are enough.
    pub fn judgement(&self) -> Option<Judgement> {
        if !self.is_measured_in_pairs() {
            return None;
        }
        let ratios: Vec<_> = self.values.iter().map(|change| change + 1.0).collect();
        Some(Rule::default().judge(&ratios))
    }

    /// Whether its pairs include measurement noise.
    pub(crate) fn is_measured_in_pairs(&self) -> bool {
        self.of_pairs && self.source == Source::Measured
    }

    /// The change between the sides, with its 95 % interval.
    fn interval(&self) -> Option<Interval> {
        self.judgement()?.interval
    }

    /// The median for people; the estimate, if there are enough pairs.
    pub fn text(&self) -> String {
        if let Some(interval) = self.interval() {
            return self.unit.text(interval.ratio - 1.0);
        }
        self.spread().map_or_else(|| "unavailable".into(), |spread| self.unit.text(spread.median))
    }

    /// The range of its values for people; the estimate's interval, if there are enough pairs.
    /// Empty for fewer than two.
    pub fn range_text(&self) -> String {
        if let Some(Interval { low, high, .. }) = self.interval() {
            return format!("95 %: {}", self.unit.range(low - 1.0, high - 1.0));
        }
        if let Some([low, high]) = self.bounds {
            return format!("95 %: {}", self.unit.range(low, high));
        }
        match self.spread() {
            Some(spread) if spread.count > 1 => self.unit.range(spread.lowest, spread.highest),
            _ => String::new(),
        }
    }

    fn put(&self, fields: &mut Map<String, Value>) {
        let Some(spread) = self.spread() else {
            fields.insert(self.key.clone(), Value::Null);
            return;
        };
        fields.insert(self.key.clone(), self.unit.json(spread.median));
        if spread.count > 1 {
            fields.insert(format!("{}_min", self.key), self.unit.json(spread.lowest));
            fields.insert(format!("{}_max", self.key), self.unit.json(spread.highest));
        }
        let Some(Judgement { verdict, interval: Some(interval), pairs_needed, .. }) =
            self.judgement()
        else {
            return;
        };
        // The change and its interval are one estimate.
        fields.insert(self.key.clone(), json!(interval.ratio - 1.0));
        fields.insert(format!("{}_low_95", self.key), json!(interval.low - 1.0));
        fields.insert(format!("{}_high_95", self.key), json!(interval.high - 1.0));
        fields.insert(format!("verdict_{}", self.key), json!(verdict));
        if let Some(pairs) = pairs_needed {
            fields.insert(format!("pairs_needed_{}", self.key), json!(pairs));
        }
    }
}

/// A side of a comparison: its name and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Its name in snake_case.
    pub name: String,
    /// In the order of measurement.
    pub values: Vec<f64>,
}

/// Both sides of a comparison, and their ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The baseline.
    pub baseline: f64,
    /// The candidate.
    pub candidate: f64,
    /// Candidate by baseline.
    pub ratio: f64,
}

/// The same figure of two sides measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The figure's name for programs, with the unit among its words.
    pub key: String,
    /// The unit of both sides.
    pub unit: Unit,
    /// Where it comes from.
    pub source: Source,
    /// The side compared against.
    pub baseline: Side,
    /// The side compared with it.
    pub candidate: Side,
    /// The baseline measured a second time in each pair; empty if it was not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<f64>,
    /// The rule for judging the ratio; none if no direction is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
}

impl Comparison {
    /// Repeats of both sides, pair by pair: baseline, then candidate.
    pub fn of(
        key: &str,
        (baseline, baseline_values): (&str, Vec<f64>),
        (candidate, candidate_values): (&str, Vec<f64>),
    ) -> Self {
        let unit = Unit::of_key(key);
        let rule = |more_is_better| Rule { more_is_better, ..Rule::default() };
        let side = |name: &str, values: Vec<f64>| Side {
            name: name.into(),
            values: values.into_iter().map(to_15_digits).collect(),
        };
        Comparison {
            key: key.into(),
            unit,
            rule: unit.more_is_better().map(rule),
            source: Source::default(),
            baseline: side(baseline, baseline_values),
            candidate: side(candidate, candidate_values),
            again: Vec::new(),
        }
    }

    /// With the baseline measured a second time in each pair.
    #[must_use]
    pub fn beside(self, again: Vec<f64>) -> Self {
        Comparison { again: again.into_iter().map(to_15_digits).collect(), ..self }
    }

    /// Judged by this rule.
    #[must_use]
    pub fn judged_by(self, rule: Rule) -> Self {
        Comparison { rule: Some(rule), ..self }
    }

    /// The judgement; none if no direction is good.
    pub fn judgement(&self) -> Option<Judgement> {
        let itself = (!self.again.is_empty()).then(|| self.ratios_to_itself());
        self.rule.map(|rule| rule.judge_beside(&self.ratios(), itself.as_deref()))
    }

    /// Both sides and their ratio, as one estimate: geometric means of the pairs whose ratios
    /// count, so that the sides have this ratio. None without pairs.
    pub fn estimate(&self) -> Option<Estimate> {
        let pairs = self.candidate.values.iter().zip(&self.baseline.values);
        let pairs = pairs.map(|(&candidate, &baseline)| (candidate / baseline, baseline));
        let mut pairs: Vec<_> = pairs.filter(|(ratio, _)| ratio.is_finite()).collect();
        if pairs.is_empty() {
            return None;
        }
        pairs.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let is_counted = |&(ratio, baseline): &(f64, f64)| ratio > 0.0 && baseline > 0.0;
        if !pairs.iter().all(is_counted) {
            // Zero has no logarithm, but a rank.
            let ratio = pairs[pairs.len() / 2].0;
            let baseline = compare::median(&self.baseline.values);
            return Some(Estimate { baseline, candidate: ratio * baseline, ratio });
        }
        let pairs = &pairs[counted(pairs.len())];
        let mean = |of: fn(&(f64, f64)) -> f64| {
            (pairs.iter().map(|pair| of(pair).ln()).sum::<f64>() / pairs.len() as f64).exp()
        };
        let (ratio, baseline) = (mean(|pair| pair.0), mean(|pair| pair.1));
        Some(Estimate { baseline, candidate: ratio * baseline, ratio })
    }

    /// The baseline measured again by the baseline, pair by pair.
    fn ratios_to_itself(&self) -> Vec<f64> {
        let pairs = self.again.iter().zip(&self.baseline.values);
        pairs.map(|(again, baseline)| again / baseline).filter(|r| r.is_finite()).collect()
    }

    /// Candidate by baseline, pair by pair, if both are numbers and the baseline is not zero.
    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.candidate.values.iter().zip(&self.baseline.values);
        pairs.map(|(candidate, baseline)| candidate / baseline).filter(|r| r.is_finite()).collect()
    }

    /// The ratio as a figure.
    pub fn ratio(&self) -> Figure {
        let mut words: Vec<&str> = self.key.trim_end_matches("_per_second").split('_').collect();
        if self.unit.is_word(words.last().copied().unwrap_or("")) {
            words.pop();
        }
        let key = [&["ratio"], &words[..]].concat().join("_");
        let label = format!("{} / {}", in_words(&self.candidate.name), self.baseline.name);
        let ratio = Figure::of(&key, self.ratios()).called(&label);
        Figure { source: self.source, ..ratio }
    }

    /// Both sides as figures: baseline, then candidate.
    pub fn sides(&self) -> [Figure; 2] {
        [&self.baseline, &self.candidate].map(|side| {
            let key = format!("{}_{}", side.name, self.key);
            Figure { source: self.source, unit: self.unit, ..Figure::of(&key, side.values.clone()) }
        })
    }

    /// The compared figure, for people.
    pub fn label(&self) -> String {
        in_words(&self.key)
    }

    /// Both sides for people: baseline, then candidate.
    pub fn side_texts(&self) -> [String; 2] {
        let estimate = self.estimate();
        let texts =
            estimate.map(|of| [of.baseline, of.candidate].map(|value| self.unit.text(value)));
        texts.unwrap_or_else(|| self.sides().map(|side| side.text()))
    }

    /// The ratio for people: with its interval and verdict if there are enough pairs, otherwise
    /// with its spread.
    pub fn ratio_text(&self) -> String {
        let judgement = self.judgement();
        if let Some((verdict, interval)) = judgement.and_then(|j| Some((j.verdict, j.interval?))) {
            let range = Unit::Ratio.range(interval.low, interval.high);
            let range = range.trim_end_matches(" ×");
            return format!("{} (95 %: {range}), {verdict}", Unit::Ratio.text(interval.ratio));
        }
        let ratio = self.ratio();
        let text = self.estimate().map_or_else(|| ratio.text(), |of| Unit::Ratio.text(of.ratio));
        match ratio.range_text() {
            range if range.is_empty() => text,
            range => format!("{text} ({})", range.trim_end_matches(" ×")),
        }
    }

    fn put(&self, fields: &mut Map<String, Value>) {
        let (ratio, sides) = (self.ratio(), self.sides());
        sides.iter().chain([&ratio]).for_each(|figure| figure.put(fields));
        if let Some(Estimate { baseline, candidate, ratio: estimate }) = self.estimate() {
            for (side, value) in sides.iter().zip([baseline, candidate]) {
                fields.insert(side.key.clone(), self.unit.json(to_15_digits(value)));
            }
            fields.insert(ratio.key.clone(), json!(to_15_digits(estimate)));
        }
        let Some(Judgement { verdict, interval, itself, pairs_needed }) = self.judgement() else {
            return;
        };
        let named = |what: &str| ratio.key.replacen("ratio", what, 1);
        for (key, interval) in [(ratio.key.clone(), interval), (named("itself_ratio"), itself)] {
            if let Some(Interval { ratio, low, high, .. }) = interval {
                fields.insert(format!("{key}_low_95"), json!(low));
                fields.insert(format!("{key}_high_95"), json!(high));
                fields.insert(key, json!(ratio));
            }
        }
        if interval.is_none() {
            return;
        }
        fields.insert(named("verdict"), json!(verdict));
        if let Some(pairs) = pairs_needed {
            fields.insert(named("pairs_needed"), json!(pairs));
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
    /// Histograms of the whole run, each with a key of its own.
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

    /// The series of this name; a new one if there is none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Verdict;

    fn sample() -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        outcome.compare(Comparison::of(
            "requests_per_second",
            ("plain", vec![100_000.0, 110_000.0]),
            ("card", vec![54_000.0, 56_100.0]),
        ));
        outcome.add(Figure::of("request_p50_ns", vec![49_123.0, 51_000.0, 48_000.0]));
        outcome.add(Figure::one("missing_ns", None));
        assert_eq!(
            Figure::one("wires", 22.0).within(Some(21.7), Some(22.2)).range_text(),
            "95 %: 21.7 to 22.2"
        );
        outcome.tell("backend", "vector");
        let point = Point::at("rate_pps", 80_000).with(Figure::of("wake_p50_ns", vec![198.4]));
        outcome.series("curve").push(point);
        outcome
    }

    #[test]
    fn fields_are_named_with_their_units_and_hold_medians_and_spread() {
        let fields = sample().fields();
        let expected = json!({
            "figures_are": "measured", "backend": "vector",
            "plain_requests_per_second": 104_880.884_817_015, "plain_requests_per_second_min": 100_000.0,
            "plain_requests_per_second_max": 110_000.0, "card_requests_per_second": 55_039.985_465_114_4,
            "card_requests_per_second_min": 54_000.0, "card_requests_per_second_max": 56_100.0,
            "ratio_requests": 0.524_785_670_536_077, "ratio_requests_min": 0.51, "ratio_requests_max": 0.54,
            "request_p50_ns": 49_123.0, "request_p50_ns_min": 48_000.0,
            "request_p50_ns_max": 51_000.0, "missing_ns": null,
            "curve": [{ "rate_pps": 80_000, "wake_p50_ns": 198.4 }],
        });
        assert_eq!(Value::Object(fields), expected);
    }

    #[test]
    fn tables_have_both_sides_the_ratio_and_units() {
        let tables = sample().tables();
        assert_eq!(tables[0].columns, ["compared", "plain", "card", "ratio"]);
        let row = ["requests", "105 k/s", "55.0 k/s", "0.525 × (0.510 to 0.540)"];
        assert_eq!(tables[0].rows, [row]);
        assert_eq!(tables[1].rows[1], ["request p50", "49.1 µs", "48.0 to 51.0 µs"]);
        assert_eq!(tables[1].rows[2], ["missing", "unavailable", ""]);
        assert_eq!(tables[2].columns, ["rate", "wake p50"]);
        assert_eq!(tables[2].rows, [["80 k/s", "198 ns"]]);
    }

    #[test]
    fn points_with_different_figures_get_separate_columns() {
        let bare = Point::at("way", "without").with(Figure::one("goodput_bps", 2e9));
        let mut compared = Point::at("way", "card").with(Figure::one("goodput_bps", 1e9));
        compared.comparisons.push(Comparison::of("p50_ns", ("a", vec![2.0]), ("b", vec![1.0])));
        let mut series = Series { name: "ways".into(), points: vec![bare, compared] };
        let row = ["card", "2.00 ns", "1.00 ns", "0.500 ×", "1.00 Gb/s"];
        for _ in 0..2 {
            let table = series.table();
            assert_eq!(table.columns, ["way", "a p50", "b p50", "ratio", "goodput"]);
            assert!(table.rows.contains(&row.map(String::from).into()), "{table:?}");
            assert!(
                table.rows.contains(&["without", "", "", "", "2.00 Gb/s"].map(String::from).into())
            );
            series.points.reverse();
        }
    }

    #[test]
    fn enough_pairs_give_an_interval_and_a_verdict() {
        let slower: Vec<f64> = (0..10).map(|n| 54.0 + f64::from(n % 3)).collect();
        let compare = |key| Comparison::of(key, ("a", vec![100.0; 10]), ("b", slower.clone()));
        let of_rates = compare("goodput_bps");
        assert_eq!(of_rates.ratio_text(), "0.549 × (95 %: 0.538 to 0.559), worse");
        assert!(compare("p50_ns").ratio_text().ends_with(", better"));
        let of_counts = compare("packets");
        assert_eq!(of_counts.ratio_text(), "0.549 × (0.540 to 0.560)");
        let mut fields = Map::new();
        of_rates.put(&mut fields);
        assert_eq!(fields["verdict_goodput"], "worse");
        let number = |key: &str| fields[key].as_f64().unwrap();
        assert!(number("ratio_goodput_low_95") <= number("ratio_goodput"));
        assert!(number("ratio_goodput") <= number("ratio_goodput_high_95"));
        assert!(!fields.contains_key("pairs_needed_goodput"));
        of_counts.put(&mut fields);
        assert!(!fields.contains_key("verdict_packets"));
    }

    #[test]
    fn sides_and_ratio_are_one_estimate() {
        // A disturbed run drops its pair's ratio and its sides.
        let baseline: Vec<f64> =
            (0..12).map(|n| if n == 3 { 5.0 } else { 100.0 + f64::from(n) }).collect();
        let candidate: Vec<f64> = (0..12).map(|n| 104.0 + f64::from(n * 7 % 5)).collect();
        let compared = Comparison::of("goodput_bps", ("a", baseline), ("b", candidate));
        let estimate = compared.estimate().unwrap();
        assert!((estimate.candidate / estimate.baseline - estimate.ratio).abs() < 1e-12);
        let interval = compared.judgement().unwrap().interval.unwrap();
        assert!((interval.ratio - estimate.ratio).abs() < 1e-12, "{interval:?} {estimate:?}");
        assert!((100.0..112.0).contains(&estimate.baseline), "{estimate:?}");
        let mut fields = Map::new();
        compared.put(&mut fields);
        let number = |key: &str| fields[key].as_f64().unwrap();
        let ratio = number("b_goodput_bps") / number("a_goodput_bps");
        assert!((ratio - number("ratio_goodput")).abs() < 1e-9, "{fields:?}");
        // Zero has a rank, too.
        let nothing = Comparison::of("goodput_bps", ("a", vec![2.0; 10]), ("b", vec![0.0; 10]));
        let wanted = Estimate { baseline: 2.0, candidate: 0.0, ratio: 0.0 };
        assert_eq!(nothing.estimate(), Some(wanted));
        assert_eq!(Comparison::of("x", ("a", vec![0.0]), ("b", vec![1.0])).estimate(), None);
    }

    #[test]
    fn a_baseline_that_differs_from_itself_gives_no_verdict() {
        let compare = |again: f64| {
            let steady: Vec<f64> = (0..10).map(|n| 100.0 + f64::from(n % 3)).collect();
            let times = |factor: f64| steady.iter().map(|value| value * factor).collect::<Vec<_>>();
            let sides = (("a", steady.clone()), ("b", times(1.2)));
            Comparison::of("goodput_bps", sides.0, sides.1).beside(times(again))
        };
        let mut fields = Map::new();
        compare(1.0).put(&mut fields);
        assert_eq!(
            (&fields["verdict_goodput"], &fields["itself_ratio_goodput"]),
            (&json!("better"), &json!(1.0))
        );
        let judged = compare(1.1).judgement().unwrap();
        assert_eq!(judged.verdict, Verdict::TooNoisy);
        // However small its own noise, its interval is at least as wide as the baseline's.
        let steady = compare(1.0);
        let noisy: Vec<f64> = (0..10).map(|n| if n % 2 == 0 { 80.0 } else { 125.0 }).collect();
        let interval = steady.beside(noisy).judgement().unwrap().interval.unwrap();
        assert!(interval.low < 1.1 && interval.high > 1.3, "{interval:?}");
    }

    #[test]
    fn measured_changes_of_pairs_have_interval_and_verdict() {
        let ratios: Vec<f64> = (0..10).map(|n| 1.11 + f64::from(n % 3) / 100.0).collect();
        let told = |source, ratios: &[f64]| {
            let mut outcome = Outcome::of(source);
            outcome.add(Figure::of_pairs("knet_gain", ratios).called("knet"));
            (outcome.tables()[0].rows[0][1..].to_vec(), outcome.fields())
        };
        let (row, fields) = told(Source::Measured, &ratios);
        let interval = Interval::of(&ratios, 0.05).unwrap();
        let range = Unit::Change.range(interval.low - 1.0, interval.high - 1.0);
        assert_eq!(row, ["+11.9 %".to_owned(), format!("95 %: {range}")]);
        assert_eq!(fields["verdict_knet_gain"], "better");
        let number = |key: &str| fields[key].as_f64().unwrap();
        assert!(number("knet_gain_low_95") < number("knet_gain"));
        assert!(number("knet_gain") < number("knet_gain_high_95"));
        let (row, fields) = told(Source::Measured, &ratios[..9]);
        assert_eq!(row, ["+12.0 %", "+11.0 to +13.0 %"]);
        assert!(!fields.contains_key("verdict_knet_gain"));
        let (row, fields) = told(Source::Modelled, &ratios);
        assert_eq!(row, ["+12.0 %", "+11.0 to +13.0 %"]);
        assert!(!fields.contains_key("knet_gain_low_95"));
        let level: Vec<f64> = (0..10).map(|n| 1.0 + f64::from(n % 3 - 1) / 1000.0).collect();
        assert_eq!(told(Source::Measured, &level).1["verdict_knet_gain"], "no_difference");
    }

    #[test]
    fn repeats_are_concatenated() {
        let mut outcome = sample();
        let wait = |value| Distribution::of("wait_ns", [(value, 2)]);
        outcome.distribute(wait(5));
        let mut again = sample();
        again.distribute(wait(7));
        outcome.repeat(again);
        assert_eq!(outcome.distributions, [wait(5).and(&wait(7))]);
        assert_eq!(outcome.fields()["wait_ns_distribution"]["p99"], 7);
        assert_eq!(outcome.tables().last().unwrap().rows[0][..2], ["wait", "4"]);
        let ratio = outcome.whole.comparisons[0].ratios();
        assert_eq!(ratio.len(), 4);
        assert_eq!(outcome.whole.figures[0].values.len(), 6);
        let [point] = &outcome.series[0].points[..] else { panic!("{outcome:?}") };
        assert_eq!(point.figures[0].values, [198.4, 198.4]);
    }

    #[test]
    fn outcomes_round_trip() {
        let mut outcome = sample();
        outcome.add(Figure::one("busy_fraction", 0.145_639_805_213_635_07));
        outcome.distribute(Distribution::of("wait_ns", [(1, 2), (u64::MAX, 3)]));
        outcome.add(Figure::one("rate_pps", 2_815_876.101_451_536 / 3.0));
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
    }
}
