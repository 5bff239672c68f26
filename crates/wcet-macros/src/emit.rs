//! From graph to source: the module next to the function, and the function itself.

use crate::attributes;
use crate::cost::Class;
use crate::flow::{Block, Call, Callee, Flow, Kind};
use crate::lower::line;
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Error, Expr, ExprAwait, Ident, ItemFn, Visibility, parse_quote};

/// Limit of items in one graph: indices are 16 bits wide.
const MOST: usize = 65_000;

/// The module that holds the graph.
pub(crate) fn module(
    visibility: &Visibility,
    name: &Ident,
    flow: &Flow,
    callees: &[Callee],
) -> syn::Result<TokenStream> {
    let graph = graph(&name.to_string(), name.span(), flow)?;
    let doc = format!("The control-flow graph of `{name}`, for bounds under a cost profile.");
    let (lookups, checks, recursion) = lookups(callees);
    // The compiler detects recursion as constants that need each other. Its message shows this name
    // and place, so both must help the user.
    let recursion = quote_spanned! {name.span()=>
        #[doc(hidden)]
        #[allow(dead_code)]
        pub const RECURSION_HAS_NO_BOUND_WRITE_A_LOOP: () = { #recursion };
    };
    Ok(quote! {
        #[doc = #doc]
        #[allow(unreachable_pub, missing_docs, unused_imports, clippy::all)]
        #visibility mod #name {
            use super::*;
            /// Its control-flow graph.
            pub static GRAPH: ::picnic_wcet::Graph = #graph;
            #[doc(hidden)]
            pub const COST: ::picnic_wcet::__private::Known = ::picnic_wcet::__private::Known;
            #recursion
            #lookups
            #checks
        }
    })
}

/// Replaces the module after errors, so that no further errors follow.
pub(crate) fn empty_module(visibility: &Visibility, name: &Ident) -> TokenStream {
    quote! {
        #[allow(unreachable_pub, missing_docs)]
        #visibility mod #name {
            pub static GRAPH: ::picnic_wcet::Graph = ::picnic_wcet::__private::NOTHING;
            #[doc(hidden)]
            pub const COST: ::picnic_wcet::__private::Known = ::picnic_wcet::__private::Known;
            #[doc(hidden)]
            pub const RECURSION_HAS_NO_BOUND_WRITE_A_LOOP: () = ();
        }
    }
}

/// Each called function is looked up by its path. If it has no module, the glob import supplies a
/// stand-in whose cost is unknown; a named import takes precedence, name space by name space.
fn lookups(callees: &[Callee]) -> (TokenStream, TokenStream, TokenStream) {
    let (mut imports, mut missing) = (TokenStream::new(), TokenStream::new());
    let (mut checks, mut recursion) = (TokenStream::new(), TokenStream::new());
    for (place, callee) in callees.iter().enumerate() {
        let name = format_ident!("callee_{place}");
        let path = from_below(&callee.path);
        let span = callee.path.span();
        imports.extend(quote!(pub(super) use #path as #name;));
        missing.extend(quote! {
            pub mod #name {
                pub static GRAPH: ::picnic_wcet::Graph = ::picnic_wcet::__private::NOTHING;
                pub const COST: ::picnic_wcet::__private::Unknown =
                    ::picnic_wcet::__private::Unknown;
                pub const RECURSION_HAS_NO_BOUND_WRITE_A_LOOP: () = ();
            }
        });
        checks.extend(quote_spanned! {span=>
            const _: () = ::picnic_wcet::__private::cost_is_known(&callees::#name::COST);
        });
        recursion.extend(
            quote_spanned!(span=> let () = callees::#name::RECURSION_HAS_NO_BOUND_WRITE_A_LOOP;),
        );
    }
    if callees.is_empty() {
        return Default::default();
    }
    let module = quote! {
        mod callees {
            use super::*;
            pub(super) use self::missing::*;
            #imports
            pub(super) mod missing { #missing }
        }
    };
    (module, checks, recursion)
}

/// A path as seen from a module two levels below.
fn from_below(path: &syn::Path) -> TokenStream {
    let segments: Vec<_> = path.segments.iter().map(|segment| &segment.ident).collect();
    let first = segments.first().map(ToString::to_string).unwrap_or_default();
    let rest = &segments[1..];
    match first.as_str() {
        _ if path.leading_colon.is_some() => quote!(::#(#segments)::*),
        "crate" => quote!(#(#segments)::*),
        "self" => quote!(super::super::#(#rest)::*),
        "super" => quote!(super::super::#(#segments)::*),
        _ if rest.is_empty() => quote!(super::super::#(#segments)::*),
        _ => quote!(#(#segments)::*),
    }
}

fn graph(name: &str, span: Span, flow: &Flow) -> syn::Result<TokenStream> {
    for (found, what) in [
        (flow.blocks.len(), "blocks"),
        (flow.edges.len(), "edges"),
        (flow.segments.len(), "awaits"),
    ] {
        if found > MOST {
            let message = format!("found {found} {what} in one function, allowed: {MOST}");
            return Err(Error::new(span, message));
        }
    }
    let closures = flow.closures.iter().map(|(span, flow)| {
        let name = match line(Some(*span)) {
            Some(line) => format!("closure at line {line}"),
            None => "closure".into(),
        };
        graph(&name, *span, flow)
    });
    let closures: Vec<_> = closures.collect::<syn::Result<_>>()?;
    let blocks = flow.blocks.iter().map(|found| block(found, &closures));
    let edges = flow.edges.iter().map(|edge| {
        let (from, to) = (edge.from as u16, edge.to as u16);
        let kind = match edge.kind {
            Kind::Next => quote!(Next),
            Kind::Back(number) => {
                let number = number as u16;
                quote!(Back(#number))
            }
            Kind::Yield(number) => {
                let number = number as u16;
                quote!(Yield(#number))
            }
        };
        quote!(::picnic_wcet::Edge {
            from: #from, to: #to, kind: ::picnic_wcet::EdgeKind::#kind
        })
    });
    let loops = flow.loops.iter().map(|around| {
        let line = line(Some(around.span)).unwrap_or(0);
        let header = around.header as u16;
        let bound = optional(around.bound.map(|bound| quote!(#bound)));
        let parent = optional(around.parent.map(|parent| {
            let parent = parent as u16;
            quote!(#parent)
        }));
        let head = around.head.iter().map(|&block| block as u16);
        let body = around.body.iter().map(|&block| block as u16);
        quote!(::picnic_wcet::Loop {
            line: #line, header: #header, bound: #bound, parent: #parent,
            head: &[#(#head),*], body: &[#(#body),*],
        })
    });
    let segments = flow.segments.iter().map(|segment| {
        let line = line(Some(segment.span)).unwrap_or(0);
        let entry = segment.entry as u16;
        let (after, wait) = (&segment.after, segment.wait);
        quote!(::picnic_wcet::Segment { line: #line, entry: #entry, after: #after, wait: #wait })
    });
    let line = line(Some(span)).unwrap_or(0);
    Ok(quote! {
        ::picnic_wcet::Graph {
            name: #name,
            file: ::core::file!(),
            line: #line,
            blocks: &[#(#blocks),*],
            edges: &[#(#edges),*],
            loops: &[#(#loops),*],
            segments: &[#(#segments),*],
        }
    })
}

fn optional(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

fn block(block: &Block, closures: &[TokenStream]) -> TokenStream {
    let line = line(block.span).unwrap_or(0);
    let declared_ns = block.declared_ns;
    let counts = Class::ALL.iter().zip(block.counts.0).filter(|(_, count)| *count != 0);
    let counts = counts.map(|(class, count)| {
        let class = class.tokens();
        quote!((::picnic_wcet::Class::#class, #count))
    });
    let calls = block.calls.iter().map(|call| match *call {
        Call::Path(place) => {
            let name = format_ident!("callee_{place}");
            quote!(&callees::#name::GRAPH)
        }
        Call::Closure(number) => {
            let graph = closures.get(number);
            quote!(&#graph)
        }
    });
    quote!(::picnic_wcet::Block {
        line: #line,
        counts: ::picnic_wcet::Counts::of(&[#(#counts),*]),
        declared_ns: #declared_ns,
        calls: &[#(#calls),*],
    })
}

// ---------------------------------------------------------------- the function

/// Numbers the awaits from 1, in evaluation order.
pub(crate) fn number_awaits(function: &mut ItemFn) {
    struct Numbers(u16);
    impl VisitMut for Numbers {
        fn visit_expr_await_mut(&mut self, inner: &mut ExprAwait) {
            visit_mut::visit_expr_await_mut(self, inner);
            // An async block that is awaited at once is part of the body.
            if matches!(crate::lower::peeled(&inner.base), Expr::Async(_)) {
                return;
            }
            self.0 = self.0.saturating_add(1);
            let number = proc_macro2::Literal::u16_unsuffixed(self.0);
            inner.attrs.push(parse_quote!(#[__picnic_segment(#number)]));
        }
        fn visit_item_mut(&mut self, _: &mut syn::Item) {}
    }
    Numbers(0).visit_block_mut(&mut function.block);
}

/// Removes our attributes; before each await, reports the next segment to the context.
pub(crate) fn instrument(function: &mut ItemFn, context: Option<&Ident>) {
    Instrument { context }.visit_block_mut(&mut function.block);
    strip(&mut function.attrs);
}

struct Instrument<'a> {
    context: Option<&'a Ident>,
}

impl VisitMut for Instrument<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        visit_mut::visit_expr_mut(self, expression);
        let Expr::Await(inner) = &mut *expression else {
            return;
        };
        let number = attributes::segment(&inner.attrs);
        inner.attrs.retain(|attribute| !attribute.path().is_ident(attributes::SEGMENT));
        let (Some(number), Some(card)) = (number, self.context) else {
            return;
        };
        let number = proc_macro2::Literal::u16_unsuffixed(number);
        let base = &inner.base;
        let span = inner.await_token.span;
        *expression = if awaits_inside(base) {
            // The inner await yields first, so its segment is reported first.
            let future = Ident::new("future", Span::mixed_site());
            parse_quote! {
                match #base {
                    #future => { #card.next_segment(#number); #future.await }
                }
            }
        } else {
            let awaited = quote_spanned!(span=> #base.await);
            parse_quote!({ #card.next_segment(#number); #awaited })
        };
    }

    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        strip(attributes);
    }

    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

fn strip(found: &mut Vec<Attribute>) {
    found.retain(|found| !attributes::is(found, "bound") && !attributes::is(found, "wcet"));
}

fn awaits_inside(expression: &Expr) -> bool {
    struct Awaits(bool);
    impl<'ast> syn::visit::Visit<'ast> for Awaits {
        fn visit_expr_await(&mut self, _: &'ast ExprAwait) {
            self.0 = true;
        }
    }
    let mut awaits = Awaits(false);
    syn::visit::Visit::visit_expr(&mut awaits, expression);
    awaits.0
}
