//! The experiment `nicos-firewall` in the sim world: what the paper says must show.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::Effort;
use picnic_lab::experiments::nicos_firewall::{NicosFirewall, Settings};
use picnic_lab::outcome::Outcome;
use picnic_lab::runner;

fn run(settings: Settings) -> Outcome {
    let experiment = NicosFirewall::build(settings, &BuildContext::default()).unwrap();
    runner::outcome("nicos-firewall", &*experiment, Effort::Usual, &mut |_, _| {}).unwrap()
}

fn small() -> Settings {
    Settings { rules: vec![1, 300], milliseconds: Some(5), ..Settings::default() }
}

#[test]
fn a_firewall_on_the_card_spares_the_target_core() {
    let outcome = run(small());
    let figures = outcome.fields();
    let points = figures["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    for point in points {
        let figure = |place: &str, name: &str| point[format!("{place}_{name}")].as_f64().unwrap();
        let busy = |place| figure(place, "target_core_busy_fraction");
        assert!(busy("card") < busy("driver"), "{point}");
        // Both places judge alike.
        let accepted = ["card", "driver"].map(|place| figure(place, "accepted_fraction"));
        assert!((accepted[0] - accepted[1]).abs() < 0.02, "{point}");
        if point["scenario"] == "discard" {
            assert_eq!(accepted, [0.0, 0.0]);
            assert!(busy("card") < 0.01, "{point}");
        } else {
            assert!((accepted[0] - 0.7).abs() < 0.05, "{point}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let settings = Settings { rules: vec![20], ..small() };
    assert_eq!(run(settings.clone()), run(settings));
}

#[test]
fn wrong_settings_name_what_is_allowed() {
    let message = |settings| {
        NicosFirewall::build(settings, &BuildContext::default()).err().unwrap().to_string()
    };
    assert!(message(Settings { rules: vec![0], ..small() }).contains("found 0, allowed is 1 to"));
    assert!(message(Settings { sizes: Some(vec![]), ..small() }).contains("one size or more"));
    assert!(message(Settings { accepted: 1.5, ..small() }).contains("allowed is 0 to 1"));
}
