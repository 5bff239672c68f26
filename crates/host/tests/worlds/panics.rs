//! A panic in a user's function or host ends the run, and is reported.

use picnic_control::error::RunError;
use picnic_control::{Launch, Registries};
use picnic_core::attachment::{HostAttachment, HostQueue, QueueOut};
use picnic_core::config::CardFile;
use picnic_core::error::ConfigError;
use picnic_core::function::{Function, per_packet};
use picnic_core::packet::burst::Burst;
use picnic_core::registry::{BuildContext, Component, Entry, NoKeys};
use picnic_core::time::Time;
use picnic_host::registries;
use picnic_testing::{machine, wait_until};

struct Faulty;

impl Component for Faulty {
    type Product = Box<dyn Function>;
    type Config = NoKeys;
    const NAME: &'static str = "faulty";
    const HELP: &'static str = "panics";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn Function>, ConfigError> {
        Ok(Box::new(per_packet(|_| panic!("as it should"))))
    }
}

struct FaultyHost;

impl Component for FaultyHost {
    type Product = Box<dyn HostAttachment>;
    type Config = NoKeys;
    const NAME: &'static str = "faulty";
    const HELP: &'static str = "panics";

    fn build(_: NoKeys, _: &BuildContext) -> Result<Box<dyn HostAttachment>, ConfigError> {
        Ok(Box::new(FaultyHost))
    }
}

impl HostAttachment for FaultyHost {
    fn open_queue(&mut self, _: u16) -> Result<Box<dyn HostQueue>, ConfigError> {
        Ok(Box::new(FaultyHost))
    }
}

impl HostQueue for FaultyHost {
    fn deliver(&mut self, _: Time, _: &mut Burst, _: &mut QueueOut<'_>) -> u64 {
        panic!("as it should")
    }
}

static FUNCTIONS: &[Entry<Box<dyn Function>>] = &[Entry::of::<Faulty>()];
static ATTACHMENTS: &[Entry<Box<dyn HostAttachment>>] = &[Entry::of::<FaultyHost>()];

/// The thread that panicked, by the run's error.
fn panicked(card: &str, registries: Registries) -> String {
    let card = CardFile::parse(card, None).unwrap();
    let running = Launch::new(&card, registries).start_alone().unwrap();
    wait_until("somebody has panicked", || !running.is_alive());
    match running.stop() {
        Err(RunError::Panicked(thread)) => thread,
        other => panic!("found {other:?}"),
    }
}

#[test]
fn a_function_that_panics_ends_the_run() {
    let _machine = machine();
    let card = "[[rx]]\nfunction = \"faulty\"\n";
    let registries = Registries { functions: FUNCTIONS, ..registries() };
    assert_eq!(panicked(card, registries), "the borrowed core");
}

#[test]
fn a_host_that_panics_ends_the_run() {
    let _machine = machine();
    // Cores that wait for packets from a core that panics do not wait for ever.
    for system in ["knet", "clas", "napi"] {
        let card = format!("[host]\nattachment = \"faulty\"\nsystem = \"{system}\"\n");
        let registries = Registries { attachments: ATTACHMENTS, ..registries() };
        assert_eq!(panicked(&card, registries), "a target core");
    }
}
