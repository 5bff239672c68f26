//! Drawings of an experiment: figures of a series along a label.
//!
//! ```
//! use picnic_lab::outcome::{Figure, Outcome, Point, Source};
//! use picnic_lab::plot::Plot;
//! let mut outcome = Outcome::of(Source::Measured);
//! for (rate, values) in [(1, vec![2.0, 3.0, 4.0]), (2, vec![5.0])] {
//!     outcome.series("curve").push(Point::at("rate_pps", rate).with(Figure::of("p50_ns", values)));
//! }
//! let drawn = Plot::lines("waits", "curve", "rate_pps", "p50_ns").draw(&outcome).unwrap();
//! assert_eq!(drawn.lines[0].points[0].low, 2.0);
//! ```

use crate::outcome::{Figure, Outcome, Point, in_words};
use crate::unit::Unit;
use serde_json::Value;

/// A paper's figure, to be drawn with ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Its name, for people.
    pub label: String,
    /// Its place on the x axis; none for a horizontal line.
    pub x: Option<f64>,
    /// Its value, in the unit of the plot.
    pub y: f64,
}

/// A drawing's definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its heading.
    pub title: String,
    series: String,
    /// The label on the x axis; none for bars, one per point.
    x: Option<String>,
    /// The figures, a line for each.
    ys: Vec<String>,
    by: Option<String>,
    only: Option<(String, String)>,
    is_logarithmic: bool,
    marks: Vec<Mark>,
}

/// A value with the spread of its repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    /// Along the x axis, in the label's own unit; a bar's place.
    pub x: f64,
    /// The middle of the repeats.
    pub y: f64,
    /// The lowest of them.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

/// Dots that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// For people.
    pub name: String,
    /// By x.
    pub points: Vec<Dot>,
}

/// A range of y across the plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Its name, for people.
    pub label: String,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A plot with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawing {
    /// Its heading.
    pub title: String,
    /// The name of x, for people.
    pub x_label: String,
    /// The unit of x.
    pub x_unit: Unit,
    /// The name of y, for people.
    pub y_label: String,
    /// The unit of y.
    pub y_unit: Unit,
    /// Names of bars; empty if lines are drawn.
    pub bars: Vec<String>,
    /// At least one, each with a point or more.
    pub lines: Vec<Line>,
    /// The papers' figures.
    pub marks: Vec<Mark>,
    /// The range of noise.
    pub band: Option<Band>,
    /// Whether x is drawn by its logarithm.
    pub is_logarithmic: bool,
}

impl Drawing {
    /// Its points, a row for each: line, x (a bar's name), y, and the spread of the repeats.
    pub fn csv(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut text = String::from("line,x,y,low,high\n");
        for Line { name, points } in &self.lines {
            for Dot { x, y, low, high } in points {
                let bar = self.bars.get(*x as usize).map(|name| quoted(name));
                let x = bar.unwrap_or_else(|| x.to_string());
                text += &format!("{},{x},{y},{low},{high}\n", quoted(name));
            }
        }
        text
    }
}

impl Plot {
    /// A line of `y` along the number `x` of a series.
    pub fn lines(title: &str, series: &str, x: &str, y: &str) -> Self {
        Plot { x: Some(x.into()), ..Plot::bars(title, series, y) }
    }

    /// A bar of `y` for each point of a series, named by its labels that are words.
    pub fn bars(title: &str, series: &str, y: &str) -> Self {
        Plot {
            title: title.into(),
            series: series.into(),
            x: None,
            ys: vec![y.into()],
            by: None,
            only: None,
            is_logarithmic: false,
            marks: Vec::new(),
        }
    }

    /// With a line for this figure, of the same unit.
    #[must_use]
    pub fn and(mut self, y: &str) -> Self {
        self.ys.push(y.into());
        self
    }

    /// A line for each value of this label.
    #[must_use]
    pub fn by(self, label: &str) -> Self {
        Plot { by: Some(label.into()), ..self }
    }

    /// Only the points with this label.
    #[must_use]
    pub fn only(self, label: &str, word: &str) -> Self {
        Plot { only: Some((label.into(), word.into())), ..self }
    }

    /// With logarithmic x.
    #[must_use]
    pub fn with_logarithms(self) -> Self {
        Plot { is_logarithmic: true, ..self }
    }

    /// With a figure of a paper.
    #[must_use]
    pub fn marked(mut self, label: &str, x: impl Into<Option<f64>>, y: f64) -> Self {
        self.marks.push(Mark { label: label.into(), x: x.into(), y });
        self
    }

    /// With its figures, if any.
    pub fn draw(&self, outcome: &Outcome) -> Option<Drawing> {
        let series = outcome.series.iter().find(|series| series.name == self.series)?;
        let is_wanted = |point: &&Point| {
            self.only.as_ref().is_none_or(|(label, word)| label_text(point, label) == *word)
        };
        let points: Vec<_> = series.points.iter().filter(is_wanted).collect();
        let mut lines: Vec<Line> = Vec::new();
        let (mut first, mut bars) = (None, Vec::new());
        for (place, point) in points.iter().enumerate() {
            let x = match &self.x {
                Some(label) => point.labels.get(label).and_then(Value::as_f64),
                None => {
                    bars.push(words(point, self.only.as_ref().map(|(label, _)| label)));
                    Some(place as f64)
                }
            };
            for key in &self.ys {
                let Some(figure) = point.figure(key) else { continue };
                let (Some(x), Some(spread)) = (x, figure.spread()) else { continue };
                let name = match (&self.by, self.ys.len()) {
                    (Some(label), 1) => label_text(point, label),
                    (Some(label), _) => format!("{}: {}", label_text(point, label), figure.label()),
                    (None, _) => figure.label(),
                };
                first.get_or_insert_with(|| figure.clone());
                let dot = Dot { x, y: spread.median, low: spread.lowest, high: spread.highest };
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(dot),
                    None => lines.push(Line { name, points: vec![dot] }),
                }
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        let figure: Figure = first?;
        let x = self.x.as_deref().unwrap_or_default();
        Some(Drawing {
            title: self.title.clone(),
            x_label: in_words(x),
            x_unit: Unit::of_key(x),
            y_label: match &self.ys[..] {
                [_] => figure.label(),
                several => common(several, figure.unit),
            },
            y_unit: figure.unit,
            bars,
            lines,
            marks: self.marks.clone(),
            band: None,
            is_logarithmic: self.is_logarithmic,
        })
    }
}

/// The words that several keys of one unit have in common, for people.
fn common(keys: &[String], unit: Unit) -> String {
    let (first, others) = (keys[0].split('_'), &keys[1..]);
    let is_common = |word: &&str| others.iter().all(|key| key.split('_').any(|own| own == *word));
    let words: Vec<_> = first.filter(is_common).collect();
    match in_words(&words.join("_")) {
        words if words.split(' ').all(|word| unit.is_word(word)) => unit.subject().into(),
        words => words,
    }
}

fn label_text(point: &Point, label: &str) -> String {
    let value = point.labels.get(label).unwrap_or(&Value::Null);
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A point's labels that are words, without the one that all bars have.
fn words(point: &Point, common: Option<&String>) -> String {
    let words = point.labels.iter().filter(|(_, value)| value.is_string());
    let of = |(_, value): (_, &Value)| value.as_str().unwrap_or_default().to_owned();
    let own: Vec<_> = words.clone().filter(|(label, _)| Some(*label) != common).map(of).collect();
    if own.is_empty() { words.map(of).collect::<Vec<_>>() } else { own }.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Source;

    fn outcome() -> Outcome {
        let mut outcome = Outcome::of(Source::Measured);
        for (side, rate, value) in [("a", 2, 4.0), ("a", 1, 2.0), ("b", 1, 3.0)] {
            let point = Point::at("side", side).and("rate_pps", rate);
            let point = point.with(Figure::of("wait_ns", vec![value, value + 1.0, value + 2.0]));
            outcome.series("curve").push(point);
        }
        outcome
    }

    #[test]
    fn a_line_has_its_points_by_x_with_their_spread() {
        let plot = Plot::lines("waits", "curve", "rate_pps", "wait_ns").by("side");
        let drawn = plot.marked("paper", 1.0, 5.0).draw(&outcome()).unwrap();
        let names: Vec<_> = drawn.lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!((names, drawn.marks.len()), (vec!["a", "b"], 1));
        let first = &drawn.lines[0].points[0];
        assert_eq!((first.x, first.low, first.y, first.high), (1.0, 2.0, 3.0, 4.0));
        assert_eq!((drawn.x_unit, drawn.y_unit), (Unit::PerSecond, Unit::Nanoseconds));
        assert_eq!(drawn.csv().lines().nth(1), Some("\"a\",1,3,2,4"));
        assert_eq!(Plot::bars("", "none", "wait_ns").draw(&outcome()), None);
    }

    #[test]
    fn axes_are_named_for_the_common_words() {
        let named = |keys: [&str; 3], unit| common(&keys.map(String::from), unit);
        let delivered = ["knet_delivered_pps", "clas_delivered_pps", "napi_delivered_pps"];
        assert_eq!(named(delivered, Unit::PerSecond), "delivered");
        let rates =
            ["knet_requests_per_second", "clas_requests_per_second", "napi_requests_per_second"];
        assert_eq!(named(rates, Unit::PerSecond), "requests");
        assert_eq!(named(["knet_ns", "clas_ns", "napi_ns"], Unit::Nanoseconds), "time");
        assert_eq!(named(["knet_pps", "clas_pps", "napi_pps"], Unit::PerSecond), "rate");
    }

    #[test]
    fn bars_are_named_by_words() {
        let drawn = Plot::bars("", "curve", "wait_ns").only("side", "a").draw(&outcome()).unwrap();
        assert_eq!((drawn.bars.len(), drawn.lines[0].points.len()), (2, 2));
        assert_eq!(drawn.bars[0], "a");
    }
}
