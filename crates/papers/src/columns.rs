//! Rows of an experiment's tables, from the repeats of measured sides.

use crate::gains::PointSide;
use picnic_lab::compare::Line;
use picnic_lab::experiment::MeasuredPoint;
use picnic_lab::outcome::{Figure, Outcome, Point};

/// A figure of a side as a column.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    key: &'static str,
    label: &'static str,
    is_shown: bool,
}

/// A column with this name for people.
pub(crate) const fn shown(key: &'static str, label: &'static str) -> Column {
    Column { key, label, is_shown: true }
}

/// A column for programs only; its name may be empty.
pub(crate) const fn hidden(key: &'static str, label: &'static str) -> Column {
    Column { key, label, is_shown: false }
}

impl Column {
    /// The repeats of a side, under this key and name.
    fn figure(&self, (found, side): PointSide<'_>, key: &str, label: &str) -> Figure {
        let figure = Figure::of(key, found.values(side, self.key));
        let figure = if self.label.is_empty() { figure } else { figure.called(label) };
        if self.is_shown { figure } else { figure.in_detail() }
    }
}

/// A row with these columns of a side.
pub(crate) fn row(point: Point, side: PointSide<'_>, columns: &[Column]) -> Point {
    columns
        .iter()
        .fold(point, |point, column| point.with(column.figure(side, column.key, column.label)))
}

/// The same, next to other sides: `key` is put before each key, `name` after each name.
pub(crate) fn beside(
    point: Point,
    side: PointSide<'_>,
    (key, name): (&str, &str),
    columns: &[Column],
) -> Point {
    columns.iter().fold(point, |point, column| {
        let (key, label) = (format!("{key}_{}", column.key), format!("{}, {name}", column.label));
        point.with(column.figure(side, &key, &label))
    })
}

/// One figure of all sides, a column each.
pub(crate) struct Shares<'a>(pub(crate) &'a [&'a str]);

impl Shares<'_> {
    /// A row with the figure of each side.
    pub(crate) fn row(&self, point: Point, found: &MeasuredPoint, key: &str) -> Point {
        self.0.iter().enumerate().fold(point, |point, (side, name)| {
            let figure = Figure::of(&format!("{name}_{key}"), found.values(side, key));
            point.with(figure.called(name))
        })
    }
}

/// A figure of a line fitted to a side: its key, its name for people, and how to read it.
pub(crate) struct Fit(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) fn(&Line) -> Option<f64>,
);

impl Fit {
    /// Adds the figure under the side's key and name; "unavailable" without a line.
    pub(crate) fn add(
        &self,
        outcome: &mut Outcome,
        (key, name): (&str, &str),
        line: Option<&Line>,
    ) {
        let Fit(figure, label, of) = *self;
        let figure = Figure::one(&format!("{key}_{figure}"), line.and_then(of));
        outcome.add(figure.called(&format!("{name}: {label}")));
    }
}
