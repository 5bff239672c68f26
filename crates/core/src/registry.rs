//! Registries: the components that a card file can name, one line per entry.
//!
//! An entry has a name, one line of help, a typed config with defaults and a builder. Command-line
//! help, the docs page and the conformance tests are derived from it. To add one, implement
//! [`Component`] in a separate file and add the type to the registry's list.

use crate::command::CommandEntry;
use crate::config::{KeyHelp, Section, keys_of};
use crate::error::{ConfigError, not_among};
use crate::files::Files;
use crate::kernel::{Form, InKernel, refuse};
use crate::shared::Shared;
use crate::stop::Stop;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Facts of the card for a builder.
#[derive(Clone, Debug)]
pub struct BuildContext {
    /// The card's name.
    pub card: String,
    /// Target queues of the card.
    pub queues: u16,
    /// Wires of the card.
    pub wires: u8,
    /// The run's seed; mix in `position` for an independent stream.
    pub seed: u64,
    /// Position of this entry among its kind: wire number, place in the chain.
    pub position: usize,
    /// The directory of relative paths: that of the card file.
    pub directory: PathBuf,
    /// The card's files: a builder registers those of its keys that name a file to read or write.
    pub files: Files,
    /// Whether the card was asked to stop: for parts that wait for another program.
    pub stop: Stop,
    /// State that the entries of the card share.
    pub shared: Shared,
    /// The longest packet one buffer holds, in bytes.
    pub buffer_size: usize,
    /// Buffers in the pool.
    pub buffers: usize,
    /// Whether every wire of the card takes super-frames, or a function of the tx chain segments
    /// them; known only to attachments.
    pub super_frames: bool,
    /// The card's cost profile, if its file names one; known only to tasks.
    pub cost_profile: Option<PathBuf>,
    /// Whether the card is in the kernel, where a packet keeps no mark.
    pub in_kernel: bool,
    /// Whether the kernel and the poll engine share its packets (`engine = "hybrid"`).
    pub is_hybrid: bool,
}

impl Default for BuildContext {
    fn default() -> Self {
        BuildContext {
            card: "picnic0".into(),
            queues: 4,
            wires: 1,
            seed: 1,
            position: 0,
            directory: PathBuf::from("."),
            files: Files::default(),
            stop: Stop::default(),
            shared: Shared::default(),
            buffer_size: 2048,
            buffers: 8192,
            super_frames: false,
            cost_profile: None,
            in_kernel: false,
            is_hybrid: false,
        }
    }
}

/// The keys of a component without any.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKeys {}

/// A component that a card file can name.
pub trait Component {
    /// The builder's product: `Box<dyn Function>`, `Box<dyn WirePort>`, ...
    type Product;
    /// Its keys in the card file. All have defaults, or the builder reports missing ones.
    type Config: DeserializeOwned + JsonSchema + 'static;
    /// The name in card files: the field's usual term, lower case, with dashes.
    const NAME: &'static str;
    /// One line of help: what it does, lower case, no full stop, at most 64 columns. Example: "drop
    /// every packet, counted as filtered".
    const HELP: &'static str;
    /// The commands of a running component.
    const COMMANDS: &'static [CommandEntry] = &[];
    /// For a port or an attachment: whether it needs no machine, so that a simulated card can have
    /// it.
    const IN_VIRTUAL_TIME: bool = false;
    /// Its form in the kernel engine, if it has one.
    const KERNEL: Option<InKernel<Self::Config>> = None;

    /// Its required keys, as TOML, with values that build it anywhere; files that they name are
    /// created in `directory`. Used by the conformance tests. `None`: it needs something that only
    /// some machines have, such as an interface, and is tested separately.
    fn example(_directory: &Path) -> Option<String> {
        Some(String::new())
    }

    /// Builds it. An error names its key.
    fn build(config: Self::Config, context: &BuildContext) -> Result<Self::Product, ConfigError>;
}

/// An entry of a registry.
pub struct Entry<P> {
    /// The name in card files.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// The commands of a running component.
    pub commands: &'static [CommandEntry],
    /// Whether building it loads code into the process.
    pub loads_code: bool,
    /// See [`Component::IN_VIRTUAL_TIME`].
    pub in_virtual_time: bool,
    kernel: Option<MakeForm>,
    kernel_commands: &'static [&'static str],
    keys: fn() -> Vec<KeyHelp>,
    example: fn(&Path) -> Option<String>,
    check: fn(&Section) -> Result<(), ConfigError>,
    build: fn(&Section, &BuildContext) -> Result<P, ConfigError>,
}

/// Makes the kernel form of a section.
type MakeForm = fn(&Section, &BuildContext) -> Result<Form, ConfigError>;

impl<P> Clone for Entry<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Entry<P> {}

/// The entries of a list for the kernel engine: see [`Entry::in_kernel`]. Allocated for the life of
/// the program.
pub fn in_kernel<P>(entries: &[Entry<P>]) -> &'static [Entry<P>] {
    entries.iter().map(Entry::in_kernel).collect::<Vec<_>>().leak()
}

/// Joins lists, for a program that adds its own entries to others. Allocated for the life of the
/// program: call it once.
pub fn join<P>(lists: &[&[Entry<P>]]) -> &'static [Entry<P>] {
    lists.concat().leak()
}

impl<P> Entry<P> {
    /// The entry of a component that is loaded at run time and whose keys only its object knows:
    /// `build` reads the section.
    #[must_use]
    pub const fn loading(
        self,
        build: fn(&Section, &BuildContext) -> Result<P, ConfigError>,
    ) -> Self {
        Entry { loads_code: true, check: |_| Ok(()), build, ..self }
    }

    /// The entry of a component.
    pub const fn of<C: Component<Product = P>>() -> Self {
        Entry {
            name: C::NAME,
            help: C::HELP,
            commands: C::COMMANDS,
            loads_code: false,
            in_virtual_time: C::IN_VIRTUAL_TIME,
            kernel: match C::KERNEL {
                Some(_) => Some(kernel_form::<C>),
                None => None,
            },
            kernel_commands: match C::KERNEL {
                Some(InKernel { commands, .. }) => commands,
                None => &[],
            },
            keys: keys_of::<C::Config>,
            example: C::example,
            check: |section| section.parse::<C::Config>().map(drop),
            build: |section, context| {
                let config = section.parse::<C::Config>()?;
                let context = BuildContext { files: section.files(), ..context.clone() };
                C::build(config, &context).map_err(|error| section.locate(error))
            },
        }
    }

    /// The keys of its config: name, type, default, help.
    pub fn keys(&self) -> Vec<KeyHelp> {
        (self.keys)()
    }

    /// The required keys, with values that build it anywhere; see [`Component::example`].
    pub fn example(&self, directory: &Path) -> Option<String> {
        (self.example)(directory)
    }

    /// The same entry with only the commands of its kernel form; with none if it has no form.
    #[must_use]
    pub fn in_kernel(&self) -> Self {
        let is_there = |command: &&CommandEntry| self.kernel_commands.contains(&command.name);
        let commands: Vec<_> = self.commands.iter().filter(is_there).copied().collect();
        Entry { commands: commands.leak(), ..*self }
    }

    /// Whether it has a form in the kernel engine.
    pub fn has_kernel_form(&self) -> bool {
        self.kernel.is_some()
    }

    /// Its form in the kernel engine, made from its section of a card file; none if it has no form.
    ///
    /// # Errors
    /// A wrong key, or one without a kernel form: file, line, key, found, allowed.
    pub fn kernel_form(
        &self,
        section: &Section,
        context: &BuildContext,
    ) -> Option<Result<Form, ConfigError>> {
        self.kernel.map(|kernel| kernel(section, context))
    }

    /// Reads the component's keys without building it: for a card with errors in other keys.
    ///
    /// # Errors
    /// Unknown keys, wrong types, values out of range.
    pub fn check(&self, section: &Section) -> Result<(), ConfigError> {
        (self.check)(section)
    }

    /// Builds the component from its section of a card file.
    ///
    /// # Errors
    /// A wrong key: file, line, key, found, allowed.
    pub fn build(&self, section: &Section, context: &BuildContext) -> Result<P, ConfigError> {
        (self.build)(section, context)
    }
}

fn kernel_form<C: Component>(
    section: &Section,
    context: &BuildContext,
) -> Result<Form, ConfigError> {
    let config = section.parse::<C::Config>()?;
    // Only entries of components with a form have this.
    let Some(kernel) = C::KERNEL else { return Err(ConfigError::new("", "has no kernel form")) };
    for (key, found) in section.own_keys() {
        let counts_beside = context.is_hybrid && kernel.beside.contains(&key);
        if !kernel.keys.contains(&key) && !counts_beside {
            let allowed = if kernel.keys.is_empty() { "none" } else { "no key" };
            return Err(section.locate(refuse(key, found, allowed)));
        }
    }
    (kernel.form)(&config, context).map_err(|error| section.locate(error))
}

/// The entry that a section names.
///
/// # Errors
/// The name is not in the registry; the message lists the known ones.
pub fn find<'r, P>(
    registry: &'r [Entry<P>],
    section: &Section,
) -> Result<&'r Entry<P>, ConfigError> {
    registry.iter().find(|entry| entry.name == section.name()).ok_or_else(|| {
        let allowed = registry.iter().map(|entry| entry.name);
        section.locate(ConfigError::new(section.kind(), not_among("", section.name(), allowed)))
    })
}
