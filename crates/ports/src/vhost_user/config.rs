//! The keys of `attachment = "vhost-user"`, checked.

use super::backend::FEATURES;
use super::pair::{Terms, bits};
use super::socket::{Access, number};
use picnic_core::error::ConfigError;
use picnic_core::registry::BuildContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The longest path of a Unix socket, in bytes.
const PATH_BYTES: usize = 107;
pub(super) const MTU_LOW: u32 = 68;
/// Only the owner may connect.
const PERMISSIONS: &str = "0600";
const MTU_HIGH: u32 = 65_535;

/// The keys of `attachment = "vhost-user"`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct VhostUserConfig {
    /// The guests: a section [[host.guest]] for each. The card's queues are divided among them, in
    /// order.
    pub guest: Vec<GuestConfig>,
}

/// Which side makes the socket.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The card; the guest's front end connects.
    #[default]
    Server,
    /// The front end; the card connects, again and again.
    Client,
}

/// Work that the guest leaves to the card, or the card to the guest.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Checksums.
    Csum,
    /// Super-frames of TCP over IPv4.
    Tso4,
    /// Super-frames of TCP over IPv6.
    Tso6,
    /// Super-frames with TCP's congestion window reduced flag.
    Ecn,
}

/// The keys of `[[host.guest]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct GuestConfig {
    /// Path of the socket, up to 107 bytes, relative to the card file. The stem of its file name is
    /// the guest's name in figures and captures.
    pub socket: String,
    /// "server": the card makes the socket; "client": the guest's front end makes it, and the card
    /// connects, also again.
    pub mode: Mode,
    /// With mode "server": name or number of the socket's owner; default: the card's user.
    pub owner: String,
    /// With mode "server": name or number of the socket's group; default: the card's group.
    pub group: String,
    /// With mode "server": who may connect, in octal digits.
    pub permissions: String,
    /// Offloads that the guest may use: "csum" and, with it, "tso4", "tso6", and, with one of
    /// these, "ecn".
    pub offloads: Vec<Offload>,
    /// Offer packed rings. Not every front end can use them: with QEMU, they also need `packed=on`.
    pub packed: bool,
    /// Bytes of the guest's longest packet without its Ethernet header, super-frames aside.
    #[schemars(range(min = MTU_LOW, max = MTU_HIGH))]
    pub mtu: u32,
    /// Number of the wire for the guest's packets, unless a tx function decides otherwise.
    pub wire: u8,
}

impl Default for GuestConfig {
    fn default() -> Self {
        GuestConfig {
            socket: String::new(),
            mode: Mode::Server,
            owner: String::new(),
            group: String::new(),
            permissions: PERMISSIONS.into(),
            offloads: vec![Offload::Csum, Offload::Tso4, Offload::Tso6, Offload::Ecn],
            packed: false,
            mtu: 1500,
            wire: 0,
        }
    }
}

impl VhostUserConfig {
    /// Checks the keys, and opens nothing.
    ///
    /// # Errors
    /// A wrong value: key, value found, values allowed.
    pub fn check(&self, context: &BuildContext) -> Result<(), ConfigError> {
        self.read(context).map(drop)
    }

    /// The guests' names in figures and captures, each different.
    pub fn names(&self) -> Vec<String> {
        names(self.guest.iter())
    }

    /// What each guest is offered, and the pairs of rings that it may have.
    ///
    /// # Errors
    /// A wrong value: key, value found, values allowed.
    pub(super) fn read(&self, context: &BuildContext) -> Result<(Vec<Terms>, u16), ConfigError> {
        let guests = self.guest.len();
        if guests == 0 {
            let message = "found none, allowed: a section [[host.guest]] for each guest";
            return Err(ConfigError::new("guest", message));
        }
        let (mut terms, mut faults) = (Vec::new(), Vec::new());
        let queues = usize::from(context.queues);
        if !queues.is_multiple_of(guests) {
            let message = format!("found {queues}, allowed: a multiple of the {guests} guests");
            faults.push(ConfigError::new("queues", message));
        }
        for (index, guest) in self.guest.iter().enumerate() {
            match guest.read(&self.guest[..index], context) {
                Ok(read) => terms.push(read),
                Err(error) => faults.extend(error.each().map(|error| of_guest(index, error))),
            }
        }
        ConfigError::all(faults)?;
        Ok((terms, (queues / guests) as u16))
    }
}

/// An error about a guest, as one about its attachment.
pub(super) fn of_guest(index: usize, error: &ConfigError) -> ConfigError {
    ConfigError::new(format!("guest[{index}].{}", error.key), error.message.clone())
}

/// A name for each guest: the stem of its socket's file name. If several have the same, the second
/// is `STEM-2`, and so on.
pub(super) fn names<'g>(guests: impl Iterator<Item = &'g GuestConfig> + Clone) -> Vec<String> {
    let stem = |guest: &'g GuestConfig| {
        let stem = Path::new(&guest.socket).file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    };
    let stems: Vec<_> = guests.map(stem).collect();
    let mut names = Vec::<String>::new();
    for stem in &stems {
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let is_free = |name: &String| !names.contains(name) && !stems.contains(name);
        let name = match names.contains(stem) {
            false => Some(stem.clone()),
            true => numbered.into_iter().find(is_free),
        };
        names.extend(name);
    }
    names
}

impl GuestConfig {
    /// Where its socket is.
    pub(super) fn path(&self, context: &BuildContext) -> PathBuf {
        context.directory.join(&self.socket)
    }

    /// Who may connect to its socket.
    ///
    /// # Errors
    /// There is no such user or group, or the digits are not octal.
    pub(super) fn access(&self) -> Result<Access, ConfigError> {
        let given = [("owner", &self.owner), ("group", &self.group)];
        let keys = given.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, _)| key);
        let changed = (self.permissions != PERMISSIONS).then_some("permissions");
        if let Some(key) = keys.chain(changed).next().filter(|_| self.mode == Mode::Client) {
            let message =
                "found mode = \"client\", whose front end makes the socket, allowed: none";
            return Err(ConfigError::new(key, message));
        }
        let find = |key: &str, name: &str, list: &str, what: &str| {
            let found = number(name, list);
            if found.is_none() && !name.is_empty() {
                let message = format!("found {name:?}, allowed: the name or number of a {what}");
                return Err(ConfigError::new(key, message));
            }
            Ok(found)
        };
        let owner = find("owner", &self.owner, "/etc/passwd", "user");
        let group = find("group", &self.group, "/etc/group", "group");
        let digits = &self.permissions;
        let is_octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let permissions = u32::from_str_radix(digits, 8).ok();
        let permissions = permissions.filter(|mode| is_octal && *mode <= 0o777).ok_or_else(|| {
            let message = format!("found {digits:?}, allowed: octal digits up to \"0777\"");
            ConfigError::new("permissions", message)
        });
        let ids = ConfigError::both(owner, group);
        let ((owner, group), permissions) = ConfigError::both(ids, permissions)?;
        Ok(Access { owner, group, permissions })
    }

    fn read(&self, before: &[GuestConfig], context: &BuildContext) -> Result<Terms, ConfigError> {
        let mut faults = Vec::new();
        let mut wrong = |key: &str, found: &dyn std::fmt::Debug, allowed: &str| {
            faults.push(ConfigError::new(key, format!("found {found:?}, allowed: {allowed}")));
        };
        let path = self.path(context);
        let length = path.as_os_str().len();
        if self.socket.is_empty() || length > PATH_BYTES {
            wrong("socket", &self.socket, "a path of 1 to 107 bytes");
        } else if before.iter().any(|other| other.path(context) == path) {
            wrong("socket", &self.socket, "a socket for each guest");
        }
        if self.wire >= context.wires {
            let allowed = format!("0 to {}", context.wires.saturating_sub(1));
            wrong("wire", &self.wire, &allowed);
        }
        let has = |offload| self.offloads.contains(&offload);
        let cuts = has(Offload::Tso4) || has(Offload::Tso6);
        if (cuts && !has(Offload::Csum)) || (has(Offload::Ecn) && !cuts) {
            let allowed = "\"tso4\" and \"tso6\" with \"csum\", \"ecn\" with one of them";
            wrong("offloads", &self.offloads, allowed);
        }
        faults.extend(self.access().err());
        ConfigError::all(faults)?;
        // The guest's super-frames need wires that take them; those for it only the guest itself.
        let table = [
            (Offload::Csum, bits::GUEST_CSUM, bits::CSUM),
            (Offload::Tso4, bits::GUEST_TSO4, bits::HOST_TSO4),
            (Offload::Tso6, bits::GUEST_TSO6, bits::HOST_TSO6),
            (Offload::Ecn, bits::GUEST_ECN, bits::HOST_ECN),
        ];
        let mut features = FEATURES | if self.packed { bits::RING_PACKED } else { 0 };
        for (offload, guest, host) in table {
            let is_taken = offload == Offload::Csum || context.super_frames;
            if has(offload) {
                features |= guest | if is_taken { host } else { 0 };
            }
        }
        Ok(Terms {
            features,
            wire: self.wire,
            buffer_size: context.buffer_size.max(1),
            mtu: self.mtu as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::config::Section;

    fn error(keys: &str, queues: u16) -> ConfigError {
        let text = format!("attachment = \"vhost-user\"\n{keys}");
        let section = Section::from_text("attachment", &text).unwrap();
        match section.parse::<VhostUserConfig>() {
            Err(error) => error,
            Ok(config) => {
                let context = BuildContext { queues, ..BuildContext::default() };
                section.locate(config.read(&context).unwrap_err())
            }
        }
    }

    #[test]
    fn guest_errors_name_key_and_line() {
        let long = format!("[[guest]]\nsocket = \"{}\"", "x".repeat(107));
        for (keys, key, part) in [
            ("", "guest", "[[host.guest]] for each"),
            ("[[guest]]", "guest[0].socket", "1 to 107 bytes"),
            (&*long, "guest[0].socket", "1 to 107 bytes"),
            ("[[guest]]\nsocket = \"a\"\nmtu = 67", "mtu", "68 to 65535"),
            ("[[guest]]\nsocket = \"a\"\nwire = 1", "guest[0].wire", "allowed: 0 to 0"),
            ("[[guest]]\nsocket = \"a\"\nmode = \"serve\"", "mode", "server"),
            ("[[guest]]\nsocket = \"a\"\npacked = 1", "packed", "allowed: true or false"),
            ("[[guest]]\nsocket = \"a\"\nowner = \"no one\"", "guest[0].owner", "of a user"),
            ("[[guest]]\nsocket = \"a\"\nowner = \"4294967295\"", "guest[0].owner", "of a user"),
            ("[[guest]]\nsocket = \"a\"\ngroup = \"-1\"", "guest[0].group", "of a group"),
            ("[[guest]]\nsocket = \"a\"\npermissions = \"0800\"", "guest[0].permissions", "octal"),
            ("[[guest]]\nsocket = \"a\"\npermissions = \"+600\"", "guest[0].permissions", "octal"),
            ("[[guest]]\nsocket = \"a\"\npermissions = \"1777\"", "guest[0].permissions", "0777"),
            (
                "[[guest]]\nsocket = \"a\"\nmode = \"client\"\ngroup = \"0\"",
                "guest[0].group",
                "mode = \"client\"",
            ),
            ("[[guest]]\nsocket = \"a\"\noffloads = [\"tso4\"]", "guest[0].offloads", "\"csum\""),
            (
                "[[guest]]\nsocket = \"a\"\noffloads = [\"ecn\", \"csum\"]",
                "guest[0].offloads",
                "ecn",
            ),
            ("[[guest]]\nsocket = \"a\"\n[[guest]]\nsocket = \"a\"", "guest[1].socket", "for each"),
        ] {
            let error = error(keys, 4);
            assert!(error.key.ends_with(key), "{keys}: {error}");
            assert!(error.message.contains(part), "{keys}: {error}");
            assert!(error.line >= 1 || keys.is_empty(), "{keys}: {error}");
        }
        let three =
            "[[guest]]\nsocket = \"a\"\n[[guest]]\nsocket = \"b\"\n[[guest]]\nsocket = \"c\"";
        let error = error(three, 4);
        assert_eq!(error.key, "queues");
        assert!(error.message.contains("found 4, allowed: a multiple of the 3 guests"), "{error}");
    }

    #[test]
    fn all_errors_of_guests_are_told_at_once() {
        let keys = "[[guest]]\nsocket = \"a\"\nwire = 9\noffloads = [\"tso4\"]\nowner = \"no one\"\n\
            permissions = \"9\"\n[[guest]]\nsocket = \"a\"\nwire = 8";
        let error = error(keys, 3);
        let told: Vec<_> = error.each().map(|error| (error.line, error.key.as_str())).collect();
        let first =
            ["wire", "offloads", "owner", "permissions"].map(|key| format!("guest[0].{key}"));
        let second = ["socket", "wire"].map(|key| format!("guest[1].{key}"));
        let keys: Vec<_> = first.iter().chain(&second).map(String::as_str).collect();
        let lines = [4, 5, 6, 7, 9, 10];
        let expected: Vec<_> = lines.into_iter().zip(keys).collect();
        assert_eq!(
            told.iter().filter(|(_, key)| *key != "queues").copied().collect::<Vec<_>>(),
            expected
        );
        assert_eq!(told.len(), 7, "{error}");
    }

    #[test]
    fn guests_with_the_same_stem_have_different_names() {
        let named = |sockets: &[&str]| {
            let guest =
                |socket: &&str| GuestConfig { socket: (*socket).into(), ..GuestConfig::default() };
            VhostUserConfig { guest: sockets.iter().map(guest).collect() }.names()
        };
        assert_eq!(named(&["/run/picnic/vm0.sock", "a/vm1"]), ["vm0", "vm1"]);
        let same = named(&["a/vm.sock", "b/vm.sock", "c/vm-2.sock", "vm", "d/vm-2", ".sock"]);
        assert_eq!(same, ["vm", "vm-3", "vm-2", "vm-4", "vm-2-2", ".sock"]);
    }

    #[test]
    fn super_frames_of_guests_need_wires_that_take_them() {
        let guest = GuestConfig { socket: "a".into(), ..GuestConfig::default() };
        let config = VhostUserConfig { guest: vec![guest] };
        for super_frames in [false, true] {
            let context = BuildContext { super_frames, ..BuildContext::default() };
            let (terms, pairs) = config.read(&context).unwrap();
            let host = bits::HOST_TSO4 | bits::HOST_TSO6 | bits::HOST_ECN;
            assert_eq!(terms[0].features & host != 0, super_frames);
            let always = bits::GUEST_TSO4 | bits::GUEST_CSUM | bits::CSUM | bits::VERSION_1;
            assert_eq!((terms[0].features & always, pairs), (always, 4));
        }
    }
}
