//! Expressions without control flow of their own, and awaits.

use super::{Local, Lowering, Target};
use crate::attributes;
use crate::cost::Class;
use crate::flow::{Call, Kind};
use crate::table;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{BinOp, Expr, ExprAwait, UnOp};

impl Lowering<'_> {
    /// Lowers an expression.
    pub(super) fn expression(&mut self, expression: &Expr) {
        let own = attributes::of(expression);
        if let Some(ns) = self.declared_by(own) {
            return self.opaque(expression, ns, expression.span());
        }
        let is_loop = matches!(expression, Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_));
        if let Some(bound) = own.iter().find(|found| attributes::is(found, "bound"))
            && !is_loop
        {
            self.error(bound.span(), "`#[bound(n)]` is for a loop: found it on something else");
        }
        self.plain(expression);
    }

    fn plain(&mut self, expression: &Expr) {
        let span = expression.span();
        match expression {
            Expr::Lit(_) | Expr::Path(_) | Expr::Infer(_) | Expr::Const(_) => {}
            Expr::Paren(inner) => self.expression(&inner.expr),
            Expr::Group(inner) => self.expression(&inner.expr),
            Expr::Reference(inner) => self.expression(&inner.expr),
            Expr::RawAddr(inner) => self.expression(&inner.expr),
            Expr::Unsafe(inner) => self.block(&inner.block),
            Expr::Field(inner) => {
                self.expression(&inner.base);
                self.charge(Class::Load, 1, span);
            }
            Expr::Index(inner) => {
                self.expression(&inner.expr);
                self.expression(&inner.index);
                // The place, whether it is inside, and its value.
                self.charge(Class::Arithmetic, 1, span);
                self.charge(Class::Branch, 1, span);
                self.charge(Class::Load, 1, span);
            }
            Expr::Cast(inner) => {
                self.expression(&inner.expr);
                self.charge(Class::Arithmetic, 1, span);
            }
            Expr::Unary(inner) => {
                self.expression(&inner.expr);
                match inner.op {
                    UnOp::Deref(_) => self.charge(Class::Load, 1, span),
                    UnOp::Neg(_) if crate::count::constant(expression).is_none() => {
                        self.charge(Class::Arithmetic, 1, span);
                        // The smallest number has no opposite, so negation is checked.
                        self.charge(Class::Branch, 1, span);
                    }
                    UnOp::Not(_) => self.charge(Class::Bitwise, 1, span),
                    _ => self.charge(Class::Arithmetic, 1, span),
                }
            }
            Expr::Binary(inner) => self.binary(inner),
            Expr::Assign(inner) => {
                self.expression(&inner.right);
                self.expression(&inner.left);
                self.stored(&inner.left, span);
            }
            Expr::Range(inner) => {
                let ends = [&inner.start, &inner.end];
                ends.into_iter().flatten().for_each(|end| self.expression(end));
            }
            Expr::Tuple(inner) => self.made_of(inner.elems.iter(), span),
            Expr::Array(inner) => self.made_of(inner.elems.iter(), span),
            Expr::Struct(inner) => {
                self.made_of(inner.fields.iter().map(|field| &field.expr), span);
                if let Some(rest) = &inner.rest {
                    self.expression(rest);
                    self.charge(Class::Call, 1, span);
                }
            }
            Expr::Repeat(inner) => {
                self.expression(&inner.expr);
                match crate::count::constant(&inner.len).map(u32::try_from) {
                    Some(Ok(count)) => self.charge(Class::Store, count, span),
                    _ => self.error(
                        inner.len.span(),
                        "the length of this array is unknown here: write the number out, or \
                         give the time that filling it takes: `#[wcet(ns = N)]` before it",
                    ),
                }
            }
            Expr::Await(inner) => self.awaited(inner),
            Expr::Call(inner) => self.call(inner),
            Expr::MethodCall(inner) => self.method_call(inner),
            Expr::Closure(inner) => {
                self.closure(inner);
                self.charge(Class::Store, 1, span);
            }
            Expr::Macro(inner) => self.invocation(&inner.mac),
            Expr::Async(_) => self.error(
                span,
                "an async block runs where it is awaited, and that place is unknown here: await \
                 it at once (`async { ... }.await`), or write its body in the task",
            ),
            _ => self.jump(expression),
        }
    }

    fn binary(&mut self, inner: &syn::ExprBinary) {
        let span = inner.span();
        if matches!(inner.op, BinOp::And(_) | BinOp::Or(_)) {
            return self.value_of_condition(inner);
        }
        self.expression(&inner.left);
        self.expression(&inner.right);
        let class = match inner.op {
            BinOp::Mul(_) | BinOp::MulAssign(_) => Class::Multiply,
            BinOp::Div(_) | BinOp::DivAssign(_) | BinOp::Rem(_) | BinOp::RemAssign(_) => {
                Class::Divide
            }
            BinOp::BitAnd(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOr(_)
            | BinOp::BitOrAssign(_)
            | BinOp::BitXor(_)
            | BinOp::BitXorAssign(_)
            | BinOp::Shl(_)
            | BinOp::ShlAssign(_)
            | BinOp::Shr(_)
            | BinOp::ShrAssign(_) => Class::Bitwise,
            _ => Class::Arithmetic,
        };
        self.charge(class, 1, span);
        if is_checked(inner) {
            self.charge(Class::Branch, 1, span);
        }
        let assigns = matches!(
            inner.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::RemAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        );
        if assigns {
            if !is_name(&inner.left) {
                self.charge(Class::Load, 1, span);
            }
            self.stored(&inner.left, span);
        }
    }

    /// Stores a value: in a variable of the body, or through memory.
    fn stored(&mut self, place: &Expr, span: Span) {
        let class = if is_name(place) { Class::Bitwise } else { Class::Store };
        self.charge(class, 1, span);
    }

    /// A value with several parts, each stored.
    pub(super) fn made_of<'e>(&mut self, parts: impl Iterator<Item = &'e Expr>, span: Span) {
        for part in parts {
            self.expression(part);
            self.charge(Class::Store, 1, span);
        }
    }

    /// Skips the code under `#[wcet]`, except its exits.
    pub(super) fn opaque(&mut self, expression: &Expr, ns: u64, span: Span) {
        let ways = Ways::of(expression);
        if let Expr::Await(awaited) = expression
            && ways.awaits.len() == 1
        {
            // The split of the time between before and after the yield is unknown.
            self.declare(ns, span);
            let after = match stripped(&awaited.base) {
                Expr::MethodCall(call) if self.is_context(&call.receiver) => {
                    call.method.to_string()
                }
                _ => String::new(),
            };
            self.yielded(awaited, after);
            return self.declare(ns, span);
        }
        for at in ways.awaits {
            self.error(
                at,
                "a time covers code between two yields, and this code yields: put \
                 `#[wcet(ns = N)]` on the parts around it",
            );
        }
        for at in ways.jumps {
            self.error(
                at,
                "a time covers only code without jumps to other code: move this jump out of the \
                 statement with `#[wcet]`",
            );
        }
        self.declare(ns, span);
        if ways.fails {
            self.question_mark(span);
        }
    }

    fn awaited(&mut self, inner: &ExprAwait) {
        let base = stripped(&inner.base);
        match base {
            Expr::MethodCall(call) if self.pauses(call) => {
                self.service(call);
                self.yielded(inner, call.method.to_string());
            }
            Expr::Async(block) => {
                // Runs at once like a block, except that `return` ends only the block.
                let after = self.flow.block();
                self.exits.push(after);
                let targets = std::mem::take(&mut self.targets);
                self.block(&block.block);
                self.targets = targets;
                self.exits.pop();
                self.flow.edge(self.current, after, Kind::Next);
                self.at(after);
            }
            _ => {
                self.expression(base);
                let card = self.item.context.clone();
                let message = match card {
                    Some(card) => format!(
                        "this await is not of a method of `{card}`, and its future is \
                         unknown here: write that code in the task, put the parts between its \
                         yields into `#[bounded]` functions, or give the longest time that it \
                         runs between two yields: `#[wcet(ns = N)]` before the statement"
                    ),
                    None => "an await is allowed in a `#[task]` only".into(),
                };
                self.error(inner.await_token.span, message);
                self.yielded(inner, String::new());
            }
        }
    }

    /// The await itself: the segment ends, another begins.
    fn yielded(&mut self, inner: &ExprAwait, after: String) {
        let span = inner.await_token.span;
        if self.closure {
            return self
                .error(span, "an await in a closure is not the task's: write it in the body");
        }
        let Some(number) = attributes::segment(&inner.attrs).map(usize::from) else {
            return self.error(
                span,
                "an await belongs in the body of a `#[task]`, not in a macro's arguments and not in \
                 a `#[bounded]` function: bind its value to a name before",
            );
        };
        let entry = self.flow.block();
        self.flow.edge(self.current, entry, Kind::Yield(number));
        self.at(entry);
        self.charge(Class::Segment, 1, span);
        let segment = &mut self.flow.segments[number];
        segment.entry = entry;
        segment.wait = table::waits(&after);
        segment.after = after;
    }

    pub(super) fn question_mark(&mut self, span: Span) {
        self.charge(Class::Branch, 1, span);
        // The error is converted before it is returned.
        self.charge(Class::Call, 1, span);
        let test = self.split();
        let exit = self.exit();
        self.flow.edge(test, exit, Kind::Next);
    }

    /// Target of `return` and `?`.
    pub(super) fn exit(&self) -> usize {
        self.exits[self.exits.len() - 1]
    }

    /// A closure's own graph; making it does not run it.
    pub(super) fn closure(&mut self, inner: &syn::ExprClosure) -> Option<usize> {
        let span = inner.span();
        if let Some(asyncness) = &inner.asyncness {
            self.error(
                asyncness.span,
                "the place where an async closure runs is unknown: write it in the task",
            );
            return None;
        }
        let mut names = Vec::new();
        inner.inputs.iter().for_each(|input| super::names_in(input, &mut names));
        let mut locals = self.locals.clone();
        // Closures called inside another closure are not looked up across bodies.
        locals.iter_mut().for_each(|(_, local)| *local = Local::Value);
        locals.extend(names.into_iter().map(|name| (name.to_string(), Local::Value)));
        let mut lowering = Lowering::new(self.item, locals, span, true);
        lowering.expression(&inner.body);
        let flow = lowering.finish();
        self.flow.closures.push((span, flow));
        Some(self.flow.closures.len() - 1)
    }

    /// One run of a closure.
    pub(super) fn run_closure(&mut self, inner: &syn::ExprClosure) {
        if let Some(number) = self.closure(inner) {
            self.charge_call(Call::Closure(number), inner.span());
        }
    }

    pub(super) fn target(&mut self, target: Target, body: impl FnOnce(&mut Self)) {
        self.targets.push(target);
        body(self);
        self.targets.pop();
    }
}

/// Whether this is a variable's name; statics and constants are upper case.
fn is_name(place: &Expr) -> bool {
    match stripped(place) {
        Expr::Path(path) => path
            .path
            .get_ident()
            .is_some_and(|name| !name.to_string().starts_with(char::is_uppercase)),
        _ => false,
    }
}

/// Without parentheses.
pub(crate) fn stripped(expression: &Expr) -> &Expr {
    match expression {
        Expr::Paren(inner) if inner.attrs.is_empty() => stripped(&inner.expr),
        Expr::Group(inner) => stripped(&inner.expr),
        other => other,
    }
}

/// Exits of an expression that is not analysed.
#[derive(Default)]
struct Ways {
    awaits: Vec<Span>,
    jumps: Vec<Span>,
    fails: bool,
    loops: usize,
    labels: Vec<String>,
}

impl Ways {
    fn of(expression: &Expr) -> Self {
        let mut ways = Ways::default();
        syn::visit::Visit::visit_expr(&mut ways, expression);
        ways
    }

    fn inside(&mut self, label: Option<&syn::Label>, visit: impl FnOnce(&mut Self)) {
        let names = self.labels.len();
        self.labels.extend(label.map(|label| label.name.ident.to_string()));
        visit(self);
        self.labels.truncate(names);
    }

    fn jump(&mut self, label: Option<&syn::Lifetime>, span: Span) {
        let stays = match label {
            Some(label) => self.labels.contains(&label.ident.to_string()),
            None => self.loops != 0,
        };
        if !stays {
            self.jumps.push(span);
        }
    }
}

impl<'ast> syn::visit::Visit<'ast> for Ways {
    fn visit_expr_await(&mut self, inner: &'ast ExprAwait) {
        self.awaits.push(inner.await_token.span);
        syn::visit::visit_expr_await(self, inner);
    }

    fn visit_expr_return(&mut self, inner: &'ast syn::ExprReturn) {
        self.jumps.push(inner.return_token.span);
        syn::visit::visit_expr_return(self, inner);
    }

    fn visit_expr_try(&mut self, inner: &'ast syn::ExprTry) {
        self.fails = true;
        syn::visit::visit_expr_try(self, inner);
    }

    fn visit_expr_break(&mut self, inner: &'ast syn::ExprBreak) {
        self.jump(inner.label.as_ref(), inner.break_token.span);
        syn::visit::visit_expr_break(self, inner);
    }

    fn visit_expr_continue(&mut self, inner: &'ast syn::ExprContinue) {
        self.jump(inner.label.as_ref(), inner.continue_token.span);
    }

    fn visit_expr_loop(&mut self, inner: &'ast syn::ExprLoop) {
        self.loops += 1;
        self.inside(inner.label.as_ref(), |ways| syn::visit::visit_expr_loop(ways, inner));
        self.loops -= 1;
    }

    fn visit_expr_while(&mut self, inner: &'ast syn::ExprWhile) {
        self.loops += 1;
        self.inside(inner.label.as_ref(), |ways| syn::visit::visit_expr_while(ways, inner));
        self.loops -= 1;
    }

    fn visit_expr_for_loop(&mut self, inner: &'ast syn::ExprForLoop) {
        self.loops += 1;
        self.inside(inner.label.as_ref(), |ways| syn::visit::visit_expr_for_loop(ways, inner));
        self.loops -= 1;
    }

    fn visit_expr_block(&mut self, inner: &'ast syn::ExprBlock) {
        self.inside(inner.label.as_ref(), |ways| syn::visit::visit_expr_block(ways, inner));
    }

    // These keep their exits inside.
    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
    fn visit_expr_async(&mut self, _: &'ast syn::ExprAsync) {}
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

/// Whether an operation checks for overflow or division by zero, with a jump after the test. Bit
/// operations, comparisons, and shifts by less than every integer's width need no check.
fn is_checked(inner: &syn::ExprBinary) -> bool {
    match inner.op {
        BinOp::Shl(_) | BinOp::Shr(_) | BinOp::ShlAssign(_) | BinOp::ShrAssign(_) => {
            !crate::count::constant(&inner.right).is_some_and(|bits| (0..8).contains(&bits))
        }
        BinOp::Add(_)
        | BinOp::AddAssign(_)
        | BinOp::Sub(_)
        | BinOp::SubAssign(_)
        | BinOp::Mul(_)
        | BinOp::MulAssign(_)
        | BinOp::Div(_)
        | BinOp::DivAssign(_)
        | BinOp::Rem(_)
        | BinOp::RemAssign(_) => true,
        BinOp::BitAnd(_)
        | BinOp::BitAndAssign(_)
        | BinOp::BitOr(_)
        | BinOp::BitOrAssign(_)
        | BinOp::BitXor(_)
        | BinOp::BitXorAssign(_)
        | BinOp::Eq(_)
        | BinOp::Ne(_)
        | BinOp::Lt(_)
        | BinOp::Le(_)
        | BinOp::Gt(_)
        | BinOp::Ge(_) => false,
        // Operators of future versions of `syn`.
        _ => true,
    }
}
