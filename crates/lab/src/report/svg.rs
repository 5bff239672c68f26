//! Drawings as SVG: lines or bars with error bars, the papers' figures as marks.
//!
//! Colours are the page's CSS variables, so that a drawing follows the page's light or dark mode.
//! Text stays text, so it can be searched and read aloud.

use super::escape;
use crate::plot::{Dot, Drawing, Line};
use crate::unit::Unit;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 82.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 18.0;
const BOTTOM: f64 = 50.0;
/// Number of colours and shapes for lines.
const COLOURS: usize = 6;

/// A scale from values to positions.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let map = |value: f64| if self.is_logarithmic { value.max(1e-12).log10() } else { value };
        let (low, high) = (map(self.low), map(self.high));
        let share = if high > low { (map(value) - low) / (high - low) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }
}

/// Round numbers from at most `low` to at least `high`.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let span = if high > low { high - low } else { low.abs().max(1.0) };
    let rough = span / 4.0;
    let power = 10_f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    let factor = factors.iter().find(|factor| *factor * power >= rough * 0.999).unwrap_or(&10.0);
    let step = factor * power;
    let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
    (first..=last.max(first + 1)).map(|number| number as f64 * step).collect()
}

/// The drawing, with its heading as text for screen readers.
pub(super) fn svg(drawing: &Drawing) -> String {
    let dots = || drawing.lines.iter().flat_map(|line| &line.points);
    let marked = drawing.marks.iter().map(|mark| mark.y);
    let band = drawing.band.iter().flat_map(|band| [band.low, band.high]);
    let marked = marked.chain(band);
    let highest = dots().map(|dot| dot.high).chain(marked.clone()).fold(f64::MIN, f64::max);
    let lowest = dots().map(|dot| dot.low).chain(marked).fold(0.0, f64::min);
    let y_ticks = ticks(lowest, highest.max(lowest + f64::EPSILON));
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let y = Scale {
        low: y_ticks[0],
        high: *y_ticks.last().unwrap_or(&1.0),
        from: bottom,
        to: TOP,
        is_logarithmic: false,
    };
    let mut text = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(&drawing.title)
    );
    if let Some(band) = &drawing.band {
        let (top, bottom) = (y.at(band.high), y.at(band.low));
        text += &format!(
            "<rect class=\"band\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\n",
            right - LEFT,
            (bottom - top).max(1.0)
        );
    }
    for tick in &y_ticks {
        let (at, label) = (y.at(*tick), tick_text(drawing.y_unit, *tick));
        text += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            LEFT - 6.0,
            at + 4.0
        );
    }
    match drawing.bars.is_empty() {
        true => text += &lines(drawing, &y),
        false => text += &bars(drawing, &y),
    }
    text + "</svg>\n"
}

fn tick_text(unit: Unit, value: f64) -> String {
    escape(&unit.short_text(value))
}

fn lines(drawing: &Drawing, y: &Scale) -> String {
    let mut places: Vec<f64> =
        drawing.lines.iter().flat_map(|line| &line.points).map(|dot| dot.x).collect();
    places.extend(drawing.marks.iter().filter_map(|mark| mark.x));
    places.sort_by(f64::total_cmp);
    places.dedup();
    let (low, high) = (places[0], places[places.len() - 1]);
    let x = Scale {
        low,
        high,
        // Room for half of a label, so that the first one does not touch the y axis.
        from: LEFT + 26.0,
        to: WIDTH - RIGHT - 26.0,
        is_logarithmic: drawing.is_logarithmic && low > 0.0,
    };
    let bottom = HEIGHT - BOTTOM;
    let mut text = String::new();
    let mut last = f64::MIN;
    for &place in &places {
        let at = x.at(place);
        // Overlapping labels are dropped.
        if at - last < 76.0 {
            continue;
        }
        last = at;
        text += &format!(
            "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{bottom}\" x2=\"{at:.1}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            bottom + 4.0,
            bottom + 20.0,
            tick_text(drawing.x_unit, place)
        );
    }
    text += &format!(
        "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        escape(&drawing.x_label)
    );
    for (index, Line { points, .. }) in drawing.lines.iter().enumerate() {
        let colour = index % COLOURS + 1;
        let path: Vec<_> =
            points.iter().map(|dot| format!("{:.1},{:.1}", x.at(dot.x), y.at(dot.y))).collect();
        text += &format!("<polyline class=\"line c{colour}\" points=\"{}\"/>\n", path.join(" "));
        for dot in points {
            text += &error_bar(dot, x.at(dot.x), y, colour);
            text += &shape(index, x.at(dot.x), y.at(dot.y));
        }
    }
    text + &marks(drawing, &x, y)
}

fn bars(drawing: &Drawing, y: &Scale) -> String {
    let count = drawing.bars.len().max(1) as f64;
    let room = (WIDTH - LEFT - RIGHT) / count;
    let groups = drawing.lines.len().max(1) as f64;
    let width = (room * 0.7 / groups).min(70.0);
    let bottom = y.at(0.0_f64.clamp(y.low, y.high));
    let mut text = String::new();
    for (place, name) in drawing.bars.iter().enumerate() {
        let at = LEFT + room * (place as f64 + 0.5);
        for (line, words) in in_two_lines(name, room).enumerate() {
            text += &format!(
                "<text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                HEIGHT - BOTTOM + 18.0 + 19.0 * line as f64,
                escape(words)
            );
        }
    }
    for (index, line) in drawing.lines.iter().enumerate() {
        let colour = index % COLOURS + 1;
        for dot in &line.points {
            let shift = (index as f64 - (groups - 1.0) / 2.0) * width;
            let (at, top) = (LEFT + room * (dot.x + 0.5) + shift, y.at(dot.y));
            text += &format!(
                "<rect class=\"bar c{colour}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\"/>\n",
                at - width / 2.0,
                top.min(bottom),
                (top - bottom).abs().max(0.5)
            );
            text += &error_bar(dot, at, y, 0);
        }
    }
    let x = Scale { low: 0.0, high: count, from: LEFT, to: WIDTH - RIGHT, is_logarithmic: false };
    text + &marks(drawing, &x, y)
}

/// The name of a bar, broken at a comma, or at a hyphen where the bar has no room for it.
fn in_two_lines(name: &str, room: f64) -> impl Iterator<Item = &str> {
    // On a narrow page, letters are larger.
    const LETTER: f64 = 8.5;
    let (first, second) = match name.split_once(", ") {
        Some((first, second)) => (first, Some(second)),
        None if name.len() as f64 * LETTER > room => match name.find('-') {
            Some(hyphen) => (&name[..=hyphen], Some(&name[hyphen + 1..])),
            None => (name, None),
        },
        None => (name, None),
    };
    [first].into_iter().chain(second)
}

/// From the lowest to the highest repeat; nothing for a single one.
fn error_bar(dot: &Dot, at: f64, y: &Scale, colour: usize) -> String {
    if dot.high <= dot.low {
        return String::new();
    }
    let (low, high) = (y.at(dot.low), y.at(dot.high));
    let end = |place: f64| format!("M{:.1} {place:.1}H{:.1}", at - 4.0, at + 4.0);
    format!(
        "<path class=\"error c{colour}\" d=\"M{at:.1} {low:.1}V{high:.1}{}{}\"/>\n",
        end(low),
        end(high)
    )
}

/// A shape for each line, since not everybody can distinguish them by colour.
fn shape(index: usize, x: f64, y: f64) -> String {
    let colour = index % COLOURS + 1;
    let path = match index % 3 {
        0 => {
            return format!(
                "<circle class=\"dot c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>\n"
            );
        }
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        _ => format!("M{x:.1} {:.1}l4.5 8h-9z", y - 5.0),
    };
    format!("<path class=\"dot c{colour}\" d=\"{path}\"/>\n")
}

/// The papers' figures: a diamond at its place, or a dashed horizontal line.
fn marks(drawing: &Drawing, x: &Scale, y: &Scale) -> String {
    let mut text = String::new();
    for mark in &drawing.marks {
        let at = y.at(mark.y);
        let (label_at, anchor) = match mark.x {
            Some(place) => {
                let place = x.at(place);
                text += &format!(
                    "<path class=\"mark\" d=\"M{place:.1} {:.1}l6 6l-6 6l-6-6z\"/>\n",
                    at - 6.0
                );
                (place + 10.0, "start")
            }
            None => {
                let right = WIDTH - RIGHT;
                text += &format!("<path class=\"mark across\" d=\"M{LEFT} {at:.1}H{right}\"/>\n");
                (LEFT + 4.0, "start")
            }
        };
        text += &format!(
            "<text class=\"mark-label\" x=\"{label_at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">\
             {}</text>\n",
            at - 7.0,
            escape(&mark.label)
        );
    }
    text
}

/// The names of the lines with their shapes, if there are several; the meaning of the papers' marks
/// and of the band, if present.
pub(super) fn legend(drawing: &Drawing) -> String {
    let mut items = String::new();
    let mut add = |shape: &str, name: &str| {
        items += &format!(
            "<li><svg class=\"key\" viewBox=\"0 0 14 14\" aria-hidden=\"true\">{}</svg>{}</li>",
            shape.trim_end(),
            escape(name)
        );
    };
    let lines = if drawing.lines.len() < 2 { &[] } else { &drawing.lines[..] };
    for (index, line) in lines.iter().enumerate() {
        match drawing.bars.is_empty() {
            true => add(&shape(index, 7.0, 7.0), &line.name),
            false => {
                let colour = index % COLOURS + 1;
                let bar = "x=\"2\" y=\"2\" width=\"10\" height=\"10\"";
                add(&format!("<rect class=\"bar c{colour}\" {bar}/>"), &line.name);
            }
        }
    }
    if drawing.marks.iter().any(|mark| mark.x.is_some()) {
        add("<path class=\"mark\" d=\"M7 1l6 6l-6 6l-6-6z\"/>", "the paper");
    }
    if drawing.marks.iter().any(|mark| mark.x.is_none()) {
        add("<path class=\"mark across\" d=\"M0 7H14\"/>", "the paper");
    }
    if let Some(band) = &drawing.band {
        add("<rect class=\"band\" x=\"0\" y=\"3\" width=\"14\" height=\"8\"/>", &band.label);
    }
    match items.as_str() {
        "" => items,
        items => format!("<ul class=\"legend\">{items}</ul>\n"),
    }
}

/// The drawing as a file of its own: with style, heading and legend.
pub(super) fn file(drawing: &Drawing, style: &str) -> String {
    const LINE: f64 = 18.0;
    let below = HEIGHT + LINE * (drawing.lines.len() + drawing.marks.len()) as f64;
    let head = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -{LINE} {WIDTH} {}\" \
         font-family=\"sans-serif\">\n<style>\n{style}</style>\n\
         <rect x=\"0\" y=\"-{LINE}\" width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/>\n\
         <text class=\"label\" x=\"{LEFT}\" y=\"-2\">{}; {}</text>\n",
        below + LINE,
        escape(&drawing.title),
        escape(&drawing.y_label)
    );
    let lines = drawing
        .lines
        .iter()
        .enumerate()
        .map(|(index, line)| (format!("bar c{}", index % COLOURS + 1), escape(&line.name)));
    let marks = drawing.marks.iter().map(|mark| ("mark".to_owned(), escape(&mark.label)));
    let legend = lines.chain(marks).enumerate().map(|(row, (class, name))| {
        let y = HEIGHT + LINE * row as f64;
        let key = "width=\"10\" height=\"10\"";
        format!(
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" {key}/>\
             <text class=\"tick\" x=\"{}\" y=\"{}\">{name}</text>\n",
            LEFT + LINE,
            y + 10.0
        )
    });
    format!("{head}{}{}</svg>\n", svg(drawing), legend.collect::<String>())
}

/// The drawing without its axes, for the summary.
pub(super) fn small(drawing: &Drawing) -> String {
    const SIZE: (f64, f64) = (200.0, 44.0);
    let dots = || drawing.lines.iter().flat_map(|line| &line.points);
    let of = |value: fn(&Dot) -> f64, low: f64| {
        let values = || dots().map(value);
        let (least, most) = (values().fold(low, f64::min), values().fold(f64::MIN, f64::max));
        (least, most)
    };
    let ((x_low, x_high), (y_low, y_high)) = (of(|dot| dot.x, f64::MAX), of(|dot| dot.y, 0.0));
    let is_logarithmic = drawing.is_logarithmic && x_low > 0.0;
    let x = Scale { low: x_low, high: x_high, from: 4.0, to: SIZE.0 - 4.0, is_logarithmic };
    let high = y_high.max(y_low + f64::EPSILON);
    let y = Scale { low: y_low, high, from: SIZE.1 - 4.0, to: 4.0, is_logarithmic: false };
    let mut text = format!(
        "<svg class=\"small\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
        SIZE.0,
        SIZE.1,
        escape(&drawing.title)
    );
    let groups = drawing.lines.len().max(1) as f64;
    let room = (SIZE.0 - 8.0) / drawing.bars.len().max(1) as f64;
    for (index, Line { points, .. }) in drawing.lines.iter().enumerate() {
        let colour = index % COLOURS + 1;
        if drawing.bars.is_empty() {
            let path: Vec<_> =
                points.iter().map(|dot| format!("{:.1},{:.1}", x.at(dot.x), y.at(dot.y))).collect();
            text +=
                &format!("<polyline class=\"line c{colour}\" points=\"{}\"/>\n", path.join(" "));
            continue;
        }
        let (width, bottom) = ((room * 0.8 / groups).min(24.0), y.at(0.0));
        for dot in points {
            let (left, top) = (4.0 + room * dot.x + width * index as f64, y.at(dot.y));
            text += &format!(
                "<rect class=\"bar c{colour}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\"/>\n",
                top.min(bottom),
                (top - bottom).abs().max(0.5)
            );
        }
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_include_all_values() {
        for (low, high) in [(0.0, 97.0), (0.0, 0.013), (-0.6, 0.2), (0.0, 5e9), (3.0, 3.0)] {
            let ticks = ticks(low, high);
            assert!(ticks[0] <= low && *ticks.last().unwrap() >= high, "{low} {high}: {ticks:?}");
            assert!((2..=8).contains(&ticks.len()), "{ticks:?}");
        }
        assert_eq!(ticks(0.0, 97.0), [0.0, 25.0, 50.0, 75.0, 100.0]);
    }
}
