//! `picnic lab ab`: is this card better than that one?

use super::progress::Progress;
use super::through::Through;
use super::{PAGE, REVISION, ReportArgs, text_with, write_page};
use crate::failure::Usage;
use crate::output;
use crate::registries::{registries, sections};
use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use picnic_core::config::Setting;
use picnic_lab::ab::{
    Allowed, CARD_FIGURES, Candidates, ComparedFigure, Kind, Question, Reading, Side, drawing,
};
use picnic_lab::chart::chart;
use picnic_lab::compare::{LEAST_PAIRS, SMALLEST_EFFECT};
use picnic_lab::document::{Document, Kind as DocumentKind};
use picnic_lab::experiment::LabError;
use picnic_lab::facts::facts;
use picnic_lab::report::{Report, shell};
use picnic_machine::signals;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Seconds of a measurement, for a card alone and with a workload.
const SECONDS: (f64, f64) = (0.2, 2.0);
/// Factor on the number of pairs while the verdict is unclear; with a workload an answer should
/// take less than five minutes.
const MORE: (usize, usize) = (4, 2);

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Each round measures the baseline twice and the candidate once, in random order. The answer is the
ratio of the pairs with its 95 % confidence interval, and a verdict: better, worse, no difference or
too noisy. The interval is at least as wide as the interval of the baseline against itself. At least
ten pairs are measured; while the verdict is not clear, up to --most-pairs. If these are too few for
a verdict, the answer estimates the necessary time.

Without a workload, the cards run as their files say and the figure is one of the card's own. With
a workload (root), a card's first wire goes to a client and its host to a server, each in its own
namespace. In commands, {server} is the server's address and {seconds} the duration.

A pair does not count if a side lost packets for lack of room, a thread of the client was always
busy, the client could not reach its request rate, or other processes used more of the cores than
--allow-others.

Examples:
  picnic lab ab examples/questions/moderation.toml
  picnic lab ab --candidate-set rx[0].hash=jhash
  picnic lab ab --baseline a.toml --candidate b.toml --figure-of latency_p99_ns
  picnic lab ab --baseline a.toml --candidate b.toml --workload-kind wrk
  picnic lab ab --baseline a.toml --sweep interrupt.rx_usecs=0,20,100,500 --workload-kind iperf3
  picnic lab ab --candidate-set host.queues=1 --workload-kind support
  picnic lab ab --candidate-set rx=[] --server 'nc -lk 9' --workload './ask {server}' \\
      --figure 'rate (\\d+)'

Exit codes: 0 answered, with any answer; 1 failed; 2 usage or card file.")]
pub(crate) struct AbArgs {
    /// The card file to compare with [default: the built-in card]
    #[arg(long, value_name = "CARD.toml")]
    baseline: Option<PathBuf>,
    /// Compare with no card: client and server joined by a veth
    #[arg(long, conflicts_with_all = ["baseline", "figure_of"])]
    plain: bool,
    /// Keep client and server off the candidate's borrowed core, as isolation does
    #[arg(long)]
    apart: bool,
    /// The card file to judge [default: the baseline's]
    #[arg(long, value_name = "CARD.toml")]
    candidate: Option<PathBuf>,
    /// Change a key of the baseline
    #[arg(long, value_name = "KEY=VALUE")]
    baseline_set: Vec<String>,
    /// Change a key of the candidate, such as --candidate-set rx[0].hash=jhash
    #[arg(long, value_name = "KEY=VALUE")]
    candidate_set: Vec<String>,
    /// Change a key of all cards
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// A candidate for each of these values of a key: a curve
    #[arg(long, value_name = "KEY=VALUE,VALUE,...")]
    sweep: Option<String>,
    #[command(flatten)]
    through: Through,
    /// A pattern with one group that finds the figure in the workload's output [default: the last
    /// number of the last line with a number]
    #[arg(long, value_name = "REGEX", conflicts_with = "figure_of")]
    figure: Option<String>,
    /// Name of the workload's figure, with its unit, such as requests_per_second
    #[arg(long, value_name = "NAME", value_parser = figure_name)]
    figure_name: Option<String>,
    /// A figure of the card instead [default without a workload: delivered_pps]
    #[arg(long, value_name = "NAME",
          value_parser = PossibleValuesParser::new(CARD_FIGURES.iter().map(|figure|
              clap::builder::PossibleValue::new(figure.name).help(figure.help))))]
    figure_of: Option<String>,
    /// Lower is better, unless the figure's name implies it
    #[arg(long)]
    lower_is_better: bool,
    /// The smallest effect of interest, in percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = SMALLEST_EFFECT * 100.0)]
    effect: f64,
    /// Pairs to measure, at least 10
    #[arg(long, value_name = "N", default_value_t = LEAST_PAIRS, value_parser = pairs)]
    pairs: usize,
    /// Most pairs, while the verdict is unclear [default: four times --pairs, with a workload
    /// twice]
    #[arg(long, value_name = "N", value_parser = pairs)]
    most_pairs: Option<usize>,
    /// Seconds of each measurement [default: 0.2, with a workload 2]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Percent of packets that a side may lose for lack of room
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = 0.1)]
    allow_loss: f64,
    /// Count pairs whose client was at its limit
    #[arg(long)]
    allow_full_client: bool,
    /// Percent of all cores that other processes may use during a measurement
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = 10.0)]
    allow_others: f64,
    /// Have the client send packets as on a wire: not merged, with complete checksums
    #[arg(long)]
    no_client_tso: bool,
    /// Do not measure the card's own cost
    #[arg(long)]
    no_cost: bool,
    /// Keep the answer, all measurements and a page in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run each side once more, and write its timeline here
    #[arg(long, value_name = "DIR")]
    timelines: Option<PathBuf>,
}

pub(crate) fn run(args: &AbArgs, kind: DocumentKind, name: &str, json: bool) -> anyhow::Result<()> {
    let question = question(args).map_err(Usage)?;
    if let Some(folder) = &args.out {
        // Before anything is measured for it.
        free(folder)?;
    }
    // Everything built is removed.
    signals::stop_flag()?;
    let (started, bar) = (Instant::now(), Progress::new());
    let mut progress = |share: f64, what: &str| bar.tell(share, what);
    let outcome = question.run(registries(), &sections(), &mut progress);
    drop(bar);
    let outcome = outcome.map_err(LabError::into_cause)?;
    let took_s = started.elapsed().as_secs_f64();
    let name = name.to_owned();
    let document = Document { kind, name, outcome, took_s, facts: facts(REVISION) };
    let mut last = String::new();
    if let Some(folder) = &args.out {
        let command = std::env::args().skip(1).map(|word| shell(&word)).collect::<Vec<_>>();
        let page = keep(folder, &document, &format!("picnic {}", command.join(" ")))?;
        last = format!("\nPage: {page}\n");
    }
    output::show(&document.to_json(), json, || text_of(&document) + &last)
}

/// The answer in a folder, and its command.
const ANSWER: &str = "answer.json";

fn free(folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(ANSWER);
    anyhow::ensure!(
        !file.exists(),
        "{}: found an answer, allowed: a new or empty folder",
        folder.display()
    );
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{}: cannot be written", folder.display()))
}

/// Writes an answer and its page; returns the page's path.
fn keep(folder: &Path, document: &Document, command: &str) -> anyhow::Result<String> {
    let file = folder.join(ANSWER);
    let mut json = document.to_json();
    json["command"] = command.into();
    std::fs::write(&file, serde_json::to_string_pretty(&json)? + "\n")
        .with_context(|| format!("{}: cannot be written", file.display()))?;
    write_page(&Report::of_answer(document, command), &folder.join(PAGE))
}

/// The answer in a folder; none if it has no answer.
pub(super) fn kept(folder: &Path) -> anyhow::Result<Option<(Document, String)>> {
    let file = folder.join(ANSWER);
    if !file.exists() {
        return Ok(None);
    }
    let about = || format!("{}: not an answer", file.display());
    let text = std::fs::read_to_string(&file).with_context(about)?;
    let json: Value = serde_json::from_str(&text).with_context(about)?;
    let document = Document::from_json(&json).map_err(anyhow::Error::msg).with_context(about)?;
    Ok(Some((document, json["command"].as_str().unwrap_or_default().to_owned())))
}

/// Writes the page of a kept answer again, and prints it.
pub(super) fn report(
    (document, command): &(Document, String),
    args: &ReportArgs,
    json: bool,
) -> anyhow::Result<()> {
    let report = Report::of_answer(document, command).with_breakdowns(&args.folder)?;
    if json {
        return output::print_json(&report.json());
    }
    if args.markdown {
        return output::print(&report.markdown());
    }
    let page = args.out.clone().unwrap_or_else(|| args.folder.join(PAGE));
    let page = write_page(&report, &page)?;
    output::print(&format!("{}\nPage: {page}\n", text_of(document)))
}

/// An answer as text; a sweep with its curve.
fn text_of(document: &Document) -> String {
    let is_sweep = document.outcome.series.iter().any(|series| series.name == "sweep");
    let drawn = drawing(&document.outcome).filter(|_| is_sweep);
    text_with(document, &drawn.map_or_else(String::new, |drawing| chart(&drawing)))
}

pub(super) fn question(args: &AbArgs) -> Result<Question, String> {
    let given = [
        ("set", &args.set),
        ("baseline-set", &args.baseline_set),
        ("candidate-set", &args.candidate_set),
    ];
    for (option, settings) in given {
        for setting in settings {
            Setting::parse(setting).map_err(|error| format!("--{option} {setting}: {error}"))?;
        }
    }
    let workload = args.through.workload()?;
    if let (None, Some(option)) = (&workload, of_workloads(args)) {
        return Err(format!("found --{option}, allowed only with --workload or --workload-kind"));
    }
    let figure = figure(args, workload.is_some())?;
    let more_is_better = !args.lower_is_better && figure.more_is_better();
    let (seconds, more) = match workload.is_some() {
        true => (SECONDS.1, MORE.1),
        false => (SECONDS.0, MORE.0),
    };
    let most_pairs = args.most_pairs.unwrap_or(args.pairs * more);
    if most_pairs < args.pairs {
        return Err(format!("--most-pairs: found {most_pairs}, allowed: {} or more", args.pairs));
    }
    let set = [&args.set[..], &args.baseline_set[..]].concat();
    let baseline = Side { name: "baseline".into(), path: args.baseline.clone(), set };
    Ok(Question {
        candidates: candidates(args, &baseline)?,
        baseline,
        plain: args.plain,
        apart: args.apart,
        workload,
        figure,
        more_is_better,
        effect: args.effect / 100.0,
        pairs: args.pairs,
        most_pairs,
        seconds: args.seconds.unwrap_or(seconds),
        allowed: Allowed {
            loss: args.allow_loss / 100.0,
            full_client: args.allow_full_client,
            others: args.allow_others / 100.0,
        },
        wire_frames: args.no_client_tso,
        seed: seed(),
        cost: !args.no_cost,
        timelines: args.timelines.clone(),
    })
}

/// A new seed each time: a fixed order could match the rhythm of another program.
pub(crate) fn seed() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_nanos() as u64)
}

/// An option that only has a meaning with a workload.
fn of_workloads(args: &AbArgs) -> Option<&'static str> {
    let given = [
        ("figure", args.figure.is_some()),
        ("figure-name", args.figure_name.is_some()),
        ("allow-full-client", args.allow_full_client),
        ("no-client-tso", args.no_client_tso),
        ("plain", args.plain),
        ("apart", args.apart),
    ];
    given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
}

fn figure(args: &AbArgs, is_through: bool) -> Result<ComparedFigure, String> {
    if let Some(name) = &args.figure_of {
        return ComparedFigure::of_card(name).ok_or_else(|| format!("there is no figure {name}"));
    }
    let ready = args.through.kind().map(Kind::figure);
    if !is_through {
        return ComparedFigure::of_card("delivered_pps").ok_or_else(|| "there is no figure".into());
    }
    let (name, reading) = match ready {
        Some(ComparedFigure::Printed(name, reading)) => (name, reading),
        _ => ("figure".into(), Reading::LastNumber),
    };
    let reading = match &args.figure {
        Some(text) => {
            Reading::pattern(text).map_err(|error| format!("--figure {text}: {error}"))?
        }
        None => reading,
    };
    Ok(ComparedFigure::Printed(args.figure_name.clone().unwrap_or(name), reading))
}

fn candidates(args: &AbArgs, baseline: &Side) -> Result<Candidates, String> {
    let path = args.candidate.clone().or_else(|| baseline.path.clone());
    let set = [&args.set[..], &args.candidate_set[..]].concat();
    let Some(sweep) = &args.sweep else {
        let changes = args.candidate_set.len() + args.baseline_set.len();
        if args.candidate.is_none() && changes == 0 && !args.plain {
            return Err("found no candidate, allowed: --candidate, --candidate-set or --sweep \
                        (to compare a card with itself, give its file twice)"
                .into());
        }
        return Ok(Candidates::One(Side { name: "candidate".into(), path, set }));
    };
    let about = |what: &str| format!("--sweep {sweep}: {what}, allowed: KEY=VALUE,VALUE,...");
    let (key, values) = sweep.split_once('=').ok_or_else(|| about("found no `=`"))?;
    let sides = values_of(values).into_iter().map(|value| {
        if value.is_empty() {
            return Err(about("found an empty value"));
        }
        let set = [&set[..], &[format!("{key}={value}")]].concat();
        Ok((value.clone(), Side { name: format!("{key}={value}"), path: path.clone(), set }))
    });
    Ok(Candidates::Sweep { key: key.into(), sides: sides.collect::<Result<_, _>>()? })
}

/// Comma-separated values; those in a list or in quotes stay together.
fn values_of(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut is_quoted) = (vec![String::new()], 0, false);
    for letter in text.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            '[' | '{' if !is_quoted => depth += 1,
            ']' | '}' if !is_quoted => depth -= 1,
            ',' if depth == 0 && !is_quoted => {
                values.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(value) = values.last_mut() {
            value.push(letter);
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

fn figure_name(text: &str) -> Result<String, String> {
    let is_word =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    match !text.is_empty() && text.chars().all(is_word) {
        true => Ok(text.into()),
        false => Err("allowed: a to z, 0 to 9 and _".into()),
    }
}

pub(crate) fn pairs(text: &str) -> Result<usize, String> {
    let allowed = format!("allowed: {LEAST_PAIRS} to 10000");
    let pairs = text.parse().map_err(|_| allowed.clone())?;
    if (LEAST_PAIRS..=10_000).contains(&pairs) { Ok(pairs) } else { Err(allowed) }
}

pub(crate) fn percent(text: &str) -> Result<f64, String> {
    const ALLOWED: &str = "allowed: a number of percent, 0.001 to 100";
    let percent: f64 = text.parse().map_err(|_| ALLOWED)?;
    if (0.001..=100.0).contains(&percent) { Ok(percent) } else { Err(ALLOWED.into()) }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    const ALLOWED: &str = "allowed: a number of seconds, 0.01 to 86400";
    let seconds: f64 = text.parse().map_err(|_| ALLOWED)?;
    if (0.01..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err(ALLOWED.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches};

    fn parsed(words: &[&str]) -> Result<Question, String> {
        let command = AbArgs::augment_args(Command::new("ab"));
        let matches = command.try_get_matches_from([&["ab"], words].concat());
        let args = matches.and_then(|matches| AbArgs::from_arg_matches(&matches));
        question(&args.map_err(|error| error.to_string())?)
    }

    #[test]
    fn values_split_at_commas_outside_lists() {
        assert_eq!(values_of("0, 20,100"), ["0", "20", "100"]);
        assert_eq!(values_of("[1,2],\"a,b\""), ["[1,2]", "\"a,b\""]);
    }

    #[test]
    fn question_has_its_options() {
        let asked = parsed(&["--baseline", "a.toml", "--set", "card.seed=1", "--sweep", "x.y=1,2"]);
        let asked = asked.unwrap();
        let Candidates::Sweep { key, sides } = &asked.candidates else { panic!("no sweep") };
        assert_eq!((key.as_str(), sides.len()), ("x.y", 2));
        assert_eq!(sides[1].1.set, ["card.seed=1", "x.y=2"]);
        assert_eq!(sides[1].1.path, asked.baseline.path);
        assert_eq!((asked.pairs, asked.most_pairs, asked.seconds), (10, 40, 0.2));
        assert_eq!(asked.figure.key(), "delivered_pps");
        let asked = parsed(&["--candidate", "b.toml", "--workload-kind", "iperf3"]).unwrap();
        assert_eq!((asked.figure.key(), asked.seconds), ("received_bps", 2.0));
        let asked = parsed(&["--candidate", "b.toml", "--workload-kind", "e-commerce"]).unwrap();
        assert_eq!(asked.figure.key(), "requests_per_second");
        assert_eq!(asked.workload.unwrap().command(), "e-commerce");
        let words = ["--candidate-set", "rx=[]", "--workload", "./ask", "--figure", "p99 (\\d+)"];
        let named = ["--figure-name", "p99_us", "--effect", "5"];
        let asked = parsed(&[&words[..], &named[..]].concat()).unwrap();
        assert!(!asked.more_is_better && asked.effect == 0.05);
    }

    #[test]
    fn invalid_questions_are_refused() {
        for (words, wanted) in [
            (&[][..], "found no candidate"),
            (&["--sweep", "x"], "found no `=`"),
            (&["--sweep", "x=1,,2"], "found an empty value"),
            (&["--candidate-set", "x"], "--candidate-set x: found no `=`"),
            (&["--candidate-set", "x=1", "--figure", "(a)"], "allowed only with --workload"),
            (&["--candidate-set", "x=1", "--pairs", "9"], "allowed: 10 to 10000"),
            (&["--candidate-set", "x=1", "--workload-kind", "suport"], "'support'"),
            (&["--candidate-set", "x=1", "--workload-kind", "none"], "sclient"),
            (&["--candidate-set", "x=1", "--pairs", "20", "--most-pairs", "10"], "allowed: 20"),
            (&["--candidate-set", "x=1", "--workload", "a", "--figure", "b"], "found 0 groups"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(wanted), "{words:?}: {error}");
        }
    }
}
