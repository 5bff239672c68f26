//! Stacks as one folded line each, and as a flame graph in SVG.
//!
//! A function is as wide as its share of the samples, above the function that called it.
//!
//! The colours are classes: `k` for the kernel, `u` for programs. The file has its own style, a report's
//! page has them in its own.
//!
//! Source: Gregg, "The Flame Graph", CACM 59(6), 2016.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Samples by stack: a program, then its functions, outermost first.
pub(super) type Stacks = BTreeMap<Vec<String>, u64>;

/// What a name of the kernel ends with.
pub(super) const KERNEL: &str = "_[k]";

/// As wide as a report's page.
const WIDTH: f64 = 960.0;
const ROW: f64 = 17.0;
/// Narrower functions are not drawn, in pixels.
const LEAST: f64 = 0.4;
/// Pixels of a letter, about.
const LETTER: f64 = 6.6;
/// Of a file of its own, in light and dark mode.
const STYLE: &str = "<style>.k{fill:#f4a261}.u{fill:#8ecae6}text{fill:#1c2228}.page{fill:#fff}\
     @media(prefers-color-scheme:dark){.page{fill:#14181c}.title{fill:#e4e8ec}}</style>";

/// A line per stack: names separated by `;`, then the samples.
pub(super) fn folded(stacks: &Stacks) -> String {
    let line = |(stack, count): (&Vec<String>, &u64)| {
        let names: Vec<_> = stack.iter().map(|name| name.replace(';', ":")).collect();
        format!("{} {count}\n", names.join(";"))
    };
    stacks.iter().map(line).collect()
}

/// Reads such lines.
///
/// # Errors
/// The number of a wrong line, with what was found.
pub(super) fn unfolded(text: &str) -> Result<Stacks, (usize, String)> {
    let stack = |(index, line): (usize, &str)| {
        let parts = line.rsplit_once(' ').and_then(|(names, n)| Some((names, n.parse().ok()?)));
        let (names, count) = parts.ok_or_else(|| {
            (index + 1, format!("found \"{line}\", expected names and a number of samples"))
        })?;
        Ok((names.split(';').map(str::to_owned).collect(), count))
    };
    text.lines().enumerate().map(stack).collect()
}

/// A file that shows the name and the share of the function under the pointer.
pub(super) fn svg(title: &str, stacks: &Stacks) -> String {
    drawn(&format!("{title}, "), STYLE, stacks)
}

/// The same as a part of a page, without a title and a style.
pub(super) fn inline(stacks: &Stacks) -> String {
    drawn("", "", stacks)
}

fn drawn(title: &str, style: &str, stacks: &Stacks) -> String {
    let all: Vec<(&[String], u64)> = stacks.iter().map(|(names, n)| (&names[..], *n)).collect();
    let total: u64 = all.iter().map(|(_, count)| count).sum();
    let deepest = stacks.keys().map(Vec::len).max().unwrap_or(0);
    let height = (deepest as f64 + 2.0) * ROW;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"11\">{style}\n<rect class=\"page\" width=\"100%\" \
         height=\"100%\"/>\n<text class=\"title\" x=\"4\" y=\"14\">{}{total} samples</text>\n",
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
            let class = if name.ends_with(KERNEL) { "k" } else { "u" };
            let letters = (width / LETTER) as usize;
            let label: String =
                if letters < 3 { String::new() } else { name.chars().take(letters).collect() };
            let _ = writeln!(
                text,
                "<g><title>{full}: {samples} samples, {percent:.2} %</title><rect x=\"{x:.1}\" \
                 y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" class=\"{class}\"/><text x=\"{:.1}\" y=\"{:.1}\">{label}</text></g>",
                // A gap between neighbours, but not in place of them.
                (width - 0.5).max(LEAST),
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
        assert_eq!(unfolded(&folded(&of)).unwrap(), of);
        for wrong in ["a;main", "a;main 1.5", ""] {
            let (line, why) = unfolded(&format!("a 1\n{wrong}\n")).unwrap_err();
            assert!(line == 2 && why.contains(&format!("found \"{wrong}\"")), "{line}: {why}");
        }
        let svg = svg("x & y", &of);
        assert!(svg.contains("x &amp; y, 4 samples"), "{svg}");
        // main of a: 3 of 4 samples, and read in its right part.
        let main = "<title>main: 3 samples, 75.00 %</title><rect x=\"0.0\"";
        let read = "<title>read_[k]: 2 samples, 50.00 %</title><rect x=\"240.0\"";
        assert!(svg.contains(main) && svg.contains(read) && svg.contains("&lt;main&gt;"), "{svg}");
        assert_eq!(svg.matches("<rect x=").count(), 5);
        assert!(svg.contains("prefers-color-scheme:dark") && !inline(&of).contains("<style>"));
        assert!(super::svg("", &Stacks::new()).ends_with("</svg>\n"));
    }
}
