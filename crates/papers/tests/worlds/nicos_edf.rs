//! The experiment `nicos-edf` in the sim world: repeatable, complete, and within its limits.

use picnic_core::registry::{BuildContext, Component};
use picnic_lab::experiment::Effort;
use picnic_lab::outcome::Outcome;
use picnic_lab::runner;
use picnic_papers::nicos_edf::{NicosEdf, Settings};
use picnic_papers::registry::experiment;

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
    Settings { sets: Some(10), milliseconds: Some(2000), ..Settings::default() }
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
    assert_eq!(names, ["edf", "edf-plus", "edf-plus", "edf-plus", "edf-background"]);
    for row in schedulers {
        let [idle, busy] =
            ["idle_fraction", "busy_fraction"].map(|field| row[field].as_f64().unwrap());
        assert!((idle + busy - 1.0).abs() < 1e-9);
        assert_eq!(row["overruns"], 0);
        if row["scheduler"] != "edf-background" {
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
        assert_eq!(misses != 0, row["scheduler"] == "edf-background", "{row}");
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

#[test]
fn wrong_settings_name_allowed_values() {
    assert!(experiment("nicos-edf").is_some());
    let build = |settings| NicosEdf::build(settings, &BuildContext::default()).err().unwrap();
    let error = build(Settings { tasks: 65, ..small() }).to_string();
    assert!(error.contains("tasks") && error.contains("found 65, allowed: 2 to 64"), "{error}");
    let error = build(Settings { periodic_load_high: f64::NAN, ..small() }).to_string();
    assert!(error.contains("periodic_load_high"), "{error}");
}
