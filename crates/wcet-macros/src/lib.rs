//! The attributes `#[task]`, `#[bounded]` and `#[wcet]`; see `picnic-wcet`.
//!
//! Each puts a module of the function's name next to the function, with the function's control-flow
//! graph in it. The body stays as written; in a task, one statement before each await reports the
//! next segment.
//!
//! Guarantees: code that the graph cannot model is refused. A loop that may run a round without
//! yielding has a bound, or the function does not compile.
//!
//! Source: NICOS 4.6, "Algorithm Overview".

mod attributes;
mod cost;
mod count;
mod emit;
mod flow;
mod lower;
mod table;

use lower::Item;
use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemFn, Pat, parse_macro_input};

/// Makes an `async fn` a task, whose segments have bounds under a cost profile.
///
/// The first parameter is the task's context; only its methods may be awaited. A loop yields on
/// every path or has a number of rounds: `#[bound(n)]`, or literals (`for i in 0..16`). Calls go to
/// known methods of `core` or to functions with `#[bounded]` or `#[wcet(ns = N)]`, or are in a
/// statement with `#[wcet(ns = N)]`. The graph is `NAME::GRAPH`.
#[proc_macro_attribute]
pub fn task(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    expand(Kind::Task, arguments.into(), function).into()
}

/// Gives a function without yields a graph, so that tasks and other such functions may call it.
#[proc_macro_attribute]
pub fn bounded(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    expand(Kind::Bounded, arguments.into(), function).into()
}

/// Gives a function a time without analysing it: `#[wcet(ns = 300)]`. In a task, the same on a
/// loop, a statement or an expression.
#[proc_macro_attribute]
pub fn wcet(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as attributes::Declared);
    let function = match syn::parse::<ItemFn>(function) {
        Ok(function) => function,
        Err(error) => {
            let message = "`#[wcet(ns = N)]` is for a function, or for code inside a `#[task]` or \
                           `#[bounded]` function";
            return Error::new(error.span(), message).into_compile_error().into();
        }
    };
    expand(Kind::Declared(arguments.0), Tokens::new(), function).into()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Task,
    Bounded,
    /// With a declared time, in nanoseconds.
    Declared(u64),
}

fn expand(kind: Kind, arguments: Tokens, mut function: ItemFn) -> Tokens {
    let (visibility, name) = (function.vis.clone(), function.sig.ident.clone());
    let module = analyse(kind, &arguments, &mut function);
    let context = module.as_ref().ok().and_then(|(_, context)| context.clone());
    emit::instrument(&mut function, context.as_ref());
    match module {
        Ok((module, _)) => quote!(#function #module),
        Err(errors) => {
            let errors = errors.into_iter().map(Error::into_compile_error);
            // A method cannot have a module next to it.
            let method = function.sig.receiver().is_some();
            let module = (!method).then(|| emit::empty_module(&visibility, &name));
            quote!(#(#errors)* #function #module)
        }
    }
}

type Errors = Vec<Error>;

fn analyse(
    kind: Kind,
    arguments: &Tokens,
    function: &mut ItemFn,
) -> Result<(Tokens, Option<Ident>), Errors> {
    if !arguments.is_empty() {
        let found = arguments.to_string();
        let message = format!("found `{found}`, allowed: no arguments");
        return Err(vec![Error::new(arguments.span(), message)]);
    }
    let (context, parameters) = signature(kind, function).map_err(|error| vec![error])?;
    let name = &function.sig.ident;
    let name_span = name.span();
    let mut item = Item { name: name.to_string(), context: context.clone(), ..Item::default() };
    let flow = match kind {
        Kind::Declared(ns) => lower::declared(ns, name_span),
        _ => {
            emit::number_awaits(function);
            lower::body(&mut item, &parameters, &function.block, name_span)
        }
    };
    if !item.errors.is_empty() {
        return Err(item.errors);
    }
    let module = emit::module(&function.vis, &function.sig.ident, &flow, &item.callees);
    module.map(|module| (module, context)).map_err(|error| vec![error])
}

/// The context's name, if it is a task, and the names of all parameters.
fn signature(kind: Kind, function: &ItemFn) -> syn::Result<(Option<Ident>, Vec<String>)> {
    let signature = &function.sig;
    let name = &signature.ident;
    match (kind, &signature.asyncness) {
        (Kind::Task, None) => {
            return Err(Error::new(
                signature.fn_token.span,
                format!(
                    "a task is an async function: write `async fn {name}(card: ...)`; a function \
                     that tasks call, without yields, is `#[bounded]`"
                ),
            ));
        }
        (Kind::Bounded | Kind::Declared(_), Some(found)) => {
            return Err(Error::new(
                found.span,
                "an async function yields, and its segments are a task's: write `#[task]`, or take \
                 `async` away",
            ));
        }
        _ => {}
    }
    let mut parameters = Vec::new();
    for parameter in &signature.inputs {
        match parameter {
            FnArg::Receiver(found) => {
                return Err(Error::new(
                    found.span(),
                    "a method's graph cannot be looked up: write a function that takes `self` as a \
                     parameter",
                ));
            }
            FnArg::Typed(found) => lower::names_in(&found.pat, &mut parameters),
        }
    }
    let names = parameters.iter().map(ToString::to_string).collect();
    if kind != Kind::Task {
        return Ok((None, names));
    }
    let message = format!(
        "a task's first parameter is its context, a plain name: write `async fn {name}(card: ...)`"
    );
    match signature.inputs.first() {
        Some(FnArg::Typed(first)) => match &*first.pat {
            Pat::Ident(found) if found.subpat.is_none() => Ok((Some(found.ident.clone()), names)),
            other => Err(Error::new(other.span(), message)),
        },
        _ => Err(Error::new(signature.paren_token.span.join(), message)),
    }
}
