//! The report of a run, with all rows of the papers' table.

use super::listed;
use picnic_lab::document::Kind;
use picnic_lab::experiment::Effort;
use picnic_lab::folder::{Folder, Manifest, RunRequest};
use picnic_lab::outcome::{Figure, Outcome, Source};
use picnic_lab::registry::papers;
use picnic_lab::report::{Report, diff};
use picnic_lab::runner::{Failure, Record, Shard, SideFound};
use std::path::Path;

fn run(path: &Path) -> Folder {
    let asked = |name: &str, settings: &[(&str, &str)]| RunRequest {
        kind: Kind::Experiment,
        name: name.into(),
        settings: settings.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
    };
    let experiments = vec![
        asked("nicos-firewall", &[("rules", "[1, 16]"), ("milliseconds", "1")]),
        asked("rss-randomness", &[("flows", "1000"), ("draws", "1"), ("workloads", "[]")]),
    ];
    let shard = Shard::default();
    let manifest = Manifest { experiments, effort: Effort::Quick, shard, limit_s: None };
    listed();
    let mut folder = Folder::create(path, manifest).unwrap();
    folder.run("r", None, &mut |_, _| {}).unwrap();
    for record in &mut folder.records {
        if record.experiment == "rss-randomness" {
            let reason = "wrk is <not> installed".to_owned();
            record.failure = Some(Failure { reason, unavailable: true });
        }
    }
    folder
}

#[test]
fn all_formats_have_every_row_and_figure() {
    let folder = tempfile::tempdir().unwrap();
    let report = Report::of(&run(&folder.path().join("run"))).unwrap();
    let (page, text, json) = (report.html(), report.markdown(), report.json().to_string());
    for row in papers() {
        for made in [&page, &text, &json] {
            assert!(made.contains(row.name), "{} is missing", row.name);
        }
        let why = row.unanswered.unwrap_or("");
        assert!(page.contains(&why.replace('"', "&quot;")) && text.contains(why), "{why}");
    }
    // The first screen has an answer to each question, those without a figure last.
    let cards: Vec<_> = page.split("<div class=\"card\">").skip(1).collect();
    assert_eq!(cards.len(), 2);
    assert!(cards[0].contains("#nicos-firewall") && cards[0].contains("<strong>"), "{}", cards[0]);
    assert!(
        cards[1].contains("#rss-randomness") && cards[1].contains("not measured"),
        "{}",
        cards[1]
    );
    let summary = report.summary();
    assert_eq!(summary.len(), 2);
    assert!(summary[1].starts_with("rss-randomness: not measured: wrk is <not>"), "{summary:?}");
    // Details are folded, and nothing is repeated.
    let how = "<summary>Measurement, and command to repeat it</summary>";
    assert!(page.contains(how) && !page.contains("0 of them while other programs ran"));
    for why in papers().filter_map(|row| row.unanswered) {
        assert_eq!(page.matches(why).count(), 1, "{why}");
    }
    for heading in ["card: target busy", "wrk is &lt;not&gt; installed", "--set rules='[1, 16]'"] {
        assert!(page.contains(heading), "{heading}");
    }
    assert_eq!(page.matches("<svg viewBox=\"0 0 640").count(), report.sections[0].drawings.len());
    assert!(report.sections[0].drawings.len() >= 2);
    // One file, from disk.
    for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for opened in ["table", "section", "div", "ul", "li", "p", "h2", "h3", "svg", "text", "tr"] {
        let count = |tag: &str| page.matches(tag).count();
        let starts = count(&format!("<{opened}>")) + count(&format!("<{opened} "));
        assert_eq!(starts, count(&format!("</{opened}>")), "{opened}");
    }
    let status = |name: &str| report.status(papers().find(|row| row.name == name).unwrap()).label();
    assert_eq!(status("nicos-firewall"), "modelled");
    assert_eq!(status("rss-randomness"), "not measured");
    assert_eq!(status("nicos-edf"), "not in this run");
    for row in papers().filter(|row| row.unanswered.is_some()) {
        assert_eq!(status(row.name), "not yet");
    }
    // Compared with itself nothing differs.
    let same = diff(&report, &report);
    assert_eq!((same.facts.rows.len(), &same.missing[..]), (0, &["rss-randomness".into()][..]));
    let [firewall] = &same.experiments[..] else { panic!("{same:?}") };
    assert!(firewall.rows.iter().all(|row| row[4] == "1.00 ×" || row[4] == "-"), "{same:?}");
    assert!(firewall.rows.len() > 10);
}

/// A run of `rss-bulk` whose two sides had ten turns, with this gain of the second.
fn bulk(path: &Path, shared: f64, gain: f64) -> Report {
    let settings = [("queues", "[1, 2]"), ("world", "host")];
    let settings = settings.map(|(key, value)| (key.into(), value.into())).into();
    let experiments =
        vec![RunRequest { kind: Kind::Experiment, name: "rss-bulk".into(), settings }];
    let (effort, shard) = (Effort::Usual, Shard::default());
    listed();
    let mut folder =
        Folder::create(path, Manifest { experiments, effort, shard, limit_s: None }).unwrap();
    let side = |side: &str, factor: f64| {
        let mut outcome = Outcome::of(Source::Measured);
        let payload = |n: u32| factor * (1e9 + 1e7 * f64::from(n % 2));
        outcome.add(Figure::of("payload_bps", (0..10).map(payload).collect()));
        outcome.add(Figure::of("shared_share", vec![shared; 10]));
        SideFound { side: side.into(), outcome }
    };
    let record = Record {
        experiment: "rss-bulk".into(),
        point: "all".into(),
        labels: serde_json::Map::new(),
        seed: 0,
        sides: vec![side("toeplitz-1", 1.0), side("toeplitz-2", 1.0 + gain)],
        repeats: 10,
        failure: None,
        cut: None,
        started_s: 0,
        took_s: 1.0,
        load: picnic_lab::meter::Meter::start().stop(),
        facts: picnic_lab::facts::facts("r"),
    };
    folder.records.push(record);
    Report::of(&folder).unwrap()
}

#[test]
fn ratios_have_interval_and_finding() {
    let folder = tempfile::tempdir().unwrap();
    let row = papers().find(|row| row.name == "rss-bulk").unwrap();
    let ours = |report: &Report, what: &str| {
        let figure = row.figures.iter().find(|figure| figure.what == what).unwrap();
        report.ours(row, figure).unwrap()
    };
    let report = bulk(&folder.path().join("own"), 0.0, 0.18);
    let wanted = "+18.0 % (95 %: +18.0 to +18.0 %): reproduced";
    assert_eq!(ours(&report, "1 to 2 queues"), wanted);
    assert_eq!(ours(&report, "1 queue"), "1.01 Gb/s (1.00 to 1.01 Gb/s)");
    let report = bulk(&folder.path().join("shared"), 1.0, 0.18);
    let wanted = "+18.0 % (95 %: +18.0 to +18.0 %), on shared cores: not measurable here: \
                  client, server and target queues share cores";
    assert_eq!(ours(&report, "1 to 2 queues"), wanted);
    assert!(report.html().contains(wanted) && report.markdown().contains(wanted));
    let wanted = "1.01 Gb/s (1.00 to 1.01 Gb/s), on shared cores";
    assert_eq!(ours(&report, "1 queue"), wanted);
    // A deviating value states its tolerance.
    let none = bulk(&folder.path().join("none"), 0.0, 0.0);
    let wanted = "0 % (95 %: 0 to 0 %): not reproduced: ours 1.00 ×; 1.09 to 1.30 × \
                  would agree";
    assert_eq!(ours(&none, "1 to 2 queues"), wanted);
    let json = report.json().to_string();
    assert!(json.contains("client, server and target queues share cores"), "{json}");
}
