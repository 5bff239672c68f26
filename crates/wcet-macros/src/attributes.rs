//! `#[bound(n)]` and `#[wcet(ns = n)]` on loops, statements and expressions.

use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Expr, Ident, Token};

/// Longest time that an attribute may give, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Most rounds that an attribute may give.
const MOST_ROUNDS: u64 = u32::MAX as u64;

/// Whether the attribute is `#[NAME]` or `#[picnic_wcet::NAME]`.
pub(crate) fn is(attribute: &Attribute, name: &str) -> bool {
    let segments = &attribute.path().segments;
    match segments.len() {
        1 => segments[0].ident == name,
        2 => segments[0].ident == "picnic_wcet" && segments[1].ident == name,
        _ => false,
    }
}

/// Internal mark with a segment's number; set by the numbering, removed at the end.
pub(crate) const SEGMENT: &str = "__picnic_segment";

fn one<'a>(attributes: &'a [Attribute], name: &str) -> syn::Result<Option<&'a Attribute>> {
    let mut found = attributes.iter().filter(|attribute| is(attribute, name));
    let first = found.next();
    match found.next() {
        Some(second) => {
            Err(syn::Error::new(second.span(), format!("found a second `#[{name}]`, allowed: one")))
        }
        None => Ok(first),
    }
}

/// The argument of `#[bound(n)]`.
pub(crate) fn bound(attributes: &[Attribute]) -> syn::Result<Option<u64>> {
    const ALLOWED: &str = "allowed: a number of rounds, written out: 1 to 4294967295, as in \
                           `#[bound(16)]` or `#[bound(4 * 16)]`";
    let Some(attribute) = one(attributes, "bound")? else {
        return Ok(None);
    };
    let refuse = |span, found: &str| {
        Err(syn::Error::new(span, format!("found {found} as the bound of a loop, {ALLOWED}")))
    };
    let Ok(number) = attribute.parse_args::<Expr>() else {
        return refuse(attribute.span(), "no number");
    };
    match crate::count::constant(&number) {
        None => refuse(number.span(), "something other than a literal"),
        Some(found) => match u64::try_from(found) {
            Ok(rounds @ 1..=MOST_ROUNDS) => Ok(Some(rounds)),
            _ => refuse(number.span(), &found.to_string()),
        },
    }
}

/// The argument of `#[wcet]`: `300` or `ns = 300`.
pub(crate) struct Declared(pub(crate) u64);

impl Parse for Declared {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        const ALLOWED: &str = "allowed: `#[wcet(ns = N)]` with N from 1 to 60000000000 nanoseconds";
        if input.is_empty() {
            return Err(input.error(format!("found no time, {ALLOWED}")));
        }
        if input.peek(Ident) && input.peek2(Token![=]) {
            let unit: Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            if unit != "ns" {
                return Err(syn::Error::new(unit.span(), format!("found `{unit}`, {ALLOWED}")));
            }
        }
        let number: Expr = input.parse()?;
        match crate::count::constant(&number).map(u64::try_from) {
            Some(Ok(ns @ 1..=LONGEST_NS)) if input.is_empty() => Ok(Declared(ns)),
            _ => Err(syn::Error::new(number.span(), format!("found no such time, {ALLOWED}"))),
        }
    }
}

/// The argument of `#[wcet(ns = n)]`, in nanoseconds.
pub(crate) fn declared(attributes: &[Attribute]) -> syn::Result<Option<u64>> {
    let Some(attribute) = one(attributes, "wcet")? else {
        return Ok(None);
    };
    attribute.parse_args::<Declared>().map(|declared| Some(declared.0))
}

/// The segment number of an await.
pub(crate) fn segment(attributes: &[Attribute]) -> Option<u16> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident(SEGMENT))?;
    attribute.parse_args::<syn::LitInt>().ok()?.base10_parse().ok()
}

/// The attributes of an expression.
pub(crate) fn of(expression: &Expr) -> &[Attribute] {
    match expression {
        Expr::Array(e) => &e.attrs,
        Expr::Assign(e) => &e.attrs,
        Expr::Async(e) => &e.attrs,
        Expr::Await(e) => &e.attrs,
        Expr::Binary(e) => &e.attrs,
        Expr::Block(e) => &e.attrs,
        Expr::Break(e) => &e.attrs,
        Expr::Call(e) => &e.attrs,
        Expr::Cast(e) => &e.attrs,
        Expr::Closure(e) => &e.attrs,
        Expr::Const(e) => &e.attrs,
        Expr::Continue(e) => &e.attrs,
        Expr::Field(e) => &e.attrs,
        Expr::ForLoop(e) => &e.attrs,
        Expr::Group(e) => &e.attrs,
        Expr::If(e) => &e.attrs,
        Expr::Index(e) => &e.attrs,
        Expr::Infer(e) => &e.attrs,
        Expr::Let(e) => &e.attrs,
        Expr::Lit(e) => &e.attrs,
        Expr::Loop(e) => &e.attrs,
        Expr::Macro(e) => &e.attrs,
        Expr::Match(e) => &e.attrs,
        Expr::MethodCall(e) => &e.attrs,
        Expr::Paren(e) => &e.attrs,
        Expr::Path(e) => &e.attrs,
        Expr::Range(e) => &e.attrs,
        Expr::RawAddr(e) => &e.attrs,
        Expr::Reference(e) => &e.attrs,
        Expr::Repeat(e) => &e.attrs,
        Expr::Return(e) => &e.attrs,
        Expr::Struct(e) => &e.attrs,
        Expr::Try(e) => &e.attrs,
        Expr::TryBlock(e) => &e.attrs,
        Expr::Tuple(e) => &e.attrs,
        Expr::Unary(e) => &e.attrs,
        Expr::Unsafe(e) => &e.attrs,
        Expr::While(e) => &e.attrs,
        Expr::Yield(e) => &e.attrs,
        _ => &[],
    }
}

/// The attributes of an expression statement. The parser puts them on its leftmost operand.
pub(crate) fn of_statement(expression: &Expr) -> &[Attribute] {
    let own = of(expression);
    if !own.is_empty() {
        return own;
    }
    match expression {
        Expr::Assign(e) => of_statement(&e.left),
        Expr::Binary(e) => of_statement(&e.left),
        Expr::Cast(e) => of_statement(&e.expr),
        _ => own,
    }
}
