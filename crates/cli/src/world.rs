//! `--world`: where a card runs, and the options that depend on it.

use crate::failure::Usage;
use crate::output;
use crate::registries::{WORLDS, World, registries};
use anyhow::{Context, anyhow};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use picnic_control::{Launch, Registries};
use picnic_core::config::{CardFile, Setting};
use picnic_core::stop::Stop;
use picnic_lab::calibrate::here::{self, HERE};
use picnic_ports::stream::{self, Stream};
use picnic_sim::machine::PROFILES;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The world's options.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorldArgs {
    /// World to run the card in
    #[arg(long, value_name = "WORLD", value_parser = worlds(), default_value = WORLDS[0].name)]
    world: String,
    /// The machine around the card, with --world sim; see `picnic lab profiles`
    #[arg(long, value_name = "NAME", value_parser = profiles())]
    profile: Option<String>,
}

fn profiles() -> PossibleValuesParser {
    let names = PROFILES.iter().map(|(name, _)| *name).chain([HERE]);
    names.map(PossibleValue::new).collect::<Vec<_>>().into()
}

/// The options of a run's seed and events.
#[derive(Clone, Debug, Args)]
pub(crate) struct SeedArgs {
    /// Seed of all random choices, and with --world sim of the order of events; same as --set
    /// card.seed=...
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u32>,
    /// Write every event as a line of text (--world sim); - for standard output
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn worlds() -> PossibleValuesParser {
    WORLDS
        .iter()
        .map(|world| PossibleValue::new(world.name).help(world.help))
        .collect::<Vec<_>>()
        .into()
}

impl WorldArgs {
    fn chosen(&self) -> Option<&'static World> {
        WORLDS.iter().find(|world| world.name == self.world)
    }

    /// Whether cards run on real cores.
    pub(crate) fn is_host(&self) -> bool {
        self.world == WORLDS[0].name
    }

    /// The names that card files can use in this world.
    pub(crate) fn registries(&self) -> Registries {
        let profile = self.profile.as_deref().filter(|_| self.world == "sim");
        match profile.and_then(|name| here::profile(name).ok()) {
            Some(profile) => picnic_sim::on_machine(registries(), profile),
            None => self.chosen().map_or_else(registries, World::registries),
        }
    }

    /// A launch in this world. Threads of a card on real cores drop the privileges they no longer
    /// need.
    pub(crate) fn launch<'a>(&self, card: &'a CardFile) -> anyhow::Result<Launch<'a>> {
        if self.profile.is_some() && self.world != "sim" {
            let message =
                format!("--profile: found with --world {}, allowed only with sim", self.world);
            return Err(Usage(message).into());
        }
        if let Some(name) = &self.profile {
            here::profile(name).map_err(|why| Usage(format!("--profile: {why}")))?;
        }
        let launch = Launch::new(card, self.registries()).revision(env!("PICNIC_REVISION"));
        Ok(if launch.executor()?.is_served() { launch.confined() } else { launch })
    }

    /// Checks that a timeline can be recorded and written to `path`, which is none of the card's
    /// own files.
    pub(crate) fn claim_timeline(&self, path: &Path, launch: &Launch<'_>) -> anyhow::Result<()> {
        if !launch.executor()?.records() {
            return Err(self.refuse("--timeline", launch));
        }
        let claimed = launch.file.files().write("--timeline", path);
        claimed.map_err(|error| Usage(format!("--timeline: {}", error.message)).into())
    }

    /// The error for an option that this world, or the card's engine in it, does not support.
    pub(crate) fn refuse(&self, option: &str, launch: &Launch<'_>) -> anyhow::Error {
        let engine = &launch.file.card.engine;
        let found = match self.is_host() && *engine != "poll" {
            true => format!("--engine {engine}"),
            false => format!("--world {}", self.world),
        };
        Usage(format!("{option}: not supported with {found}")).into()
    }
}

impl SeedArgs {
    /// The change to the card file.
    pub(crate) fn setting(&self) -> Option<Setting> {
        self.seed.map(|seed| Setting::number("card.seed", seed))
    }

    /// Checks that events can be written, if requested, before any of the card's own files is
    /// opened: the event file may be none of those.
    pub(crate) fn claim_events(
        &self,
        world: &WorldArgs,
        launch: &Launch<'_>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.trace else { return Ok(()) };
        if !launch.executor()?.tells_events() {
            return Err(world.refuse("--trace", launch));
        }
        if path.as_os_str() == "-" {
            return Ok(());
        }
        let claimed = launch.file.files().write("--trace", path);
        claimed.map_err(|error| Usage(format!("--trace: {}", error.message)).into())
    }

    /// The writer of events, if requested. Waits for a reader until a stop is requested.
    pub(crate) fn events(&self, stop: Stop) -> anyhow::Result<Option<Box<dyn Write + Send>>> {
        let Some(path) = &self.trace else { return Ok(None) };
        if path.as_os_str() == "-" {
            return Ok(Some(Box::new(BufWriter::new(output::standard(std::io::stdout())?))));
        }
        let place = || format!("--trace: {}", path.display());
        let file = stream::create(path, || stop.is_asked()).with_context(place)?;
        let file = Stream::new(file.into(), stop)
            .map_err(|message| anyhow!("it {message}"))
            .with_context(place)?;
        Ok(Some(Box::new(BufWriter::new(file))))
    }
}
