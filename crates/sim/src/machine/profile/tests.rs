//! Valid profiles, all errors at once, and texts that are no profiles.

use super::*;

const GOOD: &str = "help = \"a machine\"\n[topology]\npackages = [[[0, 1], [2, 3]]]\n\
        [policy]\nplacement = { value = \"near-waker\", source = \"assumed\", from = \"Linux 2.6\" }\n\
        [costs]\ninterrupt_ns = { value = 700, unit = \"ns\", source = \"assumed\", from = \"typical\" }\n\
        card_packet_ns = { value = 2_857.5, unit = \"ns\", source = \"fitted\", from = \"1 / 350\", \
        point = \"picnic-latency\" }\n";

fn refused(text: &str) -> Vec<String> {
    Profile::parse("test", "test.toml", text).unwrap_err().0
}

#[test]
fn a_profile_has_its_figures_with_their_sources() {
    let profile = Profile::parse("test", "test.toml", GOOD).unwrap();
    assert_eq!((profile.cores(), profile.placement), (4, Placement::NearWaker));
    assert_eq!(profile.costs.ns(Cost::Interrupt), 700);
    assert_eq!(profile.costs.get(Cost::CardPacket), 2857.5);
    assert_eq!(profile.costs.ns(Cost::Switch), 0);
    assert_eq!(profile.fitted().collect::<Vec<_>>(), [(Cost::CardPacket, "picnic-latency")]);
    let distances = profile.distances();
    assert_eq!((distances.cores_per_cache, distances.cores_per_package), (2, 4));
}

#[test]
fn all_errors_are_reported_at_once_with_their_line() {
    let text = "[topology]\npackages = [[[0, 0]]]\n[costs]\nirq_ns = { value = 1 }\n\
            interrupt_ns = { value = 700, unit = \"us\", from = \"x\" }\n\
            switch_ns = { value = -1, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            wake_ns = { value = 9, unit = \"ns\", source = \"fitted\", from = \"x\" }\n\
            free_ns = 7\nspeed = 1\n\
            slice_ns = { value = 1e10, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            chunk_ns = { value = nan, unit = \"ns\", source = \"assumed\", from = \"x\" }\n\
            copy_byte_ns = { value = inf, unit = \"ns/byte\", source = \"guess\", from = \" \" }\n";
    let found = refused(text);
    for (wanted, line) in [
        ("topology.packages: found core 0 twice, expected each core once", 1),
        ("costs.irq_ns: ", 4),
        ("costs.interrupt_ns: source is missing", 5),
        ("costs.interrupt_ns: found unit us, expected ns", 5),
        ("costs.switch_ns: found -1, allowed: 0 to 1000000", 6),
        ("costs.wake_ns: fitted without point", 7),
        ("costs.free_ns: found 7, expected { value, unit, source, from }", 8),
        ("costs.speed: ", 9),
        ("costs.slice_ns: found 1e10, allowed: 0 to 1000000000", 10),
        ("costs.chunk_ns: found nan, allowed: 0 to 10000000", 11),
        ("costs.copy_byte_ns: from is missing", 12),
        ("costs.copy_byte_ns: found source guess, allowed: paper, ", 12),
    ] {
        let wanted = format!("test.toml:{line}: {wanted}");
        assert!(found.iter().any(|found| found.starts_with(&wanted)), "{wanted}: {found:#?}");
    }
    assert_eq!(found.len(), 12, "{found:#?}");
}

#[test]
fn the_way_of_an_interrupt_may_follow_from_the_sleep() {
    let with = |value: &str| {
        format!(
            "help = \"x\"\n[topology]\npackages = [[[0]]]\n[costs]\ninterrupt_way_ns = {{ value = \
                 {value}, unit = \"ns\", source = \"measured\", from = \"x\" }}\n"
        )
    };
    let text = with("[[0, 9_000], [20_000, 21_000]]");
    let profile = Profile::parse("x", "x.toml", &text).unwrap();
    assert_eq!(profile.costs.ns(Cost::InterruptWay), 9_000);
    assert_eq!(profile.wake_ups.way_ns(10_000), Some(15_000));
    assert_eq!(profile.figures[0].value, "9000 after 0, 21000 after 20000");
    let one = Profile::parse("x", "x.toml", &with("9_000")).unwrap();
    assert_eq!((one.wake_ups.way_ns(7), one.costs.ns(Cost::InterruptWay)), (None, 9_000));
    for (value, wanted) in [
        ("[]", "5: costs.interrupt_way_ns: expected a first pair [0, WAY]"),
        ("[[0, 1, 2]]", "5: costs.interrupt_way_ns: expected a number, or a list"),
        ("[[0, 1], [0, 2]]", "5: costs.interrupt_way_ns: expected pairs in the order"),
    ] {
        let found = refused(&with(value));
        assert!(found[0].contains(wanted), "{found:?}");
    }
}

#[test]
fn a_topology_needs_every_core_once() {
    let with = |packages: &str| refused(&format!("[topology]\npackages = {packages}\n"));
    assert!(with("[]")[0].contains("found no core, expected at least one"));
    assert!(with("[[[0], [2]]]")[0].contains("found no core 1"), "{:?}", with("[[[0], [2]]]"));
    assert!(with("[[0]]")[0].contains("expected a list of packages"));
    let first_core = "[topology]\npackages = [[[0]]]\n[policy]\n\
            interrupts = { value = \"first-core\", source = \"paper\", from = \"x\" }\n";
    assert!(refused(first_core)[0].contains("4: policy.interrupts: found first-core with routine"));
    assert!(refused("help = 3\n").iter().any(|error| error.contains("topology: missing")));
    assert!(refused("help = \n")[0].contains("not TOML"));
}

proptest::proptest! {
    #[test]
    fn no_text_causes_a_panic(
        cut in 0..GOOD.len(),
        with in "[\\[\\]{}=\"',.0-9a-zé\n -]{0,12}",
    ) {
        let mut text = GOOD.to_owned();
        text.insert_str(cut, &with);
        if let Err(error) = Profile::parse("test", "test.toml", &text) {
            proptest::prop_assert!(error.0.iter().all(|line| line.starts_with("test.toml:")));
        }
    }
}

#[test]
fn built_in_profiles_are_valid() {
    for (name, _) in PROFILES {
        let profile = Profile::named(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(!profile.help.is_empty() && profile.fitted().count() <= 2, "{name}");
    }
    let error = Profile::named("netbrust").unwrap_err().to_string();
    assert!(error.contains("netbrust") && error.contains("netburst"), "{error}");
}
