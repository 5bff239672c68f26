//! Stacks as one folded line each, and as a flame graph in SVG.
//!
//! A function is as wide as its share of the samples, above the function that called it.
//!
//! Source: Gregg, "The Flame Graph", CACM 59(6), 2016.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Samples by stack: a program, then its functions, outermost first.
pub(super) type Stacks = BTreeMap<Vec<String>, u64>;

/// What a name of the kernel ends with.
pub(super) const KERNEL: &str = "_[k]";

const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
/// Narrower functions are not drawn, in pixels.
const LEAST: f64 = 0.4;
/// Pixels of a letter, about.
const LETTER: f64 = 6.6;

/// A line per stack: names separated by `;`, then the samples.
pub(super) fn folded(stacks: &Stacks) -> String {
    let line = |(stack, count): (&Vec<String>, &u64)| {
        let names: Vec<_> = stack.iter().map(|name| name.replace(';', ":")).collect();
        format!("{} {count}\n", names.join(";"))
    };
    stacks.iter().map(line).collect()
}

/// A page that shows the name and the share of the function under the pointer.
pub(super) fn svg(title: &str, stacks: &Stacks) -> String {
    let all: Vec<(&[String], u64)> = stacks.iter().map(|(names, n)| (&names[..], *n)).collect();
    let total: u64 = all.iter().map(|(_, count)| count).sum();
    let deepest = stacks.keys().map(Vec::len).max().unwrap_or(0);
    let height = (deepest as f64 + 3.0) * ROW;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#fff\"/>\n<text x=\"4\" y=\"14\">{}, {total} samples</text>\n",
        escaped(title)
    );
    draw(&mut text, &all, 0, (0.0, height - ROW), total.max(1));
    text + "</svg>\n"
}

/// Draws the functions at a depth: neighbours with the same name are one.
fn draw(text: &mut String, of: &[(&[String], u64)], depth: usize, at: (f64, f64), total: u64) {
    let (mut x, y) = at;
    let mut rest = of;
    while let Some((first, count)) = rest.first() {
        let name = first.get(depth);
        let same = rest.iter().take_while(|(names, _)| names.get(depth) == name).count();
        let (these, others) = rest.split_at(same);
        rest = others;
        // A stack that ends here has nothing above it.
        let Some(name) = name else {
            x += *count as f64 / total as f64 * WIDTH;
            continue;
        };
        let samples: u64 = these.iter().map(|(_, count)| count).sum();
        let width = samples as f64 / total as f64 * WIDTH;
        if width >= LEAST {
            let percent = samples as f64 / total as f64 * 100.0;
            let fill = if name.ends_with(KERNEL) { "#f4a261" } else { "#8ecae6" };
            let letters = (width / LETTER) as usize;
            let label: String =
                if letters < 3 { String::new() } else { name.chars().take(letters).collect() };
            let _ = writeln!(
                text,
                "<g><title>{full}: {samples} samples, {percent:.2} %</title><rect x=\"{x:.1}\" \
                 y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
                 stroke=\"#fff\"/><text x=\"{:.1}\" y=\"{:.1}\">{label}</text></g>",
                ROW - 1.0,
                x + 2.0,
                y + 12.0,
                full = escaped(name),
                label = escaped(&label),
            );
            draw(text, these, depth + 1, (x, y - ROW), total);
        }
        x += width;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(of: &[(&str, u64)]) -> Stacks {
        of.iter().map(|(names, n)| (names.split(' ').map(str::to_owned).collect(), *n)).collect()
    }

    #[test]
    fn functions_are_as_wide_as_their_share() {
        let of = stacks(&[("a main", 1), ("a main read_[k]", 2), ("b <main>", 1)]);
        assert_eq!(folded(&of), "a;main 1\na;main;read_[k] 2\nb;<main> 1\n");
        let svg = svg("x & y", &of);
        assert!(svg.contains("x &amp; y, 4 samples"), "{svg}");
        // main of a: 3 of 4 samples, and read in its right part.
        let main = "<title>main: 3 samples, 75.00 %</title><rect x=\"0.0\"";
        let read = "<title>read_[k]: 2 samples, 50.00 %</title><rect x=\"300.0\"";
        assert!(svg.contains(main) && svg.contains(read) && svg.contains("&lt;main&gt;"), "{svg}");
        assert_eq!(svg.matches("<rect x=").count(), 5);
        assert!(super::svg("", &Stacks::new()).ends_with("</svg>\n"));
    }
}
