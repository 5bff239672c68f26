//! An executor of one's own: a type, and a line in the registries.

use picnic_control::error::RunError;
use picnic_control::{Executor, Launch, Registries, Running};
use picnic_core::config::CardFile;
use picnic_host::registries;
use picnic_host::run::Host;
use picnic_machine::topology::Placement;
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
    let error = Launch::new(&card("", ""), registries()).start().map(drop).unwrap_err();
    assert_eq!(error.to_string(), "card:3: card.engine: found \"plain\", allowed: poll");
}
