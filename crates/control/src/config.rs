//! `[control]`: the control socket and the metrics address of a running card.
//!
//! ```toml
//! [control]
//! socket = "auto"                # or "off", or a path such as "/run/my/card.sock"
//! metrics = "127.0.0.1:9464"     # Prometheus; "off" unless given
//! web = "127.0.0.1:9465"         # the live page; "off" unless given
//! ```
//!
//! Only programs that serve the card use this section, such as `picnic run`.

use picnic_core::config::{SectionConfig, SectionEntry};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The section of the control plane.
pub const SECTIONS: &[SectionEntry] = &[SectionEntry::of::<ControlSection>()];

/// `[control]`: the socket and the metrics of a running card.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct ControlSection {
    /// Unix socket of `picnic ctl`: "auto" (by the card's name), "off", or a path with a slash.
    pub socket: ControlSocket,
    /// Prometheus metrics over HTTP: "off", or an address and port such as "127.0.0.1:9464".
    pub metrics: HttpAddress,
    /// Live page for a browser, read only: "off", or an address and port such as "127.0.0.1:9465".
    pub web: HttpAddress,
}

impl SectionConfig for ControlSection {
    const NAME: &'static str = "control";
    const HELP: &'static str =
        "Control socket and metrics of the running card: `picnic ctl`, `picnic top`.";
}

/// Place of the control socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// In the runtime folder, by the card's name.
    #[default]
    Auto,
    /// No socket.
    Off,
    /// Here; relative to the card file.
    Path(PathBuf),
}

/// Address of the metrics or the live page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HttpAddress {
    /// Not served.
    #[default]
    Off,
    /// At this address and port.
    Address(SocketAddr),
}

impl ControlSocket {
    fn read(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(ControlSocket::Auto),
            "off" => Some(ControlSocket::Off),
            // A word without a slash is probably a typing error rather than a file.
            path if path.contains('/') && !path.contains('\0') => {
                Some(ControlSocket::Path(path.into()))
            }
            _ => None,
        }
    }
}

impl HttpAddress {
    fn read(text: &str) -> Option<Self> {
        match text {
            "off" => Some(HttpAddress::Off),
            address => address.parse().ok().map(HttpAddress::Address),
        }
    }
}

macro_rules! from_text {
    ($name:ident, $expecting:literal, $default:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
                        $name::read(text).ok_or_else(wrong)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": $expecting, "default": $default })
            }
            fn inline_schema() -> bool {
                true
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

from_text!(ControlSocket, "\"auto\", \"off\" or a path with a slash", "auto");
from_text!(HttpAddress, "\"off\" or an address and port such as \"127.0.0.1:9464\"", "off");

impl std::fmt::Display for ControlSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ControlSocket::Auto => f.write_str("auto"),
            ControlSocket::Off => f.write_str("off"),
            ControlSocket::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl std::fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HttpAddress::Off => f.write_str("off"),
            HttpAddress::Address(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use picnic_core::config::Sections;

    #[test]
    fn socket_is_the_default() {
        let parse = |text: &str| Sections::core().with(SECTIONS).parse(text, None);
        let read = |text: &str| parse(text).unwrap().section::<ControlSection>().keys;
        let control = |text: &str| read(&format!("[control]\n{text}"));
        assert_eq!(read(""), control(""));
        assert_eq!(control("").socket, ControlSocket::Auto);
        assert_eq!(control("").metrics, HttpAddress::Off);
        assert_eq!(control("socket = \"off\"").socket, ControlSocket::Off);
        assert_eq!(control("socket = \"./x\"").socket, ControlSocket::Path("./x".into()));
        let metrics = control("metrics = \"[::1]:9464\"").metrics;
        assert_eq!(metrics, HttpAddress::Address("[::1]:9464".parse().unwrap()));
        for (text, message) in [
            ("socket = \"of\"", "allowed: \"auto\", \"off\" or a path with a slash"),
            ("socket = 3", "allowed: \"auto\", \"off\" or a path with a slash"),
            ("metrics = \"9464\"", "allowed: \"off\" or an address and port"),
            ("web = \"9465\"", "allowed: \"off\" or an address and port"),
            ("metrics = \"localhost:http\"", "allowed: \"off\" or an address and port"),
        ] {
            let error = parse(&format!("[control]\n{text}\n")).unwrap_err();
            assert_eq!(error.line, 2, "{error}");
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
