//! Questions about cards alone, in the simulator; and what is said of pairs that do not count.

use super::*;
use crate::meter::Load;

fn side(name: &str, set: &[&str]) -> Side {
    let set = set.iter().map(|setting| (*setting).to_owned()).collect();
    Side { name: name.into(), path: None, set }
}

const SLOW: &[&str] = &["wire[0].rate_pps=20000", "host.queues=1"];

fn question(candidates: Candidates) -> Question {
    Question {
        baseline: side("baseline", SLOW),
        candidates,
        workload: None,
        figure: ComparedFigure::of_card("delivered_pps").unwrap(),
        more_is_better: true,
        effect: 0.02,
        pairs: 10,
        most_pairs: 10,
        seconds: 0.05,
        allowed_loss: 1.0,
        full_client: false,
        cost: true,
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
    let outcome = ask(&question(Candidates::One(side("candidate", SLOW)))).unwrap();
    assert_eq!(outcome.fields()["verdict"], "no difference", "{:?}", outcome.notes);
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
    assert_eq!(points[0]["wire_0_fault_drop"], "0.9");
    for point in points.as_array().unwrap() {
        assert_eq!(point["verdict_delivered"], "worse", "{point}");
    }
    let ratio = |index: usize| points[index]["ratio_delivered"].as_f64().unwrap();
    assert!(ratio(0) < ratio(1), "{points}");
}

#[test]
fn what_is_wrong_with_a_side_is_told_before_anything_is_measured() {
    let wrong = side("candidate", &["host.queues=none"]);
    let error = ask(&question(Candidates::One(wrong))).unwrap_err();
    let error = format!("{:#}", error.into_cause());
    assert!(error.contains("host.queues"), "{error}");
}

#[test]
fn a_figure_of_arrival_needs_wires_that_know_it() {
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
    // What a NIC holds back waits at the wire.
    let host = "[host]\nqueues = 1\n[interrupt]\nwire_usecs = 1000\n";
    let error = at_wire(&format!("{known}[[wire]]\nport = \"generator\"\n")).unwrap_err();
    let error = format!("{:#}", error.into_cause());
    let wanted = format!("{}:5: wire[1].port: found \"generator\", whose packets", path.display());
    assert!(error.contains(&wanted) && error.contains("allowed: packet, xdp"), "{error}");
    let outcome = at_wire(&format!("{known}{host}")).unwrap();
    assert_eq!(outcome.fields()["verdict"], "no difference", "{:?}", outcome.notes);
}

fn measured(value: f64, lost: f64, client: Option<f64>) -> Measured {
    let lost = (lost, "7 ring_full".to_owned());
    let (value, latencies) = (Some(value), Vec::new());
    let load = Load::default();
    Measured { value, window: None, load, lost, client, at_limit: false, latencies }
}

#[test]
fn pairs_that_lose_packets_or_have_a_full_client_do_not_count() {
    let question =
        Question { allowed_loss: 0.001, ..question(Candidates::One(side("candidate", &[]))) };
    let mut pairs = Pairs::default();
    let good = measured(100.0, 0.0005, Some(0.6));
    question.add(&mut pairs, 1, &good, (&measured(90.0, 0.0, None), "candidate"));
    question.add(&mut pairs, 2, &good, (&measured(90.0, 0.1, None), "candidate"));
    question.add(&mut pairs, 3, &measured(90.0, 0.0, Some(0.97)), (&good, "candidate"));
    let at_limit = Measured { at_limit: true, ..measured(90.0, 0.0, None) };
    question.add(&mut pairs, 4, &good, (&at_limit, "candidate"));
    assert_eq!((&pairs.baseline[..], &pairs.candidate[..]), (&[100.0][..], &[90.0][..]));
    let lost = "pair 2 is void: candidate lost 10.0 % of its packets for lack of room (7 \
                ring_full), allowed: 0.1 %";
    let full = "pair 3 is void: baseline has a full client: a thread of it ran 97 % of the time";
    let limit = "pair 4 is void: candidate has a client at its limit, which could not send all its \
                 requests";
    assert_eq!(pairs.void, [lost, full, limit]);
    let outcome = question.outcome(vec![pairs]);
    assert!(outcome.notes[0].contains("1 pairs count and 10 are needed"), "{:?}", outcome.notes);
    assert_eq!(outcome.notes[1..], [lost, full, limit]);
}

#[test]
fn a_workload_of_the_list_is_asked_with_and_without_a_card() {
    let workload = Workload::new(Some(Kind::Named("support")), None, None).unwrap();
    let sections = picnic_host::sections();
    let registries = picnic_host::registries();
    let place = match MeasuringPlace::build(registries, &sections, 1.0, Some(&workload)) {
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
    // A second: whatever the server still had of the side before would be most of it.
    for card in [Card::None, Card::As(&own), Card::None, Card::Empty(&own), Card::None] {
        let measured = place.measure(card, &figure).unwrap();
        assert!(measured.value.unwrap() > 1.0, "{:?}", measured.value);
        assert!(measured.client.is_some() && measured.latencies.len() == 2);
    }
}

#[test]
fn keys_are_words() {
    assert_eq!(key_word("interrupt.rx_usecs"), "interrupt_rx_usecs");
    assert_eq!(key_word("rx[0].hash"), "rx_0_hash");
}
