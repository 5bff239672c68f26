//! The experiment `nicos-edf` in the sim world: repeatable, complete, and within its limits.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::compare::Finding;
use picnic_lab::experiment::Effort;
use picnic_lab::outcome::Outcome;
use picnic_lab::registry::Reproduces;
use picnic_lab::runner;
use picnic_papers::nicos_edf::{NicosEdf, Settings};
use picnic_papers::registry::experiment;
use std::collections::BTreeSet;

fn run(settings: Settings) -> Outcome {
    let experiment = NicosEdf::build(settings, &BuildContext::default()).unwrap();
    let mut last = -1.0;
    let outcome = runner::outcome("nicos-edf", &*experiment, Effort::Usual, &mut |share, _| {
        assert!(share >= last && share <= 1.0, "{last} then {share}");
        last = share;
    });
    assert_eq!(last, 1.0);
    outcome.unwrap()
}

fn small() -> Settings {
    let (sets, milliseconds, matched) = (Some(10), Some(2000), Some(0));
    Settings { sets, milliseconds, matched, ..Settings::default() }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let first = run(small());
    assert_eq!(first, run(small()));
    assert_ne!(first, run(Settings { seed: 2, ..small() }));
}

#[test]
fn filling_the_slack_gains_and_misses_nothing() {
    let outcome = run(small());
    let figures = outcome.fields();
    let schedulers = figures["schedulers"].as_array().unwrap();
    let names: Vec<_> = schedulers.iter().map(|row| row["scheduler"].as_str().unwrap()).collect();
    let plus = ["edf-plus"; 3];
    assert_eq!(names, [&["edf"], &plus[..], &["event", "edf-background"]].concat());
    for row in schedulers {
        let [idle, busy] =
            ["idle_fraction", "busy_fraction"].map(|field| row[field].as_f64().unwrap());
        assert!((idle + busy - 1.0).abs() < 1e-9);
        assert_eq!(row["overruns"], 0);
        if row["scheduler"] != "edf-background" && row["scheduler"] != "event" {
            assert_eq!(row["deadline_misses"], 0, "{row}");
        }
    }
    assert!(figures["throughput_gain"].as_f64().unwrap() > 0.0);
    assert!(figures["response_change"].as_f64().unwrap() < 0.0);
}

#[test]
fn careless_scheduling_misses_deadlines() {
    // Invocations longer than the shortest periods: a scheduler that ignores the slack is late.
    // Under EDF most never run, so sets must not be drawn again for that.
    let settings = Settings {
        period_low_us: 4_000,
        period_high_us: 40_000,
        periodic_load_low: 0.2,
        periodic_load_high: 0.3,
        fewest: 0,
        ..small()
    };
    let outcome = run(settings);
    for row in outcome.fields()["schedulers"].as_array().unwrap() {
        let misses = row["deadline_misses"].as_u64().unwrap();
        let is_careless = ["edf-background", "event"].iter().any(|name| row["scheduler"] == *name);
        assert_eq!(misses != 0, is_careless, "{row}");
    }
}

/// In the default output: filling the slack without checking tickets misses deadlines if an
/// invocation lasts as long as a period, and delays releases everywhere.
#[test]
fn tickets_keep_deadlines_and_both_responses_are_reported() {
    let outcome = run(small());
    let fields = outcome.fields();
    let of = |series: &str, scheduler: &str, field: &str| {
        let rows = fields[series].as_array().unwrap();
        let row = rows.iter().find(|row| row["scheduler"] == scheduler).unwrap();
        row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"))
    };
    for kind in ["", "tight_"] {
        let gained = |scheduler, field| of(&format!("{kind}schedulers"), scheduler, field);
        let starts = |scheduler, field| of(&format!("{kind}invocation_starts"), scheduler, field);
        let [edf, plus, background] = ["edf", "edf-plus", "edf-background"]
            .map(|scheduler| starts(scheduler, "release_jitter_mean_ms"));
        assert!(plus < background && edf < background, "{kind}: {edf}, {plus}, {background}");
        for scheduler in ["edf", "edf-plus"] {
            assert_eq!(gained(scheduler, "deadline_misses"), 0.0, "{kind}{scheduler}");
        }
        // The time between the starts of two invocations is more than a response.
        for scheduler in ["edf-plus", "edf-background"] {
            let between = starts(scheduler, "between_invocations_mean_ms");
            let response = gained(scheduler, "response_mean_ms");
            assert!(between > response, "{kind}{scheduler}: {between}, {response}");
        }
    }
    assert!(of("tight_schedulers", "edf-background", "deadline_misses") > 0.0);
    assert!(fields["between_invocations_change"].as_f64().unwrap() < 0.0);
    let tables = outcome.tables();
    let titles: Vec<_> = tables.iter().map(|table| table.title.as_str()).collect();
    let kinds = ["schedulers", "invocation starts", "tight schedulers", "tight invocation starts"];
    assert_eq!(titles[1..], kinds);
    for table in tables {
        let widest = |column: usize| {
            let cells = table.rows.iter().map(|row| row[column].chars().count());
            cells.chain([table.columns[column].chars().count()]).max().unwrap()
        };
        let width = (0..table.columns.len()).map(|column| widest(column) + 2).sum::<usize>() - 1;
        assert!(width <= 80, "{width}: {table:?}");
    }
    let without = run(Settings { tight: 0.0, ..small() });
    assert!(without.fields().get("tight_schedulers").is_none());
}

/// The fit is under EDF alone; all else is predicted, and judged beside the paper's figures.
#[test]
fn matched_sets_do_under_edf_what_the_papers_did() {
    let settings = Settings {
        sets: Some(1),
        tight: 0.0,
        matched: Some(1),
        milliseconds: None,
        ..Settings::default()
    };
    let outcome = run(settings);
    let fields = outcome.fields();
    let rows = |series: &str| fields[series].as_array().unwrap();
    for (place, mean_ms, deviates) in [(0, 22.9, 0.75..=1.25), (6, 26.0, 0.05..=0.15)] {
        let row = &rows("tasks")[place];
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!((of("between_mean_ms") / mean_ms - 1.0).abs() < 0.03, "{row}");
        let share = of("between_stddev_ms") / of("between_mean_ms");
        assert!(deviates.contains(&share), "{row}");
        // No task can start again before it has ended.
        assert!(of("between_mean_ms") > of("response_mean_ms"), "{row}");
    }
    let idle = |key: &str| fields[key].as_f64().unwrap();
    assert!((idle("matched_edf_idle_fraction") - 0.286).abs() < 0.01, "{fields:#?}");
    assert!(idle("matched_idle_fraction") < idle("matched_edf_idle_fraction"), "{fields:#?}");
    let findings: Vec<_> = NicosEdf::PAPER
        .figures
        .iter()
        .map(|figure| {
            let ours = outcome.whole.figure(figure.ours.unwrap()).unwrap();
            (ours.source.label(), figure.judge(&ours).unwrap().finding == Finding::Fitted)
        })
        .collect();
    assert_eq!(findings[..3], [("fitted", true); 3]);
    assert_eq!(findings[3..], [("predicted", false); 7]);
    let schedulers: BTreeSet<_> =
        rows("invocations").iter().map(|row| row["scheduler"].as_str().unwrap()).collect();
    assert_eq!(schedulers.len(), 6, "{schedulers:?}");
    let plots = NicosEdf::build(small(), &BuildContext::default()).unwrap().plots();
    assert!(plots.iter().all(|plot| plot.draw(&outcome).is_some()));
}

#[test]
fn wrong_settings_name_allowed_values() {
    assert!(experiment("nicos-edf").is_some());
    let build = |settings| NicosEdf::build(settings, &BuildContext::default()).err().unwrap();
    let error = build(Settings { tasks: 65, ..small() }).to_string();
    assert!(error.contains("tasks") && error.contains("found 65, allowed: 2 to 64"), "{error}");
    let error = build(Settings { periodic_load_high: f64::NAN, ..small() }).to_string();
    assert!(error.contains("periodic_load_high"), "{error}");
}
