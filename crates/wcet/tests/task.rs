//! Tasks as users write them: graphs, bounds, and runs that follow their graphs.

use picnic_wcet::{Class, CostProfile, Graph, bounded, bounds, task, wcet};
use std::cell::RefCell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

// ---------------------------------------------------------------- a bare executor

/// A task context that records its calls.
#[derive(Clone, Default)]
struct Card {
    told: Rc<RefCell<Vec<u16>>>,
}

/// Pending once, like every await of a task context.
struct Once(bool);

impl Future for Once {
    type Output = u32;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(7) } else { Poll::Pending }
    }
}

impl Card {
    fn next_segment(&self, segment: u16) {
        self.told.borrow_mut().push(segment);
    }
    fn yield_now(&self) -> Once {
        Once(false)
    }
    fn sleep(&self, _ns: u32) -> Once {
        Once(false)
    }
    fn next_release(&self) -> Once {
        Once(false)
    }
    fn count(&self, _what: u32) {}
}

/// Runs a task; returns its segments in the order in which they ran.
fn segments_of<F: Future>(make: impl FnOnce(Card) -> F, most: usize) -> Vec<u16> {
    let card = Card::default();
    let mut task = pin!(make(card.clone()));
    let mut ran = vec![0];
    while ran.len() < most {
        let told = card.told.borrow().len();
        if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            break;
        }
        assert_eq!(card.told.borrow().len(), told + 1, "told once before each yield");
        ran.push(*card.told.borrow().last().unwrap());
    }
    ran
}

/// Checks that the graph has a path between consecutive segments.
fn follows(graph: &Graph, ran: &[u16]) {
    for pair in ran.windows(2) {
        let next = graph.after(pair[0]);
        assert!(next.contains(&pair[1]), "from {} to {next:?}, ran {}", pair[0], pair[1]);
    }
}

/// One nanosecond per operation of these classes, next to nothing for the others.
fn profile(classes: &[Class]) -> CostProfile {
    let costs: Vec<_> = Class::ALL
        .iter()
        .map(|class| (*class, if classes.contains(class) { 1000 } else { 0 }))
        .collect();
    CostProfile::of("test", &costs)
}

fn ns(graph: &Graph) -> Vec<u64> {
    bounds(graph, &profile(&[])).unwrap().segments.to_vec()
}

fn remaining(graph: &Graph) -> Vec<u64> {
    bounds(graph, &profile(&[])).unwrap().remaining.to_vec()
}

// ---------------------------------------------------------------- tasks

#[wcet(ns = 10)]
fn ten() -> u32 {
    10
}

#[bounded]
fn up_to_thirty(short: bool) -> u32 {
    if short {
        return ten();
    }
    ten() + ten() + ten()
}

mod inner {
    use picnic_wcet::wcet;

    pub(crate) mod deep {
        use picnic_wcet::bounded;

        #[bounded]
        pub(crate) fn of_super() -> u32 {
            super::hundred() + crate::ten() + self::one()
        }

        #[picnic_wcet::wcet(1)]
        fn one() -> u32 {
            1
        }
    }

    #[wcet(ns = 100)]
    pub(super) fn hundred() -> u32 {
        100
    }
}

use inner::deep::of_super as renamed;

#[task]
async fn straight(card: Card) {
    ten();
    card.yield_now().await;
    up_to_thirty(false);
    card.sleep(1).await;
    inner::hundred();
    renamed();
}

#[test]
fn a_straight_task_has_a_segment_for_each_await() {
    assert_eq!(ns(&straight::GRAPH), [10, 30, 211]);
    assert_eq!(
        remaining(&straight::GRAPH),
        [40, 30, 211],
        "the sleep is a wait, the yield is none"
    );
    let ran = segments_of(straight, 10);
    assert_eq!(ran, [0, 1, 2]);
    follows(&straight::GRAPH, &ran);
    assert_eq!(straight::GRAPH.file, file!());
    assert_eq!(straight::GRAPH.name, "straight");
    let after: Vec<_> = straight::GRAPH.segments.iter().map(|segment| segment.after).collect();
    assert_eq!(after, ["", "yield_now", "sleep"]);
    assert!(straight::GRAPH.after(2).is_empty());
}

#[task]
async fn periodic(card: Card, mut rounds: u32) {
    loop {
        ten();
        for _ in 0..4 {
            ten();
            if rounds > 3 {
                card.yield_now().await;
                inner::hundred();
            }
        }
        rounds += 1;
        card.next_release().await;
    }
}

#[test]
fn periodic_tasks_repeat_their_segments() {
    // From the start: 10 and four times 10. From the yield: 100, three more rounds without one,
    // then the wait. From the wait: as from the start.
    assert_eq!(ns(&periodic::GRAPH), [50, 130, 50]);
    // To the wait: each round may yield and costs 110.
    assert_eq!(remaining(&periodic::GRAPH), [450, 430, 450]);
    let ran = segments_of(|card| periodic(card, 3), 12);
    assert_eq!(ran, [0, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2]);
    follows(&periodic::GRAPH, &ran);
    assert_eq!(periodic::GRAPH.after(0), [1, 2]);
}

#[task]
async fn endless(card: Card) {
    loop {
        ten();
        card.yield_now().await;
    }
}

#[test]
fn tasks_that_never_wait_have_no_remaining_bound() {
    assert_eq!(ns(&endless::GRAPH), [10, 10]);
    assert_eq!(remaining(&endless::GRAPH), [u64::MAX, u64::MAX]);
    assert_eq!(segments_of(endless, 4), [0, 1, 1, 1]);
}

#[task]
async fn nested(card: Card, words: &[u32]) -> Result<u32, ()> {
    let mut sum = 0;
    #[bound(3)]
    for word in words {
        'inner: for _ in [1, 2] {
            #[wcet(ns = 5)]
            let found = words.iter().position(|other| other == word);
            if found == Some(9) {
                break 'inner;
            }
            sum += 1;
        }
        #[bound(2)]
        while sum > 100 {
            sum /= ten();
        }
    }
    let value = card.sleep(card.yield_now().await).await;
    let checked = async {
        let first = words.first().ok_or(())?;
        card.sleep(*first).await;
        ten();
        Ok::<u32, ()>(*first)
    }
    .await;
    sum += checked? + value;
    Ok(sum)
}

#[test]
fn loops_multiply_and_awaits_nest() {
    assert_eq!(ns(&nested::GRAPH), [3 * (2 * 5 + 2 * 10), 0, 0, 10]);
    let after: Vec<_> = nested::GRAPH.segments.iter().map(|segment| segment.after).collect();
    assert_eq!(after, ["", "yield_now", "sleep", "sleep"]);
    let ran = segments_of(|card| nested(card, &[1, 2]), 10);
    assert_eq!(ran, [0, 1, 2, 3], "the inner await is told before the outer");
    follows(&nested::GRAPH, &ran);
    // Without a first word, the async block ends before its await.
    let ran = segments_of(|card| nested(card, &[]), 10);
    assert_eq!(ran, [0, 1, 2]);
    let loops: Vec<_> =
        nested::GRAPH.loops.iter().map(|found| (found.bound, found.parent)).collect();
    assert_eq!(loops, [(Some(3), None), (Some(2), Some(0)), (Some(2), Some(0))]);
}

#[task]
async fn chosen(card: Card, which: Option<u32>) -> u32 {
    let twice = |value: u32| {
        ten();
        value.wrapping_mul(2)
    };
    let value = match which {
        Some(0) => ten(),
        Some(value) if value > 5 && matches!(up_to_thirty(true), 10 | 30) => twice(value),
        Some(_) => inner::hundred(),
        None => which.unwrap_or_else(|| inner::hundred() + ten()),
    };
    let Some(more) = which.map_or(Some(value), |more| more.checked_add(ten())) else {
        card.count(1);
        return 0;
    };
    assert!(more < 1000, "{more} is too many");
    if let Some(1) = which
        && !(value == 3 || more == 4)
    {
        card.yield_now().await;
        return ten();
    }
    unreachable!()
}

#[test]
fn most_expensive_path_through_matches_and_closures_counts() {
    // Guard (30) and third arm (100), or the fourth with its guard (30 + 110); the
    // closure of `map_or`.
    let error_free = ns(&chosen::GRAPH);
    assert_eq!(error_free, [30 + 110 + 10, 10]);
    let ran = segments_of(|card| chosen(card, Some(1)), 4);
    assert_eq!(ran, [0, 1]);
    follows(&chosen::GRAPH, &ran);
    assert_eq!(segments_of(|card| chosen(card, Some(u32::MAX)), 4), [0]);
}

#[test]
fn operations_are_charged_by_class_and_line() {
    #[bounded]
    fn sums(words: &[u32; 4]) -> u32 {
        let mut sum = 0;
        for place in 0..4 {
            sum += words[3 - place] * 3 + place as u32;
        }
        sum / 2
    }
    let of = |class| bounds(&sums::GRAPH, &profile(&[class])).unwrap().segments[0];
    assert_eq!(of(Class::Multiply), 4);
    assert_eq!(of(Class::Divide), 1);
    assert_eq!(of(Class::Load), 4, "the words; the sum is at hand");
    assert_eq!(of(Class::Segment), 0);
    assert_eq!(sums(&[1, 2, 3, 4]), (30 + 6) / 2);
    let line = sums::GRAPH.line;
    let lines: Vec<_> =
        sums::GRAPH.blocks.iter().map(|block| block.line.wrapping_sub(line)).collect();
    assert!(lines.contains(&1) && lines.contains(&3), "{lines:?}");
    assert_eq!(sums::GRAPH.loops[0].line, line + 2);
}

#[test]
fn each_segment_is_entered_once() {
    let bounds = bounds(&straight::GRAPH, &profile(&[Class::Segment])).unwrap();
    assert_eq!(bounds.segments[..], [11, 31, 212]);
}
