//! Figures: each is declared once; differences, metrics, tables and docs derive from that.
//!
//! A group of figures is a struct that `figures!` makes: each field has its help, its kind, its
//! type, where it is read, and how it is shown. [`crate::report`] declares all of them.
//!
//! ```
//! use picnic_control::figures::{Figures, Span};
//! use picnic_control::report::WireReport;
//! let before = WireReport { rx_packets: 100, ..WireReport::default() };
//! let now = WireReport { rx_packets: 130, ..before.clone() };
//! let window = now.since(&before, &Span { now_s: 2.0, before_s: 1.0 });
//! assert_eq!(window.rx_packets, 30);
//! let shown = window.figures().into_iter().find(|shown| shown.path == "rx_packets").unwrap();
//! assert_eq!(shown.figure.metric, "picnic_wire_received");
//! ```

use serde_json::Value;
use std::collections::BTreeMap;

/// Behaviour of a figure over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name, a number or a state: not a measurement.
    Label,
    /// A count that only grows.
    Counter,
    /// A counter of lost packets.
    Loss,
    /// Counters of lost packets, by reason.
    Losses,
    /// A value that may rise and fall.
    Gauge,
    /// A share of the time, from 0 to 1.
    Share,
    /// The ratio of two counters.
    Quotient,
    /// The highest value so far; unknown for a window without a new maximum.
    Peak,
    /// A percentile or mean of recorded latencies.
    Latency,
}

impl Kind {
    /// Its name in docs.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Label => "label",
            Kind::Counter => "counter",
            Kind::Loss => "counter of losses",
            Kind::Losses => "counters of losses by reason",
            Kind::Gauge => "gauge",
            Kind::Share => "share of time",
            Kind::Quotient => "quotient",
            Kind::Peak => "maximum",
            Kind::Latency => "latency",
        }
    }

    /// Whether it is a sum of events, so that it has a rate.
    pub const fn grows(self) -> bool {
        matches!(self, Kind::Counter | Kind::Loss | Kind::Losses)
    }
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// No unit, or none shown.
    One,
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Interrupts.
    Interrupts,
    /// Polls of a ring.
    Polls,
    /// Descriptors in a ring.
    Descriptors,
    /// Queues.
    Queues,
    /// Rings.
    Rings,
    /// Occurrences.
    Times,
}

impl Unit {
    /// Its name in docs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::One => "",
            Unit::Packets => "packets",
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "nanoseconds",
            Unit::Interrupts => "interrupts",
            Unit::Polls => "polls",
            Unit::Descriptors => "descriptors",
            Unit::Queues => "queues",
            Unit::Rings => "rings",
            Unit::Times => "times",
        }
    }
}

/// The declaration of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its key in JSON.
    pub key: &'static str,
    /// How it behaves over time.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its meaning, in a sentence.
    pub help: &'static str,
    /// Its family of metrics, without unit and `_total`; empty without one.
    pub metric: &'static str,
    /// The label that distinguishes it in its family.
    pub tag: Option<(&'static str, &'static str)>,
    /// The help of a family with several figures, at the first of them.
    pub family: &'static str,
    /// Its key in `picnic top --json`, there a rate if it [`grows`](Kind::grows); empty if it is
    /// left out.
    pub live: &'static str,
    /// The heading of its column.
    pub heading: &'static str,
    /// The key of the gauge that contains this one.
    pub of: &'static str,
    /// Weight of its column among totals: low weights are hidden first, 0 has no column.
    pub totals: u8,
    /// Weight of its rate's column among totals.
    pub pace: u8,
    /// Weight of its column among rates.
    pub rates: u8,
}

impl Figure {
    /// Shown only in JSON and docs.
    pub const PLAIN: Figure = Figure {
        key: "",
        kind: Kind::Label,
        unit: Unit::One,
        help: "",
        metric: "",
        tag: None,
        family: "",
        live: "",
        heading: "",
        of: "",
        totals: 0,
        pace: 0,
        rates: 0,
    };
}

impl Figure {
    /// The name of its series in metrics, where times are in seconds.
    pub fn series(&self) -> Option<String> {
        let unit = match (self.kind, self.unit) {
            (Kind::Share, _) | (_, Unit::Nanoseconds) => "seconds",
            (_, unit) => unit.name(),
        };
        let is_counter = self.kind.grows() || self.kind == Kind::Share;
        let total = if is_counter { "_total" } else { "" };
        (!self.metric.is_empty()).then(|| format!("{}_{unit}{total}", self.metric))
    }
}

/// A figure with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// Its declaration.
    pub figure: Figure,
    /// Its keys from the group on, joined with dots.
    pub path: String,
    /// Its value, as in JSON.
    pub value: Value,
}

/// Start and end of a window, in seconds since the card's start.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The end.
    pub now_s: f64,
    /// The start.
    pub before_s: f64,
}

impl Span {
    /// The window's length, above zero.
    pub fn seconds(&self) -> f64 {
        (self.now_s - self.before_s).max(1e-9)
    }

    /// The share in the window, from the shares until its end and until its start.
    fn share(&self, now: f64, before: f64) -> f64 {
        ((now * self.now_s - before * self.before_s) / self.seconds()).clamp(0.0, 1.0)
    }
}

/// A share of the time, which may be unknown.
pub(crate) trait Share {
    fn since(self, before: Self, span: &Span) -> Self;
}

impl Share for f64 {
    fn since(self, before: f64, span: &Span) -> f64 {
        span.share(self, before)
    }
}

impl Share for Option<f64> {
    fn since(self, before: Option<f64>, span: &Span) -> Option<f64> {
        self.map(|now| span.share(now, before.unwrap_or_default()))
    }
}

/// A group of figures.
pub trait Figures {
    /// The figures of a window, from those at its end and at its start.
    #[must_use]
    fn since(&self, before: &Self, span: &Span) -> Self;

    /// All figures in order, with nested groups expanded.
    fn figures(&self) -> Vec<Shown>;
}

/// A group that a card may lack. If it appears within a window, all its counts belong to the
/// window.
impl<F: Figures + Clone + Default> Figures for Option<F> {
    fn since(&self, before: &Self, span: &Span) -> Self {
        match (self, before) {
            (Some(now), Some(before)) => Some(now.since(before, span)),
            (now, _) => now.clone(),
        }
    }

    fn figures(&self) -> Vec<Shown> {
        match self {
            Some(group) => group.figures(),
            // Declared in any case.
            None => {
                let mut shown = F::default().figures();
                shown.iter_mut().for_each(|shown| shown.value = Value::Null);
                shown
            }
        }
    }
}

/// `count / per`; none without a divisor.
pub(crate) fn quotient(count: u64, per: u64) -> Option<f64> {
    (per != 0).then(|| count as f64 / per as f64)
}

/// Counts by name since `before`, without those that are zero.
pub(crate) fn counts(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let left = now.iter().map(|(name, &count)| {
        (name.clone(), count.saturating_sub(before.get(name).copied().unwrap_or(0)))
    });
    left.filter(|&(_, count)| count != 0).collect()
}

/// A figure derived from others of its group.
pub(crate) fn of<G, F>(group: &G, read: fn(&G) -> F) -> F {
    read(group)
}

/// Declares groups of figures: see [`Figures`].
///
/// `KIND field: type = EXPRESSION => { ATTRIBUTES };` where the expression reads the figure from
/// the group's source. For a `Quotient` it is a closure over the group. `Part` is a nested group.
/// Attributes are fields of [`Figure`].
macro_rules! figures {
    ($(
        $(#[doc = $about:literal])+
        $name:ident from ($($from:ident: $source:ty),*) {
            $(
                $(#[doc = $help:literal])+
                $(#[serde($($serde:tt)*)])?
                $kind:ident $field:ident: $type:ty = $read:expr
                    $(=> { $($attribute:ident: $value:expr),* $(,)? })?;
            )*
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct $name {
            $( $(#[doc = $help])+ $(#[serde($($serde)*)])? pub $field: $type, )*
        }

        impl $name {
            /// The figures at this moment.
            pub fn read($($from: $source),*) -> Self {
                $name { $( $field: figures!(@read $kind $read), )* }.settled()
            }

            fn settled(self) -> Self {
                #[allow(unused_mut)]
                let mut group = self;
                $( figures!(@settle $kind group $field $type, $read); )*
                group
            }
        }

        impl Figures for $name {
            fn since(&self, before: &Self, span: &Span) -> Self {
                let _ = (before, span);
                $name {
                    $( $field: figures!(@since $kind (self.$field) (before.$field) span), )*
                }
                .settled()
            }

            fn figures(&self) -> Vec<Shown> {
                #[allow(unused_imports)]
                use $crate::figures::Unit::*;
                let parts = [$(
                    figures!(@show $kind (self.$field) $field, Figure {
                        key: stringify!($field),
                        help: concat!($($help),+).trim_ascii_start(),
                        $($($attribute: $value,)*)?
                        ..Figure::PLAIN
                    })
                ),*];
                parts.concat()
            }
        }
    )+ };

    (@read Quotient $read:expr) => { None };
    (@read $kind:ident $read:expr) => { $read };

    (@settle Quotient $group:ident $field:ident $type:ty, $read:expr) => {
        $group.$field = $crate::figures::of(&$group, $read);
    };
    (@settle $kind:ident $group:ident $field:ident $type:ty, $read:expr) => {};

    (@since Counter ($now:expr) ($before:expr) $span:ident) => { $now.saturating_sub($before) };
    (@since Loss ($now:expr) ($before:expr) $span:ident) => { $now.saturating_sub($before) };
    (@since Losses ($now:expr) ($before:expr) $span:ident) => {
        $crate::figures::counts(&$now, &$before)
    };
    (@since Share ($now:expr) ($before:expr) $span:ident) => {
        $crate::figures::Share::since($now, $before, $span)
    };
    (@since Peak ($now:expr) ($before:expr) $span:ident) => {
        $now.filter(|_| $now > $before)
    };
    (@since Quotient ($now:expr) ($before:expr) $span:ident) => { None };
    (@since Latency ($now:expr) ($before:expr) $span:ident) => { None };
    (@since Part ($now:expr) ($before:expr) $span:ident) => {
        Figures::since(&$now, &$before, $span)
    };
    (@since $kind:ident ($now:expr) ($before:expr) $span:ident) => { Clone::clone(&$now) };

    (@show Part ($part:expr) $field:ident, $figure:expr) => {{
        let mut shown = $part.figures();
        for part in &mut shown {
            part.path = format!("{}.{}", stringify!($field), part.path);
        }
        shown
    }};
    (@show $kind:ident ($value:expr) $field:ident, $figure:expr) => {
        vec![Shown {
            figure: Figure { kind: Kind::$kind, ..$figure },
            path: stringify!($field).to_owned(),
            value: json!($value),
        }]
    };
}
pub(crate) use figures;
