//! Questions about cards alone, in the simulator; and the reasons for pairs that do not count.

use super::pairs::{Found, Pairs};
use super::*;
use crate::meter::Load;
use picnic_testing::wait_for;
use std::time::Duration;

pub(super) fn side(name: &str, set: &[&str]) -> Side {
    let set = set.iter().map(|setting| (*setting).to_owned()).collect();
    Side { name: name.into(), path: None, set }
}

const SLOW: &[&str] = &["wire[0].rate_pps=20000", "host.queues=1"];

pub(super) fn question(candidates: Candidates) -> Question {
    Question {
        baseline: side("baseline", SLOW),
        plain: false,
        apart: false,
        candidates,
        workload: None,
        figure: ComparedFigure::of_card("delivered_pps").unwrap(),
        more_is_better: true,
        effect: 0.02,
        pairs: 10,
        most_pairs: 10,
        seconds: 0.05,
        allowed: Allowed { loss: 1.0, full_client: false, others: 1.0 },
        wire_frames: false,
        seed: 1,
        cost: true,
        timelines: None,
    }
}

fn ask(question: &Question) -> Result<Outcome, LabError> {
    let sections = picnic_host::sections();
    let mut progress = |share: f64, what: &str| assert!(share <= 1.0 && !what.is_empty());
    question.run(picnic_sim::registries(), &sections, &mut progress)
}

#[test]
fn half_of_the_packets_dropped_is_worse() {
    let dropping = side("candidate", &[SLOW, &["wire[0].fault.drop=0.5"]].concat());
    let outcome = ask(&question(Candidates::One(dropping))).unwrap();
    let fields = outcome.fields();
    assert_eq!(fields["verdict"], "worse", "{fields:?}");
    let ratio = fields["ratio_delivered"].as_f64().unwrap();
    assert!((0.3..0.7).contains(&ratio), "{ratio}");
    assert!(outcome.notes[0].starts_with("candidate: worse, -"), "{:?}", outcome.notes);
    assert_eq!(fields["ratio_delivered_low_95"].as_f64().unwrap().max(1.0), 1.0);
    let cost = &fields["card_cost"][0];
    assert_eq!(cost["card"], "empty function");
    assert!(cost["delivered_pps"].as_f64().unwrap() > 0.0, "{cost}");
    assert!(cost["latency_p50_ns"].as_f64().unwrap() > 0.0, "{cost}");
}

#[test]
fn a_card_against_itself_is_no_different() {
    let folder = tempfile::tempdir().unwrap();
    let timelines = Some(folder.path().join("timelines"));
    let question = question(Candidates::One(side("candidate", SLOW)));
    let outcome = ask(&Question { timelines, ..question }).unwrap();
    assert_eq!(outcome.fields()["verdict"], "no difference", "{:?}", outcome.notes);
    for side in ["baseline", "candidate"] {
        let path = folder.path().join("timelines").join(side.to_owned() + ".json");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("\"name\":\"turn\""), "{side}");
    }
}

#[test]
fn a_sweep_has_a_point_for_each_value() {
    let value = |value: &str| {
        let key = format!("wire[0].fault.drop={value}");
        (value.to_owned(), side(value, &[SLOW, &[&key]].concat()))
    };
    let sides = vec![value("0.9"), value("0.5")];
    let sweep = Candidates::Sweep { key: "wire[0].fault.drop".into(), sides };
    let outcome = ask(&Question { cost: false, ..question(sweep) }).unwrap();
    let points = &outcome.fields()["sweep"];
    assert_eq!(points[0]["wire_0_fault_drop"], 0.9);
    for point in points.as_array().unwrap() {
        assert_eq!(point["verdict_delivered"], "worse", "{point}");
    }
    let ratio = |index: usize| points[index]["ratio_delivered"].as_f64().unwrap();
    assert!(ratio(0) < ratio(1), "{points}");
    // A curve by the value, with its noise.
    let drawn = drawing(&outcome).unwrap();
    let [line] = &drawn.lines[..] else { panic!("{drawn:?}") };
    assert_eq!(line.points.iter().map(|dot| dot.x).collect::<Vec<_>>(), [0.5, 0.9]);
    assert!(line.points[0].y > line.points[1].y && line.points[0].y < -0.3, "{line:?}");
    assert!(drawn.band.is_some_and(|band| band.low <= 0.0 && band.high >= 0.0));
    assert_eq!(drawn.x_label, "wire 0 fault drop");
}

#[test]
fn errors_in_sides_are_reported_before_measuring() {
    let wrong = side("candidate", &["host.queues=none"]);
    let error = ask(&question(Candidates::One(wrong))).unwrap_err();
    let error = format!("{:#}", error.into_cause());
    assert!(error.contains("host.queues"), "{error}");
}

#[test]
fn arrival_figures_need_wires_with_arrival_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("card.toml");
    let at_wire = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let side = |name: &str| Side { path: Some(path.clone()), ..side(name, &[]) };
        ask(&Question {
            baseline: side("baseline"),
            figure: ComparedFigure::of_card("latency_at_wire_ns").unwrap(),
            more_is_better: false,
            cost: false,
            ..question(Candidates::One(side("candidate")))
        })
    };
    let known = "[[wire]]\nport = \"generator\"\nrate_pps = 20000\n";
    // Packets that a NIC holds back wait at the wire.
    let host = "[host]\nqueues = 1\n[interrupt]\nwire_usecs = 1000\n";
    let error = at_wire(&format!("{known}[[wire]]\nport = \"generator\"\n")).unwrap_err();
    let error = format!("{:#}", error.into_cause());
    let wanted =
        format!("{}:5: wire[1].port: found \"generator\", which does not know", path.display());
    assert!(error.contains(&wanted) && error.contains("allowed: packet, xdp"), "{error}");
    let outcome = at_wire(&format!("{known}{host}")).unwrap();
    assert_eq!(outcome.fields()["verdict"], "no difference", "{:?}", outcome.notes);
}

pub(super) fn measured(value: f64, lost: f64, client: Option<f64>) -> Measured {
    let lost = (lost, vec![("ring_full", "a larger host.ring_size", 7)]);
    let (value, latencies) = (Some(value), Vec::new());
    let (window, load, recorded) = (None, Load::default(), None);
    Measured { value, window, load, lost, client, at_limit: false, recorded, latencies }
}

#[test]
fn pairs_outside_the_limits_do_not_count() {
    let allowed = Allowed { loss: 0.001, full_client: false, others: 0.1 };
    let question = Question { allowed, ..question(Candidates::One(side("candidate", &[]))) };
    let mut pairs = Pairs::default();
    let good = || measured(100.0, 0.0005, Some(0.6));
    let mut add = |number, [baseline, again, candidate]: [Measured; 3]| {
        question.add(&mut pairs, number, [&baseline, &again], (&candidate, "candidate"));
    };
    add(1, [good(), measured(101.0, 0.0, None), measured(90.0, 0.0, None)]);
    add(2, [good(), good(), measured(90.0, 0.1, None)]);
    add(3, [measured(90.0, 0.0, Some(0.97)), good(), good()]);
    add(4, [good(), good(), Measured { at_limit: true, ..measured(90.0, 0.0, None) }]);
    let load = Load { others_fraction: Some(0.34), ..Load::default() };
    add(5, [good(), Measured { load, ..measured(90.0, 0.0, None) }, good()]);
    assert_eq!((&pairs.baseline[..], &pairs.candidate[..]), (&[100.0][..], &[90.0][..]));
    assert_eq!(pairs.again, [101.0]);
    // Each with a remedy.
    let lost = "pair 2 is void: candidate: it lost 10.0 % of its packets for lack of room (7 \
                ring_full), allowed: 0.1 %; try a larger host.ring_size, fewer packets, or \
                --allow-loss 20";
    let full = "pair 3 is void: baseline: the client was saturated: a thread of it ran 97 % of the time; try \
                a client with more threads, or --allow-full-client";
    let limit = "pair 4 is void: candidate: the client could not send all its requests; try a lower rate or --allow-full-client";
    let shared = "pair 5 is void: baseline: other processes used 34 % of the cores, \
                  allowed: 10 %; end them, use a quieter machine, or --allow-others 40";
    let void: Vec<_> = pairs.void.iter().map(|void| (&*void.why, void.is_load)).collect();
    assert_eq!(void, [(lost, false), (full, false), (limit, false), (shared, true)]);
    let outcome = question.outcome(Found { pairs: vec![pairs], round: Duration::from_secs(7) });
    assert!(outcome.notes[0].contains("1 valid pairs, 10 needed"), "{:?}", outcome.notes);
    assert_eq!(outcome.notes[1..], [lost, full, limit, "1 more pairs are void"]);
}

#[test]
fn open_questions_get_an_estimate_of_time() {
    let question = question(Candidates::One(side("candidate", &[])));
    let noisy = |seed: usize| (0..10).map(move |n| if (n * seed) % 4 < 2 { 70.0 } else { 130.0 });
    let (baseline, again, candidate) = (noisy(1).collect(), noisy(3).collect(), noisy(2).collect());
    let pairs = vec![Pairs { baseline, again, candidate, ..Pairs::default() }];
    let outcome = question.outcome(Found { pairs, round: Duration::from_secs(7) });
    let notes = outcome.notes.join("\n");
    assert_eq!(outcome.fields()["verdict"], "too noisy");
    assert!(
        notes.contains("candidate: noise ±") && notes.contains("an effect of 2 % takes"),
        "{notes}"
    );
    assert!(notes.contains(" days (") || notes.contains(" hours ("), "{notes}");
    assert!(notes.contains("use a quieter machine"), "{notes}");
    assert!(notes.contains("the baseline against itself: "), "{notes}");
}

#[test]
fn listed_workloads_run_with_and_without_a_card() {
    let workload = Workload::new(Some(Kind::Named("support")), None, None).unwrap();
    let sections = picnic_host::sections();
    let registries = picnic_host::registries();
    let setup = (false, None);
    let place = match MeasuringPlace::build(registries, &sections, 1.0, Some(&workload), setup) {
        Err(error) => match LabError::from(error) {
            LabError::Unavailable(why) => {
                return picnic_testing::skip("lab ab under a workload of the list", &why);
            }
            error => panic!("{error}"),
        },
        Ok(place) => place,
    };
    let figure = Kind::Named("support").figure();
    let own = side("baseline", &[]);
    // A second: otherwise connections left from the side before would dominate.
    for card in [Card::None, Card::As(&own), Card::None, Card::Empty(&own), Card::None] {
        // A busy machine may let neither server nor client work in a second.
        let measured = wait_for("requests are answered", || {
            let measured = place.measure(card, &figure).unwrap();
            measured.value.is_some_and(|value| value > 1.0).then_some(measured)
        });
        assert!(measured.client.is_some() && measured.latencies.len() == 2);
    }
}
