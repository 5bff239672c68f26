//! Random programs: the longest path against every possible run.
//!
//! A program is generated as a tree, written as source, and lowered like any other. An interpreter
//! runs the tree with every outcome of every condition and records the cost of each segment. The
//! interpreter knows nothing of graphs.

use super::{bounds, declared_only, graph, task};
use picnic_wcet::{Class, CostProfile};
use proptest::prelude::*;
use std::fmt::Write;

/// A structured program. Every outcome of a condition is possible.
#[derive(Clone, Debug)]
enum Code {
    /// This many nanoseconds.
    Cost(u8),
    Sequence(Vec<Code>),
    /// The condition's code, then one of two branches.
    If(Box<Code>, Box<Code>, Box<Code>),
    /// Two conditions, the second evaluated only if the first holds (`&&`) or fails (`||`).
    Both {
        and: bool,
        first: Box<Code>,
        second: Box<Code>,
        yes: Box<Code>,
        no: Box<Code>,
    },
    /// Three arms, the second with a guard.
    Match {
        first: Box<Code>,
        guard: Box<Code>,
        second: Box<Code>,
        third: Box<Code>,
    },
    /// `for` over literals.
    For(u8, Box<Code>),
    /// `while` with a bound: the condition's code, the body.
    While(u8, Box<Code>, Box<Code>),
    /// `for` over an unknown iterator, with a bound.
    Each(u8, Box<Code>),
    /// `loop` with a bound; it ends by a break in the last round at the latest.
    Loop(u8, Box<Code>),
    /// `loop` without a bound: every path yields, or the loop is refused.
    Free(Box<Code>),
    /// A labelled block, left early if the condition holds.
    Block(Box<Code>, Box<Code>),
    Yield,
    Wait,
    /// If the condition holds, leaves the loop this many levels outside the innermost.
    Break(u8),
    Continue(u8),
    Return,
    Fail,
    /// An async block awaited at once; `Return` and `Fail` in it end only the block.
    Async(Box<Code>),
}

use Code::*;

fn code() -> impl Strategy<Value = Code> {
    let leaf = prop_oneof![
        4 => (1u8..50).prop_map(Cost),
        2 => Just(Yield),
        1 => Just(Wait),
        1 => (0u8..3).prop_map(Break),
        1 => (0u8..3).prop_map(Continue),
        1 => Just(Return),
        1 => Just(Fail),
    ];
    leaf.prop_recursive(4, 14, 3, |inner| {
        let one = || inner.clone().prop_map(Box::new);
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 1..4).prop_map(Sequence),
            2 => (one(), one(), one()).prop_map(|(c, y, n)| If(c, y, n)),
            1 => (any::<bool>(), one(), one(), one(), one()).prop_map(
                |(and, first, second, yes, no)| Both { and, first, second, yes, no }
            ),
            1 => (one(), one(), one(), one()).prop_map(
                |(first, guard, second, third)| Match { first, guard, second, third }
            ),
            2 => (1u8..4, one()).prop_map(|(n, body)| For(n, body)),
            2 => (1u8..4, one(), one()).prop_map(|(n, head, body)| While(n, head, body)),
            2 => (1u8..4, one()).prop_map(|(n, body)| Each(n, body)),
            2 => (1u8..4, one()).prop_map(|(n, body)| Loop(n, body)),
            2 => one().prop_map(Free),
            1 => (one(), one()).prop_map(|(first, second)| Block(first, second)),
            1 => one().prop_map(Async),
        ]
    })
}

// ---------------------------------------------------------------- source

/// Writes the program; numbers loops and omits jumps without a target.
#[derive(Default)]
struct Writer {
    loops: Vec<usize>,
    next: usize,
}

impl Writer {
    fn target(&self, outwards: u8) -> Option<usize> {
        let count = self.loops.len();
        (count != 0).then(|| self.loops[count - 1 - usize::from(outwards).min(count - 1)])
    }

    fn around(&mut self, write: impl FnOnce(&mut Self, usize) -> String) -> String {
        let number = self.next;
        self.next += 1;
        self.loops.push(number);
        let text = write(self, number);
        self.loops.pop();
        text
    }

    fn of(&mut self, code: &Code) -> String {
        match code {
            Cost(ns) => format!("#[wcet(ns = {ns})] work();"),
            Sequence(parts) => parts.iter().fold(String::new(), |mut text, part| {
                let _ = write!(text, "{} ", self.of(part));
                text
            }),
            If(condition, yes, no) => {
                let condition = self.of(condition);
                let (yes, no) = (self.of(yes), self.of(no));
                format!("if {{ {condition} flag }} {{ {yes} }} else {{ {no} }}")
            }
            Both { and, first, second, yes, no } => {
                let (first, second) = (self.of(first), self.of(second));
                let (yes, no) = (self.of(yes), self.of(no));
                let joined = if *and { "&&" } else { "||" };
                format!(
                    "if ({{ {first} flag }}) {joined} !{{ {second} flag }} {{ {yes} }} \
                     else {{ {no} }}"
                )
            }
            Match { first, guard, second, third } => {
                let (first, guard) = (self.of(first), self.of(guard));
                let (second, third) = (self.of(second), self.of(third));
                format!(
                    "match value {{ 0 => {{ {first} }} 1 if {{ {guard} flag }} => {{ {second} }}, \
                     _ => {{ {third} }} }}"
                )
            }
            For(rounds, body) => self.around(|writer, number| {
                format!("'l{number}: for _ in 0..{rounds} {{ {} }}", writer.of(body))
            }),
            While(rounds, head, body) => {
                // A jump out of the condition is refused: no loop is its target there.
                let outer = std::mem::take(&mut self.loops);
                let head = self.of(head);
                self.loops = outer;
                self.around(|writer, number| {
                    let body = writer.of(body);
                    format!("#[bound({rounds})] 'l{number}: while {{ {head} flag }} {{ {body} }}")
                })
            }
            Each(rounds, body) => self.around(|writer, number| {
                let body = writer.of(body);
                format!("#[bound({rounds})] 'l{number}: for _ in items {{ {body} }}")
            }),
            Loop(rounds, body) => self.around(|writer, number| {
                let body = writer.of(body);
                format!("#[bound({rounds})] 'l{number}: loop {{ {body} if flag {{ break; }} }}")
            }),
            Free(body) => {
                self.around(|writer, number| format!("'l{number}: loop {{ {} }}", writer.of(body)))
            }
            Block(first, second) => {
                let number = self.next;
                self.next += 1;
                let first = self.of(first);
                let second = self.of(second);
                format!("'b{number}: {{ {first} if flag {{ break 'b{number}; }} {second} }}")
            }
            Yield => "card.yield_now().await;".into(),
            Wait => "card.sleep(1).await;".into(),
            Break(outwards) => self
                .target(*outwards)
                .map_or_else(String::new, |number| format!("if flag {{ break 'l{number}; }}")),
            Continue(outwards) => self
                .target(*outwards)
                .map_or_else(String::new, |number| format!("if flag {{ continue 'l{number}; }}")),
            Return => "if flag { return; }".into(),
            Fail => "outcome?;".into(),
            Async(body) => {
                let outer = std::mem::take(&mut self.loops);
                let body = self.of(body);
                self.loops = outer;
                format!("async {{ {body} }}.await;")
            }
        }
    }
}

// ---------------------------------------------------------------- runs

/// Most runs of one program.
const MOST_RUNS: usize = 3_000;
/// Yields of one run; only an endless loop has more.
const MOST_YIELDS: usize = 40;

/// How a piece of code ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    AtItsEnd,
    ByBreak(usize),
    ByContinue(usize),
    ByReturn,
    /// The run is cut short.
    Stopped,
}

#[derive(Clone, Copy)]
enum Event {
    Cost(u64),
    /// Segment, and whether it waits.
    Yield(usize, bool),
}

/// One run: conditions come from the tape, then are false.
struct Run<'t> {
    tape: &'t mut Vec<bool>,
    place: usize,
    events: Vec<Event>,
    yields: usize,
    loops: Vec<usize>,
    next_loop: usize,
    silent_round: bool,
}

impl Run<'_> {
    fn flag(&mut self) -> bool {
        if self.place == self.tape.len() {
            self.tape.push(false);
        }
        self.place += 1;
        self.tape[self.place - 1]
    }

    fn target(&self, outwards: u8) -> Option<usize> {
        let count = self.loops.len();
        (count != 0).then(|| self.loops[count - 1 - usize::from(outwards).min(count - 1)])
    }

    fn yields(&mut self, segment: usize, wait: bool) -> Left {
        self.events.push(Event::Yield(segment, wait));
        self.yields += 1;
        if self.yields >= MOST_YIELDS { Left::Stopped } else { Left::AtItsEnd }
    }

    /// Awaits are numbered by their position in the text; `before` counts the earlier ones.
    fn run(&mut self, code: &Code, before: usize) -> Left {
        let after = |code: &Code| before + awaits(code);
        match code {
            Cost(ns) => {
                self.events.push(Event::Cost((*ns).into()));
                Left::AtItsEnd
            }
            Sequence(parts) => {
                let mut before = before;
                for part in parts {
                    let left = self.run(part, before);
                    if left != Left::AtItsEnd {
                        return left;
                    }
                    before += awaits(part);
                }
                Left::AtItsEnd
            }
            If(condition, yes, no) => {
                let left = self.run(condition, before);
                if left != Left::AtItsEnd {
                    return left;
                }
                match self.flag() {
                    true => self.run(yes, after(condition)),
                    false => self.run(no, after(condition) + awaits(yes)),
                }
            }
            Both { and, first, second, yes, no } => {
                let left = self.run(first, before);
                if left != Left::AtItsEnd {
                    return left;
                }
                let mut holds = self.flag();
                if holds == *and {
                    let left = self.run(second, after(first));
                    if left != Left::AtItsEnd {
                        return left;
                    }
                    holds = self.flag();
                }
                let before = after(first) + awaits(second);
                if holds { self.run(yes, before) } else { self.run(no, before + awaits(yes)) }
            }
            Match { first, guard, second, third } => {
                if self.flag() {
                    return self.run(first, before);
                }
                let of_guard = after(first);
                let of_second = of_guard + awaits(guard);
                if self.flag() {
                    let left = self.run(guard, of_guard);
                    if left != Left::AtItsEnd {
                        return left;
                    }
                    if self.flag() {
                        return self.run(second, of_second);
                    }
                }
                self.run(third, of_second + awaits(second))
            }
            For(rounds, body) => self.rounds(body, before, |_, round| round < *rounds),
            Each(rounds, body) => {
                self.rounds(body, before, |run, round| round < *rounds && run.flag())
            }
            While(rounds, head, body) => self.while_loop(*rounds, head, body, before),
            Loop(rounds, body) => self.bounded_loop(*rounds, body, before),
            Free(body) => self.free_loop(body, before),
            Block(first, second) => {
                let left = self.run(first, before);
                if left != Left::AtItsEnd || self.flag() {
                    return left;
                }
                self.run(second, after(first))
            }
            Yield => self.yields(before + 1, false),
            Wait => self.yields(before + 1, true),
            Break(outwards) => match self.target(*outwards) {
                Some(number) if self.flag() => Left::ByBreak(number),
                _ => Left::AtItsEnd,
            },
            Continue(outwards) => match self.target(*outwards) {
                Some(number) if self.flag() => Left::ByContinue(number),
                _ => Left::AtItsEnd,
            },
            Return | Fail => {
                if self.flag() {
                    Left::ByReturn
                } else {
                    Left::AtItsEnd
                }
            }
            Async(body) => {
                let outer = std::mem::take(&mut self.loops);
                let left = self.run(body, before);
                self.loops = outer;
                if left == Left::ByReturn { Left::AtItsEnd } else { left }
            }
        }
    }

    fn enter(&mut self) -> usize {
        self.next_loop += 1;
        self.loops.push(self.next_loop);
        self.next_loop
    }

    /// Ends a round: the loop continues, or is left.
    fn round(&mut self, number: usize, left: Left) -> Option<Left> {
        match left {
            Left::AtItsEnd => None,
            Left::ByContinue(target) if target == number => None,
            Left::ByBreak(target) if target == number => Some(Left::AtItsEnd),
            other => Some(other),
        }
    }

    fn rounds(
        &mut self,
        body: &Code,
        before: usize,
        mut another: impl FnMut(&mut Self, u8) -> bool,
    ) -> Left {
        let number = self.enter();
        let mut round = 0;
        let mut end = Left::AtItsEnd;
        while another(self, round) {
            round += 1;
            let left = self.run(body, before);
            if let Some(left) = self.round(number, left) {
                end = left;
                break;
            }
        }
        self.loops.pop();
        end
    }

    fn while_loop(&mut self, most: u8, head: &Code, body: &Code, before: usize) -> Left {
        let number = self.enter();
        let mut round = 0;
        let end = loop {
            let outer = std::mem::take(&mut self.loops);
            let left = self.run(head, before);
            self.loops = outer;
            if left != Left::AtItsEnd {
                break left;
            }
            if round == most || !self.flag() {
                break Left::AtItsEnd;
            }
            round += 1;
            let left = self.run(body, before + awaits(head));
            if let Some(left) = self.round(number, left) {
                break left;
            }
        };
        self.loops.pop();
        end
    }

    fn bounded_loop(&mut self, most: u8, body: &Code, before: usize) -> Left {
        let number = self.enter();
        let mut round = 0;
        let end = loop {
            round += 1;
            let left = self.run(body, before);
            match self.round(number, left) {
                Some(left) => break left,
                // A continue in the last round would exceed `#[bound]`.
                None if round == most && left != Left::AtItsEnd => break Left::Stopped,
                None if left == Left::AtItsEnd && (round == most || self.flag()) => {
                    break Left::AtItsEnd;
                }
                None => {}
            }
        };
        self.loops.pop();
        end
    }

    fn free_loop(&mut self, body: &Code, before: usize) -> Left {
        let number = self.enter();
        let end = loop {
            let yields = self.yields;
            let left = self.run(body, before);
            if let Some(left) = self.round(number, left) {
                break left;
            }
            if self.yields == yields {
                self.silent_round = true;
                break Left::Stopped;
            }
        };
        self.loops.pop();
        end
    }
}

/// Awaits in a piece of code.
fn awaits(code: &Code) -> usize {
    match code {
        Yield | Wait => 1,
        Sequence(parts) => parts.iter().map(awaits).sum(),
        If(condition, yes, no) => awaits(condition) + awaits(yes) + awaits(no),
        Both { first, second, yes, no, .. } => {
            awaits(first) + awaits(second) + awaits(yes) + awaits(no)
        }
        Match { first, guard, second, third } => {
            awaits(first) + awaits(guard) + awaits(second) + awaits(third)
        }
        While(_, head, body) => awaits(head) + awaits(body),
        For(_, body) | Each(_, body) | Loop(_, body) | Free(body) | Async(body) => awaits(body),
        Block(first, second) => awaits(first) + awaits(second),
        Cost(_) | Break(_) | Continue(_) | Return | Fail => 0,
    }
}

/// Results of all runs together.
struct Observed {
    /// By segment; none if no run reached it.
    segments: Vec<Option<u64>>,
    remaining: Vec<Option<u64>>,
    /// A round of a free loop did not yield.
    silent_round: bool,
    /// All possible runs were made, to their ends.
    complete: bool,
}

fn observe(code: &Code) -> Observed {
    let mut tape = Vec::new();
    let count = awaits(code) + 1;
    let mut seen = Observed {
        segments: vec![None; count],
        remaining: vec![None; count],
        silent_round: false,
        complete: true,
    };
    for _ in 0..MOST_RUNS {
        let mut run = Run {
            tape: &mut tape,
            place: 0,
            events: vec![Event::Yield(0, true)],
            yields: 0,
            loops: Vec::new(),
            next_loop: 0,
            silent_round: false,
        };
        let left = run.run(code, 0);
        seen.silent_round |= run.silent_round;
        seen.complete &= run.yields < MOST_YIELDS;
        let _ = left;
        let (events, place) = (run.events, run.place);
        note(&events, &mut seen);
        // The next tape: the last false becomes true, and the rest is cut off.
        tape.truncate(place);
        while tape.last() == Some(&true) {
            tape.pop();
        }
        match tape.last_mut() {
            Some(last) => *last = true,
            None => return seen,
        }
    }
    seen.complete = false;
    seen
}

fn note(events: &[Event], seen: &mut Observed) {
    for (place, event) in events.iter().enumerate() {
        let Event::Yield(segment, _) = *event else { continue };
        let (mut total, mut of_segment) = (0, None);
        for event in &events[place + 1..] {
            match *event {
                Event::Cost(ns) => total += ns,
                Event::Yield(_, wait) => {
                    of_segment.get_or_insert(total);
                    if wait {
                        break;
                    }
                }
            }
        }
        let of_segment = of_segment.unwrap_or(total);
        seen.segments[segment] = seen.segments[segment].max(Some(of_segment));
        seen.remaining[segment] = seen.remaining[segment].max(Some(total));
    }
}

fn source(code: &Code) -> String {
    Writer::default().of(code)
}

// ---------------------------------------------------------------- properties

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 2000, ..<_>::default() })]

    /// No run exceeds the bound, and if all runs were made, one reaches it. A loop that can run a
    /// round without a yield is refused, and (if all runs were made) no other.
    #[test]
    fn the_bound_is_the_worst_run(code in code()) {
        let text = source(&code);
        let seen = observe(&code);
        match task(&text) {
            Err(errors) => {
                prop_assert!(seen.silent_round || !seen.complete, "refused: {errors:?} in {text}");
                prop_assert!(errors.iter().all(|error| error.contains("this loop")), "{errors:?}");
            }
            Ok(flow) => {
                prop_assert!(!seen.silent_round, "not refused: {text}");
                let bounds = bounds(&flow);
                prop_assert_eq!(bounds.segments.len(), seen.segments.len());
                for segment in 0..seen.segments.len() {
                    let pairs = [
                        (bounds.segments[segment], seen.segments[segment]),
                        (bounds.remaining[segment], seen.remaining[segment]),
                    ];
                    for (bound, worst) in pairs {
                        let Some(worst) = worst else { continue };
                        prop_assert!(worst <= bound, "{segment}: {worst} > {bound}: {text}");
                        if seen.complete {
                            prop_assert_eq!(worst, bound, "segment {}: {}", segment, text);
                        }
                    }
                    prop_assert!(bounds.segments[segment] < u64::MAX, "{text}");
                    prop_assert!(bounds.segments[segment] <= bounds.remaining[segment]);
                }
            }
        }
    }

    /// Higher costs never make a bound smaller, and nothing overflows.
    #[test]
    fn dearer_costs_give_no_smaller_bounds(
        code in code(),
        costs in prop::array::uniform9(0u64..5_000),
        more in prop::array::uniform9(prop_oneof![0u64..5_000, Just(u64::MAX / 2)]),
    ) {
        let Ok(flow) = task(&source(&code)) else { return Ok(()) };
        let graph = graph(&flow);
        let classes = Class::ALL;
        let named: Vec<_> = classes.into_iter().zip(costs).collect();
        let dearer: Vec<_> =
            named.iter().zip(more).map(|((class, cost), more)| (*class, cost + more)).collect();
        let less = picnic_wcet::bounds(&graph, &CostProfile::of("less", &named)).unwrap();
        let greater = picnic_wcet::bounds(&graph, &CostProfile::of("more", &dearer)).unwrap();
        let none = picnic_wcet::bounds(&graph, &declared_only()).unwrap();
        for (less, greater) in [
            (&less.segments, &greater.segments),
            (&less.remaining, &greater.remaining),
            (&none.segments, &less.segments),
            (&none.remaining, &less.remaining),
        ] {
            for (less, greater) in less.iter().zip(greater.iter()) {
                prop_assert!(less <= greater);
            }
        }
    }
}

#[test]
fn generator_covers_the_interesting_programs() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut complete, mut refused, mut yielding, mut looping) = (0, 0, 0, 0);
    for _ in 0..500 {
        let code = code().new_tree(&mut runner).unwrap().current();
        complete += usize::from(observe(&code).complete);
        yielding += usize::from(awaits(&code) > 1);
        match task(&source(&code)) {
            Ok(flow) => looping += usize::from(!flow.loops.is_empty()),
            Err(_) => refused += 1,
        }
    }
    let counts = [complete, refused, yielding, looping];
    assert!(counts.iter().all(|count| (25..500).contains(count)), "{counts:?}");
}
