//! A member on a card: the protocol runs on the borrowed core, and the host gets only ordered
//! messages.
//!
//! * [`task`]: the task `storm`, which a card file names;
//! * [`carrier`]: packets of the protocol in frames, raw or as UDP;
//! * [`records`]: what a card and the program of its host tell each other by their channel;
//! * [`load`], [`program`]: programs of the host that measure.

pub mod carrier;
mod installs;
mod keys;
pub mod load;
pub mod program;
pub mod records;
pub mod task;

use picnic_core::attachment::HostAttachment;
use picnic_core::registry::Entry;
use picnic_os::config::Setup;

/// The task, for the registries of a program that runs members on cards.
pub const TASKS: &[Entry<Setup>] = &[Entry::of::<task::Storm>()];

/// The host's side of a measurement.
pub const ATTACHMENTS: &[Entry<Box<dyn HostAttachment>>] = &[Entry::of::<load::Attachment>()];
