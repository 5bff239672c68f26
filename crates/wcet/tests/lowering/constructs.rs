//! Each language construct: its graph and its longest path.

use super::{bounds, declared_only, graph, lowered, task};
use crate::cost::Class;
use crate::flow::{Flow, Kind};
use picnic_wcet::CostProfile;

/// Bounds of a body's segments; `work(n)` costs n nanoseconds.
fn segments(body: &str) -> Vec<u64> {
    bounds(&task(&worked(body)).unwrap_or_else(|errors| panic!("{errors:?} in {body}")))
        .segments
        .to_vec()
}

fn remaining(body: &str) -> Vec<u64> {
    bounds(&task(&worked(body)).unwrap()).remaining.to_vec()
}

/// `work(n)` stands for a statement or value that takes n nanoseconds.
fn worked(body: &str) -> String {
    let mut text = String::new();
    let mut rest = body;
    while let Some((before, after)) = rest.split_once("work(") {
        if before.ends_with('.') {
            // A method of that name.
            text += &format!("{before}work(");
            rest = after;
            continue;
        }
        let (ns, after) = after.split_once(')').unwrap();
        text += &format!("{before}#[wcet(ns = {ns})] f()");
        rest = after;
    }
    text + rest
}

fn refused(body: &str) -> String {
    task(&worked(body)).expect_err(body).join("\n")
}

/// Operations of a class on the longest path of a body.
fn counted(body: &str, class: Class) -> u64 {
    let flow = task(body).unwrap_or_else(|errors| panic!("{errors:?} in {body}"));
    let theirs = picnic_wcet::Class::ALL[class as usize];
    let mut costs = picnic_wcet::Class::ALL.map(|class| (class, 0));
    costs[class as usize] = (theirs, 1000);
    picnic_wcet::bounds(&graph(&flow), &CostProfile::of("one", &costs)).unwrap().segments[0]
}

#[test]
fn statements_add_up() {
    assert_eq!(segments("work(1); let x = work(2); { work(3); } unsafe { work(4) };"), [10]);
    assert_eq!(segments(""), [0]);
    assert_eq!(segments("const X: u32 = 3; fn g() {} use a::b; work(1);"), [1]);
}

#[test]
fn if_takes_the_dearer_branch() {
    assert_eq!(segments("if work(1) { work(2); } else { work(7); }"), [8]);
    assert_eq!(segments("if work(1) { work(2); }"), [3]);
    assert_eq!(segments("if a { work(1) } else if work(2) { work(3) } else { work(4) };"), [6]);
    assert_eq!(segments("let x = if a { work(1) } else { work(5) }; work(1);"), [6]);
}

#[test]
fn logical_operators_short_circuit() {
    // The second operand is evaluated only if the first does not decide.
    assert_eq!(segments("if work(1) && work(2) { work(3); } else { work(9); }"), [12]);
    assert_eq!(segments("if work(1) && work(2) { work(30); } else { work(9); }"), [33]);
    assert_eq!(segments("if work(1) || work(2) { return; } work(9);"), [12]);
    assert_eq!(segments("let x = work(1) && (work(2) || !work(3));"), [6]);
    assert_eq!(segments("if a && { return; } { work(100); } work(1);"), [1], "no way to the 100");
    assert_eq!(segments("if !(work(1) && work(2)) { work(3); }"), [6]);
}

#[test]
fn a_let_chain_is_a_condition() {
    assert_eq!(segments("if let Some(x) = work(1) && work(2) { work(3); } else { work(1); }"), [6]);
    assert_eq!(segments("if let Some(x) = work(1) && work(2) { work(1); } else { work(3); }"), [6]);
}

#[test]
fn match_tests_arms_in_order() {
    let body =
        "match work(1) { 0 => work(5), 1 if work(10) => work(20), 2 => work(40), _ => work(3) }";
    assert_eq!(segments(body), [1 + 10 + 40]);
    assert_eq!(segments("match x { A => return, B => work(1), C => panic!() } work(2);"), [3]);
    assert_eq!(segments("match x {}"), [0]);
    assert_eq!(counted("match x { 0 => 1, 1 => 2, (3 | 4, 5) => 3, _ => 4 };", Class::Branch), 6);
}

#[test]
fn let_else_leaves_or_continues() {
    assert_eq!(segments("let Some(x) = work(1) else { work(50); return; }; work(2);"), [51]);
    assert_eq!(segments("let Some(x) = work(1) else { work(5); return; }; work(20);"), [21]);
}

#[test]
fn return_and_question_mark_end_the_task() {
    assert_eq!(segments("work(1); return; work(100);"), [1]);
    assert_eq!(segments("if a { work(5); return work(3); } work(2);"), [8]);
    assert_eq!(segments("work(1)?; work(2);"), [3]);
    assert_eq!(segments("card.sleep(x?).await; work(2);"), [0, 2]);
}

#[test]
fn panics_end_the_path() {
    assert_eq!(segments("if a { work(9); panic!(\"x\"); } work(3);"), [9]);
    assert_eq!(segments("assert!(work(4), \"{}\", work(100)); work(3);"), [7]);
    assert_eq!(segments("debug_assert_eq!(work(4), work(5)); work(3);"), [12]);
    assert_eq!(segments("if matches!(work(4), Some(3 | 4) if work(2)) { work(1); }"), [7]);
}

#[test]
fn literal_for_loops_need_no_bound() {
    assert_eq!(segments("for i in 0..16 { work(2); }"), [32]);
    assert_eq!(segments("for i in (0..=3).rev().step_by(2) { work(2); }"), [4]);
    assert_eq!(segments("for x in [a, b, work(1)] { work(2); }"), [7]);
    assert_eq!(segments("for i in 4..4 { work(2); }"), [0]);
    assert_eq!(segments("for i in 0..0 { loop {} }"), [0], "never reached");
    assert_eq!(segments("for x in words.iter().take(5) { work(2); }"), [10]);
    assert_eq!(segments("#[bound(99)] for i in 0..3 { work(2); }"), [6]);
    assert_eq!(counted("for i in 0..16 {}", Class::Branch), 17, "one test more than rounds");
}

#[test]
fn nested_loops_multiply() {
    assert_eq!(segments("for i in 0..3 { work(1); for j in 0..4 { work(2); } }"), [27]);
    let body = "#[bound(3)] while work(1) { #[bound(4)] loop { work(2); if a { break } } }";
    assert_eq!(segments(body), [4 + 3 * 8]);
}

#[test]
fn while_tests_once_more_than_it_loops() {
    assert_eq!(segments("#[bound(3)] while work(1) { work(10); }"), [34]);
    assert_eq!(segments("#[bound(3)] while let Some(x) = work(1) { work(10); }"), [34]);
    assert_eq!(segments("#[bound(3)] while work(1) && work(2) { work(10); }"), [3 * 13 + 3]);
}

#[test]
fn break_and_continue_find_their_loops() {
    assert_eq!(segments("for i in 0..4 { work(1); if a { work(50); break; } work(2); }"), [60]);
    assert_eq!(segments("for i in 0..4 { work(1); if a { continue; } work(2); }"), [12]);
    // Exits both loops: the expensive path runs once.
    let body =
        "'o: for i in 0..4 { work(1); for j in 0..3 { if a { work(100); break 'o; } work(2); } }";
    assert_eq!(segments(body), [4 * (1 + 6) - 2 + 100]);
    let body = "'o: for i in 0..4 { work(1); for j in 0..3 { if a { work(100); continue 'o; } work(2); } }";
    assert_eq!(segments(body), [4 * (1 + 2 + 2 + 100)]);
    assert_eq!(segments("let x = #[bound(3)] loop { work(1); if a { break work(5); } };"), [8]);
    assert_eq!(segments("'b: { work(1); if a { break 'b; } work(2); } work(4);"), [7]);
    assert!(
        refused("#[bound(2)] 'a: while { if x { break 'a; } true } {}").contains("a jump out of")
    );
}

#[test]
fn awaits_split_the_body() {
    assert_eq!(
        segments("work(1); card.yield_now().await; work(2); card.sleep(work(3)).await; work(4);"),
        [1, 5, 4]
    );
    assert_eq!(
        remaining("work(1); card.yield_now().await; work(2); card.sleep(work(3)).await; work(4);"),
        [6, 5, 4]
    );
    assert_eq!(segments("if a { work(3); card.yield_now().await; work(9); } work(2);"), [3, 11]);
    assert_eq!(segments("(card.yield_now()).await; (&card).yield_now().await"), [0, 0, 0]);
    assert_eq!(
        segments("return; card.yield_now().await;"),
        [0, 0],
        "numbered though never reached"
    );
}

#[test]
fn services_are_recognised_by_their_receiver() {
    assert_eq!(counted("card.services().flows(|packet| unknown(packet));", Class::Service), 2);
    assert_eq!(counted("card.now().since(x); card.now().get(3);", Class::Service), 2);
    assert_eq!(
        segments("card.work(30); card.services().reply().await; card.work(2 * 4);"),
        [30, 8]
    );
    let flow = task("let packet = mailbox.receive().await; card.services().ask().await;").unwrap();
    assert_eq!(flow.segments.iter().map(|s| s.wait).collect::<Vec<_>>(), [false, true, false]);
    assert!(refused("card.work(n);").contains("the time of this call is its argument"));
    assert_eq!(segments("#[wcet(ns = 9)] card.work(n);"), [9]);
    assert!(refused("mailbox.take_all().await;").contains("is not of a method of `card`"));
    assert!(refused("(a.b).receive().await;").contains("is not of a method of `card`"));
}

#[test]
fn a_segment_may_begin_inside_loops() {
    let body = "#[bound(5)] while work(1) { work(2); if a { card.yield_now().await; work(30); } work(4); }";
    // From the yield: the rest of its round, four more rounds without a yield, the last test.
    assert_eq!(segments(body), [5 * 7 + 1, 34 + 4 * 7 + 1]);
    assert_eq!(remaining(body), [5 * 37 + 1, 34 + 4 * 37 + 1]);
    let body = "loop { work(1); card.next_release().await; #[bound(9)] while work(2) { card.yield_now().await; work(3); } }";
    assert_eq!(segments(body), [1, 3, 6]);
    assert_eq!(remaining(body), [1, 9 * 5 + 2 + 1, 9 * 5 + 1]);
}

#[test]
fn a_condition_may_yield() {
    let body = "while card.receive().await { work(5); } work(2);";
    assert_eq!(segments(body), [0, 5]);
    let body = "#[bound(3)] while card.yield_now().await { work(5); } work(2);";
    assert_eq!(remaining(body), [17, 17]);
    assert_eq!(segments("if card.yield_now().await && work(2) { work(3); }"), [0, 5]);
}

#[test]
fn async_blocks_awaited_at_once_are_part_of_the_body() {
    let body = "work(1); let x = async { work(2); if a { return 3; } card.sleep(1).await; work(4) }.await; work(10);";
    assert_eq!(segments(body), [13, 14]);
    assert!(refused("let x = async { 3 };").contains("await it at once"));
}

#[test]
fn closures_cost_where_they_run() {
    assert_eq!(segments("let f = |x| { work(5) }; f(1); f(2);"), [10]);
    assert_eq!(segments("let f = |x| { work(5) };"), [0]);
    assert_eq!(segments("let f = || work(5); { let f = || work(7); f(); } f();"), [12]);
    assert_eq!(
        segments("x.unwrap_or_else(|| { for i in 0..3 { work(2); } return 3; }); work(1);"),
        [7]
    );
    assert_eq!(segments("(|| work(5))();"), [5]);
    assert!(refused("let f = || work(5); let f = g; f();").contains("`f` is a value"));
    assert!(refused("let f: fn() = || work(5); f();").contains("`f` is a value"));
    assert!(refused("x.unwrap_or_else(|| loop {});").contains("this loop has no bound"));
    assert!(refused("x.map(|x| x);").contains("the number of calls of this closure"));
    assert!(refused("let f = || { card.sleep(1).await };").contains("an await in a closure"));
}

#[test]
fn declared_times_replace_the_code_under_them() {
    assert_eq!(segments("#[wcet(7)] { unknown(); for x in y { other(z); } }"), [7]);
    assert_eq!(
        segments("#[wcet(ns = 7)] let x: u32 = unknown(); #[wcet(ns = 4)] x = y.sort();"),
        [11]
    );
    assert_eq!(segments("let x = 1 + #[wcet(ns = 3)] unknown()?;"), [3]);
    assert_eq!(segments("#[wcet(ns = 5)] println!(\"{x}\"); "), [5]);
    assert_eq!(segments("#[wcet(ns = 9)] other.await; work(1);"), [9, 10]);
    assert_eq!(segments("#[wcet(ns = 9)] card.sleep(unknown()).await;"), [9, 9]);
    assert!(task("#[wcet(ns = 9)] card.sleep(f()).await;").unwrap().segments[1].wait);
    assert_eq!(segments("#[wcet(ns = 2)] for x in y { if a { break; } }"), [2]);
    assert!(
        refused("#[bound(3)] for x in y { #[wcet(ns = 2)] if a { break; } }")
            .contains("move this jump out")
    );
}

#[test]
fn operations_have_their_classes() {
    use Class::{Arithmetic, Bitwise, Branch, Call, Divide, Load, Multiply, Service, Store};
    assert_eq!(counted("let x = a + b - (c << 2);", Arithmetic), 2);
    assert_eq!(counted("let x = a + b - (c << 2);", Bitwise), 1 + 1);
    assert_eq!(counted("let x = !a & b | c ^ d >> e;", Bitwise), 5 + 1);
    assert_eq!(counted("x <<= 3; y &= !z; *w ^= 1;", Bitwise), 4 + 2);
    assert_eq!(counted("let x = a < b && c == d;", Bitwise), 1 + 1);
    assert_eq!(counted("x *= y.wrapping_mul(3);", Multiply), 3);
    assert_eq!(counted("let x = a / b % c;", Divide), 2);
    assert_eq!(counted("let x = a[i].field;", Load), 2);
    assert_eq!(counted("let x = *a;", Load), 1);
    assert_eq!(counted("let x = [0; 12];", Store), 12);
    assert_eq!(counted("let x = (1, Some(2), Point { x: 3, y: 4 });", Store), 3 + 1 + 2);
    assert_eq!(counted("let x = other(); y.len();", Call), 2);
    assert_eq!(counted("card.now();", Service), 1);
    assert_eq!(counted("let x = a as u32;", Arithmetic), 1);
    assert_eq!(counted("x?;", Branch), 1);
    assert_eq!(counted("u32::rotate_left(x, 3);", Arithmetic), 2);
    assert_eq!(counted("a[1] = 2; *b = 3; c.d = 4; E = 5;", Store), 4);
    assert_eq!(counted("a = 2; let b = 3; c += 4;", Store), 0, "variables are at hand");
    assert_eq!(counted("a = 2; let b = 3; c += 4;", Bitwise), 3);
    assert_eq!(counted("a = 2; let b = 3; c += 4;", Arithmetic), 1);
    assert_eq!(counted("a[0] += 2; *c += 3; d += 4;", Load), 1 + 1 + 1 + 1);
}

/// A jump follows an operation that may overflow, and no other.
#[test]
fn only_fallible_arithmetic_is_checked() {
    for (body, branches) in [
        ("let x = a + b - c * d;", 3),
        ("x += a; x -= b; x *= c;", 3),
        ("let x = a / b % c; x /= d; x %= e;", 4),
        ("let x = a & b | c ^ d; x &= a; x |= b; x ^= c;", 0),
        ("let x = a == b; let y = a != b; let z = a < b;", 0),
        ("let x = a <= b; let y = a > b; let z = a >= b;", 0),
        // All integers have seven bits; eight may be too many, and other types are unknown.
        ("let x = a << 7 >> 1; x <<= 3; x >>= 0x7;", 0),
        ("let x = a << 8 >> b; x <<= 64; x >>= c;", 4),
        ("let x = -a;", 1),
        ("let x = -3; let y = !a;", 0),
        // The test of an `if` has its own jump.
        ("if a == b { f(); }", 1),
    ] {
        assert_eq!(counted(body, Class::Branch), branches, "{body}");
    }
}

#[test]
fn a_path_is_looked_up_once_for_each_call() {
    let (_, item) =
        lowered("fn name() { other(); a::b::other(3); crate::x(); Some(3); u32::from(y); }")
            .unwrap();
    let paths: Vec<_> = item.callees.iter().map(|callee| callee.path.segments.len()).collect();
    assert_eq!(paths, [1, 3, 2]);
}

#[test]
fn unreached_code_is_pruned_and_edges_stay_inside() {
    let flow = task("loop { card.sleep(1).await; if a { return; } else { continue; } f(); } g();")
        .unwrap();
    for edge in &flow.edges {
        assert!(edge.from < flow.blocks.len() && edge.to < flow.blocks.len());
    }
    let called: usize = flow.blocks.iter().map(|block| block.calls.len()).sum();
    assert_eq!(called, 0, "neither call is reached");
    assert_eq!(yields(&flow), 1);
}

fn yields(flow: &Flow) -> usize {
    flow.edges.iter().filter(|edge| matches!(edge.kind, Kind::Yield(_))).count()
}

#[test]
fn too_large_bounds_read_no_bound() {
    let most = u32::MAX;
    let body = format!(
        "#[bound({most})] loop {{ #[bound({most})] loop {{ #[wcet(ns = 60000000000)] f(); if a {{ break }} }} if a {{ break }} }}"
    );
    assert_eq!(segments(&body), [u64::MAX]);
    let flow = task("loop { card.yield_now().await; }").unwrap();
    let bounds = picnic_wcet::bounds(&graph(&flow), &declared_only()).unwrap();
    assert_eq!(bounds.remaining[..], [u64::MAX, u64::MAX]);
}
