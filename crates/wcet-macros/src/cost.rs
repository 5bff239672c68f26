//! Cost classes as the macros count them; `picnic_wcet::Class` is the same list.

use quote::{format_ident, quote};

/// Cost class of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Branch,
    Arithmetic,
    Bitwise,
    Multiply,
    Divide,
    Load,
    Store,
    Call,
    Service,
    Segment,
}

impl Class {
    pub(crate) const COUNT: usize = 10;

    /// Its name in `picnic_wcet::Class`.
    pub(crate) fn tokens(self) -> proc_macro2::TokenStream {
        let name = format_ident!("{self:?}");
        quote!(#name)
    }

    pub(crate) const ALL: [Class; Class::COUNT] = [
        Class::Branch,
        Class::Arithmetic,
        Class::Bitwise,
        Class::Multiply,
        Class::Divide,
        Class::Load,
        Class::Store,
        Class::Call,
        Class::Service,
        Class::Segment,
    ];
}

/// Operations by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) [u32; Class::COUNT]);

impl Counts {
    /// Adds `count` operations of a class.
    pub(crate) fn add(&mut self, class: Class, count: u32) {
        let place = &mut self.0[class as usize];
        *place = place.saturating_add(count);
    }
}
