//! An executor of one's own: a type, and a line in the registries.

use picnic_control::error::RunError;
use picnic_control::{Executor, Launch, Registries, Running};
use picnic_core::config::CardFile;
use picnic_host::registries;
use picnic_host::run::Host;
use picnic_machine::threads::spawn_pinned;
use picnic_machine::topology::Placement;
use picnic_testing::{machine, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Refuses chains, and leaves the rest to the host world.
struct Plain;

impl Executor for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn help(&self) -> &'static str {
        "cards without functions"
    }

    fn place(&self, launch: &Launch<'_>) -> Result<Placement, RunError> {
        match launch.file.rx.first() {
            Some(section) => {
                let message = "found a function, allowed with engine = \"poll\"";
                Err(section.locate(picnic_core::error::ConfigError::new("", message)).into())
            }
            None => Host.place(launch),
        }
    }

    fn start(&self, launch: Launch<'_>) -> Result<Box<dyn Running>, RunError> {
        self.place(&launch)?;
        Host.start(launch)
    }
}

fn card(before: &str, behind: &str) -> CardFile {
    let head = "[card]\nname = \"executors\"\nengine = \"plain\"\n[control]\nsocket = \"off\"\n";
    let wire = "[[wire]]\nport = \"generator\"\npackets = 100\n";
    picnic_host::sections().parse(&format!("{before}{head}{wire}{behind}"), None).unwrap()
}

#[test]
fn the_cards_engine_picks_one_from_the_registry() {
    let _machine = machine();
    let registries = Registries { executors: &[&Host, &Plain], ..registries() };
    let good = card("rx = []\n", "");
    let mut running = Launch::new(&good, registries).start().unwrap();
    while !running.is_over() {
        running.pass(Duration::from_millis(1));
    }
    let report = running.stop().unwrap();
    assert_eq!((report.ledger.r#in, report.ledger.balanced()), (100, true));
    // What it cannot do is refused by `check` as by `start`, by name.
    let chained = card("", "[[rx]]\nfunction = \"rss\"\n");
    let message = "card:9: rx[0]: found a function, allowed with engine = \"poll\"";
    let checked = Launch::new(&chained, registries).check().map(drop);
    assert_eq!(checked.unwrap_err().to_string(), message);
    let started = Launch::new(&chained, registries).start().map(drop);
    assert_eq!(started.unwrap_err().to_string(), message);
}

#[test]
fn an_engine_that_nobody_offers_is_told_with_those_there_are() {
    let _machine = machine();
    let error = Launch::new(&card("", ""), registries()).start().map(drop).unwrap_err();
    assert_eq!(error.to_string(), "card:3: card.engine: found \"plain\", allowed: poll");
}

/// Somebody else is at work on the borrowed core: the report says for how long, and what was lost.
#[test]
fn a_borrowed_core_that_others_take_is_told() {
    let _machine = machine();
    let text = "[card]\nidle = \"spin\"\n[[wire]]\nport = \"generator\"\nrate_pps = 1000000\n\
                [host]\nqueues = 1\n";
    let card = CardFile::parse(text, None).unwrap();
    let running = Launch::new(&card, registries()).start_alone().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let thief = {
        let over = over.clone();
        let work = move || while !over.load(Ordering::Relaxed) {};
        spawn_pinned("thief".into(), running.placement().borrowed_core, work).unwrap()
    };
    wait_until("it is taken, and packets are lost", || {
        let report = running.monitor().report();
        let taken = report.borrowed_core.taken_away;
        report.drops.contains_key("backlog_full") && taken.is_some_and(|taken| taken.drops != 0)
    });
    over.store(true, Ordering::Relaxed);
    thief.join().unwrap();
    let report = running.stop().unwrap();
    let taken = report.borrowed_core.taken_away.unwrap();
    assert!(taken.times != 0 && taken.longest_ns >= Some(taken.threshold_ns), "{taken:?}");
    assert!(taken.total_ns >= taken.times * taken.threshold_ns, "{taken:?}");
    assert!(taken.total_ns as f64 <= report.duration_s * 1e9, "{taken:?}");
    assert!(taken.drops <= report.ledger.dropped, "{taken:?}");
}

/// What a thread has given up for good.
fn given_up() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let of = |line: &&str| {
        ["NoNewPrivs:", "Seccomp:", "CapPrm:"].iter().any(|key| line.starts_with(key))
    };
    status.lines().filter(of).map(String::from).collect()
}

#[test]
fn a_card_that_is_not_to_be_confined_leaves_its_starter_alone() {
    let _machine = machine();
    let registries = Registries { executors: &[&Host, &Plain], ..registries() };
    let before = given_up();
    assert_eq!(before.len(), 3, "{before:?}");
    let card = card("rx = []\n", "");
    let running = Launch::new(&card, registries).start().unwrap();
    assert_eq!(given_up(), before);
    let report = running.stop().unwrap();
    assert_eq!(given_up(), before);
    assert!(report.ledger.balanced());
}
