//! A drawing as text: a row for each point with its interval, over the noise.
//!
//! ```
//! use picnic_lab::chart::chart;
//! use picnic_lab::outcome::{Figure, Outcome, Point, Source};
//! use picnic_lab::plot::Plot;
//! let mut outcome = Outcome::of(Source::Measured);
//! for (rate, values) in [(1, vec![2.0, 3.0, 4.0]), (2, vec![5.0])] {
//!     outcome.series("curve").push(Point::at("rate_pps", rate).with(Figure::of("p50_ns", values)));
//! }
//! let drawn = Plot::lines("waits", "curve", "rate_pps", "p50_ns").draw(&outcome).unwrap();
//! // A title, a row for each point, and the legend.
//! assert_eq!(chart(&drawn).lines().count(), 4);
//! ```

use crate::plot::{Dot, Drawing};

/// Characters from the lowest to the highest value.
const WIDTH: usize = 41;

/// The points of a drawing's first line, a row each.
pub fn chart(drawing: &Drawing) -> String {
    let Some(line) = drawing.lines.first() else { return String::new() };
    let band = drawing.band.as_ref().map(|band| (band.low, band.high));
    let ends = line.points.iter().map(|dot| (dot.low, dot.high)).chain(band);
    let (low, high) = ends
        .fold((0.0_f64, 0.0_f64), |(low, high), (least, most)| (low.min(least), high.max(most)));
    let span = if high > low { high - low } else { 1.0 };
    let place = |value: f64| ((value - low) / span * (WIDTH - 1) as f64).round() as usize;
    let name = |index: usize, dot: &Dot| match drawing.bars.get(index) {
        Some(name) => name.clone(),
        None => drawing.x_unit.short_text(dot.x),
    };
    let names: Vec<_> =
        line.points.iter().enumerate().map(|(index, dot)| name(index, dot)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{}\n", drawing.title);
    for (dot, name) in line.points.iter().zip(&names) {
        let mut cells = [' '; WIDTH];
        if let Some((low, high)) = band {
            cells[place(low)..=place(high)].fill('░');
        }
        cells[place(0.0)] = '│';
        cells[place(dot.low)..=place(dot.high)].fill('─');
        (cells[place(dot.low)], cells[place(dot.high)]) = ('├', '┤');
        cells[place(dot.y)] = '●';
        let unit = drawing.y_unit;
        text += &format!(
            " {name:>width$} {} {} ({})\n",
            cells.iter().collect::<String>(),
            unit.text(dot.y),
            unit.range(dot.low, dot.high)
        );
    }
    let legend = drawing.band.as_ref().map(|band| format!(", ░ {}", band.label));
    text + &format!(" ├─●─┤ 95 % interval{}\n", legend.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Band, Line};
    use crate::unit::Unit;

    #[test]
    fn rows_show_the_interval_over_the_noise() {
        let dot = |x, y: f64| Dot { x, y, low: y - 0.1, high: y + 0.1 };
        let drawing = Drawing {
            title: "change".into(),
            x_label: "rx usecs".into(),
            x_unit: Unit::Count,
            y_label: "change".into(),
            y_unit: Unit::Change,
            bars: Vec::new(),
            lines: vec![Line {
                name: "change".into(),
                points: vec![dot(0.0, 0.0), dot(100.0, 0.3)],
            }],
            marks: Vec::new(),
            band: Some(Band { label: "noise".into(), low: -0.05, high: 0.05 }),
            is_logarithmic: false,
        };
        let text = chart(&drawing);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "   0 ├───────●───────┤                         0 % (-10.0 to +10.0 %)"
        );
        assert!(lines[2].starts_with(" 100     ░░░░│░░░░   "), "{text}");
        assert!(lines[2].ends_with("├───────●───────┤ +30.0 % (+20.0 to +40.0 %)"), "{text}");
        assert_eq!(lines[3], " ├─●─┤ 95 % interval, ░ noise");
        let none = Drawing { lines: Vec::new(), ..drawing };
        assert_eq!(chart(&none), "");
    }
}
