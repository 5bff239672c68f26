//! Interrupts of some cores by kind, from the kernel's counts.
//!
//! Source: proc_interrupts(5), proc_softirqs(5).

use std::collections::BTreeMap;
use std::fs::read_to_string;

/// Counts by kind, over some cores.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kinds(BTreeMap<String, u64>);

impl Kinds {
    /// Reads them.
    pub(crate) fn read(cores: &[usize]) -> Self {
        let mut kinds = Kinds::default();
        for path in ["/proc/interrupts", "/proc/softirqs"] {
            kinds.add(&read_to_string(path).unwrap_or_default(), cores);
        }
        kinds
    }

    fn add(&mut self, text: &str, cores: &[usize]) {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or_default().split_whitespace();
        let columns: Vec<Option<usize>> =
            header.map(|name| name.strip_prefix("CPU")?.parse().ok()).collect();
        for line in lines {
            let Some((name, rest)) = line.split_once(':') else { continue };
            let mut words = rest.split_whitespace().peekable();
            let mut count = 0;
            for column in &columns {
                let Some(number) = words.peek().and_then(|word| word.parse::<u64>().ok()) else {
                    break;
                };
                words.next();
                count += column.filter(|core| cores.contains(core)).map_or(0, |_| number);
            }
            let about = words.collect::<Vec<_>>().join(" ");
            let kind = format!("{} {about}", name.trim());
            *self.0.entry(kind.trim().to_owned()).or_default() += count;
        }
    }

    /// The counts since `earlier`, most first, without kinds that did not occur.
    pub(crate) fn since(&self, earlier: &Kinds) -> Vec<(String, u64)> {
        let since = |kind: &String, count: u64| {
            count - earlier.0.get(kind).copied().unwrap_or(0).min(count)
        };
        let all = self.0.iter().map(|(kind, count)| (kind.clone(), since(kind, *count)));
        let mut all: Vec<_> = all.filter(|(_, count)| *count != 0).collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_on_the_cores_asked_for() {
        let text = |a: u64| {
            format!(
                "           CPU0       CPU2\n  4:  5  {a}  IO-APIC  4-edge  ttyS0\nLOC:  1  {a}  \
                 Local timer interrupts\nERR:  {a}\n"
            )
        };
        let of = |a: u64, cores: &[usize]| {
            let mut kinds = Kinds::default();
            kinds.add(&text(a), cores);
            kinds.add("  CPU0  CPU2\n  NET_RX:  7  1\n", cores);
            kinds
        };
        let since = of(9, &[2]).since(&of(3, &[2]));
        let wanted = [("4 IO-APIC 4-edge ttyS0", 6), ("LOC Local timer interrupts", 6)];
        assert_eq!(since, wanted.map(|(kind, count)| (kind.to_owned(), count)));
        assert_eq!(of(9, &[0]).since(&of(3, &[0])), [("ERR".to_owned(), 6)]);
    }
}
