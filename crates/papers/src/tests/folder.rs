//! A run's directory, with an experiment that takes no time.

use super::listed;
use picnic_lab::document::Kind;
use picnic_lab::experiment::Effort;
use picnic_lab::folder::{Folder, Manifest, RunRequest};
use picnic_lab::runner::{Failure, Record, Shard};
use std::path::Path;

fn manifest() -> Manifest {
    let settings = [("rules", "[1, 16]"), ("milliseconds", "1")];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let name = "nicos-firewall".to_owned();
    let experiments = vec![RunRequest { kind: Kind::Experiment, name, settings }];
    Manifest { experiments, effort: Effort::Quick, shard: Shard::default(), limit_s: None }
}

fn measured(path: &Path, manifest: Manifest) -> Folder {
    listed();
    let mut folder = Folder::create(path, manifest).unwrap();
    folder.run("r", None, &mut |_, _| {}).unwrap();
    folder
}

#[test]
fn directories_round_trip_without_incomplete_lines() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("a/run");
    let folder = measured(&path, manifest());
    assert_eq!(folder.records.len(), 4);
    let points = path.join("points.jsonl");
    let text = std::fs::read_to_string(&points).unwrap();
    std::fs::write(&points, &text[..text.len() - 1]).unwrap();
    let mut read = Folder::open(&path).unwrap();
    assert!(read.records[..] == folder.records[..3]);
    let timelines = parent.path().join("timelines");
    read.run("r", Some(&timelines), &mut |_, _| {}).unwrap();
    let mut written: Vec<_> = std::fs::read_dir(&timelines).unwrap().flatten().collect();
    written.sort_by_key(std::fs::DirEntry::file_name);
    let first = written[0].file_name().into_string().unwrap();
    assert_eq!(
        (written.len(), &*first),
        (2, "nicos-firewall_scenario=mix-rules=16-packet_bytes=60_card.json"),
        "{written:?}"
    );
    let names = |folder: &Folder| -> Vec<_> {
        folder.records.iter().map(|record| record.point.clone()).collect()
    };
    assert_eq!(names(&read), names(&folder));
    assert!(Folder::open(&path).unwrap().records == read.records);
    let rows = std::fs::read_to_string(path.join("points.csv")).unwrap();
    let row = "nicos-firewall,\"scenario=discard,rules=1,packet_bytes=60\",driver,,,taken_pps,\
               per_second,modelled,0,";
    assert!(rows.lines().any(|line| line.starts_with(row)), "{rows}");
    assert_eq!(rows.lines().count(), 1 + 4 * 2 * 4);
    std::fs::write(&points, "{}\n").unwrap();
    let error = format!("{:#}", Folder::open(&path).unwrap_err());
    assert!(error.contains("points.jsonl:1: not a point"), "{error}");
    assert!(Folder::create(&path, manifest()).is_err());
}

#[test]
fn a_full_disk_is_an_error_with_the_folder() {
    listed();
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let mut folder = Folder::create(&path, manifest()).unwrap();
    std::os::unix::fs::symlink("/dev/full", path.join("points.csv")).unwrap();
    let error = format!("{:#}", folder.run("r", None, &mut |_, _| {}).unwrap_err());
    let wanted = format!("{}: a point cannot be written: No space left", path.display());
    assert!(error.starts_with(&wanted), "{error}");
}

#[test]
fn merged_shards_equal_one_run() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    let whole = measured(&at("whole"), manifest());
    let mut shards = [1, 2].map(|number| {
        let shard = Shard { number, of: 2 };
        measured(&at(&number.to_string()), Manifest { shard, ..manifest() })
    });
    // A point that failed here may have been measured there.
    let failed = Failure { reason: "no wrk".into(), unavailable: true };
    let copy = Record { failure: Some(failed), sides: vec![], ..shards[1].records[0].clone() };
    shards[0].records.push(copy);
    assert_eq!(shards[0].failures().len(), 1);
    let merged = Folder::merge(&shards, &at("merged")).unwrap();
    assert!(merged.failures().is_empty());
    let outcome = |folder: &Folder| {
        let documents = folder.documents().unwrap();
        documents[0].1.as_ref().unwrap().outcome.series.clone()
    };
    assert_eq!(outcome(&merged), outcome(&whole));
    assert!(Folder::open(&at("merged")).unwrap().records == merged.records);
    let other = Manifest { effort: Effort::Full, ..manifest() };
    let other = Folder::create(&at("other"), other).unwrap();
    let error = Folder::merge(&[whole, other], &at("none")).unwrap_err().to_string();
    assert!(error.contains("other settings or another effort"), "{error}");
    // Runs of several experiments become one; an experiment's settings must agree.
    let mut further = manifest();
    further.experiments[0].name = "rss-randomness".into();
    further.experiments[0].settings.clear();
    let further = Folder::create(&at("further"), further).unwrap();
    let both = Folder::merge(&[merged, further], &at("both")).unwrap();
    let names = both.manifest.experiments.iter().map(|one| one.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["nicos-firewall", "rss-randomness"]);
    let mut changed = manifest();
    changed.experiments[0].settings.clear();
    let changed = Folder::create(&at("changed"), changed).unwrap();
    assert!(Folder::merge(&[both, changed], &at("neither")).is_err());
}
