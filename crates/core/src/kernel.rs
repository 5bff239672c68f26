//! The form of a component in the kernel engine.
//!
//! A component that can work in the kernel declares [`Component::KERNEL`]: the keys that apply
//! there, and how they become a form. The kernel engine makes maps and programs from the forms of a
//! card; a component without a form is refused by name.
//!
//! ```
//! use picnic_core::kernel::{Form, InKernel};
//!
//! struct Keys;
//! const KERNEL: Option<InKernel<Keys>> = Some(InKernel {
//!     keys: &[],
//!     beside: &[],
//!     commands: &[],
//!     form: |_, _| Ok(Form::new("drop", "data for the engine")),
//! });
//! # let _ = KERNEL;
//! ```
//!
//! The crate `forms` has the forms.
//!
//! Guarantee: a key that a form cannot honour is refused, not ignored.
//!
//! [`Component::KERNEL`]: crate::registry::Component::KERNEL

use crate::error::ConfigError;
use crate::registry::BuildContext;
use std::any::Any;
use std::fmt::{self, Debug, Display, Formatter};

/// How a component becomes a kernel form.
pub struct InKernel<C> {
    /// The keys of its config that apply in the kernel; any other key in a card file is refused.
    pub keys: &'static [&'static str],
    /// Keys that also apply if the poll engine takes part (`engine = "hybrid"`).
    pub beside: &'static [&'static str],
    /// The commands that also work on a running kernel form; its state is then reported by
    /// [`Function::kernel_form`].
    ///
    /// [`Function::kernel_form`]: crate::function::Function::kernel_form
    pub commands: &'static [&'static str],
    /// Makes the form; an error names the key that it is about.
    pub form: fn(&C, &BuildContext) -> Result<Form, ConfigError>,
}

/// A kernel form: an object that only the kernel engine needs to inspect.
pub struct Form {
    name: &'static str,
    object: Box<dyn Any + Send>,
}

impl Form {
    /// An object; `name` is for debugging.
    pub fn new(name: &'static str, object: impl Any + Send) -> Self {
        Form { name, object: Box::new(object) }
    }

    /// The object; none if it is of another type.
    pub fn open<T: Any>(self) -> Option<T> {
        self.object.downcast().ok().map(|object| *object)
    }
}

impl Debug for Form {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Packet counts of a function's kernel form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Packets received.
    pub packets: u64,
    /// Packets steered.
    pub steered: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets without a hash.
    pub unhashed: u64,
    /// Packets with a VLAN tag.
    pub tagged: u64,
    /// By number, the packets decided by rules since the last report.
    pub rules: Vec<(u32, u64)>,
}

/// Refuses a value of a key that the kernel form does not support.
pub fn refuse(key: &str, found: impl Display, allowed: impl Display) -> ConfigError {
    let message = format!("found {found}, allowed with engine = \"kernel\": {allowed}");
    ConfigError::new(key, message)
}
