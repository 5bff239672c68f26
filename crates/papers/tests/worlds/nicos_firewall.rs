//! The experiment `nicos-firewall`: the paper's findings must appear in the sim world, and between
//! real wires the same rules must have the same effect; the latter needs root.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::{Effort, LabError, World};
use picnic_lab::outcome::Outcome;
use picnic_lab::runner;
use picnic_papers::nicos_firewall::{NicosFirewall, Settings};
use picnic_testing::{machine, skip};

fn run(settings: Settings) -> Outcome {
    let experiment = NicosFirewall::build(settings, &BuildContext::default()).unwrap();
    runner::outcome("nicos-firewall", &*experiment, Effort::Usual, &mut |_, _| {}).unwrap()
}

fn small() -> Settings {
    Settings { rules: vec![1, 300], milliseconds: Some(50), ..Settings::default() }
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
        // Both places have the same effect.
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

/// Shares of the mix and answers of the host follow the settings.
#[test]
fn the_mix_is_as_set() {
    for (udp_share, outgoing) in [(0.1, 0.0), (0.5, 0.25), (0.8, 1.0)] {
        let settings = Settings { rules: vec![16], udp_share, outgoing, ..small() };
        let outcome = run(settings);
        let fields = outcome.fields();
        let points = fields["points"].as_array().unwrap();
        let mix = points.iter().find(|point| point["scenario"] == "mix").unwrap();
        let accepted = mix["card_accepted_fraction"].as_f64().unwrap();
        assert!((accepted - (1.0 - udp_share)).abs() < 0.05, "{mix}");
    }
    // The host's packets cost host and card.
    let busy = |outgoing: f64| {
        let fields = run(Settings { rules: vec![16], outgoing, ..small() }).fields();
        let of =
            |core: &str| fields[&format!("card_mix_{core}_core_busy_fraction")].as_f64().unwrap();
        [of("target"), of("borrowed")]
    };
    let (none, half, all) = (busy(0.0), busy(0.5), busy(1.0));
    for core in 0..2 {
        assert!(none[core] < half[core] && half[core] < all[core], "{none:?} {half:?} {all:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let settings = Settings { rules: vec![20], ..small() };
    assert_eq!(run(settings.clone()), run(settings));
}

/// No time is asserted: only what reached the host, and what did not.
#[test]
fn real_rules_have_the_same_effect_on_card_and_driver() {
    let settings = Settings {
        world: World::Host,
        rules: vec![20],
        sizes: Some(vec![60]),
        rate_pps: 2_000,
        milliseconds: Some(200),
        ..Settings::default()
    };
    let _machine = machine();
    let experiment = NicosFirewall::build(settings, &BuildContext::default()).unwrap();
    let outcome = runner::outcome("nicos-firewall", &*experiment, Effort::Quick, &mut |_, _| {});
    let outcome = match outcome {
        Err(LabError::Unavailable(why)) => {
            return skip("real_rules_have_the_same_effect_on_card_and_driver", &why);
        }
        outcome => outcome.unwrap(),
    };
    let fields = outcome.fields();
    let points = fields["points"].as_array().unwrap();
    assert_eq!(points.len(), 2, "{fields:#?}");
    for point in points {
        for place in ["card", "driver"] {
            let figure = |name: &str| point[format!("{place}_{name}")].as_f64().unwrap();
            let accepted = figure("accepted_fraction");
            if point["scenario"] == "discard" {
                assert!(accepted == 0.0 && figure("taken_pps") > 0.0, "{point}");
            } else {
                // How many of the packets are TCP depends on the machine.
                assert!(accepted > 0.0 && accepted < 1.0, "TCP is accepted: {point}");
                assert!(figure("goodput_bps") > 0.0, "{point}");
            }
        }
    }
}

#[test]
fn wrong_settings_name_allowed_values() {
    let message = |settings| {
        NicosFirewall::build(settings, &BuildContext::default()).err().unwrap().to_string()
    };
    assert!(message(Settings { rules: vec![0], ..small() }).contains("found 0, allowed: 1 to"));
    assert!(message(Settings { sizes: Some(vec![]), ..small() }).contains("one size or more"));
    assert!(message(Settings { udp_share: 1.5, ..small() }).contains("udp_share: found 1.5"));
    assert!(message(Settings { outgoing: 1.5, ..small() }).contains("found 1.5, allowed: 0 to 1"));
    let no_such = Settings { profile: Some("tigno".into()), ..small() };
    assert!(message(no_such).contains("tigon"));
    let on_host = |profile: Option<&str>| Settings {
        world: World::Host,
        profile: profile.map(str::to_owned),
        outgoing: 1.5,
        ..small()
    };
    assert!(message(on_host(Some("tigon"))).contains("allowed only with \"sim\""));
    assert!(NicosFirewall::build(on_host(None), &BuildContext::default()).is_ok());
}
