//! The check of several members' logs: same order, no message duplicated, lost or invented.
//!
//! It shares no code with the protocol: it reads and compares the lines that `log` describes.
//!
//! A member that is still running, or was killed, has a log without `end`. Its log must agree with
//! the others up to its last line.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Most problems of one kind in a report.
const MOST_TOLD: usize = 20;

/// A message as a log names it: sender and sequence number.
type Name<'t> = (&'t str, u64);

/// A delivery: line, message, timestamp and hash.
type Line<'t> = (usize, Name<'t>, u64, u64);

/// A log that was read.
#[derive(Debug, Default)]
pub struct MemberLog<'t> {
    /// The file, for messages.
    file: &'t str,
    member: &'t str,
    submitted: Vec<u64>,
    /// Line, message, timestamp and hash.
    delivered: Vec<Line<'t>>,
    /// Where the member joined: messages before these places may be left out.
    joins: Vec<usize>,
    is_whole: bool,
}

/// The content of one log.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Summary {
    /// The member.
    pub member: String,
    /// Messages it submitted.
    pub submitted: usize,
    /// Messages it delivered.
    pub delivered: usize,
    /// Whether its log has an end.
    pub is_whole: bool,
}

/// The result for all logs.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Report {
    /// Each log.
    pub members: Vec<Summary>,
    /// Contradictions; empty if the logs agree.
    pub problems: Vec<String>,
}

/// Reads a log.
///
/// # Errors
/// All lines that are wrong.
pub fn read<'t>(file: &'t str, text: &'t str) -> Result<MemberLog<'t>, Vec<String>> {
    let mut log = MemberLog { file, ..MemberLog::default() };
    let mut faults = Vec::new();
    let mut fault = |line: usize, key: &str, found: &str, expected: &str| {
        if faults.len() < MOST_TOLD {
            faults.push(format!("{file}:{line}: {key}: found {found:?}, expected {expected}"));
        }
    };
    // A line without its end may be half written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for (line, number) in whole.lines().zip(1..) {
        let words: Vec<&str> = line.split(' ').collect();
        match (number, words.as_slice()) {
            (1, ["storm", "1", member]) => log.member = member,
            (1, _) => fault(number, "log", line, "`storm 1 MEMBER`"),
            _ if log.is_whole => fault(number, "event", line, "nothing after `end`"),
            (_, ["submit", position]) => match position.parse() {
                Ok(position) => log.submitted.push(position),
                Err(_) => fault(number, "submit", position, "a sequence number"),
            },
            (_, ["deliver", sender, position, timestamp, hash]) => {
                let numbers = (position.parse(), timestamp.parse(), u64::from_str_radix(hash, 16));
                match numbers {
                    (Ok(position), Ok(timestamp), Ok(hash)) => {
                        log.delivered.push((number, (*sender, position), timestamp, hash));
                    }
                    _ => fault(number, "deliver", line, "`deliver SENDER SEQUENCE TIMESTAMP HASH`"),
                }
            }
            (_, ["join"]) => log.joins.push(log.delivered.len()),
            (_, ["end"]) => log.is_whole = true,
            _ => fault(number, "event", line, "submit, deliver, join or end"),
        }
    }
    if log.member.is_empty() && whole.is_empty() {
        fault(1, "log", "", "`storm 1 MEMBER`");
    }
    if faults.is_empty() { Ok(log) } else { Err(faults) }
}

/// Compares logs.
pub fn compare(logs: &[MemberLog<'_>]) -> Report {
    let mut problems = Vec::new();
    let mut members = HashMap::new();
    for log in logs {
        if let Some(other) = members.insert(log.member, log.file) {
            problems
                .push(format!("{}: member {} has a log already: {other}", log.file, log.member));
        }
        alone(log, &mut problems);
    }
    let parts = || logs.iter().flat_map(|log| log.parts().map(move |part| (log, part)));
    if let Some((longest, order)) = parts().max_by_key(|(_, part)| part.len()) {
        parts().for_each(|(log, part)| beside((log, part), (longest, order), &mut problems));
        made_up(logs, &mut problems);
        for log in logs.iter().filter(|log| log.is_whole && log.joins.is_empty()) {
            let (found, expected) = (log.delivered.len(), order.len());
            if found < expected {
                problems.push(format!("{}: found {found} messages, expected {expected}", log.file));
            }
        }
    }
    problems.truncate(MOST_TOLD);
    let summary = |log: &MemberLog<'_>| Summary {
        member: log.member.to_owned(),
        submitted: log.submitted.len(),
        delivered: log.delivered.len(),
        is_whole: log.is_whole,
    };
    Report { members: logs.iter().map(summary).collect(), problems }
}

/// Checks one log without the others.
fn alone(log: &MemberLog<'_>, problems: &mut Vec<String>) {
    let file = log.file;
    let (mut seen, mut newest) = (HashSet::new(), 0);
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for &(line, (sender, position), timestamp, _) in &log.delivered {
        if !seen.insert((sender, position)) {
            problems.push(format!("{file}:{line}: {sender} {position} was delivered twice"));
        } else if let Some(before) =
            last.insert(sender, position).filter(|before| *before > position)
        {
            problems.push(format!("{file}:{line}: {sender} {position} after {sender} {before}"));
        }
        if timestamp < newest {
            problems.push(format!("{file}:{line}: timestamp {timestamp} after {newest}"));
        }
        newest = newest.max(timestamp);
    }
    if log.is_whole && log.joins.is_empty() {
        for position in &log.submitted {
            if !seen.contains(&(log.member, *position)) {
                problems.push(format!("{file}: {} {position} is lost", log.member));
            }
        }
    }
}

impl<'t> MemberLog<'t> {
    /// The deliveries between two joins.
    fn parts(&self) -> impl Iterator<Item = &[Line<'t>]> {
        let starts = [0].into_iter().chain(self.joins.iter().copied());
        let ends = self.joins.iter().copied().chain([self.delivered.len()]);
        starts.zip(ends).map(|(start, end)| &self.delivered[start..end])
    }
}

/// Checks that a part has the messages of the longest part, from the first common message on.
fn beside(
    (log, part): (&MemberLog<'_>, &[Line<'_>]),
    (longest, order): (&MemberLog<'_>, &[Line<'_>]),
    problems: &mut Vec<String>,
) {
    let (Some(first), Some(first_there)) = (part.first(), order.first()) else { return };
    let place_of = |lines: &[Line<'_>], name| lines.iter().position(|line| line.1 == name);
    let (here, there) = match (place_of(order, first.1), place_of(part, first_there.1)) {
        (Some(there), _) => (0, there),
        (None, Some(here)) => (here, 0),
        (None, None) => return,
    };
    for (own, other) in part[here..].iter().zip(&order[there..]) {
        let ((line, name, timestamp, hash), (other_line, ..)) = (own, other);
        let place = format!("{}:{line}: {} {}", log.file, name.0, name.1);
        if (own.1, own.2) != (other.1, other.2) {
            let (sender, position) = other.1;
            let there =
                format!("{}:{other_line}: {sender} {position} at {}", longest.file, other.2);
            problems.push(format!("{place} at {timestamp}, but {there}"));
            return;
        }
        if *hash != other.3 {
            problems.push(format!("{place} has another payload than in {}", longest.file));
        }
    }
}

/// Checks that every delivered message was submitted, if its sender's whole log is here: a log
/// without a join, before which an earlier process of that name may have sent.
fn made_up(logs: &[MemberLog<'_>], problems: &mut Vec<String>) {
    let whole = logs.iter().filter(|log| log.is_whole && log.joins.is_empty());
    let senders: HashMap<&str, HashSet<u64>> =
        whole.map(|log| (log.member, log.submitted.iter().copied().collect())).collect();
    for log in logs {
        for (line, (sender, position), ..) in &log.delivered {
            if senders.get(sender).is_some_and(|submitted| !submitted.contains(position)) {
                let file = log.file;
                problems.push(format!("{file}:{line}: {sender} {position} was never submitted"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "storm 1 a\nsubmit 0\ndeliver b 0 1 0f\nsubmit 2\ndeliver a 0 2 1f\ndeliver a 2 3 2f\nend\n";
    const B: &str =
        "storm 1 b\nsubmit 0\ndeliver b 0 1 0f\ndeliver a 0 2 1f\ndeliver a 2 3 2f\nend\n";

    fn problems(a: &str, b: &str) -> Vec<String> {
        compare(&[read("A", a).unwrap(), read("B", b).unwrap()]).problems
    }

    #[test]
    fn logs_that_agree_have_no_problems_even_if_one_is_cut() {
        assert_eq!(problems(A, B), [""; 0]);
        for cut in B.match_indices('\n').map(|(at, _)| at + 1) {
            assert_eq!(problems(A, &B[..cut])[..], [""; 0], "{}", &B[..cut]);
        }
        assert_eq!(problems(A, &B[..B.len() - 8]), [""; 0], "a line half written");
    }

    #[test]
    fn a_member_that_joined_has_the_messages_from_there_on() {
        let late = "storm 1 c\njoin\ndeliver a 0 2 1f\ndeliver a 2 3 2f\nend\n";
        let problems = |text| compare(&[read("A", A).unwrap(), read("C", text).unwrap()]).problems;
        assert_eq!(problems(late), [""; 0]);
        let gap = late.replace("a 2 3 2f", "a 3 3 2f");
        assert_eq!(problems(&gap).len(), 2, "another message, which a did not submit");
    }

    #[test]
    fn each_kind_of_error_is_found() {
        let cases = [
            (
                "deliver a 0 2 1f\ndeliver a 2 3 2f",
                "deliver a 2 3 2f\ndeliver a 0 2 1f",
                "A:5: a 0 at 2, but B:4: a 2 at 3",
            ),
            ("deliver a 2 3 2f", "deliver a 0 2 1f", "was delivered twice"),
            ("deliver a 2 3 2f\nend", "end", "found 2 messages, expected 3"),
            ("deliver b 0 1 0f", "deliver b 0 1 ff", "another payload"),
            ("submit 0\n", "", "b 0 was never submitted"),
            ("submit 0", "submit 0\nsubmit 2", "b 2 is lost"),
            ("deliver a 2 3 2f", "deliver a 2 1 2f", "timestamp 1 after 2"),
            ("storm 1 b", "storm 1 a", "member a has a log already"),
        ];
        for (from, to, expected) in cases {
            let changed = B.replacen(from, to, 1);
            assert_ne!(changed, B);
            let found = problems(A, &changed);
            assert!(
                found.iter().any(|problem| problem.contains(expected)),
                "{expected}: {found:?}"
            );
        }
    }

    #[test]
    fn wrong_lines_are_reported_with_their_place() {
        let text = "storm 2 a\nsubmit x\ndeliver a 1\nend\nend\n";
        let faults = read("L", text).unwrap_err();
        let starts =
            ["L:1: log: found", "L:2: submit: found", "L:3: event: found", "L:5: event: found"];
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert!(
            faults.iter().zip(starts).all(|(fault, start)| fault.starts_with(start)),
            "{faults:?}"
        );
        assert!(read("L", "").is_err());
    }
}
