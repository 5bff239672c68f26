//! Calls: to known functions and to `#[bounded]` functions, no others.

use super::expr::stripped;
use super::{Local, Lowering};
use crate::cost::Class;
use crate::flow::{Call, Callee, Kind};
use crate::table::{self, Charge};
use proc_macro2::Span;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, ExprMethodCall, Macro, Token};

impl Lowering<'_> {
    pub(super) fn call(&mut self, inner: &ExprCall) {
        let span = inner.span();
        match stripped(&inner.func) {
            Expr::Path(function) if function.qself.is_none() => {
                self.arguments(&inner.args);
                self.called(&function.path, inner.args.len(), span);
            }
            Expr::Closure(closure) => {
                self.arguments(&inner.args);
                self.run_closure(closure);
            }
            _ => {
                self.arguments(&inner.args);
                self.unknown(span, "the function called here is unknown");
            }
        }
    }

    /// A call of a function named by path.
    fn called(&mut self, path: &syn::Path, arguments: usize, span: Span) {
        let Some(last) = path.segments.last() else { return };
        let name = last.ident.to_string();
        let owner = path.segments.iter().rev().nth(1).map(|owner| owner.ident.to_string());
        let local = if owner.is_none() { self.local(&name) } else { None };
        match local {
            Some(Local::Closure(number)) => return self.charge_call(Call::Closure(number), span),
            Some(Local::Value) => {
                let what = format!("`{name}` is a value, and the function it calls is unknown");
                return self.unknown(span, &what);
            }
            None => {}
        }
        if name.starts_with(char::is_uppercase) {
            // A tuple struct or a variant: its fields are stored.
            return self.charge(Class::Store, u32::try_from(arguments).unwrap_or(u32::MAX), span);
        }
        if let Some(owner) = &owner
            && let Some(charge) = table::function(owner, &name, arguments)
        {
            return self.charged(charge, span);
        }
        let own = path.segments.len() == 1
            || path.segments.len() == 2 && owner.as_deref() == Some("self");
        if own && name == self.item.name {
            return self.error(
                span,
                format!(
                    "`{name}` calls itself, and recursion has no bound: write it as a loop with \
                     `#[bound(n)]`"
                ),
            );
        }
        let primitive = owner.as_deref().is_some_and(|owner| {
            owner.starts_with(char::is_uppercase) || table::function(owner, "from", 1).is_some()
        });
        if primitive {
            let what = format!("the cost of `{}` is not known", shown(path));
            return self.unknown(span, &what);
        }
        if owner.is_none() && self.item.inner_names.contains(&name) {
            return self.error(
                span,
                format!(
                    "`{name}` is defined or imported inside the body, where its graph cannot be \
                     looked up: put that before the function, with `#[bounded]` on the function"
                ),
            );
        }
        let place = self.item.callees.len();
        self.item.callees.push(Callee { path: path.clone() });
        self.charge_call(Call::Path(place), span);
    }

    pub(super) fn method_call(&mut self, inner: &ExprMethodCall) {
        let span = inner.method.span();
        let name = inner.method.to_string();
        let known = table::method(&name, inner.args.len()).is_some() || table::calls_once(&name);
        if self.is_context(&inner.receiver) || self.is_service(&inner.receiver) && !known {
            return self.service(inner);
        }
        self.expression(&inner.receiver);
        if table::calls_once(&name) {
            for argument in &inner.args {
                self.run_once(argument);
            }
            return self.charge(Class::Call, 1, span);
        }
        self.arguments(&inner.args);
        match table::method(&name, inner.args.len()) {
            Some(charge) => self.charged(charge, span),
            None => self.unknown(span, &format!("the cost of the method `{name}` is not known")),
        }
    }

    /// A method of the task context, or of a value that such a method returned.
    pub(super) fn service(&mut self, inner: &ExprMethodCall) {
        let span = inner.method.span();
        if !self.is_context(&inner.receiver) {
            self.expression(&inner.receiver);
        }
        for argument in &inner.args {
            self.argument_of_service(argument);
        }
        self.charge(Class::Service, 1, span);
        if inner.method == "work" && self.is_context(&inner.receiver) {
            // Its argument is its time.
            match inner.args.first().and_then(crate::count::constant).map(u64::try_from) {
                Some(Ok(ns)) => self.declare(ns, span),
                _ => self.error(
                    span,
                    "the time of this call is its argument: write the number out, or give the \
                     longest time, `#[wcet(ns = N)]` before the statement",
                ),
            }
        }
    }

    /// Whether the value comes from the task context through method calls only.
    pub(super) fn is_service(&self, expression: &Expr) -> bool {
        match stripped(expression) {
            Expr::MethodCall(call) => {
                self.is_context(&call.receiver) || self.is_service(&call.receiver)
            }
            _ => false,
        }
    }

    /// Whether awaiting this value pauses the task at least once: the task context promises this of
    /// its own futures and of its mailboxes' futures.
    pub(super) fn pauses(&self, call: &ExprMethodCall) -> bool {
        self.is_context(&call.receiver)
            || self.is_service(&call.receiver)
            || call.method == "receive" && matches!(stripped(&call.receiver), Expr::Path(_))
    }

    fn charged(&mut self, (class, count): Charge, span: Span) {
        self.charge(class, count, span);
        if class != Class::Call {
            self.charge(Class::Call, 1, span);
        }
    }

    fn arguments(&mut self, arguments: &Punctuated<Expr, Token![,]>) {
        for argument in arguments {
            if let Expr::Closure(closure) = stripped(argument) {
                self.error(
                    closure.span(),
                    "the number of calls of this closure is unknown here: write a loop or a \
                     match instead, or give the time of all of it, `#[wcet(ns = N)]` before the \
                     statement",
                );
                continue;
            }
            self.expression(argument);
        }
    }

    /// A callback given to the card: the task does not run it.
    pub(super) fn argument_of_service(&mut self, argument: &Expr) {
        match stripped(argument) {
            Expr::Closure(_) => self.charge(Class::Store, 1, argument.span()),
            _ => self.expression(argument),
        }
    }

    /// An argument of a method that calls it at once, if it is callable.
    fn run_once(&mut self, argument: &Expr) {
        match stripped(argument) {
            Expr::Closure(closure) => self.run_closure(closure),
            Expr::Path(path) if path.qself.is_none() => {
                let name = path.path.get_ident().map(ToString::to_string);
                match name.as_deref().and_then(|name| self.local(name)) {
                    // A default value or an outside closure: `map_or` takes both.
                    Some(Local::Value) => self.unknown(
                        path.span(),
                        "this may be a value or a function, which is unknown here",
                    ),
                    _ if is_constant(&path.path) => {}
                    _ => self.called(&path.path, 1, path.span()),
                }
            }
            _ => self.expression(argument),
        }
    }

    fn unknown(&mut self, span: Span, what: &str) {
        self.error(
            span,
            format!(
                "{what}: move it into a function of your own with `#[bounded]`, or give its time, \
                 `#[wcet(ns = N)]` before the statement"
            ),
        );
    }

    // ------------------------------------------------------------ macros

    pub(super) fn invocation(&mut self, invocation: &Macro) {
        let span = invocation.span();
        let name = invocation.path.segments.last().map(|last| last.ident.to_string());
        match name.as_deref() {
            Some("panic" | "unreachable" | "todo" | "unimplemented") => {
                // The task is killed; the card pays for that, not a segment.
                self.leave(self.exits[0], Kind::Next);
            }
            Some("assert" | "debug_assert") => self.assertion(invocation, 1),
            Some("assert_eq" | "assert_ne" | "debug_assert_eq" | "debug_assert_ne") => {
                self.assertion(invocation, 2);
            }
            Some("matches") => match syn::parse2::<Matches>(invocation.tokens.clone()) {
                Ok(matches) => self.expression(&matches.0),
                Err(error) => self.item.errors.push(error),
            },
            _ => {
                let name = name.unwrap_or_default();
                self.error(
                    span,
                    format!(
                        "the code that `{name}!` expands to is unknown here: give its time, \
                         `#[wcet(ns = N)]` before the statement, or move it into a function with \
                         `#[wcet(ns = N)]`"
                    ),
                );
            }
        }
    }

    /// Evaluates the first arguments; the message is evaluated only if it kills the task.
    fn assertion(&mut self, invocation: &Macro, compared: usize) {
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        match parser.parse2(invocation.tokens.clone()) {
            Ok(arguments) => {
                for argument in arguments.iter().take(compared) {
                    self.expression(argument);
                }
                self.charge(Class::Arithmetic, 1, invocation.span());
                self.charge(Class::Branch, 1, invocation.span());
            }
            Err(error) => self.item.errors.push(error),
        }
    }
}

/// `matches!(value, pattern)` as the match that it is.
struct Matches(Expr);

impl syn::parse::Parse for Matches {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<Self> {
        let value: Expr = input.parse()?;
        input.parse::<Token![,]>()?;
        let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
        let guard = if input.peek(Token![if]) {
            input.parse::<Token![if]>()?;
            Some(input.parse::<Expr>()?)
        } else {
            None
        };
        input.parse::<Option<Token![,]>>()?;
        let guard = guard.map(|guard| quote::quote!(if #guard));
        Ok(Matches(syn::parse_quote!(match #value { #pattern #guard => true, _ => false })))
    }
}

/// Whether the name has the form of a constant or variant.
fn is_constant(path: &syn::Path) -> bool {
    let last = path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default();
    last.starts_with(char::is_uppercase)
}

pub(super) fn shown(path: &syn::Path) -> String {
    let parts: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    parts.join("::")
}
